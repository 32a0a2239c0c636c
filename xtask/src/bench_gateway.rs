//! `cargo xtask bench-gateway`: latency, throughput and streams through a gateway, against the same calls made directly.
//!
//! Upstream, server, gateway and load generator share this machine, and each ratio is of one run: the speed of a shared
//! machine changes from minute to minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Failure};
use crate::served::{Guard, start_listening, start_with_gateway};

const SECONDS_DEFAULT: u64 = 10;
const SECONDS_MAX: u64 = 600;
/// Concurrent streams of the first streaming run, by default. The second has twice as many.
const STREAMS_DEFAULT: u64 = 500;
const STREAMS_MAX: u64 = 10_000;
/// Streams and seconds of the run before the memory is read, so that the code of a stream is loaded.
const FIRST_STREAMS: [&str; 2] = ["10", "2"];
/// The parts of the task.
const PARTS: [&str; 3] = ["latency", "throughput", "streams"];
/// Requests per second of the latency runs.
const RATE: &str = "200";
/// Connections of the throughput runs.
const CONNECTIONS: &str = "64";

/// Rules with a rate, slots and credit, as a tenant has them.
const POLICY: &str = r#"
[[rules]]
name   = "all"
limits = [
  { key = "rpm", amount = "requests" },
  { key = "slots", amount = "requests" },
  { key = "usd", amount = "cost" },
]
[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
output = 10_000_000
"#;

/// The options of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Folder with the programs `earmark` and `examples/gateway_load`; a release build of this tree if absent.
    pub(crate) programs: Option<PathBuf>,
    /// Another proxy before an upstream of its own, such as LiteLLM's, for the throughput.
    pub(crate) against: Option<String>,
    /// The only part to run: `latency`, `throughput` or `streams`.
    pub(crate) only: Option<String>,
    /// Seconds of one run.
    pub(crate) seconds: u64,
    pub(crate) streams: u64,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Failure> {
        let mut options =
            Options { programs: None, against: None, only: None, seconds: SECONDS_DEFAULT, streams: STREAMS_DEFAULT };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().copied().unwrap_or_default();
            let refuse = |allowed: &str| Err(Failure::Usage(format!("{flag}: found {value:?}, allowed {allowed}")));
            match *flag {
                "--programs" if !value.is_empty() => options.programs = Some(value.into()),
                "--against" if value.starts_with("http://") => options.against = Some(value.into()),
                "--against" => return refuse("is a URL such as http://127.0.0.1:4000"),
                "--only" if PARTS.contains(&value) => options.only = Some(value.into()),
                "--only" => return refuse(&format!("are {}", PARTS.join(", "))),
                "--seconds" => match value.parse() {
                    Ok(seconds) if (2..=SECONDS_MAX).contains(&seconds) => options.seconds = seconds,
                    _ => return refuse(&format!("are 2 to {SECONDS_MAX}")),
                },
                "--streams" => match value.parse() {
                    Ok(streams) if (1..=STREAMS_MAX).contains(&streams) => options.streams = streams,
                    _ => return refuse(&format!("are 1 to {STREAMS_MAX}")),
                },
                _ => return refuse("are --programs FOLDER, --against URL, --only PART, --seconds N and --streams N"),
            }
        }
        Ok(options)
    }
}

pub(crate) fn bench(options: &Options) -> Result<(), Failure> {
    let folder = match &options.programs {
        Some(folder) => folder.clone(),
        None => {
            let build = "build --release --locked -p earmark -p earmark-gateway --bin earmark --example gateway_load";
            run::run(&mut run::command("cargo", build))?;
            let xtask = std::env::current_exe().unwrap_or_default();
            xtask.ancestors().nth(2).unwrap_or(Path::new("target")).join("release")
        }
    };
    let bench = Bench { earmark: folder.join("earmark"), load: folder.join("examples/gateway_load"), options };
    let (double, upstream) = start_listening(Command::new(&bench.load).arg("double"))?;
    println!("upstream double: {upstream}");
    let [of_latency, of_throughput, of_streams] =
        PARTS.map(|part| options.only.as_deref().is_none_or(|only| only == part));
    if of_latency {
        latency(&bench, &upstream)?;
    }
    if of_throughput {
        throughput(&bench, &upstream)?;
    }
    if of_streams {
        streams(&bench, &upstream, double.id(), options.streams)?;
        // The memory of a stream must not depend on the number of streams.
        streams(&bench, &upstream, double.id(), options.streams.saturating_mul(2))?;
    }
    Ok(())
}

struct Bench<'a> {
    earmark: PathBuf,
    load: PathBuf,
    options: &'a Options,
}

