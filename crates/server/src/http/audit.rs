//! `GET /v1/audit`: the change log.

use earmark_admission::{ChangeEntry, ChangeKind, ChangePage, ChangeQuery, ChangedLimit, LimitDocument, PAGE_MAX};
use earmark_core::{Definition, KeyChange, UnixMs, VaultName};
use serde::Serialize;
use serde_json::{Value, json};

use super::reply::{Handled, Reply};
use super::schema::{self, described, exactly};
use super::serve::Call;
use super::shape::{Shape, limit_or_template};
use super::write_id::WriteIdWire;
use crate::app::App;
use crate::auth::CHANGE_LOG_PAGE_COST;
use crate::execute::{self, PAGE_SIZE_DEFAULT};

pub(super) async fn get(app: &App, call: Call) -> Handled {
    let keys = app.backend.keys().ok_or_else(|| Reply::not_found("this server has no change log"))?;
    let query = ChangeQuery {
        namespace: (!call.context.caller.is_server_admin()).then(|| call.namespace()),
        key: call.query("key").and_then(|text| limit_or_template(text).ok()),
        actor: call.query("actor").and_then(|text| text.parse().ok()),
        after: call.query("after").and_then(|text| text.parse().ok()).unwrap_or_default(),
        page_size: call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_SIZE_DEFAULT),
    };
    // A filter may read many changes for each one that it finds. A tenant's page is filtered by its namespace.
    let is_filtered = query.key.is_some() || query.actor.is_some() || query.namespace.is_some();
    let cost = if is_filtered { PAGE_MAX } else { query.page_size.max(CHANGE_LOG_PAGE_COST) };
    let _permit = call.context.admit(app, cost).await?;
    let page = execute::read(app, &call.context, keys.log(query)).await?;
    Ok(Reply::ok(&PageWire::of(&page)))
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
    Transaction {
        tx_id: String,
        log_index: u64,
        #[serde(flatten)]
        id: WriteIdWire<'a>,
        limits: Vec<LimitWire<'a>>,
    },
    Key {
        key_id: &'a str,
    },
    Limit {
        revision: u64,
        #[serde(flatten)]
        limit: Box<LimitWire<'a>>,
    },
    Template {
        revision: u64,
        #[serde(flatten)]
        template: Box<LimitWire<'a>>,
    },
    Pause {
        key: &'a str,
        paused_until_unix_ms: Option<u64>,
        reason: &'a str,
    },
    Quotas,
    Policy {
        revision: u64,
    },
}

/// A limit or template before and after a change.
#[derive(Serialize)]
struct LimitWire<'a> {
    key: &'a str,
    old: Option<LimitDocument>,
    new: Option<LimitDocument>,
}

impl<'a> LimitWire<'a> {
    fn of(limit: &'a ChangedLimit) -> LimitWire<'a> {
        let document = |definition: &Option<Definition>| definition.as_ref().map(LimitDocument::of);
        LimitWire { key: limit.key.as_str(), old: document(&limit.old), new: document(&limit.new) }
    }
}

impl<'a> EntryWire<'a> {
    fn of(entry: &'a ChangeEntry) -> EntryWire<'a> {
        let (summary, what) = match &entry.what {
            ChangeKind::Transaction { tx_id, log_index, id, operations, limits } => {
                let what = WhatWire::Transaction {
                    tx_id: tx_id.to_string(),
                    log_index: *log_index,
                    id: WriteIdWire::of(id),
                    limits: limits.iter().map(LimitWire::of).collect(),
                };
                (if operations.is_empty() { "nothing".into() } else { operations.join("; ") }, what)
            }
            ChangeKind::Key { change, id, name, role, labels, may_set } => {
                let change = match change {
                    KeyChange::Created => "create",
                    KeyChange::Revoked => "revoke",
                };
                let mut said = format!("{change}_key {id} {name} {role}");
                labels.iter().for_each(|(name, value)| said.push_str(&format!(" {name}={value}")));
                may_set.iter().for_each(|name| said.push_str(&format!(" may_set={name}")));
                (said, WhatWire::Key { key_id: id.as_str() })
            }
            ChangeKind::Limit { limit, revision } => {
                let edit = if limit.new.is_some() { "put" } else { "delete" };
                let what = WhatWire::Limit { revision: *revision, limit: LimitWire::of(limit).into() };
                (format!("{edit}_limit {}", limit.key), what)
            }
            ChangeKind::Template { template, revision } => {
                let edit = if template.new.is_some() { "put" } else { "delete" };
                let what = WhatWire::Template { revision: *revision, template: LimitWire::of(template).into() };
                (format!("{edit}_template {}", template.key), what)
            }
            ChangeKind::Pause { key, until, reason } => {
                let paused_until_unix_ms = until.map(UnixMs::get);
                let what = WhatWire::Pause { key: key.as_str(), paused_until_unix_ms, reason };
                (format!("{} {key}", if until.is_some() { "pause_limit" } else { "resume_limit" }), what)
            }
            ChangeKind::Quotas { changes } => {
                let each = changes.iter().map(|change| format!("{} {} to {}", change.kind, change.old, change.new));
                (format!("set_quotas {}", each.collect::<Vec<_>>().join(", ")), WhatWire::Quotas)
            }
            ChangeKind::Policy { old, revision, bytes } => {
                let summary = format!("put_policy of {bytes} bytes, revision {old} to {revision}");
                (summary, WhatWire::Policy { revision: *revision })
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
            "place": described(Shape::LogPosition.schema(), "Use it as `after` to continue with older entries."),
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
    let or_null = |schema: Value, about: &str| json!({"oneOf": [schema, {"type": "null"}], "description": about});
    let definition = |about| or_null(schema::defined(), about);
    let template = |about| or_null(schema::with_placeholders(schema::defined()), about);
    let old = definition("The definition before; null for a new limit. While it was decreasing: with the target.");
    let new = definition("The definition after; null for a deleted limit.");
    let changed = exactly(json!({"key": text, "old": old, "new": new}), &[]);
    let limits = json!({"type": "array", "items": changed, "description": "The limits it put or deleted, in order."});
    let of_transaction = [("tx_id", &text), ("log_index", &count), ("limits", &limits)];
    let with = |more: &[(&str, &Value)]| entry("transaction", &[&of_transaction, more].concat());
    let (transaction, keyed) =
        (with(&[("client_id", &text), ("sequence", &count)]), with(&[("idempotency_key", &text)]));
    let key = entry("key", &[("key_id", &text)]);
    let limit = entry("limit", &[("key", &text), ("revision", &count), ("old", &old), ("new", &new)]);
    let (old, new) = (
        template("The definition before; null for a new template."),
        template("The definition after; null for a deleted template."),
    );
    let template = entry("template", &[("key", &text), ("revision", &count), ("old", &old), ("new", &new)]);
    let quotas = entry("quotas", &[]);
    let policy = entry("policy", &[("revision", &count)]);
    let until = json!({"type": ["integer", "null"], "minimum": 0, "description": "When the pause ends; null if the limit was resumed."});
    let pause = entry("pause", &[("key", &text), ("paused_until_unix_ms", &until), ("reason", &text)]);
    let mut next = described(
        Shape::LogPosition.schema(),
        "`after` of the next page; null on the last one. A page with `next` may be empty.",
    );
    next["type"] = json!(["string", "null"]);
    let entries =
        json!({"type": "array", "items": {"oneOf": [transaction, keyed, key, limit, template, pause, quotas, policy]}});
    let page = exactly(json!({"entries": entries, "next": next}), &[]);
    [("AuditLog", page)]
}
