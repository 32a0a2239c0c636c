//! `earmark serve`: runs a server, on disk or in memory.

mod beside;
mod callers;
pub(crate) mod config;
mod credits;
mod decisions;
mod durable;
mod peers;
mod reload;
mod settings;
mod storage;
mod tigerbeetle;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args;
use earmark_admission::{Keys as _, LocalBook, LocalOptions, read_limits};
use earmark_core::{Config, KeyId};
use earmark_node::DiskReserve;
use earmark_server::{REQUESTS_AT_ONCE, REQUESTS_WAITING_MAX, Server, ServerOptions, install_metrics};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Done, Failure};
use crate::gateway;
use crate::logging::{self, LogFormat, LogLevel};
use crate::output;
use crate::quantity;
use crate::traces::TraceArgs;
use beside::Beside;
pub(crate) use callers::create_first_key;
use config::Origin;
pub(crate) use peers::PeerAddress;
use peers::PeerArgs;
use settings::SettingsArgs;
use storage::{CreditsOrigin, Storage, StorageArgs};
pub(crate) use tigerbeetle::{LedgerUrl, parse as parse_ledger_url};

pub(crate) const HELP: &str = "\
Ctrl-C or SIGTERM finishes open requests and stops; a second signal stops at once. A node stops with exit code 1 when
its disk fails. SIGHUP reloads certificates, the issuer's keys, and the log level of --config.

Every flag is also a field of the file of --config (peer_listen for --peer-listen; lists are arrays) and a variable
(EARMARK_PEER_LISTEN; lists are separated by commas). A flag wins over a variable, and a variable over the file.

Examples:
  earmark serve
  earmark serve --data /var/lib/earmark --listen 127.0.0.1:9000 --limits limits.json --log-format json
  earmark serve --in-memory
  earmark serve --config /etc/earmark/earmark.toml
  earmark serve --gateway gateway.toml
  earmark serve --credits sqlite:/var/lib/earmark/credit.db
  earmark serve --credits-url-file /etc/earmark/credits-url
  earmark serve --ledger 'tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7'

Three nodes on one machine, each in a shell of its own:
  founders=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
  earmark serve --data n1 --listen 127.0.0.1:7878 --peer-listen 127.0.0.1:7101 --bootstrap $founders
  earmark serve --data n2 --listen 127.0.0.1:7879 --peer-listen 127.0.0.1:7102 --bootstrap $founders
  earmark serve --data n3 --listen 127.0.0.1:7880 --peer-listen 127.0.0.1:7103 --bootstrap $founders";

