//! `earmark bench`: measures reserves per second.

mod envoy;
mod histogram;
mod http;
mod http2;
mod in_process;
mod job;
mod measure;
mod own_server;
mod reply;
mod report;
mod request;
mod stream;
mod target;
mod through_client;
mod tigerbeetle;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use earmark_admission::{BATCH_MAX, LimitDocument};
use earmark_client::http::{Method, encoded};
use earmark_core::{Definition, REQUIREMENTS_MAX};
use serde_json::Value;

use crate::client::{self, Client, ServerUrl};
use crate::failure::{Done, Failure};
use crate::output::{self, thousands};
use crate::quantity;
use crate::serve::parse_ledger_url;
use job::Part;
use measure::{Bounds, Progress, Steps};
use own_server::OwnServer;
use report::{Report, Setting};
use target::Scratch;

pub(crate) const HELP: &str = "\
Each op is one reserve against several limits. With 4 limits these are requests, tokens and concurrency of one of 20
models, and tokens of one of 1,000 tenants. A warm-up of up to one second is not counted. With a batch, the latency of an op is
that of its batch.

The limits have keys that start with bench: and, without --denied, capacities far above the usage. On the server of --http they are deleted
after the run; their usage ends after one minute.

--data measures a node on disk, in a new subfolder that is removed after the run, and the time of one fsync.

--ledger measures limits on a TigerBeetle cluster. It also measures a bare client that sends full batches of the same
transfers, half of the time before and half after. Use a separate cluster, because the accounts of the limits stay.

The exit code is 1 if an op failed.

Examples:
  earmark bench
  earmark bench --key
  earmark bench --in-process --seconds 5
  earmark bench --client --connections 1000
  earmark bench --stream 16
  earmark bench --calls
  earmark bench --denied
  earmark bench --envoy 64
  earmark bench --in-process --data /var/tmp --json | jq '.ops_per_s, .fsync_p50_us'
  earmark bench --in-process --ledger tigerbeetle://127.0.0.1:3000 --connections 128
  earmark bench --http http://127.0.0.1:7878 --connections 16 --batch 256 --json";

