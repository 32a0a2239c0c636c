//! A proxy to the server that can drop requests or answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

const OPEN: u8 = 0;
const CUT_REQUESTS: u8 = 1;
const CUT_ANSWERS: u8 = 2;

/// A proxy on a local port.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) async fn to(socket: PathBuf) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mode = Arc::new(AtomicU8::new(OPEN));
        let shared = Arc::clone(&mode);
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (socket, mode) = (socket.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    if let Ok(server) = UnixStream::connect(socket).await {
                        pass(caller, server, mode).await;
                    }
                });
            }
        });
        Proxy { port, mode }
    }

    /// Drops the next request and its connection.
    pub(crate) fn cut_requests(&self) {
        self.mode.store(CUT_REQUESTS, Ordering::SeqCst);
    }

    /// Forwards the next request and drops its answer.
    pub(crate) fn cut_answers(&self) {
        self.mode.store(CUT_ANSWERS, Ordering::SeqCst);
    }

    pub(crate) fn repair(&self) {
        self.mode.store(OPEN, Ordering::SeqCst);
    }
}

async fn pass(mut caller: TcpStream, mut server: UnixStream, mode: Arc<AtomicU8>) {
    let (mut asked, mut answered) = ([0_u8; 65_536], [0_u8; 65_536]);
    loop {
        tokio::select! {
            read = caller.read(&mut asked) => {
                let size = read.unwrap_or(0);
                if size == 0 || mode.load(Ordering::SeqCst) == CUT_REQUESTS {
                    return;
                }
                if server.write_all(&asked[..size]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let size = read.unwrap_or(0);
                if size == 0 || mode.load(Ordering::SeqCst) == CUT_ANSWERS {
                    return;
                }
                if caller.write_all(&answered[..size]).await.is_err() {
                    return;
                }
            }
        }
    }
}
