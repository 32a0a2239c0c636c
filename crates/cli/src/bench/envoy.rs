//! Load on Envoy's rate limit service: requests with two descriptors, all on one HTTP/2 connection.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use earmark_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use earmark_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;

use super::http2::{Client, Event};
use super::job::{self, Call, Calls, MODEL_DIGITS, Owner, Part, TENANT_DIGITS};
use super::measure::{Bounds, Counts, GRACE, Run, Shared, Tally, run_stages};
use super::request::write_number;
use crate::client::ServerUrl;
use crate::failure::Failure;

/// Descriptors of a request, each with one limit.
pub(super) const DESCRIPTORS: usize = 2;
/// Requests in flight: what the server serves at once on one HTTP/2 connection.
pub(super) const IN_FLIGHT_MAX: i64 = 128;
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The answers begin with the field `overall_code`: its tag, then one of these.
const TAG_OVERALL_CODE: u8 = 8;
const CODE_OK: u8 = 1;
const CODE_OVER_LIMIT: u8 = 2;
/// Buffer for answers, in bytes.
const READ_BYTES: usize = 64 << 10;

/// One limit for each descriptor: requests of a model, tokens of a tenant.
pub(super) fn parts() -> Vec<Part> {
    let all = job::parts(4);
    let first = |owner: Owner| all.iter().find(|part| part.owner == owner).cloned();
    [Owner::Model, Owner::Tenant].into_iter().filter_map(first).collect()
}

/// A rule for each descriptor.
pub(super) fn policy() -> String {
    "[[rules]]\nname = \"model\"\nwhen = 'model != \"\"'\n\
     limits = [ { key = \"bench:{model}:rpm\", amount = \"requests\" } ]\n\
     [[rules]]\nname = \"tenant\"\nwhen = 'tenant != \"\"'\n\
     limits = [ { key = \"bench:{tenant}:tpm\", amount = \"tokens\" } ]\n"
        .to_owned()
}

/// Runs the load on one thread, because the server needs the other cores.
pub(super) fn run(url: &ServerUrl, in_flight: usize, bounds: &Bounds) -> Result<Run, Failure> {
    let authority = url.address().authority();
    let connect = || {
        let tcp = TcpStream::connect(authority)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(GRACE)).map(|()| tcp)
    };
    let tcp = connect().map_err(|error| Failure::Bench(format!("cannot connect to {authority}: {error}")))?;
    let client = Client::new(PATH, authority);
    let shared = Arc::new(Shared::new());
    let load = Load { client, tcp, in_flight, open: Vec::new(), calls: Calls::new(), message: RequestMessage::new() };
    let generator = std::thread::Builder::new().name("load".to_owned()).spawn({
        let shared = Arc::clone(&shared);
        move || load.run(&shared)
    });
    let generator = generator.map_err(|source| Failure::System { what: "starting a thread", source })?;
    let (measured, end) = run_stages(&shared, bounds);
    let tally = generator.join().map_err(|_| Failure::Bench("the thread of the load broke".into()))?;
    Ok(Run { tally, measured, end, bare_ops_per_s: None })
}

struct Load {
    client: Client,
    tcp: TcpStream,
    in_flight: usize,
    open: Vec<Open>,
    calls: Calls,
    message: RequestMessage,
}

/// A request without an answer.
struct Open {
    stream: u32,
    start: Instant,
    /// The code of the answer, once its message has come.
    code: Option<u8>,
}

impl Load {
    fn run(mut self, shared: &Shared) -> Tally {
        let mut tally = Tally::default();
        if let Err(what) = self.repeat(shared, &mut tally) {
            tally.note_errors(shared, self.open.len().max(1) as u64, || what);
        }
        shared.end();
        tally
    }

