//! API keys: creation, lookup, expiry and revocation.

use earmark_core::{
    Actor, Book, Command, Complete, Config, CreateKey, Definition, DefinitionChange, DeleteLimit, InvalidWrite,
    JournalRecord, KEY_SECONDS_MAX, KEYS_MAX, KeyChange, KeyId, KeyInfo, KeyNumber, KeyOutcome, LimitRef, NamespaceId,
    Operation, Outcome, Overage, Part, Principal, PutLimit, QuotaKind, Reserve, Restore, RevokeKey, Role, SecretHash,
    SetQuotas, TxId, Write, WriteError, WriteId, WriteOutcome,
};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::snapshot::{restore, snapshot};
use crate::support::test_book::{START, TestBook, rolling};

fn create(id: &str) -> CreateKey {
    CreateKey {
        id: id.parse().unwrap(),
        secret: SecretHash::of(id.as_bytes()),
        name: "billing".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "system:bootstrap".parse().unwrap(),
    }
}

fn make(book: &mut Book, command: &CreateKey) -> KeyOutcome {
    match book.apply(START, Command::CreateKey(command)) {
        Outcome::Key(outcome) => outcome,
        other => panic!("no answer about a key: {other:?}"),
    }
}

fn revoke(test: &mut TestBook, id: &str) -> KeyOutcome {
    revoke_in(test, id, None)
}

fn revoke_in(test: &mut TestBook, id: &str, namespace: Option<&str>) -> KeyOutcome {
    let command = RevokeKey {
        id: id.parse().unwrap(),
        namespace: namespace.map(|name| name.parse().unwrap()),
        actor: "client:root".parse().unwrap(),
    };
    match test.book.apply(test.now(), Command::RevokeKey(&command)) {
        Outcome::Key(outcome) => outcome,
        other => panic!("no answer about a key: {other:?}"),
    }
}

fn test() -> TestBook {
    let mut test = TestBook::new();
    assert_eq!(make(&mut test.book, &create("root")), KeyOutcome::Created(KeyNumber(0)));
    test
}

fn found(test: &TestBook, id: &str, secret: &str) -> Option<KeyNumber> {
    let (id, secret): (KeyId, _) = (id.parse().unwrap(), SecretHash::of(secret.as_bytes()));
    test.book.authenticate(test.now(), &id, &secret).map(|info| info.number)
}

fn whole(book: &mut Book) -> Vec<u8> {
    book.freeze().encode().flatten().collect()
}

fn restored(bytes: &[u8]) -> Book {
    let mut restore = Restore::new(7);
    restore.feed(bytes).unwrap();
    restore.finish().unwrap()
}

#[test]
fn a_key_is_found_by_its_id_and_its_own_secret_only() {
    let mut test = test();
    assert_eq!(make(&mut test.book, &create("other")), KeyOutcome::Created(KeyNumber(1)));
    assert_eq!(found(&test, "root", "root"), Some(KeyNumber(0)));
    assert_eq!(found(&test, "other", "other"), Some(KeyNumber(1)));
    for (id, secret) in [("root", "other"), ("root", ""), ("nobody", "root"), ("roo", "root")] {
        assert_eq!(found(&test, id, secret), None, "{id} {secret}");
    }
}

#[test]
fn nobody_comes_in_without_a_key_once_there_is_one_even_if_it_has_ended() {
    let mut test = TestBook::new();
    let (now, key) = (test.now(), Principal::Key(KeyNumber(0)));
    assert!(!test.book.has_keys());
    assert!(test.book.permits(now, &Principal::Anonymous));
    assert!(!test.book.permits(now, &key));
    make(&mut test.book, &create("root"));
    make(&mut test.book, &create("next"));
    assert_eq!(revoke(&mut test, "root"), KeyOutcome::Revoked(KeyNumber(0)));
    for (by, is_permitted) in [(Principal::System, true), (Principal::Anonymous, false), (key, false)] {
        assert_eq!(test.book.permits(test.now(), &by), is_permitted, "{by:?}");
        let outcome = test.book.apply_as(test.now(), &by, Command::Tick);
        assert_eq!(outcome == Outcome::Ticked, is_permitted, "{by:?}");
    }
}

