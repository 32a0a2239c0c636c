//! gRPC calls by method and status.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Key, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;
use tonic::Code;

use super::METADATA;
use super::seconds::{self, Seconds};
use crate::grpc::METHODS;

const SECONDS: &str = "earmark_grpc_request_seconds";
const TOTAL: &str = "earmark_grpc_requests_total";

/// The gRPC status codes, in order of their numbers.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// One per method, and one for unknown methods.
pub(super) struct Calls(Vec<Called>);

struct Called {
    label: &'static str,
    seconds: Seconds,
    /// Created with the first response of its code, so that `/metrics` has no zeros.
    codes: [OnceLock<Counter>; CODES.len()],
}

impl Calls {
    pub(super) fn new() -> Calls {
        let labels = METHODS.iter().map(|method| method.path.trim_start_matches('/')).chain(["unmatched"]);
        let called = |label| Called { label, seconds: Seconds::default(), codes: Default::default() };
        Calls(labels.map(called).collect())
    }

    pub(super) fn render(&self, text: &mut String) {
        seconds::render(text, SECONDS, "method", self.0.iter().map(|called| (called.label, &called.seconds)));
    }

    pub(super) fn count(&self, recorder: &PrometheusRecorder, method_index: usize, code: Code, took: Duration) {
        let Some(called) = self.0.get(method_index) else { return };
        called.seconds.record(took);
        let at = code as usize;
        let (Some(counter), Some(name)) = (called.codes.get(at), CODES.get(at)) else { return };
        let make = || {
            let labels = vec![Label::from_static_parts("method", called.label), Label::from_static_parts("code", name)];
            recorder.register_counter(&Key::from_parts(TOTAL, labels), &METADATA)
        };
        counter.get_or_init(make).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_at_its_number() {
        for (number, name) in CODES.iter().enumerate() {
            let code = Code::from_i32(i32::try_from(number).unwrap());
            let name = name.replace('_', "").to_lowercase();
            assert_eq!(format!("{code:?}").to_lowercase(), name);
        }
    }
}
