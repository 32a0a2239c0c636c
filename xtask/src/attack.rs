//! `cargo xtask attack`: attacks a cluster as one tenant, and measures what two other tenants notice.
//!
//! Every attack runs alone, then all run at once. The attackers have another address and another namespace than the
//! honest tenants, as they would have behind no proxy.

mod gateway;
mod honest;
mod kinds;
mod nodes;
mod usage;
mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::run::{self, Failure};
use honest::{Call, Live, Seen};
use kinds::{ATTACKS, Attack, Target};
use nodes::Nodes;
use usage::Usage;

/// Seconds of each attack by default.
pub(crate) const SECONDS_DEFAULT: u64 = 10;
/// Longest attack: one day.
pub(crate) const SECONDS_MAX: u64 = 24 * 60 * 60;
/// Pause between two attacks, and the longest one: until a node answers quickly again.
const RECOVERY: Duration = Duration::from_secs(2);
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The time of a quick answer.
const QUICK: Duration = Duration::from_millis(100);
/// Time between two looks at the memory of the nodes.
const SAMPLE: Duration = Duration::from_millis(250);
/// Longest run without an attack, which only shows what is usual.
const BASELINE_MAX: Duration = Duration::from_secs(10);
/// Time between two lines about a long run.
const PROGRESS: Duration = Duration::from_secs(60);
/// Time for the limits that the attack `lists` lists.
const PREPARATION_MAX: Duration = Duration::from_secs(120);
/// The p99 of an honest reserve beside any one attack.
const P99_MAX: Duration = Duration::from_millis(50);
/// The honest tenants.
const TENANTS: [&str; 2] = ["blue", "green"];

/// The options of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The server to attack; a release build of this tree if absent.
    pub(crate) binary: Option<PathBuf>,
    pub(crate) seconds: u64,
    pub(crate) nodes: usize,
    /// Whether a gateway is attacked, and not its server.
    pub(crate) gateway: bool,
    /// One attack, or `all` at once; every one of them and then all if absent.
    pub(crate) only: Option<String>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Failure> {
        let mut options = Options { binary: None, seconds: SECONDS_DEFAULT, nodes: 1, gateway: false, only: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            if *flag == "--gateway" {
                options.gateway = true;
                continue;
            }
            let value = args.next().copied().unwrap_or_default();
            let refuse = |allowed: &str| Err(Failure::Usage(format!("{flag}: found {value:?}, allowed {allowed}")));
            match *flag {
                "--binary" if !value.is_empty() => options.binary = Some(value.into()),
                "--seconds" => match value.parse() {
                    Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => options.seconds = seconds,
                    _ => return refuse(&format!("are 1 to {SECONDS_MAX}")),
                },
                "--nodes" => match value {
                    "1" => options.nodes = 1,
                    "3" => options.nodes = 3,
                    _ => return refuse("are 1 and 3"),
                },
                "--only" if !value.is_empty() => options.only = Some(value.to_owned()),
                _ => return refuse("are --binary PATH, --seconds N, --nodes 1|3, --gateway and --only ATTACK"),
            }
        }
        let names: Vec<&str> = options.attacks().iter().map(|attack| attack.name).chain(["all"]).collect();
        match &options.only {
            Some(only) if !names.contains(&only.as_str()) => {
                Err(Failure::Usage(format!("--only: found {only:?}, allowed are {}", names.join(", "))))
            }
            _ => Ok(options),
        }
    }

    /// The attacks on a server or on a gateway.
    fn attacks(&self) -> &'static [Attack] {
        if self.gateway { &gateway::ATTACKS } else { &ATTACKS }
    }

    /// The runs: their name and their attacks.
    fn runs(&self) -> Vec<(&'static str, Vec<&'static Attack>)> {
        let attacks = self.attacks();
        let single = attacks.iter().map(|attack| (attack.name, vec![attack]));
        let every = [("none", Vec::new())].into_iter().chain(single).chain([("all", attacks.iter().collect())]);
        every.filter(|(name, _)| *name == "none" || self.only.as_ref().is_none_or(|only| only == name)).collect()
    }
}

/// The result of one run.
struct Row {
    name: &'static str,
    seen: Seen,
    attacks: u64,
    usage: Usage,
    took: Duration,
}

/// The parts of a run that stay the same.
struct Stage {
    nodes: Nodes,
    /// The attacker's key, and those of the tenants.
    red: String,
    tenants: Vec<String>,
    /// One call of a tenant, and its path.
    call: Call,
    path: &'static str,
}

pub(crate) fn attack(options: &Options) -> Result<(), Failure> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            run::run(&mut run::command("cargo", "build --release --locked --bin earmark"))?;
            run::root().join("target/release/earmark")
        }
    };
    println!("attacking {} with {} node(s), {} s each", binary.display(), options.nodes, options.seconds);
    let mut stage = Stage::prepare(&binary, options)?;
    let result = stage.run_all(options);
    stage.nodes.keeps_logs = result.is_err();
    result
}