#[test]
fn a_revoked_key_is_refused_when_its_command_is_applied_wherever_it_came_in() {
    let mut test = test();
    make(&mut test.book, &create("caller"));
    let by = Principal::Key(KeyNumber(1));
    let name = "team".parse().unwrap();
    let opens = Command::OpenNamespace(&name);
    assert_eq!(revoke(&mut test, "caller"), KeyOutcome::Revoked(KeyNumber(1)));
    let before = whole(&mut test.book);
    assert_eq!(test.book.apply_as(test.now(), &by, opens), Outcome::Unauthenticated);
    assert_eq!(whole(&mut test.book), before);
    let mut outcomes = Vec::new();
    let rights = [by, Principal::Key(KeyNumber(0))];
    test.book.apply_all_as(test.now(), &rights, &[opens, opens], &mut outcomes);
    assert_eq!(outcomes[0], Outcome::Unauthenticated);
    assert!(matches!(outcomes[1], Outcome::Namespace(_)));
}

#[test]
fn a_key_ends_by_log_time_to_the_millisecond() {
    let mut test = test();
    let minute = CreateKey { valid_seconds: Some(60), ..create("minute") };
    make(&mut test.book, &minute);
    test.advance(59_999);
    assert_eq!(found(&test, "minute", "minute"), Some(KeyNumber(1)));
    assert!(test.book.permits(test.now(), &Principal::Key(KeyNumber(1))));
    test.advance(1);
    assert_eq!(found(&test, "minute", "minute"), None);
    assert!(!test.book.permits(test.now(), &Principal::Key(KeyNumber(1))));
    // A clock that goes back does not revive it.
    test.tick();
    test.set_clock_back(30_000);
    assert_eq!(found(&test, "minute", "minute"), None);
}

#[test]
fn a_command_that_is_repeated_makes_one_key_and_another_of_its_id_none() {
    let mut test = test();
    assert_eq!(make(&mut test.book, &create("root")), KeyOutcome::Exists(KeyNumber(0)));
    let thief = CreateKey { secret: SecretHash::of(b"mine"), ..create("root") };
    assert_eq!(make(&mut test.book, &thief), KeyOutcome::IdTaken);
    assert_eq!(found(&test, "root", "mine"), None);
    let first = CreateKey { is_first: true, ..create("second") };
    assert_eq!(make(&mut test.book, &first), KeyOutcome::NotTheFirst);
    for seconds in [0, KEY_SECONDS_MAX + 1] {
        let odd = CreateKey { valid_seconds: Some(seconds), ..create("odd") };
        assert_eq!(make(&mut test.book, &odd), KeyOutcome::InvalidExpiry);
    }
    assert_eq!(test.book.keys().count(), 1);
}

/// Regression: a first key with role caller, or an expired one, locked everyone out: nobody could create another key.
#[test]
fn the_first_key_is_one_that_can_look_after_the_server_for_good() {
    let mut test = TestBook::new();
    for odd in [
        CreateKey { role: Role::Writer, ..create("root") },
        CreateKey { namespace: "team".parse().unwrap(), ..create("root") },
        CreateKey { valid_seconds: Some(60), ..create("root") },
    ] {
        assert_eq!(make(&mut test.book, &odd), KeyOutcome::NotAnAdmin, "{odd:?}");
        assert!(test.book.permits(test.now(), &Principal::Anonymous));
    }
    assert_eq!(make(&mut test.book, &create("root")), KeyOutcome::Created(KeyNumber(0)));
    let brief = CreateKey { role: Role::Caller, valid_seconds: Some(60), ..create("brief") };
    assert_eq!(make(&mut test.book, &brief), KeyOutcome::Created(KeyNumber(1)));
}

/// Regression: creating the first key ends anonymous access. A retry after a lost answer was refused, and the secret
/// was lost with the answer.
#[test]
fn the_first_key_sent_again_by_anyone_is_answered_and_nothing_else_is() {
    let mut test = test();
    let mut sent = |create: &CreateKey| test.book.apply_as(START, &Principal::Anonymous, Command::CreateKey(create));
    assert_eq!(sent(&create("root")), Outcome::Key(KeyOutcome::Exists(KeyNumber(0))));
    for other in [CreateKey { secret: SecretHash::of(b"mine"), ..create("root") }, create("other")] {
        assert_eq!(sent(&other), Outcome::Unauthenticated);
    }
    assert_eq!(test.book.keys().count(), 1);
}

