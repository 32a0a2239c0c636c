//! `earmark gateway`: runs a gateway between SDKs and providers, or checks its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use earmark_client::Client;
use earmark_gateway::config::{CONFIG_BYTES_MAX, Config};
use earmark_gateway::earmark::Remote;
use earmark_gateway::open_calls::OpenCalls;
use earmark_gateway::{Gateway, GatewayError, GatewayOptions};

use crate::client::ServerUrl;
use crate::failure::{Done, Failure};
use crate::logging::{self, LogFormat, LogLevel};
use crate::output;
use crate::serve::{Signals, runtime};
use crate::text_file;
use crate::traces::TraceArgs;

pub(crate) const HELP: &str = "\
Clients change the base_url of their SDK to the gateway, and send their Earmark key as its API key. The gateway needs a
key of role gateway in EARMARK_KEY or EARMARK_KEY_FILE, unless the server is open. See docs/gateway.md.

Ctrl-C or SIGTERM finishes open calls and stops; a second signal stops at once. Calls that are not settled then are
settled at the next start.

Examples:
  earmark gateway check gateway.toml
  earmark gateway --config gateway.toml
  earmark gateway --config gateway.toml --server https://earmark-1:7878 --server https://earmark-2:7878 --calls /var/lib/earmark-calls";

const CHECK_HELP: &str = "\
It reads the file, the keys of the upstreams and the certificates, and connects to nobody.

Examples:
  earmark gateway check gateway.toml";

/// Connections to one server. A call needs one while it reserves, renews or settles, which takes milliseconds; more calls
/// wait. Each connection takes 25 KiB.
const CONNECTIONS_MAX: usize = 128;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    /// The configuration, in TOML
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// The address of the server; repeat it for the other nodes of a cluster
    #[arg(long, value_name = "URL", env = "EARMARK_SERVER", default_value = "http://127.0.0.1:7878")]
    server: Vec<ServerUrl>,
    /// Send the key to another machine over http://; only where a tunnel or a proxy encrypts the connection
    #[arg(long)]
    insecure_plaintext: bool,
    /// Folder for calls that are not settled; each gateway needs one of its own. Created if it is missing
    #[arg(long, value_name = "DIR", default_value = "./earmark-calls", conflicts_with = "in_memory")]
    calls: PathBuf,
    /// Keep the calls that are not settled in memory: a kill leaves them to the timeouts of their limits
    #[arg(long)]
    in_memory: bool,
    #[command(flatten)]
    traces: TraceArgs,
    /// Format of the log, which goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Human)]
    log_format: LogFormat,
    /// Log level: off, error, warn, info, debug, trace, or a list such as info,earmark_gateway::access=off
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: LogLevel,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Check a configuration, with its keys and certificates, without starting
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The configuration, in TOML
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(args: &GatewayArgs) -> Result<Done, Failure> {
    match (&args.command, &args.config) {
        (Some(GatewayCommand::Check { file }), _) => check(file),
        (None, Some(file)) => {
            let config = read(file)?;
            logging::start(args.log_format, &args.log_level);
            use_small_pages();
            runtime()?.block_on(serve(args, config))?;
            Ok(Done::Ok)
        }
        (None, None) => Err(Failure::Usage("--config: name the configuration".into())),
    }
}

/// Keeps the kernel from backing memory with huge pages. The buffers of a stream are mostly empty, and a huge page is
/// resident as a whole.
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "the memory of streams may be in huge pages");
    }
}

pub(crate) fn read(file: &Path) -> Result<Config, Failure> {
    let text = text_file::read(file, CONFIG_BYTES_MAX)?;
    Config::parse(&text).map_err(|mistake| Failure::Usage(format!("{}: {mistake}", file.display())))
}

/// Checks a configuration, with its keys and certificates.
pub(crate) fn check_file(file: &Path) -> Result<Config, Failure> {
    let config = read(file)?;
    earmark_gateway::check(&config).map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    Ok(config)
}

fn check(file: &Path) -> Result<Done, Failure> {
    let config = check_file(file)?;
    let (upstreams, models) = (config.upstreams.len(), config.models.len());
    output::print(&format!("{}: ok ({upstreams} upstreams, {models} models)\n", file.display()))?;
    Ok(Done::Ok)
}

async fn serve(args: &GatewayArgs, config: Config) -> Result<(), Failure> {
    let signals = Signals::new()?;
    let servers: Vec<ServerUrl> =
        args.server.iter().map(|url| url.clone().allow_plaintext(args.insecure_plaintext)).collect();
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let models: Vec<String> = config.models.keys().cloned().collect();
    let traces = args.traces.start("earmark-gateway", config.listen.to_string())?;
    let (client, has_key) = client(&servers)?;
    let calls = Some(args.calls.as_path()).filter(|_| !args.in_memory);
    let gateway = bind(config, client, has_key, calls).await?;
    let address = gateway.local_addr();
    let kept = match args.in_memory {
        true => "in memory, lost at a stop".to_owned(),
        false => format!("in {}", args.calls.display()),
    };
    let version = env!("CARGO_PKG_VERSION");
    output::print(&format!(
        "Earmark gateway {version} listens on {scheme}://{address}\nmodels: {}\ncalls:  {kept}\n\
         try:    OPENAI_BASE_URL={scheme}://{address}/v1 ANTHROPIC_BASE_URL={scheme}://{address}\n",
        models.join(", ")
    ))?;
    tracing::info!(%address, "listening");
    gateway.run(signals.first()).await;
    traces.shut_down().await;
    output::print("stopped\n")
}

/// A gateway of the servers of this client. Without a folder, open calls are in memory.
pub(crate) async fn bind(
    config: Config,
    client: Client,
    has_key: bool,
    calls: Option<&Path>,
) -> Result<Gateway, Failure> {
    let calls = match calls {
        None => OpenCalls::in_memory(),
        Some(folder) => OpenCalls::open(folder).map_err(|error| Failure::Usage(error.to_string()))?,
    };
    let remote = Remote::new(client).map_err(|error| Failure::Usage(error.to_string()))?;
    let options = GatewayOptions { config, earmark: Arc::new(remote), calls, has_key };
    Gateway::bind(options).await.map_err(failure)
}

/// A client of all servers, and whether it has a key.
fn client(servers: &[ServerUrl]) -> Result<(Client, bool), Failure> {
    let first = servers.first().ok_or_else(|| Failure::Usage("--server: name at least one".into()))?;
    let mut options = first.options()?;
    for url in servers {
        // Each server gets the key, so each must be one that it may be sent to.
        url.credentials()?;
    }
    options.servers = servers.iter().map(|url| url.address().clone()).collect();
    options.connections_max = CONNECTIONS_MAX;
    let has_key = options.key.is_some();
    let client = Client::new(options).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok((client, has_key))
}

fn failure(error: GatewayError) -> Failure {
    match error {
        GatewayError::Listen { .. } | GatewayError::Refused(_) => Failure::Conflict(error.to_string()),
        other => Failure::Usage(other.to_string()),
    }
}
