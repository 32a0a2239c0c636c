//! `GET /v1/audit`: the change log.

use earmark_admission::{ChangeEntry, ChangeKind, ChangePage};
use earmark_core::{KeyChange, LimitEdit, VaultName};
use serde::Serialize;
use serde_json::{Value, json};

use super::limits;
use super::reply::Reply;
use super::schema::{described, exactly};
use super::serve::Call;
use super::shape::Shape;
use crate::app::App;
use crate::auth::CHANGE_LOG_PAGE_COST;
use crate::execute::{self, PAGE_SIZE_DEFAULT};

pub(super) async fn get(app: &App, call: Call) -> Reply {
    let Some(keys) = app.backend.keys() else {
        return Reply::not_found("this server has no change log");
    };
    let after = call.query("after").and_then(|text| text.parse().ok()).unwrap_or_default();
    let page_size = call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_SIZE_DEFAULT);
    let _permit = match call.context.admit(app, page_size.max(CHANGE_LOG_PAGE_COST)).await {
        Ok(permit) => permit,
        Err(error) => return Reply::rejected(&error),
    };
    let namespace = (!call.context.caller.is_server_admin()).then(|| call.namespace());
    match execute::read(app, &call.context, keys.log(namespace, after, page_size)).await {
        Ok(page) => Reply::ok(&PageWire::of(&page)),
        Err(error) => limits::failed(&error),
    }
}

#[derive(Serialize)]
struct PageWire<'a> {
    entries: Vec<EntryWire<'a>>,
    next: Option<String>,
}

impl<'a> PageWire<'a> {
    fn of(page: &'a ChangePage) -> PageWire<'a> {
        let next = page.next.map(|place| place.to_string());
        PageWire { entries: page.entries.iter().map(EntryWire::of).collect(), next }
    }
}

#[derive(Serialize)]
struct EntryWire<'a> {
    place: String,
    at_unix_ms: u64,
    actor: &'a str,
    namespace: &'a str,
    vault: Option<&'a str>,
    summary: String,
    #[serde(flatten)]
    what: WhatWire<'a>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WhatWire<'a> {
    Transaction { tx_id: String, log_index: u64, client_id: &'a str, sequence: u64 },
    Key { key_id: &'a str },
    Limit { key: &'a str, revision: u64 },
    Quotas,
}

impl<'a> EntryWire<'a> {
    fn of(entry: &'a ChangeEntry) -> EntryWire<'a> {
        let (summary, what) = match &entry.what {
            ChangeKind::Transaction { tx_id, log_index, client, sequence, operations } => {
                let what = WhatWire::Transaction {
                    tx_id: tx_id.to_string(),
                    log_index: *log_index,
                    client_id: client.as_str(),
                    sequence: *sequence,
                };
                (if operations.is_empty() { "nothing".into() } else { operations.join("; ") }, what)
            }
            ChangeKind::Key { change, id, name, role } => {
                let change = match change {
                    KeyChange::Created => "create",
                    KeyChange::Revoked => "revoke",
                };
                (format!("{change}_key {id} {name} {role}"), WhatWire::Key { key_id: id.as_str() })
            }
            ChangeKind::Limit { edit, key, revision } => {
                let edit = match edit {
                    LimitEdit::Put => "put",
                    LimitEdit::Deleted => "delete",
                };
                let what = WhatWire::Limit { key: key.as_str(), revision: *revision };
                (format!("{edit}_limit {key}"), what)
            }
            ChangeKind::Quotas { changes } => {
                let each = changes.iter().map(|change| format!("{} {} to {}", change.kind, change.old, change.new));
                (format!("set_quotas {}", each.collect::<Vec<_>>().join(", ")), WhatWire::Quotas)
            }
        };
        EntryWire {
            place: entry.place.to_string(),
            at_unix_ms: entry.at.get(),
            actor: entry.actor.as_str(),
            namespace: entry.namespace.as_str(),
            vault: entry.vault.as_ref().map(VaultName::as_str),
            summary,
            what,
        }
    }
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let count = json!({"type": "integer", "minimum": 0});
    let text = json!({"type": "string"});
    let entry = |kind: &str, more: &[(&str, &Value)]| {
        let mut properties = json!({
            "place": described(Shape::LogPosition.schema(), "Use it as `after` to continue behind this entry."),
            "at_unix_ms": count,
            "actor": text,
            "namespace": text,
            "vault": {"type": ["string", "null"]},
            "summary": {"type": "string", "description": "The change, for people."},
            "kind": {"const": kind},
        });
        for (name, schema) in more {
            properties[*name] = (*schema).clone();
        }
        exactly(properties, &[])
    };
    let transaction =
        entry("transaction", &[("tx_id", &text), ("log_index", &count), ("client_id", &text), ("sequence", &count)]);
    let key = entry("key", &[("key_id", &text)]);
    let limit = entry("limit", &[("key", &text), ("revision", &count)]);
    let quotas = entry("quotas", &[]);
    let mut next = described(
        Shape::LogPosition.schema(),
        "`after` of the next page; null on the last one. A page with `next` may be empty.",
    );
    next["type"] = json!(["string", "null"]);
    let entries = json!({"type": "array", "items": {"oneOf": [transaction, key, limit, quotas]}});
    let page = exactly(json!({"entries": entries, "next": next}), &[]);
    [("AuditLog", page)]
}