/// The numbers of one load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    amount: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Measured {
    /// Reads `requests_per_second 123.4 p50_us 5 p99_us 6 max_us 7`.
    fn parse(line: &str) -> Option<Measured> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |place: usize| words.get(place)?.parse::<f64>().ok();
        Some(Measured { amount: number(1)?, p50_ms: number(3)? / 1_000.0, p99_ms: number(5)? / 1_000.0 })
    }
}

impl Bench<'_> {
    fn load(&self, args: &[&str]) -> Result<Measured, Failure> {
        let mut command = Command::new(&self.load);
        command.args(args);
        let printed = run::output(&mut command).unwrap_or_default();
        let failed = || Failure::Server(format!("did not pass {}: {printed:?}", run::line(&command)));
        Measured::parse(&printed).ok_or_else(failed)
    }

    fn seconds(&self) -> String {
        self.options.seconds.to_string()
    }
}

/// The configuration of a gateway before one upstream.
pub(crate) fn config(listen: &str, upstream: &str) -> String {
    format!(
        "listen = \"{listen}\"\n[[upstreams]]\nname = \"double\"\napi = \"openai\"\nbase_url = \"{upstream}/v1\"\n\
         [[models]]\nname = \"m\"\ntargets = [\"double/m\"]\nmax_output_tokens = 100\n"
    )
}

/// Defines the account, the limits and the policy of the calls, whose file is written to `folder`.
pub(crate) fn define(earmark: &Path, server: &str, folder: &Folder) -> Result<(), Failure> {
    let policy = folder.write("policy.toml", POLICY)?;
    for args in [
        r#"write --client bench --sequence 1 --vault main --op {"open_account":{"account":"acme","overdraft":"deny"}} --op {"issue":{"account":"acme","asset":"usd","amount":"1000000000000000"}}"#,
        "limits put --key rpm --kind rolling --capacity 1000000000 --window 1m",
        "limits put --key slots --kind concurrency --capacity 1000000 --timeout 10m",
        "limits put --key usd --kind credit --vault main --account acme --asset usd --timeout 10m",
        &format!("policy put {}", policy.display()),
    ] {
        let mut command = Command::new(earmark);
        command.args(args.split(' ')).env("EARMARK_SERVER", server).stdout(std::process::Stdio::null());
        run::run(&mut command)?;
    }
    Ok(())
}

/// A server and a gateway on a folder of their own. They end before their folder does: fields are dropped in order.
struct Running {
    url: String,
    gateway: Guard,
    /// `None` if it is in the process of the gateway.
    _server: Option<Guard>,
    folder: Folder,
}

/// How a server and its gateway run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Two processes without files.
    InMemory,
    /// Two processes that write everything to disk.
    Durable,
    /// `earmark serve --gateway`, without files.
    OneProcess,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::InMemory => "in memory",
            Form::Durable => "durable",
            Form::OneProcess => "in memory and one process",
        }
    }
}

/// A folder for the files of this process, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Folder, Failure> {
        let folder = Folder(std::env::temp_dir().join(format!("earmark-bench-gateway-{}", std::process::id())));
        fs::create_dir_all(&folder.0).map_err(|source| Failure::Write { path: folder.0.clone(), source })?;
        Ok(folder)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|source| Failure::Write { path: path.clone(), source }).map(|()| path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

impl Running {
    fn start(bench: &Bench<'_>, upstream: &str, form: Form) -> Result<Running, Failure> {
        let folder = Folder::new()?;
        let config = folder.write("gateway.toml", &config("127.0.0.1:0", upstream))?;
        let mut serve = Command::new(&bench.earmark);
        serve.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "warn"]);
        match form {
            Form::Durable => serve.arg("--data").arg(folder.0.join("data")),
            Form::InMemory | Form::OneProcess => serve.arg("--in-memory"),
        };
        if form == Form::OneProcess {
            let (gateway, server_url, url) = start_with_gateway(serve.arg("--gateway").arg(&config))?;
            define(&bench.earmark, &server_url, &folder)?;
            return Ok(Running { url, gateway, _server: None, folder });
        }
        let (server, server_url) = start_listening(&mut serve)?;
        define(&bench.earmark, &server_url, &folder)?;
        let mut gateway = Command::new(&bench.earmark);
        gateway.arg("gateway").arg("--config").arg(&config).args(["--server", &server_url, "--log-level", "error"]);
        match form {
            Form::Durable => gateway.arg("--calls").arg(folder.0.join("calls")),
            Form::InMemory | Form::OneProcess => gateway.arg("--in-memory"),
        };
        let (gateway, url) = start_listening(&mut gateway)?;
        Ok(Running { url, gateway, _server: Some(server), folder })
    }
}

