//! Attacks on a gateway by one of its clients and by its upstream.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope, sleep};
use std::time::{Duration, Instant};

use super::kinds::{self, Attack, Target};
use super::wire::{Request, Wire};

/// The rule of every tenant: each call takes one request of its limit `calls`.
pub(super) const POLICY: &str =
    r#"{"policy":"[[rules]]\nname = \"all\"\nlimits = [ { key = \"calls\", amount = \"requests\" } ]\n"}"#;
/// The path of a call.
pub(super) const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
/// The answer of the upstream to an honest call.
const ANSWER: &str = r#"{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
/// Bytes of the largest body.
const HUGE: usize = 100_000_000;
/// Threads that send huge bodies, malformed requests, and calls of a hostile upstream.
const SENDERS: usize = 8;
/// Connections that read nothing of a stream.
const READERS: usize = 64;
/// Frames of such a stream, and the bytes of a frame.
const FRAMES: (usize, usize) = (128, 64 << 10);
/// Time that a held connection stays open before it is replaced.
const HELD: Duration = Duration::from_secs(3);
/// Longest time that the upstream keeps a connection that nobody reads.
const UPSTREAM_WAIT: Duration = Duration::from_secs(10);

/// All attacks on a gateway.
pub(super) const ATTACKS: [Attack; 6] = [
    Attack { name: "bodies", start: kinds::bodies },
    Attack { name: "huge", start: huge },
    Attack { name: "idle", start: kinds::idle },
    Attack { name: "readers", start: readers },
    Attack { name: "shapes", start: shapes },
    Attack { name: "upstream", start: hostile },
];

/// The configuration of the gateway: one upstream for honest calls and one that is hostile.
pub(super) fn config(port: u16, upstream: SocketAddr) -> String {
    let timeouts = "timeouts = { connect_seconds = 2, first_byte_seconds = 3, idle_seconds = 5, total_seconds = 20 }";
    let target = |name: &str, model: &str| {
        format!(
            "[[upstreams]]\nname = \"{name}\"\napi = \"openai\"\nbase_url = \"http://{upstream}/v1\"\n{timeouts}\n\
             [[models]]\nname = \"{model}\"\ntargets = [\"{name}/{model}\"]\nmax_output_tokens = 100\n"
        )
    };
    format!("listen = \"[::]:{port}\"\ninsecure_plaintext = true\n{}{}", target("good", "m"), target("bad", "hostile"))
}

/// One call of an honest tenant, and the time until its answer was complete.
pub(super) fn call(wire: &mut Wire, key: &str, _: &str, start: Instant) -> Result<Duration, String> {
    let request = Request { key, method: "POST", path: CHAT, body: BODY };
    let answer = wire.ask(request).map_err(|error| format!("call: {error}"))?;
    match answer.status {
        200 => Ok(start.elapsed()),
        status => Err(format!("call: {status} {}", answer.body)),
    }
}

/// Starts the upstream of all calls, which ends with the process.
pub(super) fn upstream() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || _ = serve(&stream));
        }
    });
    Ok(address)
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream) -> io::Result<()> {
    static HOSTILE: AtomicUsize = AtomicUsize::new(0);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(UPSTREAM_WAIT))?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        if body.contains("\"hostile\"") {
            return harm(&mut writer, HOSTILE.fetch_add(1, Ordering::Relaxed));
        }
        if body.contains("\"stream\":true") {
            writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
            let (frames, bytes) = FRAMES;
            let frame = format!("data: {{\"choices\":[],\"x\":\"{}\"}}\n\n", "x".repeat(bytes));
            (0..frames).try_for_each(|_| writer.write_all(frame.as_bytes()))?;
            return Ok(());
        }
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", ANSWER.len());
        writer.write_all((head + ANSWER).as_bytes())?;
    }
}