/// Regression: the history names a bound key by its client id and an unbound key by its key id. A key bound to a client
/// named like another key's id acted in that key's name.
#[test]
fn no_key_is_bound_to_a_client_that_is_called_like_a_key() {
    let mut test = test();
    for (client, is_taken) in [
        ("root", true),
        ("4m8qk2v7d1xz", true),
        ("000000000000", true),
        ("orchestrator", false),
        ("4m8qk2v7d1x", false),
        ("4M8QK2V7D1XZ", false),
        ("billing", false),
    ] {
        let id = format!("key{}", test.book.keys().count());
        let bound = CreateKey { client: Some(client.parse().unwrap()), ..create(&id) };
        let outcome = make(&mut test.book, &bound);
        assert_eq!(outcome == KeyOutcome::ClientIsKey, is_taken, "{client}: {outcome:?}");
        assert_eq!(matches!(outcome, KeyOutcome::Created(_)), !is_taken, "{client}: {outcome:?}");
    }
}

#[test]
fn the_last_key_that_looks_after_the_server_cannot_be_revoked() {
    let mut test = test();
    let namespace = "team".parse().unwrap();
    make(&mut test.book, &CreateKey { role: Role::Writer, ..create("writer") });
    make(&mut test.book, &CreateKey { namespace, ..create("elsewhere") });
    assert_eq!(revoke(&mut test, "root"), KeyOutcome::LastAdmin);
    make(&mut test.book, &CreateKey { valid_seconds: Some(60), ..create("brief") });
    assert_eq!(revoke(&mut test, "root"), KeyOutcome::LastAdmin, "its successor ends by itself");
    make(&mut test.book, &create("next"));
    assert_eq!(revoke(&mut test, "root"), KeyOutcome::Revoked(KeyNumber(0)));
    assert_eq!(revoke(&mut test, "root"), KeyOutcome::Revoked(KeyNumber(0)));
    assert_eq!(revoke(&mut test, "next"), KeyOutcome::LastAdmin);
    assert_eq!(revoke(&mut test, "nobody"), KeyOutcome::NotFound);
}

#[test]
fn whoever_looks_after_one_namespace_revokes_no_key_of_another() {
    let mut test = test();
    make(&mut test.book, &create("other"));
    assert_eq!(revoke_in(&mut test, "other", Some("team")), KeyOutcome::NotFound);
    assert_eq!(revoke_in(&mut test, "other", Some("default")), KeyOutcome::Revoked(KeyNumber(1)));
}

#[test]
fn a_namespace_begins_with_its_first_key() {
    let mut test = test();
    let name = "team".parse().unwrap();
    assert_eq!(test.book.namespace(&name), None);
    make(&mut test.book, &CreateKey { namespace: name.clone(), ..create("team1") });
    assert_eq!(test.book.namespace(&name), Some(NamespaceId(1)));
}

#[test]
fn keys_are_bounded_and_the_one_that_ended_first_gives_way() {
    let mut book = Book::new(Config::default(), 1);
    for number in 0..KEYS_MAX {
        make(&mut book, &create(&format!("k{number}")));
    }
    assert_eq!(make(&mut book, &create("more")), KeyOutcome::TooMany);
    let revoke = RevokeKey { id: "k77".parse().unwrap(), namespace: None, actor: "client:k0".parse().unwrap() };
    book.apply(START, Command::RevokeKey(&revoke));
    assert_eq!(make(&mut book, &create("more")), KeyOutcome::Created(KeyNumber(KEYS_MAX as u32)));
    assert_eq!(book.key_info(KeyNumber(77)), None);
    assert!(!book.permits(START, &Principal::Key(KeyNumber(77))));
    assert_eq!(make(&mut book, &create("most")), KeyOutcome::TooMany);
    assert_eq!(book.keys().count(), KEYS_MAX);
    let again = restored(&whole(&mut book));
    assert_eq!(again.keys().count(), KEYS_MAX);
}

