//! One request of a client command, and the output of its answer.

use earmark_client::http::Method;
use earmark_core::{JobId, LeaseId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{self, Client, ClientArgs};
use crate::failure::Failure;
use crate::output;

pub(crate) fn get<A: DeserializeOwned>(args: &ClientArgs, path: &str) -> Result<A, Failure> {
    client::block_on(async { Client::new(&args.url())?.call(Method::GET, path, None).await })
}

pub(crate) fn delete<A: DeserializeOwned>(args: &ClientArgs, path: &str) -> Result<A, Failure> {
    client::block_on(async { Client::new(&args.url())?.call(Method::DELETE, path, None).await })
}

pub(crate) fn send<A: DeserializeOwned>(
    args: &ClientArgs,
    method: Method,
    path: &str,
    body: &impl Serialize,
) -> Result<A, Failure> {
    client::block_on(async { Client::new(&args.url())?.send(method, path, body).await })
}

/// Posts a request about a lease. `body` has the other fields.
pub(crate) fn post_lease<A: DeserializeOwned>(
    args: &ClientArgs,
    path: &str,
    (lease, job): (LeaseId, Option<&JobId>),
    mut body: Value,
) -> Result<A, Failure> {
    body["lease_id"] = lease.to_string().into();
    if let Some(job) = job {
        body["job_id"] = job.as_str().into();
    }
    send(args, Method::POST, path, &body).map_err(|failure| failure.of_lease(lease))
}

/// Prints an answer about a lease as JSON, with the lease id, which may be newly generated.
pub(crate) fn print_lease_json(lease: LeaseId, answer: &impl Serialize) -> Result<(), Failure> {
    let mut document = json!(answer);
    document["lease_id"] = lease.to_string().into();
    output::print_json(&document)
}
