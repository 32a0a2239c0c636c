//! Quotas: what one namespace may use of the tables that all share.

use earmark_core::{
    Actor, Book, CarryOver, Command, CompleteOutcome, Config, CreateKey, InvalidOperation, InvalidWrite, JournalRecord,
    KeyOutcome, LimitOutcome, NamespaceId, Operation, Outcome, Overage, Period, Plan, Principal, PutLimit, QUOTA_MAX,
    QuotaChange, QuotaKind, QuotasOutcome, ReserveOutcome, Role, SecretHash, SetQuotas, TxId, Write, WriteError,
    WriteId, WriteOutcome,
};

use crate::support::bank::{credit, issue, open};
use crate::support::snapshot::{restore, restored, snapshot};
use crate::support::step::Step;
use crate::support::test_book::{START, TestBook, rolling};
use crate::support::writer::vault;

fn set(test: &mut TestBook, name: &str, quotas: &[(QuotaKind, u64)]) -> QuotasOutcome {
    let set = SetQuotas { namespace: name.parse().unwrap(), quotas: quotas.iter().copied().collect() };
    match test.apply(&Step::SetQuotas(set)) {
        Outcome::Quotas(outcome) => outcome,
        other => panic!("no answer to quotas: {other:?}"),
    }
}

fn used(test: &TestBook, namespace: NamespaceId, kind: QuotaKind) -> u64 {
    let quotas = test.book.quotas(test.now(), namespace);
    quotas.iter().find(|usage| usage.kind == kind).unwrap().used
}

/// A Book with the namespace `team`, which the returned TestBook uses.
fn team(config: Config) -> TestBook {
    let mut test = TestBook::with(config);
    test.namespace = test.open("team");
    test
}

fn wrote(test: &mut TestBook, vault_name: Option<&str>, client: &str, operations: Vec<Operation>) -> WriteOutcome {
    let namespace = test.namespace;
    let scope = vault_name.map(|name| test.book.vault(namespace, &vault(name)).unwrap());
    let sequence = test.book.last_committed(namespace, scope, &client.parse().unwrap()) + 1;
    let write = Write {
        namespace,
        vault: vault_name.map(vault),
        id: WriteId::Sequence { client: client.parse().unwrap(), sequence },
        operations,
        tx_id: TxId(1),
        log_index: 1,
        actor: Actor::new("user:7").unwrap(),
    };
    match test.apply(&Step::Write(Box::new(write))) {
        Outcome::Write(outcome) => outcome,
        other => panic!("no answer to a write: {other:?}"),
    }
}

fn open_vault(name: &str) -> Vec<Operation> {
    vec![Operation::OpenVault { vault: vault(name) }]
}

fn reserve(test: &mut TestBook, named: &[(&str, u64)]) -> ReserveOutcome {
    let lease = test.lease();
    test.reserve(lease, named)
}

fn refused(operation: Option<usize>, kind: QuotaKind) -> WriteOutcome {
    WriteOutcome::Refused(WriteError::QuotaExceeded { operation, kind })
}

