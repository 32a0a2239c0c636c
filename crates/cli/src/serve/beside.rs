//! `earmark serve --gateway FILE`: a gateway in the process of its server, which it calls without a connection.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use earmark_client::in_process::{Bytes, InProcessServer, Request, Served};
use earmark_client::{Client, ClientOptions};
use earmark_gateway::Gateway;
use earmark_gateway::config::Config;
use earmark_server::InProcess;

use super::ServeArgs;
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
    failure: Mutex<Option<Failure>>,
}

impl Beside {
    /// Reads the configuration, before the server does anything.
    pub(super) fn read(args: &ServeArgs) -> Result<Beside, Failure> {
        Ok(Beside {
            config: args.gateway.as_deref().map(gateway::read).transpose()?,
            calls: (!args.in_memory).then(|| args.data.join(CALLS)),
            failure: Mutex::new(None),
        })
    }

    /// Runs the gateway until `stop` completes. Its calls are finished before this returns, so that the server must not
    /// stop earlier. A gateway that cannot start stops the server.
    pub(super) async fn until(&self, server: InProcess, stop: impl Future<Output = ()> + Send) {
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

    async fn start(&self, config: Config, server: InProcess) -> Result<Gateway, Failure> {
        let has_keys = server.has_keys();
        let failed = |error: earmark_client::OptionsError| Failure::Usage(format!("--gateway: {error}"));
        let options = ClientOptions::in_process(Arc::new(Own(server))).map_err(failed)?;
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let client = Client::new(options).map_err(failed)?;
        let gateway = gateway::bind(config, client, has_keys, self.calls.as_deref()).await?;
        output::print(&format!("gateway: listens on {scheme}://{}\n", gateway.local_addr()))?;
        Ok(gateway)
    }
}

/// The server of this process.
struct Own(InProcess);

impl InProcessServer for Own {
    fn serve(&self, request: Request<Bytes>) -> Served<'_> {
        Box::pin(self.0.serve(request))
    }
}
