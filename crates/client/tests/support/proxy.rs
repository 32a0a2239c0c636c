//! A proxy that loses, cuts, delays and repeats requests and responses.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::random::Random;

/// A fault of one HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request and the connection are lost.
    LoseRequest,
    /// The server gets the beginning of the request.
    CutRequest,
    /// The request is executed, and its response is lost.
    LoseAnswer,
    /// The request is executed, and the client gets the beginning of the response.
    CutAnswer,
    /// The client is disconnected, and the request arrives later.
    LateRequest,
    /// The request arrives twice, the second time after its response.
    Twice,
}

const FAULTS: [Fault; 6] =
    [Fault::LoseRequest, Fault::CutRequest, Fault::LoseAnswer, Fault::CutAnswer, Fault::LateRequest, Fault::Twice];

/// Milliseconds that a late request takes at most.
const LATE_MS: u64 = 100;

/// A proxy in front of one server. It stops with its runtime.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: String,
    random: Mutex<Random>,
    /// One request in this number has a random fault; 0 for none.
    one_in: AtomicU64,
    is_down: AtomicBool,
    /// The faults of the next requests, before random ones.
    script: Mutex<VecDeque<Option<Fault>>>,
    faults: [AtomicU64; FAULTS.len()],
    /// Requests with a response.
    through: AtomicU64,
}

impl Proxy {
    /// An HTTP/1.1 proxy in front of the server at `upstream`.
    pub async fn http(upstream: &str, seed: u64, one_in: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            random: Mutex::new(Random::new(seed)),
            one_in: AtomicU64::new(one_in),
            is_down: AtomicBool::new(false),
            script: Mutex::default(),
            faults: Default::default(),
            through: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&accepting);
                // Broken connections are the purpose.
                tokio::spawn(async move { _ = serve(&shared, stream).await });
            }
        });
        Proxy { address, shared }
    }

    /// A byte proxy that cuts connections to `upstream` after at most `bytes_max` bytes.
    pub async fn bytes(upstream: &str, seed: u64, bytes_max: u64) -> Proxy {
        let proxy = Proxy::http(upstream, seed, 0).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&proxy.shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move { _ = cut(&shared, stream, bytes_max).await });
            }
        });
        Proxy { address, shared: proxy.shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the faults of the next requests, one after the other.
    pub fn script(&self, faults: &[Option<Fault>]) {
        self.shared.script.lock().unwrap().extend(faults);
    }

    /// Ends the random faults.
    pub fn heal(&self) {
        self.shared.one_in.store(0, Ordering::SeqCst);
    }

    /// While it is down, the proxy closes every connection.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }

    /// The count of each random fault.
    pub fn faults(&self) -> Vec<(Fault, u64)> {
        FAULTS.iter().zip(&self.shared.faults).map(|(fault, n)| (*fault, n.load(Ordering::SeqCst))).collect()
    }

    /// The number of requests with a response.
    pub fn through(&self) -> u64 {
        self.shared.through.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn random<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap())
    }

    fn fault(&self) -> Option<Fault> {
        if let Some(scripted) = self.script.lock().unwrap().pop_front() {
            return scripted;
        }
        let one_in = self.one_in.load(Ordering::SeqCst);
        if one_in == 0 || !self.random(|random| random.once_in(one_in)) {
            return None;
        }
        let index = self.random(|random| random.below(FAULTS.len() as u64));
        let index = usize::try_from(index).unwrap();
        self.faults[index].fetch_add(1, Ordering::SeqCst);
        Some(FAULTS[index])
    }
}

/// Serves the requests of one connection.
async fn serve(shared: &Arc<Shared>, mut caller: TcpStream) -> io::Result<()> {
    caller.set_nodelay(true)?;
    let mut server: Option<TcpStream> = None;
    loop {
        let request = message(&mut caller).await?;
        if shared.is_down.load(Ordering::SeqCst) {
            return Ok(());
        }
        let cut_at = |bytes: &[u8]| 1 + usize::try_from(shared.random(|r| r.below(bytes.len() as u64 - 1))).unwrap();
        let fault = shared.fault();
        match fault {
            Some(Fault::LoseRequest) => return Ok(()),
            Some(Fault::CutRequest) => {
                let mut server = TcpStream::connect(&shared.upstream).await?;
                return server.write_all(&request[..cut_at(&request)]).await;
            }
            Some(Fault::LateRequest) => {
                drop(caller);
                let wait = LATE_MS / 2 + shared.random(|random| random.below(LATE_MS / 2));
                tokio::time::sleep(Duration::from_millis(wait)).await;
                return exchange(shared, &mut None, &request).await.map(drop);
            }
            _ => {}
        }
        let answer = exchange(shared, &mut server, &request).await?;
        match fault {
            Some(Fault::LoseAnswer) => return Ok(()),
            Some(Fault::CutAnswer) => return caller.write_all(&answer[..cut_at(&answer)]).await,
            _ => caller.write_all(&answer).await?,
        }
        shared.through.fetch_add(1, Ordering::SeqCst);
        if fault == Some(Fault::Twice) {
            exchange(shared, &mut server, &request).await?;
        }
    }
}

async fn exchange(shared: &Shared, server: &mut Option<TcpStream>, request: &[u8]) -> io::Result<Vec<u8>> {
    let stream = match server {
        Some(stream) => stream,
        None => server.insert(TcpStream::connect(&shared.upstream).await?),
    };
    stream.set_nodelay(true)?;
    stream.write_all(request).await?;
    message(stream).await
}

/// Reads one request or response. All of them have a content-length or no body.
pub async fn message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    loop {
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&chunk[..read]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Ok(bytes);
            }
        }
    }
}

/// Forwards at most `bytes_max` bytes in both directions together, then closes the connection.
async fn cut(shared: &Shared, mut caller: TcpStream, bytes_max: u64) -> io::Result<()> {
    if shared.is_down.load(Ordering::SeqCst) {
        return Ok(());
    }
    let mut server = TcpStream::connect(&shared.upstream).await?;
    caller.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut left = usize::try_from(shared.random(|random| random.below(bytes_max))).unwrap();
    let (mut up, mut down) = ([0; 4096], [0; 4096]);
    while left > 0 {
        tokio::select! {
            read = caller.read(&mut up) => {
                let read = read?.min(left);
                if read == 0 { return Ok(()); }
                server.write_all(&up[..read]).await?;
                left -= read;
            }
            read = server.read(&mut down) => {
                let read = read?.min(left);
                if read == 0 { return Ok(()); }
                caller.write_all(&down[..read]).await?;
                left -= read;
            }
        }
    }
    shared.through.fetch_add(1, Ordering::SeqCst);
    Ok(())
}
