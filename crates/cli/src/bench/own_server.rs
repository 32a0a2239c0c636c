//! A server in this process, for the length of a run.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;

use earmark_server::{Server, ServerOptions, install_metrics};
use tokio::sync::oneshot;

use super::durable::{Scratch, Subject};
use crate::failure::Failure;
use crate::serve::runtime;

const CONNECTIONS_SPARE: usize = 16;

/// A server with a runtime of its own, on a free port of the loopback interface.
pub(super) struct OwnServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl OwnServer {
    /// Starts it, with room for so many connections and reserves at once; on disk if there is a folder for it.
    pub(super) fn start(
        connections: usize,
        reserves: usize,
        scratch: Option<Scratch>,
    ) -> Result<OwnServer, Failure> {
        let (stop, stopped) = oneshot::channel();
        let (bound, is_bound) = mpsc::channel();
        let serve = move || runtime()?.block_on(serve(&bound, stopped, connections, reserves, scratch));
        let thread = std::thread::Builder::new().name("server".into()).spawn(serve);
        let thread = thread.map_err(|source| Failure::System { what: "starting a thread", source })?;
        match is_bound.recv() {
            Ok(address) => Ok(OwnServer { address, stop, thread }),
            // It ended without an address, so it has an error to tell.
            Err(_) => {
                Err(join(thread).err().unwrap_or_else(|| Failure::Bench("the server ended early".into())))
            }
        }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it.
    pub(super) fn stop(self) -> Result<(), Failure> {
        // It may have ended by itself, which joining it shows.
        _ = self.stop.send(());
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().map_err(|_| Failure::Bench("the server broke".into()))?
}

async fn serve(
    bound: &mpsc::Sender<SocketAddr>,
    stopped: oneshot::Receiver<()>,
    connections: usize,
    reserves: usize,
    scratch: Option<Scratch>,
) -> Result<(), Failure> {
    install_metrics();
    let subject = Subject::open(scratch.as_ref(), reserves).await?;
    // A few more for those that make the limits.
    let connections_max = connections + CONNECTIONS_SPARE;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ServerOptions { listen, connections_max, ..ServerOptions::default() };
    let server = Server::bind(options, subject.backend.clone()).await?;
    _ = bound.send(server.local_addr());
    // Whether it is asked to stop or whoever could ask is gone comes to the same.
    server.run(async { _ = stopped.await }).await?;
    subject.shut_down().await
}