const CONNECTIONS_MAX: i64 = 10_000;
const SECONDS_MAX: u32 = 3_600;
/// Longest fsync measurement, for slow disks.
const FSYNC_TIME: Duration = Duration::from_secs(2);
/// Default for `--ops-max`: an open lease takes up to 256 bytes, so 20 million take 5 GB.
const OPS_MAX_DEFAULT: u64 = 20_000_000;
/// Most leases in flight on one stream: a server reads no more.
const STREAM_IN_FLIGHT_MAX: i64 = 1_024;
const IN_PROCESS_BATCH: u32 = 256;
/// Most reserves in one request of the Rust client.
const SHARED_BATCH: u32 = 256;

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// URL of the server to measure [default: a server in this process, in memory, on a free loopback port]
    #[arg(long, value_name = "URL", conflicts_with = "in_process")]
    http: Option<ServerUrl>,
    /// Allow sending the key over http:// to another machine; only safe inside an encrypted tunnel
    #[arg(long, requires = "http")]
    insecure_plaintext: bool,
    /// Measure without HTTP: tasks in this process send batches to the backend
    #[arg(long)]
    in_process: bool,
    /// Measure a node on disk, in a new subfolder of this folder, instead of a server in memory
    #[arg(long, value_name = "DIR", conflicts_with = "http")]
    data: Option<PathBuf>,
    /// Measure limits on a TigerBeetle cluster, tigerbeetle://IP:PORT,...?cluster=N
    #[arg(long, value_name = "URL", requires = "in_process", conflicts_with = "data")]
    ledger: Option<String>,
    /// Measure the Rust client with as many tasks as connections. Each call is completed, and tasks share requests unless
    /// --batch is 1
    #[arg(long, conflicts_with = "in_process")]
    client: bool,
    /// Measure gRPC streams: each connection is one stream with this many leases in flight
    #[arg(long, value_name = "N", conflicts_with_all = ["in_process", "client", "batch"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=STREAM_IN_FLIGHT_MAX))]
    stream: Option<u32>,
    /// Limits per call
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=REQUIREMENTS_MAX as i64))]
    limits: u32,
    /// Connections or tasks, each with one request in flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: u32,
    /// Reserves per request [default: 1, or 256 with --in-process or --client]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=BATCH_MAX as i64))]
    batch: Option<u32>,
    /// How long to measure, such as 10, 0.5 or 1m, after a warm-up of up to one second
    #[arg(long, value_name = "DURATION", default_value = "10", value_parser = quantity::duration(SECONDS_MAX))]
    seconds: Duration,
    /// Stop after this number of reserves, including warm-up
    #[arg(long, value_name = "AMOUNT", default_value_t = OPS_MAX_DEFAULT)]
    #[arg(value_parser = |text: &str| quantity::amount(text, 1))]
    ops_max: u64,
    /// Make the server in this process require a key, and send it with every request
    #[arg(long, conflicts_with_all = ["http", "in_process"])]
    key: bool,
    /// Complete every call right after it is allowed; a complete is not counted as an op
    #[arg(long)]
    complete: bool,
    /// Reserve by attributes (/v1/calls), with a policy that gives the same limits
    #[arg(long, conflicts_with_all = ["http", "in_process", "client", "stream", "batch"])]
    calls: bool,
    /// Let limits hold one call each, so that nearly every call is denied
    #[arg(long, conflicts_with_all = ["client", "complete"])]
    denied: bool,
    /// Measure Envoy's rate limit service: this many requests with two descriptors in flight on one HTTP/2 connection
    #[arg(long, value_name = "N")]
    #[arg(conflicts_with_all = ["http", "in_process", "client", "stream", "batch", "calls", "key", "complete", "limits", "connections"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=envoy::IN_FLIGHT_MAX))]
    envoy: Option<u32>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<Done, Failure> {
    if args.http.as_ref().is_some_and(|url| url.address().is_tls()) {
        return Err(Failure::Usage(
            "--http: found https://, but bench measures without TLS; allowed is http://".into(),
        ));
    }
    let parts = if args.envoy.is_some() { envoy::parts() } else { job::parts(args.limits as usize) };
    let definitions = job::definitions(&parts, args.denied).map_err(|error| Failure::Bench(error.to_string()))?;
    let setting = args.setting();
    args.announce(&setting, definitions.len());
    let scratch = args.data.as_deref().map(Scratch::make).transpose()?;
    let fsync_p50 = scratch.as_ref().map(|scratch| scratch.fsync_p50(FSYNC_TIME.min(args.seconds))).transpose()?;
    let ledger = args.ledger.as_deref().map(parse_ledger_url).transpose().map_err(Failure::Usage)?;
    let mut report = match (&args.http, args.in_process) {
        (Some(url), _) => {
            let url = url.clone().allow_plaintext(args.insecure_plaintext);
            over_http(args, setting, &url, &parts, &definitions, true)?
        }
        (None, true) => {
            let load = in_process::Load {
                parts: &parts,
                definitions: &definitions,
                tasks: setting.connections,
                batch: setting.batch,
                complete: args.complete,
                scratch: scratch.as_ref(),
                ledger: ledger.as_ref(),
            };
            Report::new(setting, in_process::run(load, &args.bounds())?)
        }
        (None, false) => {
            let in_flight = args.stream.or(args.envoy).unwrap_or(1) as usize;
            let reserves = setting.connections * setting.batch.max(in_flight);
            let server = OwnServer::start(setting.connections, reserves, scratch, args.key)?;
            let url: ServerUrl = format!("http://{}", server.address())
                .parse()
                .map_err(|error: earmark_client::AddressError| Failure::Bench(error.to_string()))?;
            let url = match server.credentials() {
                Some(credentials) => url.with(credentials),
                None => url,
            };
            let report = over_http(args, setting, &url, &parts, &definitions, false)?;
            server.stop()?;
            report
        }
    };
    report.fsync_p50_us = fsync_p50.map(report::us);
    if args.json { output::print_json(&report) } else { output::print(&report.text()) }?;
    Ok(if report.errors > 0 { Done::Failed } else { Done::Ok })
}