/// Regression: one caller filled the lease table for every tenant, denied leases included.
#[test]
fn leases_of_one_namespace_leave_room_for_the_others() {
    let mut test = team(Config { leases_max: 40, ..Config::default() });
    test.put(rolling("rpm", 2, 60));
    for _ in 0..4 {
        reserve(&mut test, &[("rpm", 1)]);
    }
    let lease = test.lease();
    let full = ReserveOutcome::QuotaExceeded { kind: QuotaKind::Leases, retry_after_ms: 10_000 };
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), full);
    assert_eq!(used(&test, test.namespace, QuotaKind::Leases), 4, "two of them were denied");
    let unknown = test.lease();
    let complete = Step::Complete {
        namespace: test.namespace,
        lease: unknown,
        claim: earmark_core::LeaseClaim::default(),
        actuals: Vec::new(),
        labels: earmark_core::SettleLabels::NONE,
    };
    assert_eq!(test.apply(&complete), Outcome::Complete(CompleteOutcome::LeasesQuotaExceeded));
    // Other namespaces go on, and so does a complete of a known lease.
    let team = std::mem::replace(&mut test.namespace, NamespaceId::DEFAULT);
    test.put(rolling("rpm", 2, 60));
    assert!(matches!(reserve(&mut test, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
    // The refusal left no trace: once records are forgotten, the same lease is taken.
    test.namespace = team;
    test.advance(Config::default().retention_ms + 61_000);
    test.tick();
    assert_eq!(used(&test, team, QuotaKind::Leases), 0);
    let later = test.lease();
    assert!(matches!(test.reserve(later, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
}

#[test]
fn a_lease_that_a_quota_refused_may_try_again() {
    let mut test = team(Config::default());
    test.put(rolling("rpm", 100, 60));
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Leases, 0)]), QuotasOutcome::Set);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::QuotaExceeded { .. }));
    assert_eq!(test.book.lease(test.now(), test.namespace, lease), None);
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Leases, 1)]), QuotasOutcome::Set);
    assert!(matches!(test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
}

fn retire(client: &str) -> Vec<Operation> {
    vec![Operation::RetireClient { client: client.parse().unwrap() }]
}

/// Regression: client ids were kept for ever, so one writer could use up the table for good.
#[test]
fn a_retired_client_gives_its_place_back_and_no_late_copy_of_its_writes_applies() {
    let mut test = team(Config::default());
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Clients, 3)]), QuotasOutcome::Set);
    for client in ["w", "a", "b"] {
        assert!(matches!(wrote(&mut test, None, client, open_vault("main")), WriteOutcome::Committed(_)));
    }
    assert_eq!(wrote(&mut test, None, "c", Vec::new()), WriteOutcome::Refused(WriteError::TooManyClients));
    let both = [retire("a"), retire("b"), retire("a")].concat();
    assert!(matches!(wrote(&mut test, None, "w", both), WriteOutcome::Committed(_)));
    assert_eq!(used(&test, test.namespace, QuotaKind::Clients), 2, "16 retired ones count as one");
    let client = "a".parse().unwrap();
    let retired = WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::ClientRetired { client }));
    assert_eq!(wrote(&mut test, None, "a", open_vault("main")), retired);
    assert!(matches!(wrote(&mut test, None, "w", retire("a")), WriteOutcome::Committed(_)), "again changes nothing");
    for gone in ["nobody", "w"] {
        let outcome = wrote(&mut test, None, "w", retire(gone));
        let why = InvalidOperation::UnknownClient;
        assert_eq!(outcome, WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::Operation { operation: 0, why })));
    }

    let bytes = snapshot(&mut test.book);
    let mut again = restore(&bytes, 1 << 20, 7).unwrap();
    assert_eq!(snapshot(&mut again), bytes);
    test.book = again;
    assert_eq!(wrote(&mut test, None, "a", Vec::new()), retired);
    // The next client takes the freed record. The same id is free in another scope.
    assert!(matches!(wrote(&mut test, None, "c", Vec::new()), WriteOutcome::Committed(_)));
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Clients, 9)]), QuotasOutcome::Set);
    assert!(matches!(wrote(&mut test, Some("main"), "a", Vec::new()), WriteOutcome::Committed(_)));
}

#[test]
fn only_an_admin_retires_clients() {
    let mut test = team(Config::default());
    wrote(&mut test, None, "a", Vec::new());
    let write = Write {
        namespace: test.namespace,
        vault: None,
        id: WriteId::Sequence { client: "w".parse().unwrap(), sequence: 1 },
        operations: retire("a"),
        tx_id: TxId(1),
        log_index: 1,
        actor: Actor::new("user:7").unwrap(),
    };
    let session = |role| Principal::Session { actor: Actor::new("user:7").unwrap(), role };
    let why = InvalidOperation::NeedsAdmin;
    let refused = WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::Operation { operation: 0, why }));
    let by_writer = test.book.apply_as(START, &session(Role::Writer), Command::Write(&write));
    assert_eq!(by_writer, Outcome::Write(refused));
    let by_admin = test.book.apply_as(START, &session(Role::Admin), Command::Write(&write));
    assert!(matches!(by_admin, Outcome::Write(WriteOutcome::Committed(_))), "{by_admin:?}");
}

