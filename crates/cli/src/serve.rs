//! `earmark serve`: a Book behind the HTTP server, on disk or in memory.

mod callers;
mod credits;
mod durable;
mod ledger;
mod parts;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args;
use earmark_admission::{Keys as _, LocalBook, LocalOptions};
use earmark_core::Config;
use earmark_server::{REQUESTS_AT_ONCE, REQUESTS_WAITING_MAX, Server, ServerOptions, install_metrics};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Done, Failure};
use crate::logs::{self, LogFormat, LogLevel};
use crate::output;
use parts::{Bounds, PartsArgs, Places};

pub(crate) const HELP: &str = "\
Ctrl-C or SIGTERM finishes what is in flight and stops; a second one stops at once. A node whose disk fails
says what is wrong and stops with exit code 1.

Examples:
  earmark serve
  earmark serve --data /var/lib/earmark --listen 127.0.0.1:9000 --limits limits.json --log-format json
  earmark serve --in-memory
  earmark serve --credits sqlite:/var/lib/earmark/credit.db
  earmark serve --ledger 'tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7'

Three nodes on one machine, each in a shell of its own:
  earmark serve --data n1 --listen 127.0.0.1:7878 --node-id 1 --peer-listen 127.0.0.1:7101
  earmark serve --data n2 --listen 127.0.0.1:7879 --node-id 2 --peer-listen 127.0.0.1:7102 --join 127.0.0.1:7101
  earmark serve --data n3 --listen 127.0.0.1:7880 --node-id 3 --peer-listen 127.0.0.1:7103 --join 127.0.0.1:7101";