/// Regression: in a full table an ended key of any namespace made room for `default`, whatever its quota.
#[test]
fn a_full_table_does_not_raise_the_quota_of_default() {
    let mut book = Book::new(Config::default(), 1);
    for number in 0..1_000 {
        make(&mut book, &create(&format!("k{number}")));
    }
    for space in 0..9 {
        for number in 0..1_000 {
            let namespace = format!("s{space}").parse().unwrap();
            make(&mut book, &CreateKey { namespace, ..create(&format!("s{space}k{number}")) });
        }
    }
    assert_eq!(book.keys().count(), KEYS_MAX);
    let quotas = SetQuotas { namespace: "default".parse().unwrap(), quotas: [(QuotaKind::Keys, 1_000)].into() };
    book.apply(START, Command::SetQuotas(&quotas));
    let revoke = |id: &str| RevokeKey { id: id.parse().unwrap(), namespace: None, actor: "client:k0".parse().unwrap() };
    book.apply(START, Command::RevokeKey(&revoke("s3k7")));
    assert_eq!(make(&mut book, &create("more")), KeyOutcome::QuotaExceeded(QuotaKind::Keys));
    book.apply(START, Command::RevokeKey(&revoke("k7")));
    assert!(matches!(make(&mut book, &create("more")), KeyOutcome::Created(_)));
    assert!(book.keys().all(|key| key.id.as_str() != "k7"));
}

/// Regression: one bound for all namespaces let the admin of one namespace use up all keys.
#[test]
fn one_namespace_does_not_take_the_places_of_the_others() {
    let mut book = Book::new(Config::default(), 1);
    assert_eq!(make(&mut book, &create("root")), KeyOutcome::Created(KeyNumber(0)));
    let of = |space: &str, number: usize| CreateKey {
        namespace: space.parse().unwrap(),
        ..create(&format!("{space}{number}"))
    };
    let full = KeyOutcome::QuotaExceeded(QuotaKind::Keys);
    for space in ["a", "b", "c", "f", "g", "h", "i", "j"] {
        for number in 0..1_000 {
            assert!(matches!(make(&mut book, &of(space, number)), KeyOutcome::Created(_)));
        }
        assert_eq!(make(&mut book, &of(space, 1_000)), full);
    }
    // An expired key makes room for a new key of its own namespace, even below the total bound.
    let revoke = RevokeKey { id: "b7".parse().unwrap(), namespace: None, actor: "client:root".parse().unwrap() };
    book.apply(START, Command::RevokeKey(&revoke));
    assert_eq!(make(&mut book, &of("a", 1_000)), full);
    assert!(matches!(make(&mut book, &of("b", 1_000)), KeyOutcome::Created(_)));
    assert!(book.keys().all(|key| key.id.as_str() != "b7"));
    // The remaining keys are reserved for server admins, however many namespaces exist.
    let mut made = 0;
    while let KeyOutcome::Created(_) = make(&mut book, &of("d", made)) {
        made += 1;
    }
    assert_eq!(made, 1_000);
    assert_eq!(make(&mut book, &of("e", 0)), KeyOutcome::TooMany);
    for number in 1..1_000 {
        assert!(matches!(make(&mut book, &create(&format!("k{number}"))), KeyOutcome::Created(_)));
    }
    assert_eq!(make(&mut book, &create("more")), KeyOutcome::TooMany);
    assert_eq!(book.keys().count(), KEYS_MAX);
    assert_eq!(restored(&whole(&mut book)).keys().count(), KEYS_MAX);
}