/// Regression: one writer filled the tables of limits, vaults, accounts and clients for every tenant.
#[test]
fn each_table_is_refused_by_the_name_of_its_quota_and_changes_nothing() {
    let mut test = team(Config::default());
    let quotas = [(QuotaKind::Limits, 1), (QuotaKind::Vaults, 2), (QuotaKind::Accounts, 3), (QuotaKind::Clients, 2)];
    assert_eq!(set(&mut test, "team", &quotas), QuotasOutcome::Set);
    test.put(rolling("rpm", 1, 60));
    assert_eq!(test.put(rolling("more", 1, 60)), LimitOutcome::QuotaExceeded(QuotaKind::Limits));
    let put = Operation::PutLimit { definition: rolling("more", 1, 60), expected_revision: None };
    assert_eq!(wrote(&mut test, None, "w", vec![put]), refused(Some(0), QuotaKind::Limits));
    // A new definition of a limit that exists is no growth.
    test.put(rolling("rpm", 5, 60));

    let three = ["a", "b", "c"].map(|name| Operation::OpenVault { vault: vault(name) }).to_vec();
    assert_eq!(wrote(&mut test, None, "w", three), refused(Some(2), QuotaKind::Vaults));
    assert_eq!(used(&test, test.namespace, QuotaKind::Vaults), 0, "the whole write was refused");
    assert_eq!(used(&test, test.namespace, QuotaKind::Accounts), 0);
    assert!(matches!(wrote(&mut test, None, "w", open_vault("a")), WriteOutcome::Committed(_)));
    assert!(matches!(wrote(&mut test, None, "w", open_vault("b")), WriteOutcome::Committed(_)));
    assert!(matches!(wrote(&mut test, None, "w", open_vault("b")), WriteOutcome::Committed(_)), "it exists");
    // Two accounts `revenue` exist, so there is room for one more.
    let two = vec![open("x"), open("y")];
    assert_eq!(wrote(&mut test, Some("a"), "w", two), refused(Some(1), QuotaKind::Accounts));
    assert!(matches!(wrote(&mut test, Some("a"), "w", vec![open("x")]), WriteOutcome::Committed(_)));
    assert_eq!(wrote(&mut test, Some("b"), "w", Vec::new()), WriteOutcome::Refused(WriteError::TooManyClients));
    assert_eq!(wrote(&mut test, None, "v", Vec::new()), WriteOutcome::Refused(WriteError::TooManyClients));
    assert!(matches!(wrote(&mut test, None, "w", Vec::new()), WriteOutcome::Committed(_)), "a known client goes on");

    test.namespace = NamespaceId::DEFAULT;
    test.put(rolling("rpm", 1, 60));
    assert!(matches!(wrote(&mut test, None, "v", open_vault("c")), WriteOutcome::Committed(_)));
    assert!(matches!(wrote(&mut test, Some("c"), "v", vec![open("x")]), WriteOutcome::Committed(_)));
}

