//! `/v1/admin/quotas/{namespace}`: quotas of a namespace.

use std::collections::BTreeMap;

use earmark_admission::QuotaError;
use earmark_core::{NamespaceName, QUOTA_MAX, QuotaKind, QuotaUsage, SetQuotas};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::reply::{Handled, Reply};
use super::schema::exactly;
use super::serve::Call;
use super::shape::{Described, NAMESPACE, Shape, body};
use crate::app::App;
use crate::execute::{self, NAMESPACE_NOT_FOUND};

body! {
    pub(super) struct QuotasBody {
        /// Limits, deleted ones included until nothing names them.
        limits: Option<QuotaCount>,
        /// Limits derived from templates.
        derived_limits: Option<QuotaCount>,
        /// Templates of limits.
        templates: Option<QuotaCount>,
        /// Vaults.
        vaults: Option<QuotaCount>,
        /// Accounts of all vaults, closed ones included, and the balances beyond the first of each.
        accounts: Option<QuotaCount>,
        /// Clients, counted once per scope.
        clients: Option<QuotaCount>,
        /// API keys.
        keys: Option<QuotaCount>,
        /// Lease records, those of denied and completed leases included.
        leases: Option<QuotaCount>,
        /// Idempotency keys.
        idempotency_keys: Option<QuotaCount>,
        /// Bytes of journal records in one day.
        journal_bytes_per_day: Option<QuotaCount>,
        /// Bytes of policies.
        policy_bytes: Option<QuotaCount>,
    }
}

/// A quota in a body.
#[derive(Clone, Copy, Deserialize)]
#[serde(transparent)]
pub(super) struct QuotaCount(u64);

impl Described for QuotaCount {
    const SHAPE: Shape = Shape::Integer { min: 0, max: QUOTA_MAX };
}

impl QuotasBody {
    fn into_quotas(self) -> BTreeMap<QuotaKind, u64> {
        let field = |kind: QuotaKind| match kind {
            QuotaKind::Limits => self.limits,
            QuotaKind::DerivedLimits => self.derived_limits,
            QuotaKind::Templates => self.templates,
            QuotaKind::Vaults => self.vaults,
            QuotaKind::Accounts => self.accounts,
            QuotaKind::Clients => self.clients,
            QuotaKind::Keys => self.keys,
            QuotaKind::Leases => self.leases,
            QuotaKind::IdempotencyKeys => self.idempotency_keys,
            QuotaKind::JournalBytesPerDay => self.journal_bytes_per_day,
            QuotaKind::PolicyBytes => self.policy_bytes,
        };
        QuotaKind::ALL.into_iter().filter_map(|kind| Some((kind, field(kind)?.0))).collect()
    }
}

pub(super) async fn get(app: &App, call: Call) -> Handled {
    let namespace = namespace(&call)?;
    let quotas = execute::read(app, &call.context, app.backend.quotas(namespace)).await?;
    let quotas = quotas.ok_or_else(|| Reply::not_found(NAMESPACE_NOT_FOUND))?;
    Ok(Reply::ok(&json!({"quotas": wire(&quotas)})))
}

pub(super) async fn put(app: &App, call: Call) -> Handled {
    let (namespace, body) = (namespace(&call)?, call.parse::<QuotasBody>()?);
    let command = SetQuotas { namespace, quotas: body.into_quotas() };
    match execute::set_quotas(app, &call.context, command).await {
        Ok(()) => Ok(Reply::ok(&Done { ok: true })),
        Err(QuotaError::Backend(error)) => Err(error.into()),
        Err(error) => Err(Reply::invalid(&error.to_string())),
    }
}

fn namespace(call: &Call) -> Result<NamespaceName, Reply> {
    let wrong = |_| Reply::invalid(&NAMESPACE.explain(&"namespace", call.name()).unwrap_or_default());
    NamespaceName::new(call.name()).map_err(wrong)
}

#[derive(Serialize)]
struct Done {
    ok: bool,
}

fn wire(quotas: &[QuotaUsage]) -> Map<String, Value> {
    let one = |usage: &QuotaUsage| (usage.kind.as_str().to_owned(), json!({"quota": usage.quota, "used": usage.used}));
    quotas.iter().map(one).collect()
}

/// The named schemas of the responses. Quotas that another system would have to enforce may be absent.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let count = json!({"type": "integer", "minimum": 0});
    let usage = exactly(json!({"quota": count, "used": count}), &[]);
    let all: Map<String, Value> = QuotaKind::ALL.iter().map(|kind| (kind.as_str().to_owned(), usage.clone())).collect();
    let unenforced = [QuotaKind::Leases, QuotaKind::DerivedLimits].map(QuotaKind::as_str);
    [("Quotas", exactly(json!({"quotas": exactly(Value::Object(all), &unenforced)}), &[]))]
}