    /// Keeps the requests in flight until the run ends, then reads the last answers.
    fn repeat(&mut self, shared: &Shared, tally: &mut Tally) -> Result<(), String> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            self.calls.tick();
            while self.open.len() < self.in_flight && shared.goes_on() {
                let message = self.message.of(&self.calls.next());
                let stream = self.client.request(message)?;
                self.open.push(Open { stream, start: Instant::now(), code: None });
            }
            self.tcp.write_all(self.client.output()).map_err(|error| error.to_string())?;
            self.client.sent();
            if self.open.is_empty() {
                return Ok(());
            }
            match self.tcp.read(&mut bytes) {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(count) => self.client.received(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(format!("no answer within {} s", GRACE.as_secs()));
                }
                Err(error) => return Err(error.to_string()),
            }
            while let Some(event) = self.client.next_event()? {
                self.handle(event, shared, tally);
            }
        }
    }

    fn handle(&mut self, event: Event, shared: &Shared, tally: &mut Tally) {
        let (Event::Message { stream, .. } | Event::End { stream, .. }) = event;
        let Some(place) = self.open.iter().position(|open| open.stream == stream) else { return };
        let Event::End { is_reset, .. } = event else {
            let Event::Message { start, .. } = event else { return };
            self.open[place].code = (start[0] == TAG_OVERALL_CODE).then_some(start[1]);
            return;
        };
        let Open { start, code, .. } = self.open.swap_remove(place);
        let counts = match code {
            Some(CODE_OK) => Counts { allowed: 1, ..Counts::default() },
            Some(CODE_OVER_LIMIT) => Counts { denied: 1, ..Counts::default() },
            Some(_) | None => {
                let what = if is_reset { "a stream was reset" } else { "an answer without a code" };
                return tally.note_errors(shared, 1, || what.to_owned());
            }
        };
        tally.note(shared, start.elapsed(), &counts);
    }
}

/// The bytes of a request. Each call changes only the numbers of its model and tenant, in place.
struct RequestMessage {
    bytes: Vec<u8>,
    model: usize,
    tenant: usize,
}

impl RequestMessage {
    fn new() -> RequestMessage {
        let descriptor = |key: &str, value: &str, hits_addend| RateLimitDescriptor {
            entries: vec![Entry { key: key.to_owned(), value: value.to_owned() }],
            hits_addend,
            ..RateLimitDescriptor::default()
        };
        let (model, tenant) = (format!("model-{:0MODEL_DIGITS$}", 0), format!("tenant-{:0TENANT_DIGITS$}", 0));
        let tokens = job::INPUT_TOKENS + job::OUTPUT_TOKENS;
        let descriptors = vec![descriptor("model", &model, None), descriptor("tenant", &tenant, Some(tokens))];
        let request = RateLimitRequest { domain: "default".to_owned(), descriptors, hits_addend: 0 };
        let bytes = request.encode_to_vec();
        let end =
            |text: &str| bytes.windows(text.len()).position(|part| part == text.as_bytes()).map(|at| at + text.len());
        let (model, tenant) = (end(&model).unwrap_or_default(), end(&tenant).unwrap_or_default());
        RequestMessage { model: model - MODEL_DIGITS, tenant: tenant - TENANT_DIGITS, bytes }
    }

    fn of(&mut self, call: &Call) -> &[u8] {
        write_number(&mut self.bytes[self.model..][..MODEL_DIGITS], call.model);
        write_number(&mut self.bytes[self.tenant..][..TENANT_DIGITS], call.tenant);
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::LeaseId;

    use super::*;

    #[test]
    fn a_request_has_the_descriptors_of_its_call() {
        let mut message = RequestMessage::new();
        for (model, tenant, texts) in [(19, 999, ["model-19", "tenant-0999"]), (3, 40, ["model-03", "tenant-0040"])] {
            let bytes = message.of(&Call { lease: LeaseId::from_u128(1), model, tenant });
            let request = RateLimitRequest::decode(bytes).unwrap();
            let values: Vec<&str> = request.descriptors.iter().map(|one| one.entries[0].value.as_str()).collect();
            assert_eq!(values, texts);
            assert_eq!(request.descriptors[1].hits_addend, Some(1_500));
        }
    }
}
