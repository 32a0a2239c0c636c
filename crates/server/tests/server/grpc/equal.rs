//! The same requests over HTTP and over gRPC get the same answers.

mod ask;
mod calls;
mod credit;
mod limits;
mod message;
mod writes;

use serde_json::Value;
use tonic::{Code, Status};

use crate::support::{Answer, TestServer};
use ask::Ask;

/// An answer of either protocol.
#[derive(Debug, PartialEq)]
enum Said {
    Ok(Value),
    /// The kind of failure, and its message.
    Failed(&'static str, String),
}

impl Said {
    fn map(self, change: impl FnOnce(Value) -> Value) -> Said {
        match self {
            Said::Ok(json) => Said::Ok(change(json)),
            Said::Failed(..) => self,
        }
    }
}

fn by_http(answer: &Answer) -> Said {
    let json = answer.json();
    let kind = match (answer.status, json["error"].as_str()) {
        (400, Some("invalid_request")) => "invalid",
        (404, Some("not_found")) => "not found",
        // Refused writes have an error status over HTTP, but are answers over gRPC.
        (200, _) | (_, None) => return Said::Ok(json),
        _ => panic!("{answer:?}"),
    };
    Said::Failed(kind, json["message"].as_str().unwrap().to_owned())
}

fn by_grpc(answer: Result<Value, Status>) -> Said {
    match answer {
        Ok(json) => Said::Ok(json),
        Err(status) if status.code() == Code::InvalidArgument => Said::Failed("invalid", status.message().into()),
        Err(status) if status.code() == Code::NotFound => Said::Failed("not found", status.message().into()),
        Err(status) => panic!("{status:?}"),
    }
}

/// Sends every request to both servers, and compares answers and metrics.
async fn compare(asks: &[Ask], http: &TestServer, grpc: &TestServer) {
    for ask in asks {
        assert_eq!(ask.over_http(http).await, ask.over_grpc(grpc).await, "{ask:?}");
        let ms = if let Ask::Wait(ms) = ask { *ms } else { 250 };
        http.clock.advance_ms(ms);
        grpc.clock.advance_ms(ms);
    }
    assert_eq!(counted(http).await, counted(grpc).await);
}

/// Counters that do not depend on the protocol.
const COUNTERS: [&str; 7] = [
    "earmark_reserves_total{",
    "earmark_completes_total{",
    "earmark_extensions_total{",
    "earmark_denials_total{",
    "earmark_overage_total{",
    "earmark_credit_settled_total{",
    "earmark_writes_total{",
];

async fn counted(server: &TestServer) -> Vec<String> {
    let text = server.ask("GET", "/metrics", "").await.text;
    let is_counter = |line: &&str| COUNTERS.iter().any(|name| line.starts_with(name));
    let mut lines: Vec<String> = text.lines().filter(is_counter).map(Into::into).collect();
    lines.sort();
    assert!(COUNTERS[..2].iter().all(|name| lines.iter().any(|line| line.starts_with(name))), "{text}");
    lines
}

/// Removes the generated ids.
fn without_ids(mut json: Value) -> Value {
    match &mut json {
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = match name.as_str() {
                    "tx_id" | "entry" => Value::from(value.as_str().map(str::len)),
                    _ => without_ids(value.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_ids(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    json
}
