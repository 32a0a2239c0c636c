//! Converts between the JSON of HTTP and the messages of gRPC.

use earmark_proto::v1;
use serde_json::{Value, json};

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

fn optional_text(json: &Value) -> Option<String> {
    json.as_str().map(Into::into)
}

fn items<T>(json: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    json.as_array().into_iter().flatten().map(item).collect()
}

fn requirement(part: &Value) -> v1::Requirement {
    v1::Requirement {
        key: text(&part["key"]),
        amount: part["amount"].as_u64().unwrap(),
        namespace: optional_text(&part["namespace"]),
    }
}

fn actual(part: &Value) -> v1::Actual {
    v1::Actual {
        key: text(&part["key"]),
        actual_amount: part["actual_amount"].as_u64().unwrap(),
        namespace: optional_text(&part["namespace"]),
    }
}

pub(super) fn reserve(json: &Value) -> v1::ReserveRequest {
    v1::ReserveRequest {
        lease_id: text(&json["lease_id"]),
        job_id: optional_text(&json["job_id"]),
        requirements: items(&json["requirements"], requirement),
        namespace: None,
    }
}

pub(super) fn extend(json: &Value) -> v1::ExtendRequest {
    v1::ExtendRequest {
        lease_id: text(&json["lease_id"]),
        extension: u32::try_from(json["extension"].as_u64().unwrap_or_default()).unwrap(),
        add: items(&json["add"], requirement),
        used: items(&json["used"], actual),
        renew: json["renew"].as_bool(),
        namespace: None,
    }
}

pub(super) fn complete(json: &Value) -> v1::CompleteRequest {
    v1::CompleteRequest {
        lease_id: text(&json["lease_id"]),
        job_id: optional_text(&json["job_id"]),
        actuals: items(&json["actuals"], actual),
        namespace: None,
        labels: labels(json),
    }
}

pub(super) fn labels(json: &Value) -> std::collections::HashMap<String, String> {
    json["labels"].as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
}

pub(super) fn definition(json: &Value) -> v1::LimitDefinition {
    let number = |name: &str| json[name].as_u64();
    let seconds = |name: &str| number(name).map(|seconds| u32::try_from(seconds).unwrap());
    let mut definition = v1::LimitDefinition {
        key: text(&json["key"]),
        capacity: number("capacity"),
        window_seconds: seconds("window_seconds"),
        timeout_seconds: seconds("timeout_seconds"),
        unit: text(&json["unit"]),
        description: text(&json["description"]),
        vault: optional_text(&json["vault"]),
        account: optional_text(&json["account"]),
        asset: optional_text(&json["asset"]),
        revenue: optional_text(&json["revenue"]),
        utc_offset_minutes: json["utc_offset_minutes"].as_i64().map(|minutes| i32::try_from(minutes).unwrap()),
        shared: json["shared"].as_bool(),
        enforce: json["enforce"].as_bool(),
        ..Default::default()
    };
    definition.set_kind(match json["kind"].as_str() {
        Some("rolling") => v1::LimitKind::Rolling,
        Some("concurrency") => v1::LimitKind::Concurrency,
        Some("calendar") => v1::LimitKind::Calendar,
        Some("credit") => v1::LimitKind::Credit,
        _ => v1::LimitKind::Unspecified,
    });
    let periods = [v1::Period::Hour, v1::Period::Day, v1::Period::Week, v1::Period::Month];
    if let Some(period) = periods.into_iter().find(|period| json["period"] == of_period(*period)) {
        definition.set_period(period);
    }
    definition.set_overage(match json["overage"].as_str() {
        Some("deny") => v1::Overage::Deny,
        _ => v1::Overage::Unspecified,
    });
    match json["on_timeout"].as_str() {
        Some("release") => definition.set_on_timeout(v1::OnTimeout::Release),
        Some("charge") => definition.set_on_timeout(v1::OnTimeout::Charge),
        Some(_) => definition.on_timeout = Some(9),
        None => {}
    }
    definition
}

