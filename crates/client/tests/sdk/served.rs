//! A server in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::{Client, ClientOptions, Protocol};
use earmark_server::{Server, ServerOptions};
use tokio::sync::oneshot;

pub struct Served {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl Served {
    pub async fn start() -> Served {
        let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let server = Server::bind(options, backend).await.unwrap();
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.run(async move { _ = stopped.await }));
        Served { address, stop: Some(stop) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn client(&self, protocol: Protocol) -> Client {
        client_of(&[self.url()], protocol)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
    }
}

pub fn client_of(urls: &[String], protocol: Protocol) -> Client {
    let mut options = ClientOptions::of(urls).unwrap();
    options.protocol = protocol;
    Client::new(options).unwrap()
}

/// Both protocols, and no server at all.
pub async fn each_way() -> Vec<(&'static str, Client, Option<Served>)> {
    let (http, grpc) = (Served::start().await, Served::start().await);
    let local = Client::local(earmark_client::LocalOptions::default()).unwrap();
    vec![
        ("http", http.client(Protocol::Http), Some(http)),
        ("grpc", grpc.client(Protocol::Grpc), Some(grpc)),
        ("local", local, None),
    ]
}