/// Regression: an account has up to 256 balances, each of which takes memory, and only its first was counted.
#[test]
fn a_balance_beyond_the_first_of_an_account_counts_like_an_account() {
    let mut test = team(Config::default());
    let of = |name: &str, asset: &str| issue(name, asset, 1);
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Accounts, 5)]), QuotasOutcome::Set);
    assert!(matches!(wrote(&mut test, None, "w", open_vault("a")), WriteOutcome::Committed(_)));
    let two = vec![open("x"), open("y"), of("x", "usd"), of("y", "usd")];
    assert!(matches!(wrote(&mut test, Some("a"), "w", two), WriteOutcome::Committed(_)));
    assert_eq!(used(&test, test.namespace, QuotaKind::Accounts), 3, "revenue, x and y, each with one balance at most");
    // One operation opens an account, so there is room for one balance.
    let three = vec![open("z"), of("z", "eur"), of("x", "eur"), of("x", "usd"), of("y", "eur")];
    assert_eq!(wrote(&mut test, Some("a"), "w", three), refused(Some(4), QuotaKind::Accounts));
    assert_eq!(used(&test, test.namespace, QuotaKind::Accounts), 3, "the whole write was refused");
    let plan = |name: &str, asset: &str| {
        let (period, carry_over) = (Period::Month, CarryOver::None);
        let plan = Plan { asset: asset.parse().unwrap(), amount: 1, period, utc_offset_minutes: 0, carry_over };
        Operation::SetPlan { account: name.parse().unwrap(), plan: Some(plan) }
    };
    assert!(matches!(wrote(&mut test, Some("a"), "w", vec![plan("x", "eur")]), WriteOutcome::Committed(_)));
    assert!(matches!(wrote(&mut test, Some("a"), "w", vec![of("x", "eur")]), WriteOutcome::Committed(_)), "it exists");
    assert!(matches!(wrote(&mut test, Some("a"), "w", vec![of("y", "eur")]), WriteOutcome::Committed(_)));
    assert_eq!(used(&test, test.namespace, QuotaKind::Accounts), 5);
    for operation in [of("x", "gbp"), plan("y", "gbp"), open("z")] {
        assert_eq!(wrote(&mut test, Some("a"), "w", vec![operation]), refused(Some(0), QuotaKind::Accounts));
    }
    assert!(matches!(wrote(&mut test, Some("a"), "w", vec![of("y", "usd")]), WriteOutcome::Committed(_)));
    let restored = restored(&mut test.book);
    assert_eq!(restored.quotas(test.now(), test.namespace), test.book.quotas(test.now(), test.namespace));
}

#[test]
fn a_quota_below_the_use_refuses_growth_and_takes_nothing() {
    let mut test = team(Config::default());
    for name in ["a", "b", "c"] {
        test.put(rolling(name, 1, 60));
    }
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Limits, 1)]), QuotasOutcome::Set);
    assert_eq!(used(&test, test.namespace, QuotaKind::Limits), 3);
    assert!(matches!(reserve(&mut test, &[("a", 1), ("b", 1), ("c", 1)]), ReserveOutcome::Created { .. }));
    assert_eq!(test.put(rolling("d", 1, 60)), LimitOutcome::QuotaExceeded(QuotaKind::Limits));
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Limits, QUOTA_MAX)]), QuotasOutcome::Set);
    test.put(rolling("d", 1, 60));
    let high = [(QuotaKind::Limits, 7), (QuotaKind::Leases, QUOTA_MAX + 1)];
    assert_eq!(set(&mut test, "team", &high), QuotasOutcome::TooHigh(QuotaKind::Leases));
    assert_eq!(test.book.quota(test.namespace, QuotaKind::Limits), QUOTA_MAX, "nothing was changed");
}