/// The most leases a Book can tell apart.
const LEASES_MAX: i64 = 1 << 30;
/// A batch must fit into the queue.
const QUEUE_MIN: i64 = earmark_admission::BATCH_MAX as i64;
const QUEUE_MAX: i64 = 1 << 24;
const RETENTION_SECONDS_MAX: i64 = 366 * 24 * 60 * 60;
const CONNECTIONS_MAX: i64 = 1_000_000;
const SESSION_SECONDS_MAX: i64 = 366 * 24 * 60 * 60;
const ELECTION_MS_MIN: i64 = 100;
const ELECTION_MS_MAX: i64 = 60_000;

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The folder in which this node keeps everything; it is created if it is missing
    #[arg(long, value_name = "DIR", default_value = "./earmark-data", conflicts_with = "in_memory")]
    data: PathBuf,
    /// Keep everything in memory: after a stop nothing is left but the limits file
    #[arg(long)]
    in_memory: bool,
    /// The address on which clients are served, IP:PORT; port 0 takes a free one. Beyond loopback it needs keys, and TLS
    /// or --insecure-plaintext
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7878", value_parser = address)]
    listen: SocketAddr,
    /// A JSON file with the limits that are wanted, read at the start: limits that are missing or differ are put. With
    /// --in-memory the file may be missing, and is written whenever limits change
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    #[command(flatten)]
    parts: PartsArgs,
    /// The id of this node in its cluster, which no other node ever had [default: the id in the folder, or 1]
    #[arg(long, value_name = "N", conflicts_with = "in_memory")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    node_id: Option<u64>,
    /// The address on which the other nodes of the cluster are served, IP:PORT. Beyond loopback, and on a server with
    /// keys or an issuer, nodes need certificates (--peer-cert)
    #[arg(long, value_name = "ADDR", conflicts_with = "in_memory", value_parser = address)]
    peer_listen: Option<SocketAddr>,
    /// The address at which the other nodes reach this one, if it is not --peer-listen: that of a proxy, or of the near
    /// end of a tunnel
    #[arg(long, value_name = "ADDR", requires = "peer_listen", conflicts_with = "in_memory")]
    #[arg(value_parser = address)]
    peer_advertise: Option<SocketAddr>,
    /// The addresses (--peer-listen) of nodes whose cluster this node joins; without any, a new folder begins a cluster
    #[arg(long, value_name = "ADDR", num_args = 1.., requires_all = ["peer_listen", "node_id"])]
    #[arg(conflicts_with = "in_memory", value_parser = address)]
    join: Vec<SocketAddr>,
    /// How long to trust a silent leader, in milliseconds: nodes that hear nothing of it for 3 to 4 times as long elect
    /// another. Choose far more than the slowest sync of a disk, and the same on all nodes
    #[arg(long, value_name = "MS", default_value_t = 300, conflicts_with = "in_memory")]
    #[arg(value_parser = clap::value_parser!(u32).range(ELECTION_MS_MIN..=ELECTION_MS_MAX))]
    election_ms: u32,
    /// How many reserves may wait for their decision; more are refused as overloaded
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(QUEUE_MIN..=QUEUE_MAX))]
    queue_max: u32,
    /// How long a lease is remembered after it was completed, denied or ran out, in seconds; with --in-memory only
    // `requires` alone asks for nothing where `--data` rules out what it would ask for.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 900,
        requires = "in_memory",
        conflicts_with = "data"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=RETENTION_SECONDS_MAX))]
    retention: u32,
    /// How many leases are remembered at most, ended ones included; more are refused as overloaded; with --in-memory
    /// only
    #[arg(long, value_name = "N", default_value_t = 1 << 26, requires = "in_memory", conflicts_with = "data")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=LEASES_MAX))]
    leases_max: u32,
    /// Make the first key, that of an admin, and print it; for the first start of a new data folder
    #[arg(long)]
    bootstrap_key: bool,
    /// How many requests each caller may make in a second, each item of a batch counted as one; 0 sets no bound
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    key_requests_per_second: u64,
    /// How many requests of each caller are worked on at once, every eight items of a batch counted as one; more of the
    /// same caller wait, while those of other callers go on; 0 sets no bound
    #[arg(long, value_name = "N", default_value_t = REQUESTS_AT_ONCE)]
    key_requests_at_once: u32,
    /// How many requests of each caller may wait for their turn, a batch counted as one; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = REQUESTS_WAITING_MAX)]
    key_requests_waiting: usize,
    /// Accept session tokens (JSON Web Tokens) of this issuer, their claim iss
    #[arg(long, value_name = "URL", requires_all = ["issuer_keys", "audience"])]
    issuer: Option<String>,
    /// A file with the public keys of the issuer, a JSON Web Key Set of Ed25519 and RSA keys; read again when it changes
    #[arg(long, value_name = "FILE", requires = "issuer")]
    issuer_keys: Option<PathBuf>,
    /// The audience that session tokens must be for, their claim aud
    #[arg(long, value_name = "NAME", requires = "issuer")]
    audience: Option<String>,
    /// The claim of a session token that says which role it has
    #[arg(long, value_name = "CLAIM", default_value = "earmark_role", requires = "issuer")]
    role_claim: String,
    /// The claim of a session token that says which namespace it is for
    #[arg(long, value_name = "CLAIM", default_value = "earmark_namespace", requires = "issuer")]
    namespace_claim: String,
    /// The longest life of a session token, in seconds, counted from its claim iat, or from now if it has none
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, requires = "issuer")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=SESSION_SECONDS_MAX))]
    issuer_max_age: u32,
    /// Serve clients by TLS with this certificate: a PEM file, which also has the certificates that lead to its
    /// authority; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The certificate that this node shows to other nodes, a PEM file; read again when it changes
    #[arg(long, value_name = "FILE", requires_all = ["peer_key", "peer_ca", "peer_listen"])]
    #[arg(conflicts_with = "in_memory")]
    peer_cert: Option<PathBuf>,
    /// The private key of --peer-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// The certificate of the authority that signs the certificates of nodes, and nothing else, a PEM file
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// Allow keys though nodes show no certificates; only where nobody but nodes can connect to --peer-listen, which must
    /// be on loopback
    #[arg(long, requires = "peer_listen", conflicts_with_all = ["peer_cert", "in_memory"])]
    insecure_peers: bool,
    /// Listen beyond this machine without TLS; only where something before this server encrypts, such as a proxy
    #[arg(long)]
    insecure_plaintext: bool,
    /// How many connections of clients may be open at once; more are closed
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections_max: u32,
    /// How the log is written, which goes to the standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Human)]
    log_format: LogFormat,
    /// What is logged: off, error, warn, info, debug, trace, or a list such as info,earmark_server=debug
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: LogLevel,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("found {text:?}, allowed is IP:PORT, such as 127.0.0.1:7878 or [::1]:7878"))
}

pub(crate) fn run(args: &ServeArgs) -> Result<Done, Failure> {
    // Known before anything is made.
    args.check_callers()?;
    let places = args.parts.places()?;
    logs::start(args.log_format, &args.log_level);
    runtime()?.block_on(serve(args, &places))?;
    Ok(Done::Ok)
}

/// A runtime with a worker for each core.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores()).enable_all().build();
    runtime.map_err(|source| Failure::System { what: "starting the runtime", source })
}

/// How many cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

