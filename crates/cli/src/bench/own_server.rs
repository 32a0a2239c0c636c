//! A server inside the benchmark process, for runs that name no server.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::mpsc;
use std::thread::JoinHandle;

use earmark_admission::Token;
use earmark_server::{Server, ServerOptions, install_metrics};
use tokio::sync::oneshot;

use super::target::{Scratch, Target};
use crate::credentials::Credentials;
use crate::failure::Failure;
use crate::serve::{create_first_key, runtime};

/// Connections beyond those of the load: the client that creates the limits needs some.
const CONNECTIONS_SPARE: usize = 16;

/// A server on a free loopback port. It has its own thread and runtime, so that the load does not share its threads.
pub(super) struct OwnServer {
    address: SocketAddr,
    credentials: Option<Credentials>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl OwnServer {
    /// Starts a server that accepts `connections` and queues at least `reserves` concurrent reserves. With a folder it
    /// is a durable node, otherwise a Book in memory.
    pub(super) fn start(
        connections: usize,
        reserves: usize,
        scratch: Option<Scratch>,
        requires_key: bool,
    ) -> Result<OwnServer, Failure> {
        let token = requires_key.then(Token::random).transpose();
        let token = token.map_err(|error| Failure::Bench(error.to_string()))?;
        let credentials = token.as_ref().map(|token| Credentials::new(&token.reveal())).transpose()?;
        let (stop, stopped) = oneshot::channel();
        let (bound, is_bound) = mpsc::channel();
        let serve = move || runtime()?.block_on(serve(&bound, stopped, connections, reserves, scratch, token));
        let thread = std::thread::Builder::new().name("server".into()).spawn(serve);
        let thread = thread.map_err(|source| Failure::System { what: "starting a thread", source })?;
        match is_bound.recv() {
            Ok(address) => Ok(OwnServer { address, credentials, stop, thread }),
            // The thread ended without sending an address, so it has an error.
            Err(_) => Err(join(thread).err().unwrap_or_else(|| Failure::Bench("the server ended early".into()))),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that the server requires, if any.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        self.credentials.clone()
    }

    pub(super) fn stop(self) -> Result<(), Failure> {
        // The send fails if the server has already ended; `join` returns its error.
        _ = self.stop.send(());
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().map_err(|_| Failure::Bench("the server thread panicked".into()))?
}

async fn serve(
    bound: &mpsc::Sender<SocketAddr>,
    stopped: oneshot::Receiver<()>,
    connections: usize,
    reserves: usize,
    scratch: Option<Scratch>,
    token: Option<Token>,
) -> Result<(), Failure> {
    install_metrics();
    let target = Target::open(scratch.as_ref(), reserves).await?;
    if let Some(token) = token {
        let created = create_first_key(&*target.backend, &token, "bench").await;
        created.map_err(|why| Failure::Bench(format!("cannot create the key: {why}")))?;
    }
    let connections_max = connections + CONNECTIONS_SPARE;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // The rate limits are active, as on any server, but never reached.
    let options = ServerOptions {
        listen,
        connections_max,
        connections_per_address: connections_max,
        requests_per_second: Some(u64::from(u32::MAX)),
        requests_at_once: Some(NonZeroU32::MAX),
        ..ServerOptions::default()
    };
    let server = Server::bind(options, target.backend.clone()).await?;
    _ = bound.send(server.local_addr());
    // A dropped sender stops the server too.
    server.run(async { _ = stopped.await }).await?;
    target.shut_down().await
}
