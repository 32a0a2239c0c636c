//! `GET /v1/leases/{lease_id}`.

use earmark_admission::{Amount, LeaseView};
use earmark_core::{JobId, LeaseId, LeaseIdError, LeaseState, UnixMs};
use serde::Serialize;

use super::reply::{Handled, Reply};
use super::serve::Call;
use crate::app::App;
use crate::execute::{self, LEASE_NOT_FOUND};

pub(super) async fn get(app: &App, call: Call) -> Handled {
    let lease: LeaseId = call.name().parse().map_err(|error: LeaseIdError| Reply::invalid(&error.to_string()))?;
    let view = execute::read(app, &call.context, app.backend.lease(call.namespace(), lease)).await?;
    let view = view.ok_or_else(|| Reply::not_found(LEASE_NOT_FOUND))?;
    Ok(Reply::ok(&Lease { lease: LeaseWire::of(lease, &view) }))
}

#[derive(Serialize)]
struct Lease<'a> {
    lease: LeaseWire<'a>,
}

#[derive(Serialize)]
struct LeaseWire<'a> {
    lease_id: String,
    reserved_at_unix_ms: u64,
    requirements: Vec<Requirement<'a>>,
    state: &'static str,
    job_id: Option<&'a str>,
    extensions: u32,
    used: Vec<Used<'a>>,
    ends_at_unix_ms: u64,
}

#[derive(Serialize)]
struct Requirement<'a> {
    key: &'a str,
    amount: u64,
}

#[derive(Serialize)]
struct Used<'a> {
    key: &'a str,
    actual_amount: u64,
}

impl<'a> LeaseWire<'a> {
    fn of(lease: LeaseId, view: &'a LeaseView) -> LeaseWire<'a> {
        let requirement = |part: &'a Amount| Requirement { key: part.key.as_str(), amount: part.amount };
        let used = |part: &'a Amount| Used { key: part.key.as_str(), actual_amount: part.amount };
        LeaseWire {
            lease_id: lease.to_string(),
            reserved_at_unix_ms: view.reserved_at.map_or(0, UnixMs::get),
            requirements: view.requirements.iter().map(requirement).collect(),
            state: match view.state {
                LeaseState::Live => "live",
                LeaseState::Expired => "expired",
                LeaseState::Completed => "completed",
                LeaseState::Denied => "denied",
            },
            job_id: view.job.as_ref().map(JobId::as_str),
            extensions: view.extensions,
            used: view.used.iter().map(used).collect(),
            ends_at_unix_ms: view.ends_at.map_or(0, UnixMs::get),
        }
    }
}
