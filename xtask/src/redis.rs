//! `cargo xtask redis`: compares single reserves with Redis and its Lua scripts, and the gRPC stream with HTTP.
//!
//! Both sides run in turn on this machine, each with its load generator, for several rounds. The medians are compared,
//! because the speed of a shared machine changes from minute to minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::run::{self, Failure};

/// Port of the Redis server: not its default, which may be in use.
const PORT: &str = "7390";
/// Requests of one run of `redis-benchmark`, which has no time limit: about five seconds each.
const REQUESTS: u64 = 300_000;
const REQUESTS_DURABLE: u64 = 100_000;
const CONNECTIONS: &str = "64";
const ROUNDS_DEFAULT: usize = 5;
const ROUNDS_MAX: usize = 100;
const SECONDS_DEFAULT: u64 = 5;
const SECONDS_MAX: u64 = 600;

/// Four fixed windows of one minute, taken all or none. It knows no leases, so a repeated call counts twice.
const SCRIPT: &str = "\
for i = 1, 4 do
  local used = tonumber(redis.call('GET', KEYS[i]) or '0')
  if used + tonumber(ARGV[i]) > 1000000000000 then return 0 end
end
for i = 1, 4 do
  if redis.call('INCRBY', KEYS[i], ARGV[i]) == tonumber(ARGV[i]) then redis.call('EXPIRE', KEYS[i], 60) end
end
return 1";

/// The options of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Earmark; a release build of this tree if absent.
    pub(crate) binary: Option<PathBuf>,
    pub(crate) rounds: usize,
    /// Seconds of one run of Earmark.
    pub(crate) seconds: u64,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Failure> {
        let mut options = Options { binary: None, rounds: ROUNDS_DEFAULT, seconds: SECONDS_DEFAULT };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().copied().unwrap_or_default();
            let refuse = |allowed: &str| Err(Failure::Usage(format!("{flag}: found {value:?}, allowed {allowed}")));
            match *flag {
                "--binary" if !value.is_empty() => options.binary = Some(value.into()),
                "--rounds" => match value.parse() {
                    Ok(rounds) if (1..=ROUNDS_MAX).contains(&rounds) => options.rounds = rounds,
                    _ => return refuse(&format!("are 1 to {ROUNDS_MAX}")),
                },
                "--seconds" => match value.parse() {
                    Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => options.seconds = seconds,
                    _ => return refuse(&format!("are 1 to {SECONDS_MAX}")),
                },
                _ => return refuse("are --binary PATH, --rounds N and --seconds N"),
            }
        }
        Ok(options)
    }
}