/// Lowest `--queue-max`: one batch must fit into the queue.
const QUEUE_MIN: i64 = earmark_admission::BATCH_MAX as i64;
const QUEUE_MAX: i64 = 1 << 24;
const CONNECTIONS_MAX: i64 = 1_000_000;
const SESSION_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
const ELECTION_MS_MIN: i64 = 100;
const ELECTION_MS_MAX: i64 = 60_000;

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Read settings from this TOML file; see `earmark config check`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The settings of the file and of the variables, with their origins.
    #[arg(skip)]
    configured: config::Settings,
    /// Data folder of this node; created if it is missing
    #[arg(long, value_name = "DIR", default_value = "./earmark-data", conflicts_with = "in_memory")]
    data: PathBuf,
    /// Keep all data in memory: a stop loses everything but the limits file
    #[arg(long)]
    in_memory: bool,
    /// Address for clients, IP:PORT; port 0 takes a free port. An address beyond loopback needs keys, and TLS or
    /// --insecure-plaintext
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7878", value_parser = address)]
    listen: SocketAddr,
    /// JSON file with limits to create or update at the start. With --in-memory the file may be missing, and is rewritten
    /// on every change of limits
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Run a gateway with this configuration in the same process; see `earmark gateway`. It needs no key of its own
    #[arg(long, value_name = "FILE")]
    gateway: Option<PathBuf>,
    #[command(flatten)]
    storage: StorageArgs,
    #[command(flatten)]
    peers: PeerArgs,
    /// Election timeout, in milliseconds: nodes elect a new leader after 3 to 4 times this time without a message. Use
    /// the same value on all nodes, far above the slowest fsync
    #[arg(long, value_name = "MS", default_value_t = 300, conflicts_with = "in_memory")]
    #[arg(value_parser = clap::value_parser!(u32).range(ELECTION_MS_MIN..=ELECTION_MS_MAX))]
    election_ms: u32,
    /// Reserves that may wait for a decision; more are refused as overloaded
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(QUEUE_MIN..=QUEUE_MAX))]
    queue_max: u32,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    decisions: decisions::DecisionLogArgs,
    #[command(flatten)]
    traces: TraceArgs,
    /// Create the first admin key and write it to FILE, which only its owner can read, or print it without FILE. Does
    /// nothing if the cluster has keys
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    bootstrap_key: Option<Option<PathBuf>>,
    /// Requests per second of each caller, counting each item of a batch; 0 is unlimited
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    key_requests_per_second: u64,
    /// Concurrent requests of each caller, counting eight items of a batch as one; more of the same caller wait; 0 is
    /// unlimited
    #[arg(long, value_name = "N", default_value_t = REQUESTS_AT_ONCE)]
    key_requests_at_once: u32,
    /// Waiting requests of each caller, counting a batch as one; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = REQUESTS_WAITING_MAX)]
    key_requests_waiting: usize,
    /// Accept session tokens (JWT) with this issuer, the claim iss
    #[arg(long, value_name = "URL", requires_all = ["issuer_keys", "audience"])]
    issuer: Option<String>,
    /// JSON Web Key Set file with the issuer's public keys, Ed25519 or RSA; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "issuer")]
    issuer_keys: Option<PathBuf>,
    /// Required audience of session tokens, the claim aud
    #[arg(long, value_name = "NAME", requires = "issuer")]
    audience: Option<String>,
    /// Claim that holds the role of a session token
    #[arg(long, value_name = "CLAIM", default_value = "earmark_role", requires = "issuer")]
    role_claim: String,
    /// Claim that holds the namespace of a session token
    #[arg(long, value_name = "CLAIM", default_value = "earmark_namespace", requires = "issuer")]
    namespace_claim: String,
    /// Attribute of calls that a claim of a session token fixes, such as tenant=org_id; repeatable
    #[arg(long, value_name = "ATTRIBUTE=CLAIM", value_parser = callers::attribute_claim, requires = "issuer")]
    attribute_claim: Vec<(String, String)>,
    /// Longest lifetime of a session token, such as 3600 or 1h, counted from the claim iat, or from now without that claim
    #[arg(long, value_name = "DURATION", default_value = "1d", requires = "issuer")]
    #[arg(value_parser = quantity::seconds(SESSION_SECONDS_MAX))]
    issuer_max_age: u32,
    /// Serve clients over TLS with this certificate chain, a PEM file; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA certificates of clients, a PEM file: clients may present a certificate instead of a key; reloaded when it
    /// changes
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "client_certificate"])]
    client_ca: Option<PathBuf>,
    /// Key that callers with a client certificate act as, by a DNS name or URI in the certificate, such as
    /// envoy.example=KEY_ID; repeatable
    #[arg(long, value_name = "NAME=KEY_ID", value_parser = callers::client_certificate, requires = "client_ca")]
    client_certificate: Vec<(String, KeyId)>,
    /// Certificate of this node for connections between nodes, a PEM file; reloaded when it changes
    #[arg(long, value_name = "FILE", requires_all = ["peer_key", "peer_ca", "peer_listen"])]
    #[arg(conflicts_with = "in_memory")]
    peer_cert: Option<PathBuf>,
    /// Private key of --peer-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// CA certificate that signs only the certificates of nodes, a PEM file
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// Allow keys without --peer-cert; only safe if no other process can connect to --peer-listen, which must be on
    /// loopback
    #[arg(long, requires = "peer_listen", conflicts_with_all = ["peer_cert", "in_memory"])]
    insecure_peers: bool,
    /// Let a node without peers move log time forward to its own wall clock while nothing is reserved; a cluster needs
    /// a majority of clocks that agree instead
    #[arg(long, conflicts_with = "in_memory")]
    accept_time: bool,
    /// Listen beyond loopback without TLS; only safe behind a proxy that encrypts
    #[arg(long)]
    insecure_plaintext: bool,
    /// Serve the console at /console also beyond loopback, where it is always served
    #[arg(long)]
    console: bool,
    /// Say in the answers to calls how much is left of their limits (headers RateLimit and RateLimit-Policy)
    #[arg(long)]
    reveal_remaining: bool,
    /// Space to keep free on the data disk: a size such as 512M or 2G, or 5%; below it a leader refuses reserves and
    /// writes, and takes completes; 0 turns it off [default: 1G, or 5% of a disk below 20G]
    #[arg(long, value_name = "SIZE", value_parser = quantity::disk_reserve, conflicts_with = "in_memory")]
    disk_reserve: Option<DiskReserve>,
    /// Open client connections; beyond it the oldest one without valid credentials is closed, else the new one
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections_max: u32,
    /// Open client connections of one address, or of one IPv6 /64 network; raise it for clients behind one proxy
    #[arg(long, value_name = "N", default_value_t = 2_500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections_per_address: u32,
    /// Format of the log, which goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Human)]
    log_format: LogFormat,
    /// Log level: off, error, warn, info, debug, trace, or a list such as info,earmark_server=debug
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: LogLevel,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("found {text:?}, allowed is IP:PORT, such as 127.0.0.1:7878 or [::1]:7878"))
}

