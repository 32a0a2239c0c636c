//! The quotas of `earmark.v1.LimitsService`.

use std::collections::BTreeMap;

use earmark_admission::QuotaError;
use earmark_core::{QuotaKind, QuotaUsage, SetQuotas};
use earmark_proto::convert;
use earmark_proto::v1;
use tonic::Status;

use super::status::failed;
use crate::app::App;
use crate::execute::{self, NAMESPACE_NOT_FOUND, RequestContext};

pub(super) async fn get(
    app: &App,
    context: &RequestContext,
    request: v1::GetQuotasRequest,
) -> Result<v1::GetQuotasResponse, Status> {
    let namespace = convert::name("namespace", &request.namespace)?;
    match execute::read(app, context, app.backend.quotas(namespace)).await {
        Ok(Some(quotas)) => Ok(v1::GetQuotasResponse { quotas: Some(message(&quotas)) }),
        Ok(None) => Err(Status::not_found(NAMESPACE_NOT_FOUND)),
        Err(error) => Err(failed(&error)),
    }
}

pub(super) async fn put(
    app: &App,
    context: &RequestContext,
    request: v1::PutQuotasRequest,
) -> Result<v1::PutQuotasResponse, Status> {
    let namespace = convert::name("namespace", &request.namespace)?;
    let command = SetQuotas { namespace, quotas: asked(&request) };
    match execute::set_quotas(app, context, command).await {
        Ok(()) => Ok(v1::PutQuotasResponse { ok: true }),
        Err(QuotaError::Backend(error)) => Err(failed(&error)),
        Err(error @ (QuotaError::TooHigh(_) | QuotaError::KeptElsewhere(..))) => {
            Err(Status::invalid_argument(error.to_string()))
        }
        Err(error) => Err(Status::resource_exhausted(error.to_string())),
    }
}

fn asked(request: &v1::PutQuotasRequest) -> BTreeMap<QuotaKind, u64> {
    let quota = |kind: QuotaKind| {
        let quota = match kind {
            QuotaKind::Limits => request.limits,
            QuotaKind::DerivedLimits => request.derived_limits,
            QuotaKind::Templates => request.templates,
            QuotaKind::Vaults => request.vaults,
            QuotaKind::Accounts => request.accounts,
            QuotaKind::Clients => request.clients,
            QuotaKind::Keys => request.keys,
            QuotaKind::Leases => request.leases,
            QuotaKind::IdempotencyKeys => request.idempotency_keys,
            QuotaKind::JournalBytesPerDay => request.journal_bytes_per_day,
            QuotaKind::PolicyBytes => request.policy_bytes,
        };
        quota.map(|quota| (kind, quota))
    };
    QuotaKind::ALL.into_iter().filter_map(quota).collect()
}

fn message(quotas: &[QuotaUsage]) -> v1::Quotas {
    let one = |kind: QuotaKind| {
        let found = quotas.iter().find(|usage| usage.kind == kind);
        found.map(|usage| v1::Quota { quota: usage.quota, used: usage.used })
    };
    v1::Quotas {
        limits: one(QuotaKind::Limits),
        derived_limits: one(QuotaKind::DerivedLimits),
        templates: one(QuotaKind::Templates),
        vaults: one(QuotaKind::Vaults),
        accounts: one(QuotaKind::Accounts),
        clients: one(QuotaKind::Clients),
        keys: one(QuotaKind::Keys),
        leases: one(QuotaKind::Leases),
        idempotency_keys: one(QuotaKind::IdempotencyKeys),
        journal_bytes_per_day: one(QuotaKind::JournalBytesPerDay),
        policy_bytes: one(QuotaKind::PolicyBytes),
    }
}
