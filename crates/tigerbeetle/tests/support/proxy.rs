//! A TCP proxy in front of a server, which can hold back what clients send.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub struct Proxy {
    pub address: SocketAddr,
    is_holding: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let is_holding = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&is_holding);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let held = Arc::clone(&held);
                std::thread::spawn(move || copy(client, to_server, &held));
                std::thread::spawn(move || copy(server, to_client, &AtomicBool::new(false)));
            }
        });
        Proxy { address, is_holding }
    }

    /// Holds back everything that clients send, until it is called with `false`.
    pub fn hold(&self, is_holding: bool) {
        self.is_holding.store(is_holding, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, is_holding: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer) else { return };
        while is_holding.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
