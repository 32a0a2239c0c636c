//! `cargo xtask instructions`: counts the instructions that a server in memory needs for one `POST /v1/reserve`, or
//! another request with the same limits.
//!
//! Times vary with the load of a machine, counts hardly do. The server runs under callgrind, which counts only while the
//! measured requests are answered: reserves of four limits, one in flight on each of 64 connections.

mod envoy;
mod gateway;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bench_gateway::Folder;
use crate::run::{self, Failure};
use crate::served::Guard;

const CONNECTIONS: usize = 64;
/// Rounds of one request on each connection, before and while instructions are counted.
const WARM_UP_ROUNDS: u64 = 8;
const ROUNDS: u64 = 60;
/// Event streams that one caller may have.
const EVENTS_MAX: usize = 16;
const MODELS: u64 = 20;
const TENANTS: u64 = 1_000;
/// Tokens of a call. A limit of this capacity denies the second call.
const TOKENS: u64 = 1_500;
/// The most expensive functions that are shown.
const FUNCTIONS: usize = 25;
/// Time for the server to start under valgrind, and for one answer.
const START_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The request that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Measured {
    /// A reserve that is allowed.
    #[default]
    Reserve,
    /// A reserve that is denied.
    Denied,
    /// A call whose attributes give the same limits by a policy.
    Calls,
    /// A reserve of the two limits of a call of Envoy.
    Pair,
    /// A call of Envoy with two descriptors, 64 in flight on one HTTP/2 connection.
    Envoy,
    /// A chat completion through a gateway in the process of the server.
    Gateway,
    /// A chat completion through a gateway, whose instructions are counted without those of the server.
    GatewayAlone,
}

impl Measured {
    const NAMES: [(&str, Measured); 7] = [
        ("reserve", Measured::Reserve),
        ("denied", Measured::Denied),
        ("calls", Measured::Calls),
        ("pair", Measured::Pair),
        ("envoy", Measured::Envoy),
        ("gateway", Measured::Gateway),
        ("gateway-alone", Measured::GatewayAlone),
    ];

    fn line(self) -> &'static str {
        match self {
            Measured::Calls => "POST /v1/calls",
            Measured::Gateway | Measured::GatewayAlone => "POST /v1/chat/completions",
            _ => "POST /v1/reserve",
        }
    }

    fn capacity(self) -> u64 {
        match self {
            Measured::Denied => TOKENS,
            _ => 1 << 60,
        }
    }

    /// A part of each answer. The first calls fit into empty limits, even if later ones are denied.
    fn expected(self) -> &'static str {
        match self {
            Measured::Denied => r#""allowed":"#,
            Measured::Gateway | Measured::GatewayAlone => r#""usage":"#,
            _ => r#""allowed":true"#,
        }
    }
}