pub(crate) fn run(args: &ServeArgs) -> Result<Done, Failure> {
    // Check the flags before the first side effect.
    let storage = args.check()?;
    logging::start(args.log_format, &args.log_level);
    runtime()?.block_on(serve(args, &storage))?;
    Ok(Done::Ok)
}

/// A Tokio runtime with one worker thread per core.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores()).enable_all().build();
    runtime.map_err(|source| Failure::System { what: "starting the runtime", source })
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

async fn serve(args: &ServeArgs, storage: &Storage) -> Result<(), Failure> {
    storage.warn();
    args.configured.warn();
    let signals = Signals::new()?;
    reload::on_hangup(args)?;
    // The backend records metrics from its start.
    install_metrics();
    let traces = args.traces.start("earmark", args.listen.to_string())?;
    let served = match args.in_memory {
        true => serve_in_memory(args, storage, signals).await,
        false => durable::serve(args, storage, signals).await,
    };
    traces.shut_down().await;
    served
}

async fn serve_in_memory(args: &ServeArgs, storage: &Storage, signals: Signals) -> Result<(), Failure> {
    let beside = Beside::read(args)?;
    let book = LocalBook::open(args.local_options()).await?;
    let service = storage.open(&book, args.queue_max as usize).await?;
    service.start().await.map_err(|error| Failure::Usage(error.to_string()))?;
    let known = service.backend().stats().limits;
    let options = ServerOptions { decisions: args.decisions.in_memory(), ..args.server_options()? };
    if let Some(file) = &args.bootstrap_key {
        callers::bootstrap(&book, file.as_deref()).await?;
    }
    let server = Server::bind(options, service.backend()).await?;
    let endpoint = args.endpoint(server.local_addr(), book.has_keys());
    output::print(&in_memory_banner(&endpoint, args.limits.as_deref(), known, storage))?;
    tracing::info!(address = %server.local_addr(), "listening");
    let own = server.in_process();
    server.run(beside.until(own, signals.first())).await?;
    beside.ended()?;
    output::print("stopped\n")
}

impl ServeArgs {
    /// Adds the origins of the settings that do not stand on the command line.
    pub(crate) fn configured_by(&mut self, configured: config::Settings) {
        self.storage.credits_origin = match configured.origin("credits") {
            Some(Origin::Variable(name)) => Some(CreditsOrigin { name: name.clone(), file: None }),
            Some(Origin::Line(line)) => {
                let file = configured.file.clone().unwrap_or_default();
                Some(CreditsOrigin { name: format!("{}:{line}: credits", file.display()), file: Some(file) })
            }
            Some(Origin::Flag) | None => None,
        };
        self.configured = configured;
    }

    /// Checks the settings together, without reading more than the file of `--credits-url-file`.
    fn check(&self) -> Result<Storage, Failure> {
        self.check_callers()?;
        let storage = self.storage.parse()?;
        self.settings.check(&storage)?;
        Ok(storage)
    }

    /// Checks the settings and every file that they name, for `earmark config check`.
    pub(crate) async fn check_with_files(&self) -> Result<(), Failure> {
        self.check()?;
        if let Some(path) = self.limits.as_deref().filter(|path| !self.in_memory || path.exists()) {
            read_limits(path)?;
        }
        if let Some(path) = &self.gateway {
            gateway::check_file(path)?;
        }
        self.server_options()?;
        if !self.in_memory {
            self.node_options()?;
        }
        Ok(())
    }