fn latency(bench: &Bench<'_>, upstream: &str) -> Result<(), Failure> {
    for form in [Form::InMemory, Form::OneProcess, Form::Durable] {
        let running = Running::start(bench, upstream, form)?;
        let direct = bench.load(&["rate", upstream, RATE, &bench.seconds()])?;
        let through = bench.load(&["rate", &running.url, RATE, &bench.seconds()])?;
        let (p50, p99) = (through.p50_ms - direct.p50_ms, through.p99_ms - direct.p99_ms);
        if form == Form::Durable {
            let flush = bench.load(&["flush", &running.folder.0.to_string_lossy()])?;
            let (p50_max, p99_max) = (1.5 + 3.0 * flush.p50_ms, 8.0 + 3.0 * flush.p99_ms);
            println!(
                "added latency, durable, {RATE}/s: p50 {p50:.2} ms (at most {p50_max:.2}), p99 {p99:.2} ms (at most \
                 {p99_max:.2}); a flush takes p50 {:.2} ms, p99 {:.2} ms",
                flush.p50_ms, flush.p99_ms
            );
        } else {
            println!("added latency, {}, {RATE}/s: p50 {p50:.2} ms (at most 0.50), p99 {p99:.2} ms", form.name());
        }
    }
    Ok(())
}

fn throughput(bench: &Bench<'_>, upstream: &str) -> Result<(), Failure> {
    for form in [Form::InMemory, Form::OneProcess] {
        let running = Running::start(bench, upstream, form)?;
        let direct = bench.load(&["connections", upstream, CONNECTIONS, &bench.seconds()])?;
        let through = bench.load(&["connections", &running.url, CONNECTIONS, &bench.seconds()])?;
        println!(
            "throughput, {}, {CONNECTIONS} connections: {:.0}/s, {:.2} of the upstream's {:.0}/s (at least 0.20); p50 \
             {:.2} ms, p99 {:.2} ms",
            form.name(),
            through.amount,
            through.amount / direct.amount,
            direct.amount,
            through.p50_ms,
            through.p99_ms
        );
        if let Some(against) = &bench.options.against {
            let other = bench.load(&["connections", against, CONNECTIONS, &bench.seconds()])?;
            println!(
                "{against}: {:.0}/s, p50 {:.2} ms; the gateway has {:.0} times that (at least 100)",
                other.amount,
                other.p50_ms,
                through.amount / other.amount
            );
        }
    }
    Ok(())
}

fn streams(bench: &Bench<'_>, upstream: &str, double: u32, count: u64) -> Result<(), Failure> {
    let running = Running::start(bench, upstream, Form::InMemory)?;
    let seconds = bench.seconds();
    let direct = bench.load(&["streams", upstream, &count.to_string(), &seconds])?;
    bench.load(&["streams", &running.url, FIRST_STREAMS[0], FIRST_STREAMS[1]])?;
    let (memory, cpu) = (memory_kib(running.gateway.id(), "VmRSS"), cpu_seconds(double));
    let through = bench.load(&["streams", &running.url, &count.to_string(), &seconds])?;
    let grown = memory_kib(running.gateway.id(), "VmHWM").saturating_sub(memory);
    println!(
        "{count} streams of 20 chunks a second for {seconds} s: chunks p99 {:.1} ms later than the upstream's own (at \
         most 100), {} KiB a stream (at most 40), {:.2} cores for the upstream (at most 0.50)",
        through.p99_ms - direct.p99_ms,
        grown / count,
        (cpu_seconds(double) - cpu) / bench.options.seconds as f64
    );
    Ok(())
}

/// A line of the memory of a process, in KiB.
fn memory_kib(process: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// The processor time of a process. The kernel counts hundredths of a second.
fn cpu_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    fields.iter().sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_lines_of_a_load_are_read() {
        let options = Options::parse(&["--seconds", "5", "--streams", "10"]).unwrap();
        assert_eq!((options.seconds, options.streams, options.programs), (5, 10, None));
        assert_eq!(Options::parse(&["--only", "streams"]).unwrap().only.as_deref(), Some("streams"));
        let refused = Options::parse(&["--seconds", "1"]).unwrap_err().to_string();
        assert_eq!(refused, "--seconds: found \"1\", allowed are 2 to 600");
        let measured = Measured::parse("rate 200.0 p50_us 1500 p99_us 2500 max_us 9000\n").unwrap();
        assert_eq!(measured, Measured { amount: 200.0, p50_ms: 1.5, p99_ms: 2.5 });
        assert!(Measured::parse("").is_none());
    }
}