/// Creates the limits, measures, and deletes the limits again on a shared server.
fn over_http(
    args: &BenchArgs,
    setting: Setting,
    url: &ServerUrl,
    parts: &[Part],
    definitions: &[Definition],
    is_shared: bool,
) -> Result<Report, Failure> {
    let progress = Progress::choose(args.json);
    client::block_on(put_limits(url, definitions, progress))?;
    if args.calls || args.envoy.is_some() {
        let policy = if args.calls { job::policy(parts) } else { envoy::policy() };
        let body = serde_json::json!({"policy": policy});
        let _: Value =
            client::block_on(async { Client::new(url)?.send(Method::PUT, "/v1/admin/policy", &body).await })?;
    }
    let key = url.credentials()?;
    let key = key.map(|key| format!("authorization: {}\r\n", key.header())).unwrap_or_default();
    let load = http::Load {
        url: url.clone(),
        headers: format!("host: {}\r\n{key}", url.address().authority()),
        parts: parts.to_vec(),
        connections: setting.connections,
        batch: setting.batch,
        complete: args.complete,
        calls: args.calls,
    };
    let run = match (args.client, args.stream, args.envoy) {
        (.., Some(in_flight)) => envoy::run(url, in_flight as usize, &args.bounds()),
        (_, Some(in_flight), None) => {
            let (streams, in_flight) = (setting.connections, in_flight as usize);
            let load = stream::Load { url, parts, streams, in_flight, complete: args.complete };
            stream::run(&load, &args.bounds())
        }
        (true, None, None) => {
            let (tasks, shares) = (setting.connections, setting.batch > 1);
            through_client::run(&through_client::Load { url, parts, tasks, shares }, &args.bounds())
        }
        (false, None, None) => http::run(&load, &args.bounds()),
    };
    let deleted = if is_shared { client::block_on(delete_limits(url, definitions, progress)) } else { Ok(()) };
    let mut run = run?;
    if let Err(failure) = deleted {
        run.tally.add_error(format!("cannot delete the limits named bench:...: {failure}"));
    }
    Ok(Report::new(setting, run))
}

async fn put_limits(url: &ServerUrl, definitions: &[Definition], progress: Progress) -> Result<(), Failure> {
    let client = Client::new(url)?;
    let mut steps = Steps::new(progress, "creating limits", definitions.len());
    for definition in definitions {
        let document = LimitDocument::of(definition);
        let _: Value = client.send(Method::PUT, "/v1/admin/limits", &document).await?;
        steps.step();
    }
    Ok(())
}

async fn delete_limits(url: &ServerUrl, definitions: &[Definition], progress: Progress) -> Result<(), Failure> {
    let client = Client::new(url)?;
    let mut steps = Steps::new(progress, "deleting limits", definitions.len());
    for definition in definitions {
        let path = format!("/v1/admin/limits/{}", encoded(definition.key.as_str()));
        let _: Value = client.call(Method::DELETE, &path, None).await?;
        steps.step();
    }
    Ok(())
}

impl BenchArgs {
    fn setting(&self) -> Setting {
        let (path, batch) = match (self.in_process, self.client, self.stream) {
            _ if self.envoy.is_some() => ("envoy", 1),
            (true, ..) => ("in-process", IN_PROCESS_BATCH),
            (false, true, _) => ("client", SHARED_BATCH),
            (false, false, None) => (if self.calls { "http-calls" } else { "http" }, 1),
            (false, false, Some(_)) => ("stream", 1),
        };
        let server = if self.in_process || self.http.is_some() { "" } else { "-own-server" };
        let storage = match (&self.data, &self.ledger) {
            (Some(_), _) => "-durable",
            (None, Some(_)) => "-ledger",
            (None, None) => "",
        };
        Setting {
            mode: format!("{path}{server}{storage}"),
            limits: if self.envoy.is_some() { envoy::DESCRIPTORS } else { self.limits as usize },
            connections: if self.envoy.is_some() { 1 } else { self.connections as usize },
            batch: self.batch.unwrap_or(batch) as usize,
            complete: self.complete || self.client,
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds { duration: self.seconds, ops_max: self.ops_max, progress: Progress::choose(self.json) }
    }

    /// Prints the settings of the run, unless `--json` was given.
    fn announce(&self, setting: &Setting, limits: usize) {
        if self.json {
            return;
        }
        let to = match (&self.http, self.in_process) {
            (Some(url), _) => format!("over HTTP to {url}"),
            (None, true) => "in process".to_owned(),
            (None, false) => "over HTTP to a server in this process".to_owned(),
        };
        let to = match (self.stream, self.envoy) {
            (Some(in_flight), _) => format!("{in_flight} leases on each gRPC stream, {to}"),
            (None, Some(in_flight)) => format!("{in_flight} requests of Envoy in flight, {to}"),
            (None, None) => to,
        };
        let to = match (&self.data, &self.ledger) {
            (Some(data), _) => format!("{to}, on disk in {}", data.display()),
            (None, Some(ledger)) => format!("{to}, on {ledger}"),
            (None, None) => to,
        };
        output::complain(&format!(
            "measuring {to}: {} connections, {} reserves per request, {} limits each, for {}\n\
             creating {} limits named bench:... with {} capacity{}",
            setting.connections,
            setting.batch,
            setting.limits,
            output::time(self.seconds),
            thousands(limits as u128),
            if self.denied { "little" } else { "ample" },
            if self.http.is_some() { "; they are deleted after the run" } else { "" },
        ));
    }
}
