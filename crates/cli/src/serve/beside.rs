//! `earmark serve --gateway FILE`: a gateway in the process of its server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use earmark_gateway::Gateway;
use earmark_gateway::config::Config;

use super::ServeArgs;
use crate::client::ServerUrl;
use crate::failure::Failure;
use crate::gateway;
use crate::output;

/// The folder of open calls in the data folder.
const CALLS: &str = "gateway-calls";

/// The gateway beside a server, if there is one.
pub(super) struct Beside {
    config: Option<Config>,
    /// The folder of open calls. `None` in memory.
    calls: Option<PathBuf>,
    is_tls: bool,
    failure: Mutex<Option<Failure>>,
}

impl Beside {
    /// Reads the configuration, before the server does anything.
    pub(super) fn read(args: &ServeArgs) -> Result<Beside, Failure> {
        Ok(Beside {
            config: args.gateway.as_deref().map(gateway::read).transpose()?,
            calls: (!args.in_memory).then(|| args.data.join(CALLS)),
            is_tls: args.tls_cert.is_some(),
            failure: Mutex::new(None),
        })
    }

    /// Runs the gateway until `stop` completes. Its calls are finished before this returns, so that the server must not
    /// stop earlier. A gateway that cannot start stops the server.
    pub(super) async fn until(&self, server: SocketAddr, stop: impl Future<Output = ()> + Send) {
        let Some(config) = &self.config else { return stop.await };
        match self.start(config.clone(), server).await {
            Ok(gateway) => gateway.run(stop).await,
            Err(failure) => *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure),
        }
    }

    /// Why the gateway could not start.
    pub(super) fn ended(self) -> Result<(), Failure> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    async fn start(&self, config: Config, server: SocketAddr) -> Result<Gateway, Failure> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", reachable(server));
        let url: ServerUrl = url.parse().map_err(|error| Failure::Usage(format!("--gateway: {error}")))?;
        let gateway = gateway::bind(config, &[url], self.calls.as_deref()).await?;
        output::print(&format!("gateway: listens on {}\n", gateway.local_addr()))?;
        Ok(gateway)
    }
}

/// The address at which this process reaches its own server.
fn reachable(server: SocketAddr) -> SocketAddr {
    let ip = match server.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        other => other,
    };
    SocketAddr::new(ip, server.port())
}