async fn serve(args: &ServeArgs, places: &Places) -> Result<(), Failure> {
    let signals = Signals::new()?;
    // Before the backend, which records from its start on.
    install_metrics();
    if !args.in_memory {
        return durable::serve(args, places, signals).await;
    }
    let book = LocalBook::open(args.local_options()).await?;
    let service = places.open(&book, args.bounds()).await?;
    service.start().await.map_err(|error| Failure::Usage(error.to_string()))?;
    let known = service.backend().stats().limits;
    let options = args.server_options()?;
    if args.bootstrap_key {
        callers::bootstrap(&book).await?;
    }
    let server = Server::bind(options, service.backend()).await?;
    let front = args.front(server.local_addr(), book.has_keys());
    output::print(&greeting(&front, args.limits.as_deref(), known, places))?;
    tracing::info!(address = %server.local_addr(), "listening");
    server.run(signals.first()).await?;
    output::print("stopped\n")
}

impl ServeArgs {
    fn local_options(&self) -> LocalOptions {
        let config = Config {
            retention_ms: u64::from(self.retention) * 1_000,
            leases_max: self.leases_max,
            ..Config::default()
        };
        let queue_max = self.queue_max as usize;
        LocalOptions { config, limits_file: self.limits.clone(), queue_max, ..LocalOptions::default() }
    }

    fn bounds(&self) -> Bounds {
        let LocalOptions { config, queue_max, .. } = self.local_options();
        Bounds { config, queue_max }
    }

    /// What clients find at an address.
    fn front(&self, address: SocketAddr, has_keys: bool) -> Front {
        let is_tls = self.tls_cert.is_some();
        let scheme = if is_tls { "https" } else { "http" };
        Front {
            url: format!("{scheme}://{address}"),
            is_tls,
            asks_for_keys: has_keys || self.issuer.is_some(),
        }
    }

    fn server_options(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            listen: self.listen,
            connections_max: self.connections_max as usize,
            issuer: self.issuer()?,
            tls: self.tls()?,
            requests_per_second: Some(self.key_requests_per_second).filter(|limit| *limit > 0),
            requests_at_once: NonZeroU32::new(self.key_requests_at_once),
            requests_waiting_max: self.key_requests_waiting,
            is_plaintext_allowed: self.insecure_plaintext,
            ..ServerOptions::default()
        })
    }
}

/// What a client needs to know of a server.
struct Front {
    url: String,
    is_tls: bool,
    asks_for_keys: bool,
}

/// Where it listens, what is kept where, and what to try first.
fn greeting(front: &Front, limits: Option<&Path>, known: usize, places: &Places) -> String {
    let limits = match limits {
        Some(path) => format!("{known} read from {}, written there when they change", path.display()),
        None => "in memory, gone after a stop (keep them with --limits FILE)".to_owned(),
    };
    let leases = match places.limits() {
        Some(ledger) => format!("on {ledger}, which enforces the limits"),
        None => "in memory, gone after a stop".to_owned(),
    };
    framed(front, &format!("limits: {limits}\nleases: {leases}\n{}", credit(places)))
}

/// Where credit is, if it is not with the rest.
fn credit(places: &Places) -> String {
    places.credit().map(|url| format!("credit: in {url}\n")).unwrap_or_default()
}