pub(super) fn operation(json: &Value) -> v1::Operation {
    use v1::operation::Operation as Kind;
    let Some((name, it)) = json.as_object().unwrap().iter().next() else { return v1::Operation::default() };
    let account = || v1::AccountOperation { account: text(&it["account"]) };
    let credit = || v1::CreditOperation {
        account: text(&it["account"]),
        asset: text(&it["asset"]),
        amount: text(&it["amount"]),
        memo: text(&it["memo"]),
    };
    let kind = match name.as_str() {
        "open_vault" => Kind::OpenVault(v1::OpenVaultOperation { vault: text(&it["vault"]) }),
        "open_account" => Kind::OpenAccount(v1::OpenAccountOperation {
            account: text(&it["account"]),
            overdraft: match it["overdraft"].as_str() {
                Some("deny") => v1::Overdraft::Deny.into(),
                Some("allow") => v1::Overdraft::Allow.into(),
                None if it["overdraft"].is_object() => v1::Overdraft::Limit.into(),
                _ => v1::Overdraft::Unspecified.into(),
            },
            overdraft_limit: it["overdraft"].get("limit").map(text),
            plan: plan(&it["plan"]),
        }),
        "set_plan" => Kind::SetPlan(v1::SetPlanOperation { account: text(&it["account"]), plan: plan(&it["plan"]) }),
        "freeze_account" => Kind::FreezeAccount(account()),
        "close_account" => Kind::CloseAccount(account()),
        "issue" => Kind::Issue(v1::IssueOperation {
            account: text(&it["account"]),
            asset: text(&it["asset"]),
            amount: text(&it["amount"]),
            memo: text(&it["memo"]),
            expires_at_unix_ms: it["expires_at_unix_ms"].as_u64(),
            priority: it["priority"].as_u64().map(|priority| u32::try_from(priority).unwrap()),
        }),
        "retire" => Kind::Retire(credit()),
        "transfer" => Kind::Transfer(v1::TransferOperation {
            from: text(&it["from"]),
            to: text(&it["to"]),
            asset: text(&it["asset"]),
            amount: text(&it["amount"]),
            memo: text(&it["memo"]),
        }),
        "put_limit" => Kind::PutLimit(v1::PutLimitOperation {
            definition: Some(definition(&it["definition"])),
            expected_revision: it["expected_revision"].as_u64(),
        }),
        "delete_limit" => Kind::DeleteLimit(v1::DeleteLimitOperation {
            key: text(&it["key"]),
            expected_revision: it["expected_revision"].as_u64(),
        }),
        other => panic!("{other}"),
    };
    v1::Operation { operation: Some(kind) }
}

pub(super) fn write(json: &Value) -> v1::WriteRequest {
    v1::WriteRequest {
        namespace: text(&json["namespace"]),
        vault: optional_text(&json["vault"]),
        client_id: optional_text(&json["client_id"]).unwrap_or_default(),
        sequence: json["sequence"].as_u64().unwrap_or_default(),
        idempotency_key: optional_text(&json["idempotency_key"]),
        operations: items(&json["operations"], operation),
    }
}

pub(super) fn batch_write(json: &Value) -> v1::BatchWriteRequest {
    v1::BatchWriteRequest {
        namespace: text(&json["namespace"]),
        vault: optional_text(&json["vault"]),
        client_id: optional_text(&json["client_id"]).unwrap_or_default(),
        sequence: json["sequence"].as_u64().unwrap_or_default(),
        idempotency_key: optional_text(&json["idempotency_key"]),
        writes: items(&json["writes"], |part| v1::WritePart { operations: items(&part["operations"], operation) }),
    }
}

/// Sets a field unless it has its absent value.
fn unless<T: PartialEq + Into<Value>>(json: &mut Value, name: &str, value: T, absent: &T) {
    if value != *absent {
        json[name] = value.into();
    }
}

pub(super) fn of_reserve(response: v1::ReserveResponse) -> Value {
    let v1::ReserveResponse { allowed, retry_after_ms, reserved_at_unix_ms, error, message, limited_by, .. } = response;
    let (never, would_deny) = (response.never, response.would_deny);
    let mut json = json!({"allowed": allowed, "retry_after_ms": retry_after_ms,
                          "reserved_at_unix_ms": reserved_at_unix_ms, "error": error});
    unless(&mut json, "message", message, &None);
    unless(&mut json, "limited_by", limited_by, &vec![]);
    unless(&mut json, "never", never, &false);
    unless(&mut json, "would_deny", would_deny, &vec![]);
    json
}

