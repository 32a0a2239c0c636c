//! The JSON schemas of responses about writes and credit.

use earmark_admission::{PAGE_MAX, STATEMENT_GROUPS_MAX};
use earmark_core::{AccountStatus, Actor, OPERATIONS_MAX, Period, SettleReason};
use serde_json::{Value, json};

use super::super::labels::LabelList;
use super::super::shape::{ACCOUNT, ASSET, CLIENT, IDEMPOTENCY_KEY, Name, Shape, VAULT};
use super::{count, described, exactly, key};
use crate::answer::WRITE_CODES;

pub(super) fn schemas() -> [(&'static str, Value); 10] {
    [
        ("WriteCommitted", exactly(json!({"success": success()}), &[])),
        ("WriteRefused", exactly(json!({"error": refusal()}), &[])),
        ("ClientState", exactly(json!({"last_committed_sequence": count()}), &[])),
        ("Grants", exactly(json!({"grants": list(grant())}), &[])),
        ("Balances", exactly(json!({"balances": list(balance())}), &[])),
        ("Vaults", page("vaults", name(&VAULT), name(&VAULT))),
        ("Accounts", page("accounts", account(), name(&ACCOUNT))),
        ("Entries", page("entries", an_entry(), count())),
        ("Audit", audit()),
        ("Statement", statement()),
    ]
}

fn name(of: &'static Name) -> Value {
    Shape::Name(of).schema()
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// A signed amount of credit, as text.
fn signed() -> Value {
    json!({"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,38})$"})
}

fn tx_id() -> Value {
    Shape::Lease.schema()
}

fn success() -> Value {
    let results = json!({"oneOf": [
        exactly(
            json!({"limit": key(), "revision": count(), "status": {"enum": ["active", "decreasing", "deleted"]}}),
            &[],
        ),
        exactly(json!({"vault": name(&VAULT)}), &[]),
        exactly(json!({"account": name(&ACCOUNT)}), &[]),
        exactly(json!({"entry": tx_id()}), &[]),
        exactly(json!({"client_id": {"type": "string"}}), &[]),
    ]});
    exactly(
        json!({
            "tx_id": tx_id(),
            "sequence": described(count(), "Absent for a write with an idempotency key."),
            "log_index": described(count(), "Its position in the order of committed writes."),
            "committed_at_unix_ms": count(),
            "actor": {"type": "string"},
            "results": {"type": "array", "maxItems": OPERATIONS_MAX, "items": results},
        }),
        &["sequence"],
    )
}

fn refusal() -> Value {
    exactly(
        json!({
            "code": {"enum": WRITE_CODES},
            "message": {"type": "string"},
            "operation": described(count(), "Index of the failed operation, from 0."),
            "last_committed_sequence": count(),
        }),
        &["operation", "last_committed_sequence"],
    )
}

fn balance() -> Value {
    exactly(
        json!({
            "asset": name(&ASSET),
            "available": described(signed(), "Amount that can be spent; negative if the account owes."),
            "held": signed(),
            "pending": signed(),
        }),
        &[],
    )
}

/// A page of a list, with the position after it.
fn page(list: &str, item: Value, mut next: Value) -> Value {
    next["type"] = json!([next["type"], "null"]);
    let next = described(next, "`after` of the next page; null on the last one.");
    exactly(json!({list: {"type": "array", "maxItems": PAGE_MAX, "items": item}, "next": next}), &[])
}

fn account() -> Value {
    let status = json!({"enum": AccountStatus::NAMES});
    exactly(
        json!({"account": name(&ACCOUNT), "status": status, "balances": list(balance()), "plan": plan()}),
        &["plan"],
    )
}

fn plan() -> Value {
    let carry_over = json!({"oneOf": [{"const": "none"}, exactly(json!({"max": signed()}), &[])]});
    exactly(
        json!({
            "asset": name(&ASSET),
            "amount": described(signed(), "Amount per period."),
            "period": {"enum": Period::ALL.map(Period::as_str)},
            "utc_offset_minutes": {"type": "integer"},
            "carry_over": carry_over,
            "next_at_unix_ms": described(count(), "When it issues next; absent before its first period."),
        }),
        &["next_at_unix_ms"],
    )
}

fn grant() -> Value {
    exactly(
        json!({
            "asset": name(&ASSET),
            "remaining": described(signed(), "Amount that can be spent; negative if plain credit is owed."),
            "held": signed(),
            "priority": described(priority(), "The lowest number is spent first, then what expires first."),
            "expires_at_unix_ms": described(count(), "When it expires; absent if never."),
        }),
        &["expires_at_unix_ms"],
    )
}

fn priority() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": u8::MAX})
}

fn an_entry() -> Value {
    let of_transaction = json!({
        "tx_id": tx_id(),
        "log_index": count(),
        "actor": {"type": "string"},
        "memos": list(json!({"type": "string"})),
    });
    let (mut transaction, mut keyed) = (of_transaction.clone(), of_transaction);
    transaction["client_id"] = name(&CLIENT);
    transaction["sequence"] = count();
    keyed["idempotency_key"] = name(&IDEMPOTENCY_KEY);
    let (transaction, keyed) = (entry("transaction", transaction), entry("transaction", keyed));
    let held = json!({
        "lease_id": Shape::Lease.schema(),
        "limit": key(),
        "hold": described(signed(), "Amount that the lease held."),
        "actor": {
            "type": ["string", "null"],
            "description": "The actor; `system:earmark` for a timeout, null if it is not recorded.",
        },
    });
    let mut settled = held.clone();
    settled["paid"] = described(signed(), "Amount paid to the revenue account.");
    settled["debt"] = described(signed(), "Part of it that the account owes.");
    settled["uncollected"] = described(signed(), "Cost that was not paid.");
    settled["reason"] = json!({
        "enum": SettleReason::ALL.map(SettleReason::name),
        "description": "`complete`; `timeout` if the hold ran out; `late` for a complete after that.",
    });
    settled["labels"] = described(LabelList::SHAPE.schema(), "The labels of the complete; empty without any.");
    let mut issued = terms();
    issued["carried"] = described(signed(), "Unused credit of the period before that it kept; not in `changes`.");
    issued["actor"] = json!({"const": Actor::ITSELF});
    json!({
        "oneOf": [
            transaction,
            keyed,
            entry("hold", held.clone()),
            entry("settle", settled),
            entry("release", held),
            entry("expire", terms()),
            entry("plan", issued),
        ],
    })
}

/// The priority and expiry of credit that expired or was issued by a plan.
fn terms() -> Value {
    json!({
        "priority": described(priority(), "Its priority."),
        "expires_at_unix_ms": described(count(), "When it expires or expired."),
    })
}

/// The schema of an entry of one kind, with these fields besides the common ones.
fn entry(kind: &str, mut properties: Value) -> Value {
    let change = exactly(
        json!({
            "asset": name(&ASSET),
            "amount": described(signed(), "Change of the available amount."),
            "held": described(signed(), "Change of the held amount."),
            "issued": described(signed(), "Amount that a transaction issued to the account; absent if none."),
            "retired": described(signed(), "Amount that it retired from the account."),
            "transferred_in": described(signed(), "Amount that it transferred to the account."),
            "transferred_out": described(signed(), "Amount that it transferred from the account."),
        }),
        &["issued", "retired", "transferred_in", "transferred_out"],
    );
    properties["kind"] = json!({"const": kind});
    properties["number"] = described(count(), "Its position in the journal.");
    properties["committed_at_unix_ms"] = count();
    properties["changes"] = list(change);
    exactly(properties, &[])
}

fn statement() -> Value {
    let value =
        json!({"type": ["string", "null"], "description": "The value; null for settlements without the label."});
    let group = exactly(json!({"value": value, "spent": signed(), "settlements": count()}), &[]);
    let groups = json!({"type": "array", "maxItems": STATEMENT_GROUPS_MAX, "items": group});
    let asset = exactly(
        json!({
            "asset": name(&ASSET),
            "opening": described(signed(), "Balance at the start, held credit included."),
            "issued": signed(),
            "received": described(signed(), "Credit from settlements that paid this account."),
            "transferred_in": signed(),
            "spent": described(signed(), "Credit that settlements took."),
            "transferred_out": signed(),
            "expired": signed(),
            "retired": signed(),
            "closing": described(
                signed(),
                "opening + issued + received + transferred_in - spent - transferred_out - expired - retired.",
            ),
            "settlements": described(count(), "Number of settlements that took credit."),
            "groups": described(groups, "Spending of this page by value of the label; absent without `group_by`."),
        }),
        &["groups"],
    );
    let time = |about: &str| json!({"type": ["integer", "null"], "minimum": 0, "description": about});
    exactly(
        json!({
            "account": name(&ACCOUNT),
            "since": time("Start of the period; null without one."),
            "until": time("End of the period, which does not belong to it; null without one."),
            "group_by": {"type": ["string", "null"]},
            "assets": list(asset),
            "next": {"type": ["string", "null"], "description": "`after` of the next page; null on the last one."},
        }),
        &[],
    )
}

fn audit() -> Value {
    let totals = exactly(
        json!({
            "asset": name(&ASSET),
            "issued": signed(),
            "retired": signed(),
            "expired": described(signed(), "Absent while nothing has expired."),
            "live": described(signed(), "Sum over all accounts: issued minus retired and expired."),
        }),
        &["expired"],
    );
    exactly(
        json!({
            "balanced": {"type": "boolean"},
            "assets": list(totals),
            "message": {"type": "string", "description": "The differences, or what could not be compared."},
        }),
        &["message"],
    )
}
