//! Stopping by signal: gracefully on the first, at once on the second.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::ask::ask;
use crate::support::{Server, TIMEOUT, run, wait};

const HEAD: &str =
    "PUT /v1/admin/limits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: ";
const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const BODY: &str = r#"{"key":"a","kind":"rolling","capacity":7,"window_seconds":60}"#;

/// A request in progress whose last byte is not sent yet.
fn in_flight(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("{HEAD}{}\r\n\r\n", BODY.len()).as_bytes()).unwrap();
    let mut go_on = [0; GO_ON.len()];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(go_on, GO_ON.as_bytes());
    stream.write_all(&BODY.as_bytes()[..BODY.len() - 1]).unwrap();
    stream
}

/// Waits until the server reports that it is stopping.
fn draining(server: &Server) {
    let is_ready = || ask(&server.address, "GET", "/readyz", "", TIMEOUT).unwrap().status != 503;
    wait("the server to stop", || !is_ready());
}

#[test]
fn a_request_in_flight_is_finished_before_the_end() {
    for signal in ["TERM", "INT"] {
        let server = Server::start(&[]);
        let mut stream = in_flight(&server);
        server.signal(signal);
        draining(&server);
        stream.write_all(b"}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(r#"{"ok":true,"status":"active"}"#), "{answer}");
        let ran = server.wait().ends(0);
        assert_eq!(ran.stdout, "stopped\n");
        assert!(ran.stderr.contains(&format!("SIG{signal}")), "{ran:?}");
    }
}

/// SIGHUP ended a server without certificates or issuer keys to reload, with exit code 129.
#[test]
fn a_hangup_signal_never_ends_a_server() {
    let server = Server::start(&[]);
    for _ in 0..3 {
        server.signal("HUP");
        server.line("limits list").ends(0);
    }
    server.stop();
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let server = Server::start(&[]);
        let _stream = in_flight(&server);
        server.signal("TERM");
        draining(&server);
        server.signal(signal);
        server.wait().ends(code);
    }
}

#[test]
fn an_address_that_is_taken_is_a_failure_that_names_it() {
    let server = Server::start(&[]);
    let ran = run(&["serve", "--in-memory", "--listen", &server.address]).ends(1);
    assert!(ran.stderr.contains(&format!("cannot listen on {}", server.address)), "{ran:?}");
}