impl Stage {
    fn prepare(binary: &std::path::Path, options: &Options) -> Result<Stage, Failure> {
        let mut nodes = Nodes::start(binary, options.nodes)?;
        let red = nodes.key("red")?;
        let tenants = TENANTS.map(|tenant| nodes.key(tenant)).into_iter().collect::<Result<Vec<_>, _>>()?;
        for tenant in &tenants {
            nodes.ask_as(tenant, "PUT", "/v1/admin/limits", honest::LIMIT)?;
        }
        let full = r#"{"key":"full","kind":"rolling","capacity":1,"window_seconds":60}"#;
        nodes.ask_as(&red, "PUT", "/v1/admin/limits", full)?;
        if options.gateway {
            nodes.ask_as(&red, "PUT", "/v1/admin/limits", honest::LIMIT)?;
            for namespace in TENANTS.into_iter().chain(["red"]) {
                nodes.ask("PUT", &format!("/v1/admin/policy?namespace={namespace}"), gateway::POLICY)?;
            }
            nodes.start_gateway(binary)?;
            return Ok(Stage { nodes, red, tenants, call: gateway::call, path: gateway::CHAT });
        }
        let stage = Stage { nodes, red, tenants, call: honest::reserve_and_complete, path: "/v1/reserve" };
        if options.runs().iter().any(|(_, attacks)| attacks.iter().any(|attack| attack.name == "lists")) {
            let target = stage.target(u64::MAX);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let start = Instant::now();
                    while start.elapsed() < PREPARATION_MAX && !target.is_over.load(Ordering::Relaxed) {
                        sleep(SAMPLE);
                    }
                    target.is_over.store(true, Ordering::Relaxed);
                });
                kinds::prepare_lists(&target);
            });
        }
        Ok(stage)
    }

    fn run_all(&mut self, options: &Options) -> Result<(), Failure> {
        let mut rows = Vec::new();
        for (number, (name, attacks)) in options.runs().into_iter().enumerate() {
            let time = Duration::from_secs(options.seconds);
            let time = if attacks.is_empty() { time.min(BASELINE_MAX) } else { time };
            let row = self.run(number as u64, name, &attacks, time);
            if rows.is_empty() {
                println!("{HEADER}");
            }
            println!("{}", line(&row));
            row.seen.failures.iter().for_each(|failure| println!("  {failure}"));
            rows.push(row);
            if let Some(place) = self.nodes.ended() {
                return Err(Failure::Server(format!("ended during the attack {name}: node {}", place + 1)));
            }
            self.recover();
        }
        self.check_tables()?;
        verdict(rows)
    }

    fn target(&self, run: u64) -> Target {
        Target {
            addresses: self.nodes.attacked(),
            key: self.red.clone(),
            run,
            is_over: AtomicBool::new(false),
            count: AtomicU64::new(0),
            path: self.path,
            breach: OnceLock::new(),
        }
    }

    fn run(&self, number: u64, name: &'static str, attacks: &[&Attack], time: Duration) -> Row {
        let (target, addresses, live) = (self.target(number), self.nodes.honest(), Live::new());
        let (mut seen, mut usage, start) = (Seen::default(), Usage::default(), Instant::now());
        let mut shown = Duration::ZERO;
        thread::scope(|scope| {
            attacks.iter().for_each(|attack| (attack.start)(scope, &target));
            let tenants = self.tenants.iter();
            let callers: Vec<_> =
                tenants.flat_map(|key| honest::start(scope, &addresses, key, (&live, self.call))).collect();
            while start.elapsed() < time {
                usage.look(start.elapsed(), &self.nodes);
                if start.elapsed() >= shown + PROGRESS {
                    shown += PROGRESS;
                    println!("{}", progress(start.elapsed(), &live, &usage));
                }
                sleep(SAMPLE);
            }
            live.is_over.store(true, Ordering::Relaxed);
            callers.into_iter().filter_map(|caller| caller.join().ok()).for_each(|one| seen.add(one));
            target.is_over.store(true, Ordering::Relaxed);
        });
        usage.look_at_disk(start.elapsed(), &self.nodes);
        seen.failed += target.breach.get().into_iter().count();
        seen.failures.extend(target.breach.get().cloned());
        let attacks = target.count.load(Ordering::Relaxed);
        Row { name, seen, attacks, usage, took: time }
    }

    /// Waits until the attack before does not slow the next one.
    fn recover(&self) {
        let start = Instant::now();
        loop {
            sleep(RECOVERY);
            let asked = Instant::now();
            let is_quick = self.nodes.ask("GET", "/v1/admin/keys", "").is_ok() && asked.elapsed() < QUICK;
            if is_quick || start.elapsed() > RECOVERY_MAX {
                return;
            }
        }
    }

    /// Checks that the other tenants can still create a limit, a vault and a client.
    fn check_tables(&self) -> Result<(), Failure> {
        for (tenant, key) in TENANTS.iter().zip(&self.tenants) {
            let limit = r#"{"key":"after","kind":"rolling","capacity":1,"window_seconds":60}"#;
            self.nodes.ask_as(key, "PUT", "/v1/admin/limits", limit)?;
            let write = format!(
                r#"{{"namespace":"{tenant}","client_id":"after","sequence":1,"operations":[{{"open_vault":{{"vault":"after"}}}}]}}"#
            );
            self.nodes.ask_as(key, "POST", "/v1/write", &write)?;
        }
        println!("afterwards both tenants created a limit, a vault and a client");
        Ok(())
    }
}

