//! Requests: method, path and body.

use std::fmt::Display;

use earmark_core::{CreditTerms, Definition, Kind, LeaseId, LimitKey, Operation, Overage, Overdraft};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::ask::{Ask, CompleteItem, ReserveItem, Scope, WriteItem};
use crate::http::{HttpRequest, Method};

/// The HTTP request of `ask`. Names contain no character that must be escaped in a path.
pub(crate) fn request(ask: &Ask) -> serde_json::Result<HttpRequest> {
    let get = |path: String| Ok(HttpRequest::new(Method::GET, path));
    let post = |path: &str, body: String| Ok(HttpRequest::new(Method::POST, path).json(body));
    match ask {
        Ask::Reserve(items) => match items.as_slice() {
            [item] => post("/v1/reserve", serde_json::to_string(&ReserveBody::of(item))?),
            items => {
                let requests = items.iter().map(ReserveBody::of).collect();
                post("/v1/reserve/batch", serde_json::to_string(&Batch { requests })?)
            }
        },
        Ask::Complete(items) => match items.as_slice() {
            [item] => post("/v1/complete", serde_json::to_string(&CompleteBody::of(item))?),
            items => {
                let requests = items.iter().map(CompleteBody::of).collect();
                post("/v1/complete/batch", serde_json::to_string(&Batch { requests })?)
            }
        },
        Ask::PutLimit(limit) => {
            Ok(HttpRequest::new(Method::PUT, "/v1/admin/limits").json(definition(limit).to_string()))
        }
        Ask::DeleteLimit(key) => Ok(HttpRequest::new(Method::DELETE, format!("/v1/admin/limits/{key}"))),
        Ask::Limit(key) => get(format!("/v1/admin/limits/{key}")),
        Ask::Limits => get("/v1/admin/limits".into()),
        Ask::Usage(key) => get(format!("/v1/admin/limits/{key}/usage")),
        Ask::Write(item) => post("/v1/write", write(item).to_string()),
        Ask::ClientState { scope: Scope { namespace, vault }, client } => {
            let vault = vault.as_ref().map(|vault| format!("&vault={}", escaped(vault)));
            let (namespace, vault) = (escaped(namespace), vault.unwrap_or_default());
            get(format!("/v1/clients/{client}?namespace={namespace}{vault}"))
        }
        Ask::Balances { vault, account } => get(format!("/v1/vaults/{vault}/accounts/{account}/balances")),
    }
}

/// A name in a query, where `+` would be read as a space.
fn escaped(name: &impl Display) -> String {
    name.to_string().replace('+', "%2B")
}

#[derive(Serialize)]
struct Batch<T> {
    requests: Vec<T>,
}

/// A text that is written as it is shown.
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Serialize)]
struct ReserveBody<'a> {
    lease_id: Shown<LeaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    #[serde(serialize_with = "requirements")]
    requirements: &'a [(LimitKey, u64)],
}

impl<'a> ReserveBody<'a> {
    fn of(item: &'a ReserveItem) -> ReserveBody<'a> {
        ReserveBody {
            lease_id: Shown(item.lease),
            job_id: item.job.id().map(|id| id.as_str()),
            requirements: item.job.requirements(),
        }
    }
}

#[derive(Serialize)]
struct CompleteBody<'a> {
    lease_id: Shown<LeaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    #[serde(serialize_with = "actuals")]
    actuals: &'a [(LimitKey, u64)],
}

impl<'a> CompleteBody<'a> {
    fn of(item: &'a CompleteItem) -> CompleteBody<'a> {
        CompleteBody {
            lease_id: Shown(item.lease),
            job_id: item.job.id().map(|id| id.as_str()),
            actuals: item.actuals.amounts(),
        }
    }
}

#[derive(Serialize)]
struct Requirement<'a> {
    key: &'a str,
    amount: u64,
}

#[derive(Serialize)]
struct Actual<'a> {
    key: &'a str,
    actual_amount: u64,
}