/// The options of the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The server; a build of this tree with the profile `profiling` if absent.
    pub(crate) binary: Option<PathBuf>,
    pub(crate) measured: Measured,
    /// Event streams that are open and read meanwhile.
    pub(crate) events: usize,
    /// More arguments of `earmark serve`, such as those of traces.
    pub(crate) serve: Vec<String>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Failure> {
        let (args, serve) = match args.iter().position(|arg| *arg == "--") {
            Some(place) => (&args[..place], &args[place + 1..]),
            None => (args, &[][..]),
        };
        let wrong = || {
            let allowed = format!(
                "--binary PATH, --request {}, --events 0 to {EVENTS_MAX}, and -- ARGS of serve",
                Measured::NAMES.map(|(name, _)| name).join(" or ")
            );
            Failure::Usage(format!("found {:?}, allowed are {allowed}", args.join(" ")))
        };
        let serve = serve.iter().map(|arg| (*arg).to_owned()).collect();
        let mut options = Options { serve, ..Options::default() };
        for pair in args.chunks(2) {
            match pair {
                ["--binary", path] => options.binary = Some(path.into()),
                ["--request", name] => {
                    let found = Measured::NAMES.into_iter().find(|(known, _)| known == name);
                    options.measured = found.ok_or_else(wrong)?.1;
                }
                ["--events", count] => {
                    let count = count.parse().ok().filter(|count| *count <= EVENTS_MAX);
                    options.events = count.ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(options)
    }
}

pub(crate) fn count(options: &Options) -> Result<(), Failure> {
    if run::output(&mut run::command("valgrind", "--version")).is_none() {
        return Err(Failure::Missing(vec!["valgrind, which counts instructions; apt-get install valgrind".into()]));
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            run::run(&mut run::command("cargo", "build --profile profiling --locked --bin earmark"))?;
            run::root().join("target/profiling/earmark")
        }
    };
    let profile = run::root().join("target/instructions.callgrind");
    // The folder is missing if cargo builds elsewhere. An old profile would be taken for the new one.
    _ = profile.parent().map(fs::create_dir_all);
    _ = fs::remove_file(&profile);
    let mut server = match options.measured {
        Measured::Gateway | Measured::GatewayAlone => gateway::start(&binary, &profile, options)?,
        _ => {
            let address = free_address()?;
            Server::start(serve(&binary, &profile, address, &options.serve), address)?
        }
    };
    let requests = server.measure(options.measured, options.events);
    server.stop();
    let requests = requests.map_err(|error| Failure::Server(format!("gave no answer: {error}")))?;
    report(&profile, requests)
}

/// A server or a gateway under valgrind. Dropping it ends it.
struct Server {
    process: Child,
    address: SocketAddr,
    /// The server of a gateway, and the folder of its files.
    _beside: Option<(Option<Guard>, Folder)>,
}

/// An address whose port is free.
fn free_address() -> Result<SocketAddr, Failure> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map_err(|error| Failure::Server(format!("has no port: {error}")))
}