/// The first and the last line of a greeting around the others.
fn framed(front: &Front, lines: &str) -> String {
    let Front { url, is_tls, asks_for_keys } = front;
    let authority = if *is_tls { r#"--cacert "$EARMARK_CA_FILE" "# } else { "" };
    let key = if *asks_for_keys { r#"-H "Authorization: Bearer $EARMARK_KEY" "# } else { "" };
    let limit = r#"{"key":"gpt-4o:rpm","kind":"rolling","capacity":60,"window_seconds":60}"#;
    format!(
        "Earmark {} listens on {url}\n\
         {lines}\
         try:    curl {authority}{key}-X PUT {url}/v1/admin/limits -d '{limit}'\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// What asks the process to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|source| Failure::System { what: "listening for signals", source });
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the first signal. The second then ends the process at once.
    async fn first(mut self) {
        let signal = self.next().await.name();
        tracing::info!(signal, "finishing what is in flight; a second signal stops at once");
        tokio::spawn(async move { std::process::exit(self.next().await.exit_code()) });
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Interrupt,
            _ = self.terminate.recv() => Asked::Terminate,
        }
    }
}

#[derive(Clone, Copy)]
enum Asked {
    Interrupt,
    Terminate,
}

impl Asked {
    fn name(self) -> &'static str {
        match self {
            Asked::Interrupt => "SIGINT",
            Asked::Terminate => "SIGTERM",
        }
    }

    /// What shells report for a process that the signal ended.
    fn exit_code(self) -> i32 {
        match self {
            Asked::Interrupt => 130,
            Asked::Terminate => 143,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Wrapper {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn parse(line: &str) -> Result<ServeArgs, String> {
        let words = std::iter::once("serve").chain(line.split_whitespace());
        Wrapper::try_parse_from(words).map(|wrapper| wrapper.serve).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_parts() {
        let args = parse("--in-memory").unwrap();
        let (local, server) = (args.local_options(), args.server_options().unwrap());
        assert_eq!(local.config, Config::default());
        assert_eq!(local.queue_max, LocalOptions::default().queue_max);
        assert_eq!(server.listen, ServerOptions::default().listen);
        assert_eq!(server.connections_max, ServerOptions::default().connections_max);
    }

    #[test]
    fn flags_are_checked_against_their_bounds() {
        for (line, message) in [
            ("--queue-max 255", "255 is not in 256..=16777216"),
            ("--in-memory --retention 0", "0 is not in 1..=31622400"),
            ("--in-memory --leases-max 1073741825", "1073741825 is not in 1..=1073741824"),
            ("--connections-max 0", "0 is not in 1..=1000000"),
            ("--election-ms 99", "99 is not in 100..=60000"),
            ("--listen localhost", "found \"localhost\", allowed is IP:PORT"),
            ("--log-format xml", "[possible values: human, json]"),
            ("--log-level loud", "found \"loud\", allowed are off"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn it_is_durable_unless_it_is_told_otherwise() {
        let args = parse("").unwrap();
        assert!(!args.in_memory);
        assert_eq!(args.data, Path::new("./earmark-data"));
    }

    #[test]
    fn flags_of_a_node_do_not_go_with_memory_and_the_other_way_round() {
        for (line, message) in [
            ("--in-memory --data d", "'--in-memory' cannot be used with '--data <DIR>'"),
            ("--in-memory --node-id 1", "'--in-memory' cannot be used with '--node-id <N>'"),
            ("--in-memory --election-ms 300", "cannot be used with '--election-ms <MS>'"),
            ("--in-memory --peer-listen 127.0.0.1:1", "cannot be used with '--peer-listen <ADDR>'"),
            ("--retention 1", "--in-memory"),
            ("--leases-max 1", "--in-memory"),
            ("--node-id 0", "0 is not in 1.."),
            ("--peer-advertise 127.0.0.1:1", "--peer-listen <ADDR>"),
            ("--join 127.0.0.1:1 --node-id 2", "--peer-listen <ADDR>"),
            ("--join 127.0.0.1:1 --peer-listen 127.0.0.1:2", "--node-id <N>"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        let args = parse("--node-id 2 --peer-listen 127.0.0.1:2 --join 127.0.0.1:1 127.0.0.1:3").unwrap();
        assert_eq!(args.join.len(), 2);
    }

    #[test]
    fn the_greeting_says_what_is_kept_where() {
        let here = address("127.0.0.1:7878").unwrap();
        let front = parse("--in-memory").unwrap().front(here, false);
        let places = parse("").unwrap().parts.places().unwrap();
        let text = greeting(&front, Some(Path::new("limits.json")), 7, &places);
        assert!(text.contains("listens on http://127.0.0.1:7878\n"), "{text}");
        assert!(text.contains("limits: 7 read from limits.json, written there when they change\n"), "{text}");
        let text = greeting(&front, None, 0, &places);
        assert!(text.contains("\ntry:    curl -X PUT http://127.0.0.1:7878/v1/admin/limits -d '"), "{text}");
        assert!(text.contains("limits: in memory, gone after a stop"), "{text}");
        assert!(text.contains("leases: in memory, gone after a stop\n"), "{text}");
        let secure = parse("--in-memory --tls-cert a --tls-key b").unwrap();
        let text = greeting(&secure.front(address("[::1]:1").unwrap(), true), None, 0, &places);
        let curl = r#"curl --cacert "$EARMARK_CA_FILE" -H "Authorization: Bearer $EARMARK_KEY" -X PUT https://[::1]:1/"#;
        assert!(text.contains(curl), "{text}");
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn the_greeting_names_the_ledger_that_has_the_leases() {
        let args = parse("--ledger tigerbeetle://127.0.0.1:3000?cluster=7").unwrap();
        let places = args.parts.places().unwrap();
        let text = greeting(&args.front(address("127.0.0.1:7878").unwrap(), false), None, 0, &places);
        assert!(text.contains("leases: on tigerbeetle://127.0.0.1:3000?cluster=7, which"), "{text}");
    }
}