/// A line about a run that is under way.
fn progress(elapsed: Duration, live: &Live, usage: &Usage) -> String {
    format!(
        "  after {} min: {} reserves, {} failed requests, {} MiB memory, {} MiB disk",
        elapsed.as_secs() / 60,
        live.reserves.load(Ordering::Relaxed),
        live.failed.load(Ordering::Relaxed),
        usage.memory() >> 20,
        usage.disk() >> 20,
    )
}

const HEADER: &str = "\
attack     reserves/s       p50       p99   longest   failed   attacks/s   memory     disk";

fn line(row: &Row) -> String {
    let mut seen = Seen { reserves_us: row.seen.reserves_us.clone(), ..Seen::default() };
    let per_second = |count: f64| count / row.took.as_secs_f64();
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    format!(
        "{:<9} {:>11.0} {:>9} {:>9} {:>9} {:>8} {:>11.0} {:>8} {:>8}",
        row.name,
        per_second(seen.reserves_us.len() as f64),
        ms(seen.quantile(0.5)),
        ms(seen.quantile(0.99)),
        ms(seen.quantile(1.0)),
        row.seen.failed,
        per_second(row.attacks as f64),
        mib(row.usage.memory()),
        mib(row.usage.disk()),
    )
}

/// Fails if an honest request failed, or took too long beside a single attack, or if memory or disk have no bound.
fn verdict(rows: Vec<Row>) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for mut row in rows {
        if row.seen.failed > 0 {
            wrong.push(format!("{}: {} honest requests failed", row.name, row.seen.failed));
        }
        wrong.extend(row.usage.problems().into_iter().map(|problem| format!("{}: {problem}", row.name)));
        let p99 = row.seen.quantile(0.99);
        // Without an attack it shows only how busy the machine is.
        if !matches!(row.name, "none" | "all") && p99 > P99_MAX {
            wrong.push(format!("{}: p99 is {} ms, allowed are {}", row.name, p99.as_millis(), P99_MAX.as_millis()));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Server(format!("did not hold: {}", wrong.join("; ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_wrong_ones_refused() {
        let options = Options::parse(&["--binary", "a", "--seconds", "5", "--nodes", "3", "--only", "idle"]).unwrap();
        let expected =
            Options { binary: Some("a".into()), seconds: 5, nodes: 3, gateway: false, only: Some("idle".into()) };
        assert_eq!(options, expected);
        assert_eq!(options.runs().len(), 2);
        assert_eq!(Options::parse(&[]).unwrap().runs().len(), ATTACKS.len() + 2);
        assert_eq!(Options::parse(&["--gateway"]).unwrap().runs().len(), gateway::ATTACKS.len() + 2);
        for (args, message) in [
            (["--seconds", "0"], "--seconds: found \"0\", allowed are 1 to 86400"),
            (["--nodes", "2"], "--nodes: found \"2\", allowed are 1 and 3"),
            (
                ["--only", "none"],
                "--only: found \"none\", allowed are bodies, windows, idle, lists, tables, malformed, logins, all",
            ),
        ] {
            assert_eq!(Options::parse(&args).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn slow_and_failed_requests_are_a_failure() {
        let row = |name, us, failed| {
            let seen = Seen { reserves_us: vec![us; 100], failed, failures: Vec::new() };
            Row { name, seen, attacks: 0, usage: Usage::default(), took: Duration::from_secs(1) }
        };
        assert!(verdict(vec![row("none", 51_000, 0), row("idle", 49_000, 0), row("all", 90_000, 0)]).is_ok());
        let wrong = verdict(vec![row("idle", 51_000, 0), row("all", 1, 2)]).unwrap_err().to_string();
        let expected =
            "the checked server did not hold: idle: p99 is 51 ms, allowed are 50; all: 2 honest requests failed";
        assert_eq!(wrong, expected);
        assert!(line(&row("idle", 1_500, 0)).starts_with("idle              100    1.5 ms    1.5 ms"));
    }
}