    fn local_options(&self) -> LocalOptions {
        let config = Config::default().with(&self.settings.changes());
        let queue_max = self.queue_max as usize;
        LocalOptions { config, limits_file: self.limits.clone(), queue_max, ..LocalOptions::default() }
    }

    fn endpoint(&self, address: SocketAddr, has_keys: bool) -> Endpoint {
        let is_tls = self.tls_cert.is_some();
        let scheme = if is_tls { "https" } else { "http" };
        let has_console = self.console || self.listen.ip().is_loopback();
        let requires_key = has_keys || self.issuer.is_some();
        Endpoint { url: format!("{scheme}://{address}"), is_tls, requires_key, has_console }
    }

    fn server_options(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            listen: self.listen,
            connections_max: self.connections_max as usize,
            connections_per_address: self.connections_per_address as usize,
            issuer: self.issuer()?,
            certificate_keys: self.certificate_keys()?,
            tls: self.tls()?,
            requests_per_second: Some(self.key_requests_per_second).filter(|limit| *limit > 0),
            requests_at_once: NonZeroU32::new(self.key_requests_at_once),
            requests_waiting_max: self.key_requests_waiting,
            is_plaintext_allowed: self.insecure_plaintext,
            reveals_remaining: self.reveal_remaining,
            console: self.console,
            ..ServerOptions::default()
        })
    }
}

/// How clients connect to the server.
struct Endpoint {
    url: String,
    is_tls: bool,
    requires_key: bool,
    has_console: bool,
}

/// The startup message of a server in memory.
fn in_memory_banner(endpoint: &Endpoint, limits: Option<&Path>, known: usize, storage: &Storage) -> String {
    let limits = match limits {
        Some(path) => format!("{known} read from {}, which is updated on every change", path.display()),
        None => "in memory, lost at a stop (--limits FILE keeps them)".to_owned(),
    };
    let leases = match storage.limits() {
        Some(ledger) => format!("on {ledger}, which enforces the limits"),
        None => "in memory, lost at a stop".to_owned(),
    };
    banner(endpoint, &format!("limits: {limits}\nleases: {leases}\n{}", credit_line(storage)))
}

/// The line about the credit database; empty without one.
fn credit_line(storage: &Storage) -> String {
    storage.credit().map(|url| format!("credit: in {url}\n")).unwrap_or_default()
}