/// Answers as an upstream that means harm: endless headers, an endless frame, a wrong length, a redirect, bytes that
/// are not HTTP, a compressed answer, nothing at all.
fn harm(writer: &mut impl Write, number: usize) -> io::Result<()> {
    let ok = "HTTP/1.1 200 OK\r\n";
    match number % 7 {
        0 => {
            writer.write_all(ok.as_bytes())?;
            (0..1 << 20).try_for_each(|_| writer.write_all(b"x-header: value\r\n"))
        }
        1 => {
            writer.write_all(format!("{ok}content-type: text/event-stream\r\n\r\ndata: ").as_bytes())?;
            (0..FRAMES.0).try_for_each(|_| writer.write_all(&vec![b'x'; FRAMES.1]))
        }
        2 => writer.write_all(format!("{ok}content-length: 1000000\r\n\r\n{{}}").as_bytes()),
        3 => writer.write_all(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"),
        4 => writer.write_all(b"SSH-2.0-OpenSSH\r\n"),
        5 => writer.write_all(format!("{ok}content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes()),
        _ => {
            sleep(HELD);
            Ok(())
        }
    }
}

fn head(key: &str, length: usize) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Sends bodies of 100 MB.
fn huge<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    for place in 0..SENDERS {
        scope.spawn(move || {
            let part = vec![b' '; 1 << 20];
            target.repeat(|| {
                let mut wire = Wire::connect(target.address(place))?;
                wire.send(head(&target.key, HUGE).as_bytes())?;
                // The gateway may answer and close before the end.
                let sent = (0..HUGE / part.len()).try_for_each(|_| wire.send(&part));
                _ = wire.answer();
                sent
            });
        });
    }
}

/// Asks for large streams and reads nothing of them.
fn readers<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    scope.spawn(move || {
        let body = BODY.replace("\"m\",", "\"m\",\"stream\":true,");
        let request = head(&target.key, body.len()) + &body;
        while !target.is_over() {
            let mut held = Vec::new();
            for place in 0..READERS {
                let Ok(mut wire) = Wire::connect(target.address(place)) else { continue };
                _ = wire.send(request.as_bytes());
                target.count.fetch_add(1, Ordering::Relaxed);
                held.push(wire);
            }
            target.hold(HELD);
        }
    });
}

/// The malformed requests: two lengths, a length and chunks, a folded header, a request line in a header, a name with a
/// space, keys in the query, duplicate fields, a field that differs by case, deep nesting, a head without end.
fn malformed(key: &str) -> Vec<Vec<u8>> {
    let with = |headers: &str, body: &str| {
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n{headers}\r\n\r\n{body}")
            .into_bytes()
    };
    let sized = |body: &str| with(&format!("content-length: {}", body.len()), body);
    let nested = |open: &str| format!(r#"{{"model":"m","messages":{}"#, open.repeat(100_000));
    vec![
        with("content-length: 3\r\ncontent-length: 60", BODY),
        with("content-length: 5\r\ntransfer-encoding: chunked", "0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"),
        with("transfer-encoding: chunked, identity", "0\r\n\r\n"),
        with("transfer-encoding: chunked", "ffffffffffffffffff\r\n"),
        with("x-a: b\r\n folded\r\ncontent-length: 2", "{}"),
        with("content-length : 2", "{}"),
        format!("POST {CHAT}?api_key={key} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}").into_bytes(),
        sized(r#"{"model":"m","model":"hostile","messages":[]}"#),
        sized(r#"{"model":"m","Model":"hostile","messages":[]}"#),
        sized(&nested("[")),
        sized(&nested("{\"a\":")),
        with(&"x-a: b\r\n".repeat(2_000), ""),
    ]
}

fn shapes<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    for place in 0..SENDERS {
        scope.spawn(move || {
            let requests = malformed(&target.key);
            let mut requests = requests.iter().cycle();
            target.repeat(|| {
                let mut wire = Wire::connect(target.address(place))?;
                wire.send(requests.next().map_or(&[], Vec::as_slice))?;
                let answer = wire.answer()?;
                if answer.status == 200 {
                    target.note(format!("a malformed request was answered with 200: {}", answer.body));
                }
                Ok(())
            });
        });
    }
}

/// Calls a hostile upstream.
fn hostile<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    for place in 0..SENDERS {
        scope.spawn(move || {
            let body = BODY.replace("\"m\",", "\"hostile\",");
            target.repeat(|| {
                let request = Request { key: &target.key, method: "POST", path: CHAT, body: &body };
                Wire::connect(target.address(place))?.ask(request).map(drop)
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_answers_honest_calls_and_harms_the_others() {
        let address = upstream().unwrap();
        let mut wire = Wire::connect(address).unwrap();
        for _ in 0..2 {
            assert!(call(&mut wire, "k", "", Instant::now()).is_ok());
        }
        let statuses: Vec<Option<u16>> = (1..6)
            .map(|number| {
                let mut bytes = Vec::new();
                harm(&mut bytes, number).unwrap();
                String::from_utf8_lossy(&bytes).split(' ').nth(1).and_then(|status| status.parse().ok())
            })
            .collect();
        assert_eq!(statuses, [Some(200), Some(200), Some(302), None, Some(200)]);
        assert!(config(1, address).contains("targets = [\"bad/hostile\"]"));
    }
}