pub(super) fn of_extend(response: v1::ExtendResponse) -> Value {
    let v1::ExtendResponse { allowed, retry_after_ms, error, message, limited_by, never, ends_at_unix_ms } = response;
    let mut json = json!({"allowed": allowed, "retry_after_ms": retry_after_ms, "error": error,
                          "ends_at_unix_ms": ends_at_unix_ms});
    unless(&mut json, "message", message, &None);
    unless(&mut json, "limited_by", limited_by, &vec![]);
    unless(&mut json, "never", never, &false);
    json
}

pub(super) fn of_complete(response: v1::CompleteResponse) -> Value {
    let v1::CompleteResponse { ok, error, message, reconciled } = response;
    let mut json = json!({"ok": ok, "error": error, "reconciled": reconciled});
    unless(&mut json, "message", message, &None);
    json
}

pub(super) fn of_status(status: v1::LimitStatus) -> &'static str {
    match status {
        v1::LimitStatus::Active => "active",
        v1::LimitStatus::Decreasing => "decreasing",
        v1::LimitStatus::Deleted => "deleted",
        v1::LimitStatus::Unspecified => panic!("a limit stands somewhere"),
    }
}

fn of_period(period: v1::Period) -> &'static str {
    match period {
        v1::Period::Hour => "hour",
        v1::Period::Day => "day",
        v1::Period::Week => "week",
        v1::Period::Month => "month",
        v1::Period::Unspecified => "unspecified",
    }
}

pub(super) fn of_info(limit: &v1::LimitInfo) -> Value {
    let definition = limit.definition.as_ref().unwrap();
    let kind = match definition.kind() {
        v1::LimitKind::Rolling => "rolling",
        v1::LimitKind::Concurrency => "concurrency",
        v1::LimitKind::Calendar => "calendar",
        v1::LimitKind::Credit => "credit",
        other => panic!("{other:?}"),
    };
    let overage = if definition.overage() == v1::Overage::Deny { "deny" } else { "debt" };
    let mut json = json!({
        "key": definition.key, "kind": kind, "unit": definition.unit,
        "description": definition.description, "overage": overage,
    });
    unless(&mut json, "capacity", definition.capacity, &None);
    unless(&mut json, "window_seconds", definition.window_seconds, &None);
    unless(&mut json, "timeout_seconds", definition.timeout_seconds, &None);
    unless(&mut json, "period", definition.period.map(|_| of_period(definition.period())), &None);
    unless(&mut json, "utc_offset_minutes", definition.utc_offset_minutes, &None);
    unless(&mut json, "shared", definition.shared, &None);
    unless(&mut json, "enforce", definition.enforce, &None);
    unless(&mut json, "vault", definition.vault.clone(), &None);
    unless(&mut json, "account", definition.account.clone(), &None);
    unless(&mut json, "asset", definition.asset.clone(), &None);
    unless(&mut json, "revenue", definition.revenue.clone(), &None);
    unless(&mut json, "on_timeout", definition.on_timeout.map(|_| "charge"), &None);
    json!({"definition": json, "status": of_status(limit.status()),
           "pending_decrease_to": limit.pending_decrease_to, "revision": limit.revision})
}

pub(super) fn of_lease(lease: &v1::Lease) -> Value {
    let part = |it: &v1::Requirement| json!({"key": it.key, "amount": it.amount});
    let requirements: Vec<Value> = lease.requirements.iter().map(part).collect();
    let used = |it: &v1::Actual| json!({"key": it.key, "actual_amount": it.actual_amount});
    let used: Vec<Value> = lease.used.iter().map(used).collect();
    let state = format!("{:?}", lease.state()).to_lowercase();
    json!({"lease": {"lease_id": lease.lease_id, "reserved_at_unix_ms": lease.reserved_at_unix_ms,
                     "requirements": requirements, "state": state, "job_id": lease.job_id,
                     "extensions": lease.extensions, "used": used, "ends_at_unix_ms": lease.ends_at_unix_ms}})
}