/// The startup message: version and address, `lines`, and a request to try.
fn banner(endpoint: &Endpoint, lines: &str) -> String {
    let Endpoint { url, is_tls, requires_key, has_console } = endpoint;
    let console = if *has_console { format!("look:   {url}/console\n") } else { String::new() };
    let authority = if *is_tls { r#"--cacert "$EARMARK_CA_FILE" "# } else { "" };
    let key = if *requires_key { r#"-H "Authorization: Bearer $EARMARK_KEY" "# } else { "" };
    let limit = r#"{"key":"gpt-4o:rpm","kind":"rolling","capacity":60,"window_seconds":60}"#;
    format!(
        "Earmark {} listens on {url}\n\
         {lines}{console}\
         try:    curl {authority}{key}-X PUT {url}/v1/admin/limits -d '{limit}'\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// SIGINT and SIGTERM, which stop the server.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|source| Failure::System { what: "listening for signals", source });
        // Registered for the life of the process, so that SIGHUP never stops a server, also one without files to reload.
        drop(listen(SignalKind::hangup())?);
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the first signal. A second one then exits the process at once.
    pub(crate) async fn first(mut self) {
        let signal = self.next().await.name();
        tracing::info!(signal, "finishing open requests; a second signal stops at once");
        tokio::spawn(async move { std::process::exit(self.next().await.exit_code()) });
    }

    /// Waits for a signal.
    async fn any(&mut self) {
        self.next().await;
    }

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }
}

#[derive(Clone, Copy)]
enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignal {
    fn name(self) -> &'static str {
        match self {
            StopSignal::Interrupt => "SIGINT",
            StopSignal::Terminate => "SIGTERM",
        }
    }

    /// The exit code by convention of shells: 128 plus the signal number.
    fn exit_code(self) -> i32 {
        match self {
            StopSignal::Interrupt => 130,
            StopSignal::Terminate => 143,
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
    fn the_default_flags_match_the_default_options() {
        let args = parse("--in-memory").unwrap();
        let (local, server) = (args.local_options(), args.server_options().unwrap());
        assert_eq!(local.config, Config::default());
        assert_eq!(local.queue_max, LocalOptions::default().queue_max);
        assert_eq!(server.listen, ServerOptions::default().listen);
        assert_eq!(server.connections_max, ServerOptions::default().connections_max);
        assert_eq!(server.connections_per_address, ServerOptions::default().connections_per_address);
    }

    #[test]
    fn flags_are_checked_against_their_bounds() {
        for (line, message) in [
            ("--queue-max 255", "255 is not in 256..=16777216"),
            ("--retention 0", "found \"0\", allowed are 1 s to 366 d"),
            ("--leases-max 1073741825", "found \"1073741825\", allowed are whole numbers from 1 to 1073741824"),
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
    fn it_is_durable_by_default() {
        let args = parse("").unwrap();
        assert!(!args.in_memory);
        assert_eq!(args.data, Path::new("./earmark-data"));
    }

    #[test]
    fn flags_of_a_node_conflict_with_in_memory_and_the_other_way_round() {
        for (line, message) in [
            ("--in-memory --data d", "'--in-memory' cannot be used with '--data <DIR>'"),
            ("--in-memory --node-id 1", "'--in-memory' cannot be used with '--node-id <N>'"),
            ("--in-memory --election-ms 300", "cannot be used with '--election-ms <MS>'"),
            ("--in-memory --peer-listen 127.0.0.1:1", "cannot be used with '--peer-listen <ADDR>'"),
            ("--node-id 0", "0 is not in 1.."),
            ("--peer-advertise 127.0.0.1:1", "--peer-listen <ADDR>"),
            ("--join 127.0.0.1:1 --node-id 2", "--peer-listen <ADDR>"),
            ("--bootstrap a,b", "--peer-listen <ADDR>"),
            ("--in-memory --bootstrap a,b --peer-listen 127.0.0.1:1", "cannot be used with"),
            ("--bootstrap a,b --join c --peer-listen 127.0.0.1:1", "cannot be used with"),
            ("--bootstrap a,b:x --peer-listen 127.0.0.1:1", "found \"b:x\", allowed is HOST:PORT"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        let args = parse("--node-id 2 --peer-listen 127.0.0.1:2 --join 127.0.0.1:1 127.0.0.1:3").unwrap();
        assert_eq!(args.peers.join.len(), 2);
        let args = parse("--peer-listen 127.0.0.1:7101 --peer-name a --bootstrap a,b:1,c").unwrap().peers;
        assert_eq!(args.all_with_port(&args.bootstrap), ["a:7101", "b:1", "c:7101"]);
        assert_eq!(args.advertised().as_deref(), Some("a:7101"));
    }

    #[test]
    fn the_banner_says_where_data_is_stored() {
        let here = address("127.0.0.1:7878").unwrap();
        let endpoint = parse("--in-memory").unwrap().endpoint(here, false);
        let storage = parse("").unwrap().storage.parse().unwrap();
        let text = in_memory_banner(&endpoint, Some(Path::new("limits.json")), 7, &storage);
        assert!(text.contains("listens on http://127.0.0.1:7878\n"), "{text}");
        assert!(text.contains("limits: 7 read from limits.json, which is updated on every change\n"), "{text}");
        let text = in_memory_banner(&endpoint, None, 0, &storage);
        assert!(text.contains("\ntry:    curl -X PUT http://127.0.0.1:7878/v1/admin/limits -d '"), "{text}");
        assert!(text.contains("limits: in memory, lost at a stop"), "{text}");
        assert!(text.contains("leases: in memory, lost at a stop\n"), "{text}");
        let secure = parse("--in-memory --tls-cert a --tls-key b").unwrap();
        let text = in_memory_banner(&secure.endpoint(address("[::1]:1").unwrap(), true), None, 0, &storage);
        let curl =
            r#"curl --cacert "$EARMARK_CA_FILE" -H "Authorization: Bearer $EARMARK_KEY" -X PUT https://[::1]:1/"#;
        assert!(text.contains(curl), "{text}");
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn the_banner_names_the_tigerbeetle_cluster_that_holds_the_leases() {
        let args = parse("--ledger tigerbeetle://127.0.0.1:3000?cluster=7").unwrap();
        let storage = args.storage.parse().unwrap();
        let endpoint = args.endpoint(address("127.0.0.1:7878").unwrap(), false);
        let text = in_memory_banner(&endpoint, None, 0, &storage);
        assert!(text.contains("leases: on tigerbeetle://127.0.0.1:3000?cluster=7, which"), "{text}");
    }
}