fn requirements<S: Serializer>(amounts: &[(LimitKey, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(amounts.len()))?;
    for (key, amount) in amounts {
        list.serialize_element(&Requirement { key: key.as_str(), amount: *amount })?;
    }
    list.end()
}

fn actuals<S: Serializer>(amounts: &[(LimitKey, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(amounts.len()))?;
    for (key, amount) in amounts {
        list.serialize_element(&Actual { key: key.as_str(), actual_amount: *amount })?;
    }
    list.end()
}

fn definition(limit: &Definition) -> Value {
    let overage = match limit.overage {
        Overage::Debt => "debt",
        Overage::Deny => "deny",
    };
    let mut document = json!({
        "key": limit.key.as_str(), "unit": limit.unit, "description": limit.description, "overage": overage,
    });
    match &limit.kind {
        Kind::Rolling { window_seconds } => {
            document["kind"] = "rolling".into();
            document["capacity"] = limit.capacity.into();
            document["window_seconds"] = (*window_seconds).into();
        }
        Kind::Concurrency { timeout_seconds } => {
            document["kind"] = "concurrency".into();
            document["capacity"] = limit.capacity.into();
            document["timeout_seconds"] = (*timeout_seconds).into();
        }
        Kind::Credit(CreditTerms { timeout_seconds, vault, account, asset, revenue }) => {
            document["kind"] = "credit".into();
            document["timeout_seconds"] = (*timeout_seconds).into();
            document["vault"] = vault.as_str().into();
            document["account"] = account.as_str().into();
            document["asset"] = asset.as_str().into();
            document["revenue"] = revenue.as_str().into();
        }
    }
    document
}

fn write(item: &WriteItem) -> Value {
    let mut body = json!({
        "namespace": item.scope.namespace.as_str(), "client_id": item.client.as_str(),
        "sequence": item.sequence,
        "operations": item.operations.iter().map(operation).collect::<Vec<Value>>(),
    });
    if let Some(vault) = &item.scope.vault {
        body["vault"] = vault.as_str().into();
    }
    body
}

fn operation(operation: &Operation) -> Value {
    let revised = |mut inner: Value, revision: &Option<u64>| {
        if let Some(revision) = revision {
            inner["expected_revision"] = (*revision).into();
        }
        inner
    };
    match operation {
        Operation::PutLimit { definition: limit, expected_revision } => {
            json!({"put_limit": revised(json!({"definition": definition(limit)}), expected_revision)})
        }
        Operation::DeleteLimit { key, expected_revision } => {
            json!({"delete_limit": revised(json!({"key": key.as_str()}), expected_revision)})
        }
        Operation::OpenVault { vault } => json!({"open_vault": {"vault": vault.as_str()}}),
        Operation::OpenAccount { account, overdraft } => {
            let overdraft = match overdraft {
                Overdraft::Deny => "deny",
                Overdraft::Allow => "allow",
            };
            json!({"open_account": {"account": account.as_str(), "overdraft": overdraft}})
        }
        Operation::FreezeAccount { account } => json!({"freeze_account": {"account": account.as_str()}}),
        Operation::UnfreezeAccount { account } => json!({"unfreeze_account": {"account": account.as_str()}}),
        Operation::CloseAccount { account } => json!({"close_account": {"account": account.as_str()}}),
        Operation::Issue { account, asset, amount, memo } => json!({"issue": {
            "account": account.as_str(), "asset": asset.as_str(), "amount": amount.to_string(), "memo": memo,
        }}),
        Operation::Retire { account, asset, amount, memo } => json!({"retire": {
            "account": account.as_str(), "asset": asset.as_str(), "amount": amount.to_string(), "memo": memo,
        }}),
        Operation::Transfer { from, to, asset, amount, memo } => json!({"transfer": {
            "from": from.as_str(), "to": to.as_str(), "asset": asset.as_str(),
            "amount": amount.to_string(), "memo": memo,
        }}),
    }
}