/// The binary under valgrind, which counts nothing yet.
fn valgrind(binary: &Path, profile: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--instr-atstart=no"]);
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg(binary);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A server in memory under valgrind.
fn serve(binary: &Path, profile: &Path, address: SocketAddr, args: &[String]) -> Command {
    let mut command = valgrind(binary, profile);
    command.args(["serve", "--in-memory", "--listen", &address.to_string()]).args(args);
    command
}

impl Server {
    fn start(mut command: Command, address: SocketAddr) -> Result<Server, Failure> {
        let process = command.spawn().map_err(|source| Failure::Start { line: run::line(&command), source })?;
        Ok(Server { process, address, _beside: None })
    }

    /// Counts instructions while requests are answered. Returns the number of requests.
    fn measure(&mut self, measured: Measured, events: usize) -> io::Result<u64> {
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            connections.push(self.connect()?);
        }
        match measured {
            // The gateway's server has its limits and its policy.
            Measured::Gateway | Measured::GatewayAlone => {}
            _ => put_limits(&mut connections, measured.capacity())?,
        }
        match measured {
            Measured::Calls => put_policy(&mut connections[0], &policy_of_calls())?,
            Measured::Envoy => put_policy(&mut connections[0], &policy_of_envoy())?,
            _ => {}
        }
        for _ in 0..events {
            let mut stream = self.connect()?;
            stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
            // Ends with the server.
            std::thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        }
        let mut calls = Calls { state: 0, measured };
        let mut envoy = match measured {
            Measured::Envoy => Some(envoy::Client::new(self.connect()?)),
            _ => None,
        };
        let mut rounds = |count| match &mut envoy {
            Some(client) => calls_of_envoy(client, &mut calls, count),
            None => rounds(&mut connections, &mut calls, count),
        };
        rounds(WARM_UP_ROUNDS)?;
        self.count("on")?;
        rounds(ROUNDS)?;
        self.count("off")?;
        Ok(ROUNDS * CONNECTIONS as u64)
    }

    fn connect(&mut self) -> io::Result<TcpStream> {
        let pause = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(ANSWER_MAX))?;
                    return Ok(stream);
                }
                Err(error) if waited >= START_MAX || self.process.try_wait()?.is_some() => return Err(error),
                Err(_) => sleep(pause),
            }
            waited += pause;
        }
    }

    /// Turns the counting on or off.
    fn count(&self, state: &str) -> io::Result<()> {
        let mut control = Command::new("callgrind_control");
        control.args(["-i", state, &self.process.id().to_string()]).stdout(Stdio::null());
        if control.status()?.success() { Ok(()) } else { Err(io::Error::other("callgrind_control failed")) }
    }

    /// Ends the server with SIGTERM, after which callgrind writes its profile.
    fn stop(&mut self) {
        _ = Command::new("kill").arg(self.process.id().to_string()).status();
        _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn put_limits(connections: &mut [TcpStream], capacity: u64) -> io::Result<()> {
    let rolling = r#""kind":"rolling","window_seconds":60"#;
    let slots = r#""kind":"concurrency","timeout_seconds":60"#;
    let models = (0..MODELS).flat_map(|model| {
        [("rpm", rolling), ("tpm", rolling), ("concurrency", slots)]
            .map(|(what, kind)| (format!("bench:model-{model:02}:{what}"), kind))
    });
    let tenants = (0..TENANTS).map(|tenant| (format!("bench:tenant-{tenant:04}:tpm"), rolling));
    for (number, (key, kind)) in models.chain(tenants).enumerate() {
        let stream = &mut connections[number % CONNECTIONS];
        let body = format!(r#"{{"key":"{key}","capacity":{capacity},{kind}}}"#);
        send(stream, "PUT /v1/admin/limits", &body)?;
        answer(stream, r#""ok":true"#)?;
    }
    Ok(())
}

fn put_policy(stream: &mut TcpStream, policy: &str) -> io::Result<()> {
    let body = format!(r#"{{"policy":"{policy}"}}"#);
    send(stream, "PUT /v1/admin/policy", &body)?;
    answer(stream, "200 OK")
}

/// The policy that gives a call the limits of a reserve, as a text of JSON.
fn policy_of_calls() -> String {
    let limits = [
        ("model", "rpm", "requests"),
        ("model", "tpm", "tokens"),
        ("model", "concurrency", "requests"),
        ("tenant", "tpm", "tokens"),
    ]
    .map(|(owner, what, amount)| format!(r#"{{ key = \"bench:{{{owner}}}:{what}\", amount = \"{amount}\" }}"#));
    format!(r#"[[rules]]\nname = \"bench\"\nlimits = [ {} ]\n"#, limits.join(", "))
}

/// A rule for each descriptor of Envoy, as a text of JSON.
fn policy_of_envoy() -> String {
    [("model", "rpm", "requests"), ("tenant", "tpm", "tokens")]
        .map(|(owner, what, amount)| {
            let when = format!(r#"when = '{owner} != \"\"'"#);
            let limit = format!(r#"{{ key = \"bench:{{{owner}}}:{what}\", amount = \"{amount}\" }}"#);
            format!(r#"[[rules]]\nname = \"{owner}\"\n{when}\nlimits = [ {limit} ]\n"#)
        })
        .concat()
}

/// A fixed stream of calls.
struct Calls {
    state: u64,
    measured: Measured,
}

impl Calls {
    /// A random number, and the model and the tenant that it gives.
    fn pick(&mut self) -> (u64, u64, u64) {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed, (mixed >> 8) % MODELS, (mixed >> 32) % TENANTS)
    }

    fn next(&mut self) -> String {
        if matches!(self.measured, Measured::Gateway | Measured::GatewayAlone) {
            return gateway::BODY.to_owned();
        }
        let (mixed, model, tenant) = self.pick();
        if self.measured == Measured::Calls {
            return format!(
                r#"{{"lease_id":"{}","attributes":{{"model":"model-{model:02}","tenant":"tenant-{tenant:04}"}},"input_tokens_max":1000,"output_tokens_max":500}}"#,
                lease(mixed)
            );
        }
        let mut amounts = vec![
            (format!("model-{model:02}:rpm"), 1),
            (format!("model-{model:02}:tpm"), TOKENS),
            (format!("model-{model:02}:concurrency"), 1),
            (format!("tenant-{tenant:04}:tpm"), TOKENS),
        ];
        if self.measured == Measured::Pair {
            amounts.drain(1..3);
        }
        let amount = |(key, amount): &(String, u64)| format!(r#"{{"key":"bench:{key}","amount":{amount}}}"#);
        let amounts: Vec<String> = amounts.iter().map(amount).collect();
        format!(r#"{{"lease_id":"{}","requirements":[{}]}}"#, lease(mixed), amounts.join(","))
    }
}

/// A ULID with the current time.
fn lease(random: u64) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let bits = (now << 80) | u128::from(random);
    (0..26).rev().map(|place| char::from(ALPHABET[(bits >> (5 * place)) as usize & 31])).collect()
}

/// Sends one request on each connection, then reads the answers.
fn rounds(connections: &mut [TcpStream], calls: &mut Calls, count: u64) -> io::Result<()> {
    for _ in 0..count {
        for stream in &mut *connections {
            send(stream, calls.measured.line(), &calls.next())?;
        }
        for stream in &mut *connections {
            answer(stream, calls.measured.expected())?;
        }
    }
    Ok(())
}

/// Sends requests of Envoy on its connection, then reads the answers.
fn calls_of_envoy(client: &mut envoy::Client, calls: &mut Calls, count: u64) -> io::Result<()> {
    for _ in 0..count {
        for _ in 0..CONNECTIONS {
            let (_, model, tenant) = calls.pick();
            client.request(&envoy::message(&format!("model-{model:02}"), &format!("tenant-{tenant:04}"), TOKENS));
        }
        client.answers(CONNECTIONS)?;
    }
    Ok(())
}

fn send(stream: &mut TcpStream, what: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let headers = format!("host: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}");
    stream.write_all(format!("{what} HTTP/1.1\r\n{headers}\r\n\r\n{body}").as_bytes())
}

/// Reads an answer, which must contain `expected`. It is read until its JSON object ends.
fn answer(stream: &mut TcpStream, expected: &str) -> io::Result<()> {
    let (mut text, mut buffer) = (String::new(), [0; 4_096]);
    while !(text.contains("\r\n\r\n") && text.ends_with('}')) {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::other(format!("the connection ended after {text:?}"))),
            count => text += &String::from_utf8_lossy(&buffer[..count]),
        }
    }
    if text.contains(expected) { Ok(()) } else { Err(io::Error::other(format!("found {text:?}"))) }
}

fn report(profile: &std::path::Path, requests: u64) -> Result<(), Failure> {
    let mut annotate = Command::new("callgrind_annotate");
    annotate.arg(profile);
    let text = run::output(&mut annotate).unwrap_or_default();
    let number = |line: &str| line.split_whitespace().next()?.replace(',', "").parse::<u64>().ok();
    let total = text.lines().find(|line| line.contains("PROGRAM TOTALS")).and_then(number);
    let Some(total) = total.filter(|total| *total > 0) else {
        return Err(Failure::Server(format!("left no profile in {}", profile.display())));
    };
    println!("instructions per request  function");
    for line in text.lines().filter(|line| line.contains(':') && line.contains('%')).take(FUNCTIONS) {
        if let (Some(count), Some((_, function))) = (number(line), line.split_once(") ")) {
            println!("{:>24}  {}", count / requests, function.trim());
        }
    }
    println!("\n{requests} requests: {} instructions per request", total / requests);
    println!("the whole profile: callgrind_annotate --inclusive=yes {}", profile.display());
    Ok(())
}