pub(crate) fn compare(options: &Options) -> Result<(), Failure> {
    let programs = ["redis-server", "redis-benchmark", "redis-cli"];
    let is_missing = |program: &&str| run::output(&mut run::command(program, "--version")).is_none();
    let missing: Vec<&str> = programs.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        let what = format!("{}, which this compares with; apt-get install redis-server", missing.join(" and "));
        return Err(Failure::Missing(vec![what]));
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            run::run(&mut run::command("cargo", "build --release --locked --bin earmark"))?;
            run::root().join("target/release/earmark")
        }
    };
    let folder = std::env::temp_dir().join(format!("earmark-redis-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|source| Failure::Write { path: folder.clone(), source })?;
    let compared = rounds(options, &binary, &folder);
    _ = fs::remove_dir_all(&folder);
    compared
}

fn rounds(options: &Options, binary: &Path, folder: &Path) -> Result<(), Failure> {
    let data = folder.display().to_string();
    let bench = |more: &[&str]| earmark(binary, options.seconds, more);
    let mut rows: [Vec<f64>; 5] = Default::default();
    for round in 1..=options.rounds {
        rows[0].push(bench(&[])?);
        rows[1].push(redis(folder, false)?);
        rows[2].push(bench(&["--data", &data])?);
        rows[3].push(redis(folder, true)?);
        rows[4].push(bench(&["--data", &data, "--stream", "16"])?);
        let shown: Vec<String> = rows.iter().map(|row| format!("{:.0}/s", row.last().unwrap_or(&0.0))).collect();
        println!("round {round}: {}", shown.join(", "));
    }
    let [memory, redis, durable, redis_always, stream] = rows.map(median);
    println!("\n{:>10}/s  HTTP, in memory", memory.round());
    println!("{:>10}/s  Redis, in memory: HTTP has {:.2} times as many", redis.round(), memory / redis);
    println!("{:>10}/s  HTTP, durable", durable.round());
    let ratio = durable / redis_always;
    println!("{:>10}/s  Redis, appendfsync always: HTTP has {ratio:.2} times as many", redis_always.round());
    println!("{:>10}/s  gRPC stream, durable: {:.2} times HTTP", stream.round(), stream / durable);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Reserves per second of `earmark bench`.
fn earmark(binary: &Path, seconds: u64, more: &[&str]) -> Result<f64, Failure> {
    let mut command = Command::new(binary);
    command.args(["bench", "--json", "--connections", CONNECTIONS, "--seconds", &seconds.to_string()]).args(more);
    let text = run::output(&mut command).unwrap_or_default();
    let rate = text.split_once(r#""ops_per_s":"#).and_then(|(_, rest)| {
        let end = rest.find(|found: char| !(found.is_ascii_digit() || ". ".contains(found)));
        rest[..end.unwrap_or(rest.len())].trim().parse().ok()
    });
    rate.ok_or_else(|| Failure::Server(format!("measured nothing with `{}`: {text}", run::line(&command))))
}

/// Calls per second of the script on a new Redis server.
fn redis(folder: &Path, is_durable: bool) -> Result<f64, Failure> {
    let server = Redis::start(folder, is_durable)?;
    let mut load = Command::new("redis-cli");
    load.args(["-p", PORT, "SCRIPT", "LOAD", SCRIPT]);
    let hash = run::output(&mut load).unwrap_or_default();
    let requests = if is_durable { REQUESTS_DURABLE } else { REQUESTS };
    let mut bench = Command::new("redis-benchmark");
    bench.args(["-p", PORT, "-c", CONNECTIONS, "-n", &requests.to_string(), "-r", "20", "--csv", "EVALSHA"]);
    bench.args([hash.trim(), "4", "rpm:__rand_int__", "tpm:__rand_int__", "slots:__rand_int__"]);
    bench.args(["tenant:__rand_int__", "1", "1500", "1", "1500"]);
    let text = run::output(&mut bench).unwrap_or_default();
    drop(server);
    // The line of the script: its text, then the rate, all quoted.
    let last = text.lines().last().unwrap_or_default();
    let rate = last.split("\",\"").nth(1).and_then(|rate| rate.trim_matches('"').parse().ok());
    rate.ok_or_else(|| Failure::Server(format!("of Redis measured nothing: {text}")))
}

/// A Redis server. Dropping it ends it and removes its files.
struct Redis {
    process: Child,
    files: PathBuf,
}

impl Redis {
    fn start(folder: &Path, is_durable: bool) -> Result<Redis, Failure> {
        let files = folder.join("redis");
        fs::create_dir_all(&files).map_err(|source| Failure::Write { path: files.clone(), source })?;
        let mut command = Command::new("redis-server");
        command.args(["--port", PORT, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&files);
        command.args(["--appendonly", if is_durable { "yes" } else { "no" }, "--appendfsync", "always"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|source| Failure::Start { line: run::line(&command), source })?;
        let server = Redis { process, files };
        for _ in 0..100 {
            let pong = run::output(&mut run::command("redis-cli", &format!("-p {PORT} PING")));
            if pong.is_some_and(|pong| pong.trim() == "PONG") {
                return Ok(server);
            }
            sleep(Duration::from_millis(100));
        }
        Err(Failure::Server("of Redis does not answer".into()))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        _ = fs::remove_dir_all(&self.files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_bad_ones_refused() {
        let options = Options::parse(&["--rounds", "1", "--binary", "a", "--seconds", "2"]).unwrap();
        assert_eq!(options, Options { binary: Some("a".into()), rounds: 1, seconds: 2 });
        let refused = Options::parse(&["--rounds", "0"]).unwrap_err().to_string();
        assert_eq!(refused, "--rounds: found \"0\", allowed are 1 to 100");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
