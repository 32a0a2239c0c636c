use earmark_core::{
    AccountName, AssetName, BalanceInfo, CarryOver, Definition, GrantTerms, InvalidWrite, Kind, LimitStatus, Operation,
    Overage, Overdraft, Period, Plan, UnixMs, Usage, WriteError,
};

use super::*;
use crate::v1;

fn lease() -> String {
    "01ARZ3NDEKTSV4RRFFQ69G5FAV".into()
}

fn requirement(key: &str, amount: u64) -> v1::Requirement {
    v1::Requirement { key: key.into(), amount, namespace: None }
}

fn reserve(requirements: Vec<v1::Requirement>) -> v1::ReserveRequest {
    v1::ReserveRequest { lease_id: lease(), requirements, ..Default::default() }
}

#[test]
fn a_reserve_is_checked_field_by_field() {
    let good = reserve(vec![requirement("b", 1), requirement("a", u64::MAX)]);
    let parts = reserve_parts(good.clone()).unwrap();
    assert!(parts.namespace.is_default());
    assert_eq!(parts.lease.to_string(), lease());
    assert_eq!(parts.amounts[0], ("b".parse().unwrap(), 1));
    let many = (0..33).map(|number| requirement(&format!("k{number}"), 1)).collect();
    for (request, message) in [
        (
            v1::ReserveRequest { lease_id: "x".into(), ..good.clone() },
            "lease_id: found 1 bytes, a ULID has 26 characters",
        ),
        (
            v1::ReserveRequest { job_id: Some(String::new()), ..good.clone() },
            "job_id: found 0 bytes, allowed are 1 to 128 bytes of letters, digits and :._@+-",
        ),
        (
            v1::ReserveRequest { namespace: Some("a:b".into()), ..good },
            "namespace: found ':' at byte 1, allowed are 1 to 64 bytes of letters, digits and ._@+-",
        ),
        (reserve(vec![]), "requirements: found 0 items, allowed are 1 to 32"),
        (reserve(many), "requirements: found 33 items, allowed are 1 to 32"),
        (
            reserve(vec![requirement("a", 1), requirement("b", 0)]),
            "requirements[1].amount: found 0, allowed are integers from 1 to 18446744073709551615",
        ),
        (
            reserve(vec![requirement("a", 1), requirement("a", 2)]),
            "requirements[1].key: found \"a\" as in item 0, allowed is each key once",
        ),
    ] {
        assert_eq!(reserve_parts(request).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_complete_may_name_nothing_and_use_nothing() {
    let complete = |actuals| v1::CompleteRequest { lease_id: lease(), actuals, ..Default::default() };
    assert!(complete_parts(complete(vec![])).unwrap().0.amounts.is_empty());
    let unused = v1::Actual { key: "a".into(), actual_amount: 0, namespace: None };
    assert_eq!(complete_parts(complete(vec![unused.clone()])).unwrap().0.amounts[0].1, 0);
    let twice = complete_parts(complete(vec![unused.clone(), unused])).unwrap_err().to_string();
    assert!(twice.starts_with("actuals[1].key: found \"a\" as in item 0"), "{twice}");
}

fn of_kind(kind: v1::LimitKind) -> v1::LimitDefinition {
    let mut message = v1::LimitDefinition { key: "a".into(), ..Default::default() };
    message.set_kind(kind);
    match kind {
        v1::LimitKind::Unspecified => {}
        v1::LimitKind::Rolling => {
            (message.capacity, message.window_seconds) = (Some(5), Some(60));
        }
        v1::LimitKind::Concurrency => {
            (message.capacity, message.timeout_seconds) = (Some(5), Some(60));
        }
        v1::LimitKind::Calendar => {
            (message.capacity, message.utc_offset_minutes) = (Some(5), Some(-300));
            message.set_period(v1::Period::Month);
        }
        v1::LimitKind::Credit => {
            message.timeout_seconds = Some(60);
            (message.vault, message.account, message.asset) =
                (Some("main".into()), Some("acme".into()), Some("usd".into()));
        }
    }
    message
}

#[test]
fn every_kind_of_definition_is_read_and_written_back() {
    for kind in [v1::LimitKind::Rolling, v1::LimitKind::Concurrency, v1::LimitKind::Calendar, v1::LimitKind::Credit] {
        let mut message = of_kind(kind);
        message.unit = "tokens".into();
        message.description = "why".into();
        message.set_overage(v1::Overage::Deny);
        if kind != v1::LimitKind::Credit {
            (message.shared, message.enforce) = (Some(true), Some(false));
        }
        let read = definition(message.clone()).unwrap();
        if let Kind::Credit(terms) = &read.kind {
            assert_eq!(terms.revenue.as_str(), "revenue");
            message.revenue = Some("revenue".into());
            let mut charging = message.clone();
            charging.set_on_timeout(v1::OnTimeout::Charge);
            assert_eq!(definition_of(&definition(charging.clone()).unwrap()), charging);
        }
        assert_eq!(definition_of(&read), message);
    }
}

#[test]
fn a_definition_has_the_fields_of_its_kind_and_no_others() {
    use v1::LimitKind::{Calendar, Concurrency, Credit, Rolling, Unspecified};
    let with = |kind, change: fn(&mut v1::LimitDefinition)| {
        let mut message = of_kind(kind);
        change(&mut message);
        message
    };
    for (message, wrong) in [
        (with(Rolling, |it| it.key.clear()), "key: found 0 bytes"),
        (with(Unspecified, |_| {}), "kind is required"),
        (with(Rolling, |it| it.kind = 9), "kind: found 9, allowed are rolling, concurrency, calendar and credit"),
        (with(Rolling, |it| it.capacity = None), "capacity is required for a rolling limit"),
        (with(Rolling, |it| it.capacity = Some(0)), "capacity: found 0, allowed are integers from 1"),
        (with(Credit, |it| it.capacity = Some(5)), "capacity: found 5, but a credit limit has none"),
        (with(Credit, |it| it.capacity = Some(0)), "capacity: found 0, allowed are integers from 1"),
        (with(Rolling, |it| it.window_seconds = None), "window_seconds is required for a rolling limit"),
        (with(Rolling, |it| it.window_seconds = Some(0)), "window_seconds: found 0, allowed are integers"),
        (with(Rolling, |it| it.timeout_seconds = Some(1)), "timeout_seconds: found 1, but a rolling limit has none"),
        (
            with(Concurrency, |it| it.timeout_seconds = Some(31_622_401)),
            "timeout_seconds: found 31622401, allowed are integers from 1 to 31622400",
        ),
        (with(Concurrency, |it| it.window_seconds = Some(1)), "window_seconds: found 1, but a concurrency limit"),
        (with(Credit, |it| it.window_seconds = Some(1)), "window_seconds: found 1, but a credit limit has none"),
        (with(Credit, |it| it.timeout_seconds = None), "timeout_seconds is required for a credit limit"),
        (with(Credit, |it| it.vault = None), "vault is required for a credit limit"),
        (with(Credit, |it| it.asset = Some("USD".into())), "asset: found 'U' at byte 0"),
        (with(Rolling, |it| it.account = Some("a".into())), "account: found \"a\", but a rolling limit has"),
        (with(Calendar, |it| it.period = None), "period is required for a calendar limit"),
        (with(Calendar, |it| it.period = Some(0)), "period: found 0, allowed are hour, day, week and month"),
        (with(Calendar, |it| it.period = Some(5)), "period: found 5, allowed are hour, day, week and month"),
        (with(Calendar, |it| it.utc_offset_minutes = Some(841)), "utc_offset_minutes: found 841, allowed are integers"),
        (with(Calendar, |it| it.timeout_seconds = Some(1)), "timeout_seconds: found 1, but a calendar limit has none"),
        (with(Rolling, |it| it.period = Some(2)), "period: found \"day\", but a rolling limit has none"),
        (with(Credit, |it| it.utc_offset_minutes = Some(0)), "utc_offset_minutes: found 0, but a credit limit has"),
        (with(Credit, |it| it.shared = Some(true)), "shared: found true, allowed is false"),
        (with(Credit, |it| it.enforce = Some(false)), "enforce: found false, allowed is true"),
        (with(Rolling, |it| it.on_timeout = Some(2)), "on_timeout: found \"charge\", but a rolling limit has none"),
        (with(Credit, |it| it.on_timeout = Some(3)), "on_timeout: found 3, allowed are release and charge"),
        (with(Rolling, |it| it.overage = 3), "overage: found 3, allowed are debt and deny"),
        (with(Rolling, |it| it.unit = "u".repeat(65)), "unit: found 65 bytes, allowed are up to 64"),
    ] {
        let found = definition(message).unwrap_err().to_string();
        assert!(found.starts_with(wrong), "{found}");
    }
}

fn write(operations: Vec<v1::operation::Operation>) -> v1::WriteRequest {
    v1::WriteRequest {
        namespace: "default".into(),
        vault: Some("main".into()),
        client_id: "billing".into(),
        sequence: 1,
        operations: operations.into_iter().map(|it| v1::Operation { operation: Some(it) }).collect(),
        idempotency_key: None,
    }
}

#[test]
fn a_write_is_checked_operation_by_operation() {
    use v1::operation::Operation::{FreezeAccount, Issue, OpenAccount, PutLimit};
    let issue = |amount: &str| {
        let (account, asset, amount) = ("acme".into(), "usd".into(), amount.into());
        Issue(v1::IssueOperation { account, asset, amount, ..v1::IssueOperation::default() })
    };
    assert_eq!(write_parts(write(vec![issue("5000000")])).unwrap().operations.len(), 1);
    let open = |overdraft| {
        OpenAccount(v1::OpenAccountOperation { account: "a".into(), overdraft, overdraft_limit: None, plan: None })
    };
    let credit = "allowed are integers from 1 to 170141183460469231731687303715884105727";
    let long = "9".repeat(70);
    for (request, message) in [
        (v1::WriteRequest { namespace: String::new(), ..write(vec![]) }, "namespace: found 0 bytes".into()),
        (v1::WriteRequest { sequence: 0, ..write(vec![]) }, "sequence: found 0, allowed are integers from 1".into()),
        (write(vec![issue("1"), issue("01")]), format!("operations[1].issue.amount: found \"01\", {credit}")),
        (write(vec![issue(&long)]), format!("operations[0].issue.amount: found \"{}\"..., {credit}", &long[..64])),
        (write(vec![open(0)]), "operations[0].open_account.overdraft is required".into()),
        (write(vec![open(7)]), "operations[0].open_account.overdraft: found 7, allowed are deny".into()),
        (
            write(vec![FreezeAccount(v1::AccountOperation { account: "a b".into() })]),
            "operations[0].freeze_account.account: found ' ' at byte 1".into(),
        ),
        (
            write(vec![PutLimit(v1::PutLimitOperation::default())]),
            "operations[0].put_limit.definition is required".into(),
        ),
        (
            v1::WriteRequest { operations: vec![v1::Operation::default()], ..write(vec![]) },
            "operations[0]: found 0 fields, allowed is exactly one of put_limit, delete_limit".into(),
        ),
    ] {
        let found = write_parts(request).unwrap_err().to_string();
        assert!(found.starts_with(&message), "{found}");
    }
    let part = v1::WritePart { operations: vec![v1::Operation::default()] };
    let batch = v1::BatchWriteRequest {
        namespace: "default".into(),
        vault: None,
        client_id: "billing".into(),
        sequence: 1,
        writes: vec![v1::WritePart::default(), part],
        idempotency_key: None,
    };
    let found = batch_parts(batch).unwrap_err().to_string();
    assert!(found.starts_with("writes[1].operations[0]: found 0 fields"), "{found}");
}

#[test]
fn codes_have_the_names_of_the_contract() {
    let (operation, revision, last_committed_sequence) = (0, 1, 1);
    for error in [
        WriteError::Invalid(InvalidWrite::UnknownNamespace),
        WriteError::VaultNotFound { operation: None },
        WriteError::SequenceGap { last_committed_sequence },
        WriteError::AlreadyCommitted { last_committed_sequence },
        WriteError::SequenceReused { last_committed_sequence },
        WriteError::TooManyClients,
        WriteError::WrongScope { operation },
        WriteError::ConditionFailed { operation, revision },
        WriteError::AccountNotFound { operation },
        WriteError::AccountClosed { operation },
        WriteError::AccountFrozen { operation },
        WriteError::Conflict { operation },
        WriteError::InsufficientCredit { operation },
    ] {
        assert_eq!(receipt::code(&error).as_str_name(), error.code());
    }
    assert_eq!(v1::WriteErrorCode::Unavailable.as_str_name(), "UNAVAILABLE");
}

#[test]
fn what_a_client_sends_is_what_a_server_reads() {
    let account: AccountName = "acme".parse().unwrap();
    let (asset, memo) = ("usd".parse::<AssetName>().unwrap(), "why".to_owned());
    let rolling = Definition {
        key: "rpm".parse().unwrap(),
        kind: Kind::Rolling { window_seconds: 60 },
        capacity: 7,
        unit: "u".into(),
        description: "d".into(),
        overage: Overage::Deny,
        shared: false,
        enforce: true,
    };
    let plan = Plan {
        asset: asset.clone(),
        amount: u64::MAX,
        period: Period::Month,
        utc_offset_minutes: -720,
        carry_over: CarryOver::Max(9),
    };
    let operations = vec![
        Operation::PutLimit { definition: rolling, expected_revision: Some(0) },
        Operation::DeleteLimit { key: "rpm".parse().unwrap(), expected_revision: None },
        Operation::OpenVault { vault: "v".parse().unwrap() },
        Operation::DeleteVault { vault: "v".parse().unwrap() },
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Deny, plan: None },
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Allow, plan: None },
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Limit(u64::MAX), plan: None },
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Deny, plan: Some(plan.clone()) },
        Operation::SetPlan {
            account: account.clone(),
            plan: Some(Plan { period: Period::Hour, carry_over: CarryOver::None, ..plan }),
        },
        Operation::SetPlan { account: account.clone(), plan: None },
        Operation::FreezeAccount { account: account.clone() },
        Operation::UnfreezeAccount { account: account.clone() },
        Operation::CloseAccount { account: account.clone() },
        Operation::Issue {
            account: account.clone(),
            asset: asset.clone(),
            amount: u128::MAX >> 1,
            memo: memo.clone(),
            terms: GrantTerms::new(3, Some(earmark_core::UnixMs::new(7))),
        },
        Operation::Retire { account: account.clone(), asset: asset.clone(), amount: 1, memo: memo.clone() },
        Operation::Transfer { from: account, to: "bob".parse().unwrap(), asset, amount: 2, memo },
    ];
    let request = v1::WriteRequest {
        namespace: "default".into(),
        vault: None,
        client_id: "billing".into(),
        sequence: 1,
        operations: operations.iter().map(operation_of).collect(),
        idempotency_key: None,
    };
    assert_eq!(write_parts(request).unwrap().operations, operations);
}

#[test]
fn what_a_server_answers_is_what_a_client_reads() {
    for status in [LimitStatus::Active, LimitStatus::Decreasing { to: 3 }, LimitStatus::Deleted] {
        let usage = Usage {
            capacity: 9,
            reserved: 4,
            available: 5,
            debt: 1 << 100,
            status,
            paused_until: Some(UnixMs::new(7)),
        };
        assert_eq!(usage_in(&super::usage(&usage)), Ok(usage));
    }
    let balance = BalanceInfo { asset: "usd".parse().unwrap(), available: i128::MIN, held: i128::MAX, pending: 0 };
    assert_eq!(balance_in(&super::balance(&balance)), Ok(balance));
    assert!(status_in(0, None).is_err());
    let error = status_in(v1::LimitStatus::Decreasing as i32, None).unwrap_err();
    assert!(error.to_string().contains("pending_decrease_to"), "{error}");
}
