//! `earmark gateway` as a process: it is killed at each step of a call, and the next one settles the call.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::support::{Server, TIMEOUT, command, run, wait};

const POLICY: &str = "[[rules]]\nname = \"all\"\nlimits = [ { key = \"usd\", amount = \"cost\" } ]\n\
    [[prices]]\nmodel = \"*\"\nasset = \"usd\"\ninput = 1_000_000\noutput = 10_000_000\n";
const BODY: &str = r#"{"model":"fast","messages":[],"max_tokens":50}"#;
const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
/// The bytes of the body, the overhead, and 50 output tokens at 10.
const BOUND: u64 = BODY.len() as u64 + 512 + 500;

/// An upstream that says when a request has arrived, and answers when it is told to.
fn upstream() -> (String, Receiver<()>, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let ((arrived, arrivals), (go, goes)) = (channel(), channel::<()>());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut read = Vec::new();
            let mut piece = [0; 4_096];
            while !read.ends_with(b"}") {
                match stream.read(&mut piece) {
                    Ok(0) | Err(_) => break,
                    Ok(length) => read.extend_from_slice(&piece[..length]),
                }
            }
            _ = arrived.send(());
            _ = goes.recv();
            let length = ANSWER.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
            _ = stream.write_all((head + ANSWER).as_bytes());
        }
    });
    (url, arrivals, go)
}

fn config(folder: &Path, url: &str) -> String {
    let path = folder.join("gateway.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[[upstreams]]\nname = \"up\"\napi = \"openai\"\nbase_url = \"{url}\"\n\
         [[models]]\nname = \"fast\"\ntargets = [\"up/gpt\"]\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn prepare(server: &Server, folder: &Path) {
    server.issue_credit(1_000_000).ends(0);
    let limit = "limits put --key usd --kind credit --vault main --account acme --asset usd --timeout 10m";
    server.line(limit).ends(0);
    let path = folder.join("policy.toml");
    std::fs::write(&path, POLICY).unwrap();
    server.earmark(&["policy", "put", path.to_str().unwrap()]).ends(0);
}

fn send(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = BODY.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + BODY).as_bytes()).unwrap();
    stream
}

#[test]
fn a_gateway_that_is_killed_settles_its_calls_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    prepare(&server, folder.path());
    let (url, arrivals, go) = upstream();
    let (config, calls) = (config(folder.path(), &url), folder.path().join("calls"));
    let start = || {
        let calls = calls.to_str().unwrap();
        Server::of(&mut command(&["gateway", "--config", &config, "--server", &server.url(), "--calls", calls]))
    };
    let gateway = start();
    let mut client = send(&gateway.address);
    arrivals.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(server.credit(), (1_000_000 - BOUND, BOUND));
    gateway.kill();
    _ = go.send(());
    let mut answer = String::new();
    _ = client.read_to_string(&mut answer);
    assert_eq!(answer, "", "the client saw no answer");
    let gateway = start();
    wait("the settlement", || server.credit() == (1_000_000 - BOUND, 0));

    let mut client = send(&gateway.address);
    arrivals.recv_timeout(TIMEOUT).unwrap();
    _ = go.send(());
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("x-earmark-cost: 37\r\n"), "{answer}");
    wait("the settlement", || server.credit() == (1_000_000 - BOUND - 37, 0));
    gateway.stop();
}

#[test]
fn a_server_runs_a_gateway_in_its_own_process() {
    let folder = tempfile::tempdir().unwrap();
    let (url, arrivals, go) = upstream();
    let config = config(folder.path(), &url);
    let address = crate::ask::free();
    let text = std::fs::read_to_string(&config).unwrap().replace("127.0.0.1:0", &address);
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&["--gateway", &config]);
    prepare(&server, folder.path());
    wait("the gateway", || TcpStream::connect(&address).is_ok());
    let mut client = send(&address);
    arrivals.recv_timeout(TIMEOUT).unwrap();
    _ = go.send(());
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("x-earmark-cost: 37\r\n"), "{answer}");
    assert_eq!(server.credit(), (1_000_000 - 37, 0));
    server.signal("TERM");
    let ended = server.wait().ends(0);
    assert!(ended.stdout.ends_with("stopped\n"), "{ended:?}");
}

#[test]
fn a_configuration_is_checked_without_starting() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "http://127.0.0.1:1/v1");
    let good = run(&["gateway", "check", &config]).ends(0);
    assert!(good.stdout.ends_with("gateway.toml: ok (1 upstreams, 1 models)\n"), "{good:?}");
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to, what) in [
        ("api = \"openai\"", "api = \"open\"", "gateway.toml: line 4: upstreams[0].api: found \"open\", allowed are"),
        ("[[models]]", "key_env = \"EARMARK_NO_SUCH\"\n[[models]]", "upstream up: key_env: the environment variable"),
    ] {
        std::fs::write(&config, text.replacen(from, to, 1)).unwrap();
        let bad = run(&["gateway", "check", &config]).ends(2);
        assert!(bad.stderr.contains(what), "{bad:?}");
        assert_eq!(run(&["gateway", "--config", &config, "--in-memory"]).ends(2).code, Some(2));
    }
}