#[test]
fn journal_bytes_beyond_the_quota_refuse_writes_and_definitions_until_the_next_day() {
    let mut test = team(Config::default());
    wrote(&mut test, None, "w", open_vault("main"));
    wrote(&mut test, Some("main"), "w", vec![open("acme"), issue("acme", "usd", 100)]);
    test.put(credit("budget", "acme", 60, Overage::Debt));
    let bytes = used(&test, test.namespace, QuotaKind::JournalBytesPerDay);
    assert!(bytes > 100, "{bytes}");
    let lease = test.lease();
    test.reserve(lease, &[("budget", 10)]);
    assert_eq!(set(&mut test, "team", &[(QuotaKind::JournalBytesPerDay, bytes)]), QuotasOutcome::Set);

    let full = QuotaKind::JournalBytesPerDay;
    assert_eq!(wrote(&mut test, None, "w", Vec::new()), refused(None, full));
    let refusal = ReserveOutcome::QuotaExceeded { kind: full, retry_after_ms: 10_000 };
    assert_eq!(reserve(&mut test, &[("budget", 10)]), refusal);
    let definition = rolling("rpm", 1, 60);
    let put = PutLimit { namespace: test.namespace, definition: &definition, expected_revision: None };
    let user = Principal::Actor(Actor::new("user:7").unwrap());
    let by_user = test.book.apply_as(test.now(), &user, Command::PutLimit(put));
    assert_eq!(by_user, Outcome::Limit(LimitOutcome::QuotaExceeded(full)));
    // Limits without credit leave no journal, and what was reserved is always settled.
    test.put(rolling("rpm", 1, 60));
    assert!(matches!(reserve(&mut test, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
    assert!(matches!(test.complete(lease, &[("budget", 10)]), CompleteOutcome::Completed(_)));
    test.advance(24 * 60 * 60 * 1_000);
    assert!(matches!(wrote(&mut test, None, "w", Vec::new()), WriteOutcome::Committed(_)));
}

#[test]
fn keys_are_refused_by_quota_and_a_revoked_key_makes_room() {
    let mut test = TestBook::new();
    let create = |id: &str, space: &str| CreateKey {
        id: id.parse().unwrap(),
        secret: SecretHash::from_bytes([7; 32]),
        name: "k".parse().unwrap(),
        role: Role::Admin,
        namespace: space.parse().unwrap(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "client:root".parse().unwrap(),
    };
    let make = |book: &mut Book, id: &str, space: &str| match book.apply(START, Command::CreateKey(&create(id, space)))
    {
        Outcome::Key(outcome) => outcome,
        other => panic!("no answer to a key: {other:?}"),
    };
    make(&mut test.book, "root", "default");
    assert_eq!(set(&mut test, "team", &[(QuotaKind::Keys, 1)]), QuotasOutcome::Set);
    assert!(matches!(make(&mut test.book, "a", "team"), KeyOutcome::Created(_)));
    assert_eq!(make(&mut test.book, "b", "team"), KeyOutcome::QuotaExceeded(QuotaKind::Keys));
    assert!(matches!(make(&mut test.book, "c", "other"), KeyOutcome::Created(_)));
    let revoke =
        earmark_core::RevokeKey { id: "a".parse().unwrap(), namespace: None, actor: "client:root".parse().unwrap() };
    test.book.apply(START, Command::RevokeKey(&revoke));
    assert!(matches!(make(&mut test.book, "b", "team"), KeyOutcome::Created(_)));
}

#[test]
fn quotas_and_their_use_survive_a_snapshot_and_are_in_the_journal() {
    let mut test = team(Config { leases_max: 100, ..Config::default() });
    test.put(rolling("rpm", 1, 60));
    reserve(&mut test, &[("rpm", 1)]);
    reserve(&mut test, &[("rpm", 1)]);
    wrote(&mut test, None, "w", open_vault("main"));
    let quotas = SetQuotas {
        namespace: "team".parse().unwrap(),
        quotas: [(QuotaKind::Leases, 3), (QuotaKind::Vaults, 9)].into_iter().collect(),
    };
    let user = Principal::Actor(Actor::new("user:7").unwrap());
    test.book.apply_as(test.now(), &user, Command::SetQuotas(&quotas));
    let records = test.book.drain_journal();
    let Some(JournalRecord::Quotas(entry)) = records.last() else { panic!("not recorded: {records:?}") };
    let changes = [
        QuotaChange { kind: QuotaKind::Vaults, old: 6_553, new: 9 },
        QuotaChange { kind: QuotaKind::Leases, old: 10, new: 3 },
    ];
    assert_eq!((entry.actor.as_str(), &entry.changes[..]), ("user:7", &changes[..]));

    let bytes = snapshot(&mut test.book);
    let mut again = restore(&bytes, 1 << 20, 7).unwrap();
    assert_eq!(snapshot(&mut again), bytes);
    for namespace in [NamespaceId::DEFAULT, test.namespace] {
        assert_eq!(again.quotas(test.now(), namespace), test.book.quotas(test.now(), namespace));
    }
    test.book = again;
    assert!(matches!(reserve(&mut test, &[("rpm", 1)]), ReserveOutcome::Denied(_)));
    assert!(matches!(reserve(&mut test, &[("rpm", 1)]), ReserveOutcome::QuotaExceeded { .. }));
}