pub(super) fn of_write(response: v1::WriteResponse) -> Value {
    use v1::operation_result::Result as Kind;
    match response.result.unwrap() {
        v1::write_response::Result::Success(it) => {
            let result = |it: v1::OperationResult| match it.result.unwrap() {
                Kind::Limit(it) => {
                    json!({"limit": it.limit, "revision": it.revision, "status": of_status(it.status())})
                }
                Kind::Vault(vault) => json!({"vault": vault}),
                Kind::Account(account) => json!({"account": account}),
                Kind::Entry(entry) => json!({"entry": entry}),
                Kind::ClientId(entry) => json!({"client_id": entry}),
            };
            let results: Vec<Value> = it.results.into_iter().map(result).collect();
            let mut json = json!({
                "tx_id": it.tx_id, "log_index": it.log_index,
                "committed_at_unix_ms": it.committed_at_unix_ms, "actor": it.actor, "results": results,
            });
            unless(&mut json, "sequence", it.sequence, &0);
            json!({"success": json})
        }
        v1::write_response::Result::Error(it) => {
            let mut json = json!({"code": it.code().as_str_name(), "message": it.message});
            unless(&mut json, "operation", it.operation, &None);
            unless(&mut json, "last_committed_sequence", it.last_committed_sequence, &None);
            json!({"error": json})
        }
    }
}

pub(super) fn of_usage(usage: &v1::GetUsageResponse) -> Value {
    let debt: u64 = usage.debt.parse().unwrap();
    json!({"capacity": usage.capacity, "reserved": usage.reserved, "available": usage.available, "debt": debt,
           "status": of_status(usage.status()), "pending_decrease_to": usage.pending_decrease_to})
}

pub(super) fn of_usage_list(response: &v1::ListUsageResponse) -> Value {
    let limit = |it: &v1::LimitUsage| {
        let kind = it.kind().as_str_name().trim_start_matches("LIMIT_KIND_").to_lowercase();
        let debt: u64 = it.debt.parse().unwrap();
        json!({"key": it.key, "kind": kind, "capacity": it.capacity, "reserved": it.reserved,
               "available": it.available, "debt": debt, "status": of_status(it.status())})
    };
    json!({"usage": response.usage.iter().map(limit).collect::<Vec<_>>(), "next": response.next})
}

fn of_balance(it: &v1::Balance) -> Value {
    json!({"asset": it.asset, "available": it.available, "held": it.held, "pending": it.pending})
}

pub(super) fn of_balances(response: &v1::GetBalancesResponse) -> Value {
    json!({"balances": response.balances.iter().map(of_balance).collect::<Vec<_>>()})
}

fn plan(it: &Value) -> Option<v1::Plan> {
    let period = format!("PERIOD_{}", it["period"].as_str().unwrap_or_default().to_uppercase());
    it.is_object().then(|| v1::Plan {
        asset: text(&it["asset"]),
        amount: text(&it["amount"]),
        period: v1::Period::from_str_name(&period).unwrap_or_default().into(),
        utc_offset_minutes: it["utc_offset_minutes"].as_i64().map_or(0, |minutes| minutes.try_into().unwrap()),
        carry_over_max: it["carry_over"].get("max").map(text),
    })
}

pub(super) fn of_accounts(response: v1::ListAccountsResponse) -> Value {
    let account = |it: &v1::Account| {
        let status = it.status().as_str_name().trim_start_matches("ACCOUNT_STATUS_").to_lowercase();
        let balances: Vec<Value> = it.balances.iter().map(of_balance).collect();
        let mut json = json!({"account": it.account, "status": status, "balances": balances});
        if let Some(plan) = &it.plan {
            let period = plan.period().as_str_name().trim_start_matches("PERIOD_").to_lowercase();
            let carry_over = plan.carry_over_max.as_ref().map_or(json!("none"), |max| json!({"max": max}));
            json["plan"] = json!({
                "asset": plan.asset, "amount": plan.amount, "period": period,
                "utc_offset_minutes": plan.utc_offset_minutes, "carry_over": carry_over,
                "next_at_unix_ms": it.plan_next_at_unix_ms,
            });
        }
        json
    };
    json!({"accounts": response.accounts.iter().map(account).collect::<Vec<_>>(), "next": response.next})
}