#[test]
fn keys_survive_a_snapshot_and_what_is_restored_is_written_as_it_was() {
    let mut test = test();
    let whose = CreateKey {
        role: Role::Caller,
        namespace: "team".parse().unwrap(),
        client: Some("billing-1".parse().unwrap()),
        labels: earmark_core::Labels::new([("tenant", "acme"), ("plan", "pro")]).unwrap(),
        may_set: earmark_core::MaySet::new(["user"]).unwrap(),
        valid_seconds: Some(60),
        ..create("caller")
    };
    make(&mut test.book, &whose);
    make(&mut test.book, &create("gone"));
    revoke(&mut test, "gone");
    let bytes = whole(&mut test.book);
    let mut again = restored(&bytes);
    assert_eq!(whole(&mut again), bytes);
    let infos = |book: &Book| -> Vec<KeyInfo> { book.keys().map(|info| (**info).clone()).collect() };
    assert_eq!(infos(&again), infos(&test.book));
    let secret = SecretHash::of(b"caller");
    let found = again.authenticate(test.now(), &"caller".parse().unwrap(), &secret).unwrap();
    assert_eq!((found.role, found.client.as_ref().unwrap().as_str()), (Role::Caller, "billing-1"));
    assert_eq!((found.labels.to_string(), found.may_set.to_string()), ("plan=pro tenant=acme".into(), "user".into()));
    let mut later = again;
    assert_eq!(make(&mut later, &create("next")), KeyOutcome::Created(KeyNumber(3)));
}

