//! Load on Envoy's rate limit service: requests with two descriptors, all on one HTTP/2 connection.

use std::sync::Arc;

use earmark_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use earmark_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Channel, Endpoint};

use super::job::{self, Call, Calls, MODEL_DIGITS, Owner, Part, TENANT_DIGITS};
use super::measure::{Bounds, Counts, Run, Shared, Tally, join, run_stages};
use crate::client::ServerUrl;
use crate::failure::Failure;
use crate::serve::cores;

/// Descriptors of a request, each with one limit.
pub(super) const DESCRIPTORS: usize = 2;

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

/// Runs the load on half of the cores, because the server may need the other half.
pub(super) fn run(url: &ServerUrl, in_flight: usize, bounds: &Bounds) -> Result<Run, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads((cores() / 2).max(1)).enable_all().build();
    let runtime = runtime.map_err(|source| Failure::System { what: "starting the runtime", source })?;
    let failed = |error: tonic::transport::Error| Failure::Bench(format!("cannot connect: {error}"));
    let endpoint = Endpoint::from_shared(format!("http://{}", url.address().authority())).map_err(failed)?;
    let channel = runtime.block_on(endpoint.tcp_nodelay(true).connect()).map_err(failed)?;
    let (shared, deadline) = (Arc::new(Shared::new()), Instant::from(bounds.deadline()));
    let inside = runtime.enter();
    let mut workers = JoinSet::new();
    for _ in 0..in_flight {
        let client = RateLimitServiceClient::new(channel.clone());
        workers.spawn(work(client, Arc::clone(&shared), deadline));
    }
    drop(inside);
    let (measured, end) = run_stages(&shared, bounds);
    let tally = runtime.block_on(join(workers))?;
    Ok(Run { tally, measured, end, bare_ops_per_s: None })
}

/// Sends one request after the other.
async fn work(mut client: RateLimitServiceClient<Channel>, shared: Arc<Shared>, deadline: Instant) -> Tally {
    let (mut calls, mut tally) = (Calls::new(), Tally::default());
    while shared.goes_on() {
        let start = Instant::now();
        let answer = timeout_at(deadline, client.should_rate_limit(request(&calls.next()))).await;
        match answer.map(|answer| answer.map(|answer| answer.into_inner().overall_code())) {
            Ok(Ok(Code::Ok)) => tally.note(&shared, start.elapsed(), &Counts { allowed: 1, ..Counts::default() }),
            Ok(Ok(Code::OverLimit)) => tally.note(&shared, start.elapsed(), &Counts { denied: 1, ..Counts::default() }),
            Ok(Ok(Code::Unknown)) => tally.note_errors(&shared, 1, || "an answer without a code".into()),
            Ok(Err(status)) => tally.note_errors(&shared, 1, || status.message().to_owned()),
            Err(_) => tally.note_errors(&shared, 1, || "no answer in time".into()),
        }
    }
    tally
}

fn request(call: &Call) -> RateLimitRequest {
    let descriptor = |key: &str, value: String, hits_addend| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value }],
        hits_addend,
        ..RateLimitDescriptor::default()
    };
    let model = descriptor("model", format!("model-{:0MODEL_DIGITS$}", call.model), None);
    let tokens = job::INPUT_TOKENS + job::OUTPUT_TOKENS;
    let tenant = descriptor("tenant", format!("tenant-{:0TENANT_DIGITS$}", call.tenant), Some(tokens));
    RateLimitRequest { domain: "default".to_owned(), descriptors: vec![model, tenant], hits_addend: 0 }
}