pub(super) fn of_grants(response: &v1::GetGrantsResponse) -> Value {
    let grant = |it: &v1::Grant| {
        let mut json = json!({"asset": it.asset, "remaining": it.remaining, "held": it.held, "priority": it.priority});
        if let Some(at) = it.expires_at_unix_ms {
            json["expires_at_unix_ms"] = at.into();
        }
        json
    };
    json!({"grants": response.grants.iter().map(grant).collect::<Vec<_>>()})
}

pub(super) fn of_entries(response: v1::ListEntriesResponse) -> Value {
    let entries: Vec<Value> = response.entries.into_iter().map(of_entry).collect();
    json!({"entries": entries, "next": response.next})
}

fn of_entry(entry: v1::Entry) -> Value {
    use v1::entry::Kind;
    let hold = |kind: &str, it: v1::HoldEntry| json!({"kind": kind, "lease_id": it.lease_id, "limit": it.limit, "hold": it.hold, "actor": it.actor});
    let mut json = match entry.kind.unwrap() {
        Kind::Transaction(it) => {
            let mut json = json!({
                "kind": "transaction", "tx_id": it.tx_id, "log_index": it.log_index, "actor": it.actor,
                "memos": it.memos,
            });
            unless(&mut json, "client_id", it.client_id, &String::new());
            unless(&mut json, "sequence", it.sequence, &0);
            unless(&mut json, "idempotency_key", it.idempotency_key, &None);
            json
        }
        Kind::Hold(it) => hold("hold", it),
        Kind::Settle(it) => json!({
            "kind": "settle", "lease_id": it.lease_id, "limit": it.limit, "hold": it.hold, "paid": it.paid,
            "debt": it.debt, "uncollected": it.uncollected, "reason": it.reason, "actor": it.actor,
            "labels": it.labels,
        }),
        Kind::Release(it) => hold("release", it),
        Kind::Expire(it) => {
            json!({"kind": "expire", "priority": it.priority, "expires_at_unix_ms": it.expires_at_unix_ms})
        }
        Kind::Plan(it) => json!({
            "kind": "plan", "carried": it.carried, "actor": it.actor,
            "priority": it.priority, "expires_at_unix_ms": it.expires_at_unix_ms,
        }),
    };
    let change = |it: &v1::Change| {
        let mut json = json!({"asset": it.asset, "amount": it.amount, "held": it.held});
        unless(&mut json, "issued", it.issued.as_deref(), &None);
        unless(&mut json, "retired", it.retired.as_deref(), &None);
        unless(&mut json, "transferred_in", it.transferred_in.as_deref(), &None);
        unless(&mut json, "transferred_out", it.transferred_out.as_deref(), &None);
        json
    };
    json["number"] = entry.number.into();
    json["committed_at_unix_ms"] = entry.committed_at_unix_ms.into();
    json["changes"] = entry.changes.iter().map(change).collect();
    json
}

pub(super) fn of_statement(
    response: v1::GetStatementResponse,
    (account, since, until, group_by): (&str, Option<u64>, Option<u64>, Option<&str>),
) -> Value {
    let group = |it: &v1::StatementGroup| json!({"value": it.value, "spent": it.spent, "settlements": it.settlements});
    let asset = |it: &v1::AssetStatement| {
        let mut json = json!({
            "asset": it.asset, "opening": it.opening, "issued": it.issued, "received": it.received,
            "transferred_in": it.transferred_in, "spent": it.spent, "transferred_out": it.transferred_out,
            "expired": it.expired, "retired": it.retired, "closing": it.closing, "settlements": it.settlements,
        });
        if group_by.is_some() {
            json["groups"] = it.groups.iter().map(group).collect();
        }
        json
    };
    let assets: Vec<Value> = response.assets.iter().map(asset).collect();
    let next = response.next;
    json!({"account": account, "since": since, "until": until, "group_by": group_by, "assets": assets, "next": next})
}

pub(super) fn of_audit(response: v1::AuditVaultResponse) -> Value {
    let totals = |it: &v1::AssetTotals| {
        let mut totals = json!({"asset": it.asset, "issued": it.issued, "retired": it.retired, "live": it.live});
        if it.expired != "0" {
            totals["expired"] = it.expired.clone().into();
        }
        totals
    };
    let assets: Vec<Value> = response.assets.iter().map(totals).collect();
    let mut json = json!({"balanced": response.balanced, "assets": assets});
    unless(&mut json, "message", response.message, &None);
    json
}