#[test]
fn what_became_of_keys_is_in_the_journal_with_who_did_it() {
    let mut test = test();
    let labels = earmark_core::Labels::new([("tenant", "acme")]).unwrap();
    let other = CreateKey { labels, ..create("other") };
    make(&mut test.book, &other);
    make(&mut test.book, &other);
    revoke(&mut test, "other");
    revoke(&mut test, "other");
    let said: Vec<(String, KeyChange, String)> = (test.book.drain_journal().into_iter())
        .map(|record| match record {
            JournalRecord::Key(key) => {
                assert_eq!(key.labels.get("tenant"), (*key.id.as_str() == *"other").then_some("acme"));
                (key.id.to_string(), key.change, key.actor.to_string())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        ("root", KeyChange::Created, "system:bootstrap"),
        ("other", KeyChange::Created, "system:bootstrap"),
        ("other", KeyChange::Revoked, "client:root"),
    ];
    assert_eq!(said, expected.map(|(id, change, actor)| (id.to_owned(), change, actor.to_owned())));
}

/// Actor of a hold, settlement, release or limit change.
fn behind(record: &JournalRecord) -> (&'static str, Option<&str>) {
    let (what, actor) = match record {
        JournalRecord::Hold(hold) => ("hold", hold.actor.as_ref()),
        JournalRecord::Settle(settle) => ("settle", settle.hold.actor.as_ref()),
        JournalRecord::Release(hold) => ("release", hold.actor.as_ref()),
        other => panic!("{other:?}"),
    };
    (what, actor.map(Actor::as_str))
}

#[test]
fn what_leases_hold_and_pay_is_written_down_with_who_had_it_done() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    make(&mut bank.test.book, &create("root"));
    let bound = CreateKey { client: Some("billing".parse().unwrap()), ..create("caller") };
    make(&mut bank.test.book, &bound);
    drop(bank.test.book.drain_journal());
    let (root, caller) = (Principal::Key(KeyNumber(0)), Principal::Key(KeyNumber(1)));
    let user = Principal::Actor("user:7".parse().unwrap());
    let (namespace, limit) = (NamespaceId::DEFAULT, LimitRef::Key("usd".parse().unwrap()));
    let [paid, lost] = [bank.test.lease(), bank.test.lease()];
    for (by, lease) in [(&root, paid), (&user, lost)] {
        let requirements = &[Part { limit: limit.clone(), amount: 10 }];
        let reserve = Reserve { namespace, lease, job: None, call: None, by_gateway: false, requirements };
        bank.test.book.apply_as(bank.test.now(), by, Command::Reserve(reserve));
    }
    let actuals = &[Part { limit, amount: 3 }];
    let (claim, labels) = (earmark_core::LeaseClaim::default(), &earmark_core::SettleLabels::NONE);
    let complete = Complete { namespace, lease: paid, claim, actuals, labels };
    bank.test.book.apply_as(bank.test.now(), &caller, Command::Complete(complete));
    // A command of another caller triggers the expiry, but the actor is the system.
    bank.test.advance(62_000);
    bank.test.book.apply_as(bank.test.now(), &caller, Command::Tick);
    let journal = bank.test.book.drain_journal();
    let said: Vec<_> = journal.iter().map(behind).collect();
    let expected = [
        ("hold", Some("client:root")),
        ("hold", Some("user:7")),
        ("settle", Some("client:billing")),
        ("release", None),
    ];
    assert_eq!(said, expected);
}

#[test]
fn changes_of_limits_are_written_down_with_who_made_them() {
    let mut test = TestBook::new();
    let (namespace, user) = (NamespaceId::DEFAULT, Principal::Actor("user:7".parse().unwrap()));
    let [ten, six, nine] = [10, 6, 9].map(|capacity| rolling("rpm", capacity, 60));
    let put = |definition, expected_revision| Command::PutLimit(PutLimit { namespace, definition, expected_revision });
    let delete = Command::DeleteLimit(DeleteLimit { namespace, key: &ten.key, expected_revision: None });
    test.book.apply_as(test.now(), &Principal::Anonymous, put(&ten, None));
    test.book.apply_as(test.now(), &Principal::Anonymous, put(&six, Some(9)));
    // The capacity cannot decrease at once. The target counts, so that each change continues the one before.
    test.take(&[("rpm", 8)]);
    test.book.apply_as(test.now(), &user, put(&six, None));
    test.book.apply_as(test.now(), &Principal::System, put(&nine, None));
    test.book.apply_as(test.now(), &user, delete);
    test.book.apply_as(test.now(), &user, put(&ten, None));
    test.advance(60_000);
    test.book.apply_as(test.now(), &user, delete);
    test.book.apply_as(test.now(), &user, delete);
    test.book.apply_as(test.now(), &user, put(&six, None));
    let journal = test.book.drain_journal();
    let said: Vec<_> = journal.iter().map(limit_change).collect();
    let some = |definition: &Definition| Some(definition.clone());
    assert_eq!(
        said,
        [
            (None, some(&ten), 1, "system:local"),
            (some(&ten), some(&six), 2, "user:7"),
            (some(&nine), None, 4, "user:7"),
            // The deleted limit exists until nothing is reserved.
            (some(&nine), some(&ten), 5, "user:7"),
            (some(&ten), None, 6, "user:7"),
            (None, some(&six), 7, "user:7"),
        ]
    );
}

fn limit_change(record: &JournalRecord) -> (Option<Definition>, Option<Definition>, u64, &str) {
    let JournalRecord::Limit(limit) = record else { panic!("{record:?}") };
    let DefinitionChange { key, old, new } = limit.edit.change();
    assert_eq!(key.as_str(), "rpm");
    (old.cloned(), new.cloned(), limit.revision, limit.actor.as_str())
}

#[test]
fn a_transaction_records_the_definitions_that_it_replaces() {
    let mut test = TestBook::new();
    let [ten, six, nine] = [10, 6, 9].map(|capacity| rolling("rpm", capacity, 60));
    let put = |definition: &Definition| Operation::PutLimit { definition: definition.clone(), expected_revision: None };
    let other = Operation::PutLimit { definition: rolling("tpm", 1, 60), expected_revision: None };
    let delete = Operation::DeleteLimit { key: ten.key.clone(), expected_revision: None };
    let refused = Operation::DeleteLimit { key: "absent".parse().unwrap(), expected_revision: None };
    test.put_active(ten.clone());
    let write = |sequence, operations| Write {
        namespace: NamespaceId::DEFAULT,
        vault: None,
        id: WriteId::Sequence { client: "billing".parse().unwrap(), sequence },
        operations,
        tx_id: TxId(u128::from(sequence)),
        log_index: sequence,
        actor: "user:7".parse().unwrap(),
    };
    test.book.apply(test.now(), Command::Write(&write(1, vec![put(&nine), refused])));
    let all = vec![put(&six), other, put(&nine), delete, put(&ten)];
    test.book.apply(test.now(), Command::Write(&write(1, all)));
    let journal = test.book.drain_journal();
    let [JournalRecord::Transaction(transaction)] = &journal[..] else { panic!("{journal:?}") };
    let found: Vec<_> = transaction.limit_changes().map(|change| (change.key.as_str(), change.old)).collect();
    let expected = [("rpm", Some(&ten)), ("tpm", None), ("rpm", Some(&six)), ("rpm", Some(&nine)), ("rpm", None)];
    assert_eq!(found, expected);
    let mut bytes = Vec::new();
    journal[0].encode(&mut bytes);
    assert_eq!(JournalRecord::decode(&bytes).as_ref(), Ok(&journal[0]));
}

/// Regression: a writer key that is not bound to a client id could use the sequence numbers of another writer.
#[test]
fn a_client_id_belongs_to_the_first_key_that_writes_with_it() {
    let mut test = TestBook::new();
    let writer = |id| CreateKey { role: Role::Writer, ..create(id) };
    let bound = CreateKey { client: Some("billing".parse().unwrap()), ..writer("bound") };
    for command in [create("root"), writer("first"), writer("second"), bound] {
        assert!(matches!(make(&mut test.book, &command), KeyOutcome::Created(_)));
    }
    let [root, first, second, bound] = [0, 1, 2, 3].map(|number| Principal::Key(KeyNumber(number)));
    let write = |sequence| Write {
        namespace: NamespaceId::DEFAULT,
        vault: None,
        id: WriteId::Sequence { client: "billing".parse().unwrap(), sequence },
        operations: Vec::new(),
        tx_id: TxId(u128::from(sequence)),
        log_index: sequence,
        actor: "client:first".parse().unwrap(),
    };
    let claimed = InvalidWrite::ClientClaimed { client: "billing".parse().unwrap() };
    let refused = Outcome::Write(WriteOutcome::Refused(WriteError::Invalid(claimed)));
    let is_committed =
        |outcome: Outcome| matches!(outcome, Outcome::Write(WriteOutcome::Committed(_) | WriteOutcome::Exists(_)));
    assert!(is_committed(test.book.apply_as(START, &first, Command::Write(&write(1)))));
    assert_eq!(test.book.apply_as(START, &second, Command::Write(&write(2))), refused);
    assert_eq!(test.book.apply_as(START, &second, Command::Write(&write(1))), refused, "not even a receipt");
    test.book = restore(&snapshot(&mut test.book), 64, 7).unwrap();
    assert_eq!(test.book.apply_as(START, &second, Command::Write(&write(2))), refused);
    assert!(is_committed(test.book.apply_as(START, &root, Command::Write(&write(2)))), "an admin may write");
    assert!(is_committed(test.book.apply_as(START, &first, Command::Write(&write(3)))), "and claims nothing");
    assert!(is_committed(test.book.apply_as(START, &bound, Command::Write(&write(4)))), "a bound key takes over");
    assert_eq!(test.book.apply_as(START, &first, Command::Write(&write(5))), refused);
    let revoke =
        RevokeKey { id: "bound".parse().unwrap(), namespace: None, actor: "system:bootstrap".parse().unwrap() };
    test.book.apply(START, Command::RevokeKey(&revoke));
    assert!(is_committed(test.book.apply_as(START, &second, Command::Write(&write(5)))), "a revoked key holds nothing");

    let session = |user: &str, role| Principal::Session { actor: user.parse().unwrap(), role };
    let [ann, bob, chief] = [("user:ann", Role::Writer), ("user:bob", Role::Writer), ("user:eve", Role::Admin)]
        .map(|(user, role)| session(user, role));
    assert_eq!(test.book.apply_as(START, &ann, Command::Write(&write(6))), refused, "a key owns it");
    let write =
        |sequence| Write { id: WriteId::Sequence { client: "payroll".parse().unwrap(), sequence }, ..write(sequence) };
    let claimed = InvalidWrite::ClientClaimed { client: "payroll".parse().unwrap() };
    let refused = Outcome::Write(WriteOutcome::Refused(WriteError::Invalid(claimed)));
    assert!(is_committed(test.book.apply_as(START, &ann, Command::Write(&write(1)))), "a session claims it too");
    test.book = restore(&snapshot(&mut test.book), 64, 7).unwrap();
    for other in [&bob, &first] {
        assert_eq!(test.book.apply_as(START, other, Command::Write(&write(2))), refused);
    }
    assert!(is_committed(test.book.apply_as(START, &chief, Command::Write(&write(2)))), "an admin may write");
    assert!(is_committed(test.book.apply_as(START, &ann, Command::Write(&write(3)))));
}
