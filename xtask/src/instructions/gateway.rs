//! A gateway before an upstream double, and the server that it asks.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use super::{Measured, Options, Server, free_address, serve, valgrind};
use crate::bench_gateway::{Folder, config, define};
use crate::run::Failure;
use crate::served::start_listening;

/// The body of each call.
pub(super) const BODY: &str = r#"{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}"#;
/// The answer of the upstream.
const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
/// Stack of the thread that answers one connection, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Starts a gateway under valgrind, in the process of its server or beside it.
pub(super) fn start(binary: &Path, profile: &Path, options: &Options) -> Result<Server, Failure> {
    let upstream = double().map_err(|error| Failure::Server(format!("has no upstream: {error}")))?;
    let (folder, address) = (Folder::new()?, free_address()?);
    let file = folder.write("gateway.toml", &config(&address.to_string(), &format!("http://{upstream}")))?;
    if options.measured == Measured::GatewayAlone {
        let mut beside = Command::new(binary);
        beside.args(["serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"]).args(&options.serve);
        let (guard, url) = start_listening(&mut beside)?;
        define(binary, &url, &folder)?;
        let mut command = valgrind(binary, profile);
        command.args(["gateway", "--in-memory", "--log-level", "error", "--server", &url, "--config"]).arg(file);
        let mut gateway = Server::start(command, address)?;
        gateway._beside = Some((Some(guard), folder));
        return Ok(gateway);
    }
    let listen = free_address()?;
    let mut command = serve(binary, profile, listen, &options.serve);
    command.args(["--log-level", "warn", "--gateway"]).arg(file);
    let mut server = Server::start(command, address)?;
    // The gateway listens after its server.
    server.connect().map_err(|error| Failure::Server(format!("did not start: {error}")))?;
    define(binary, &format!("http://{listen}"), &folder)?;
    server._beside = Some((None, folder));
    Ok(server)
}

/// An upstream that answers each request alike. It ends with this process.
fn double() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || answer_all(stream));
        }
    });
    Ok(address)
}

/// Answers the requests of one connection until it ends.
fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let length = ANSWER.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{ANSWER}");
    let (mut text, mut buffer) = (String::new(), [0; 4_096]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => text += &String::from_utf8_lossy(&buffer[..read]),
        }
        // The body is the last part of a request, and its only list of objects ends it.
        if text.ends_with("}]}") {
            stream.write_all(answer.as_bytes())?;
            text.clear();
        }
    }
}
