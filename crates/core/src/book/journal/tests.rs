use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::book::{LimitStatus, OperationResult, TxId};
use crate::credits::{CarryOver, Overdraft, Plan};
use crate::id::{AccountName, AssetName, ClientId, IdempotencyKey, LimitKey, VaultName};
use crate::limits::{CreditTerms, Definition, Kind, Overage, Period};
use crate::time::{Moment, UnixMs};

fn key() -> LimitKey {
    LimitKey::new("openai:rpm").unwrap()
}

fn definition(kind: Kind, capacity: u64) -> Definition {
    let (unit, description) = ("u".into(), "d".into());
    Definition { key: key(), kind, capacity, unit, description, overage: Overage::Deny, shared: false, enforce: true }
}

fn terms() -> CreditTerms {
    CreditTerms {
        timeout_seconds: 60,
        vault: VaultName::new("main").unwrap(),
        account: AccountName::new("acme").unwrap(),
        asset: AssetName::new("usd").unwrap(),
        revenue: AccountName::new("revenue").unwrap(),
        on_timeout: Default::default(),
    }
}

fn grant_terms() -> GrantTerms {
    GrantTerms::new(3, Some(UnixMs::new(9_000)))
}

fn expire() -> ExpireEntry {
    let (account, asset) = (AccountId(5), AssetId(1));
    let at = Moment::from(UnixMs::new(9_001));
    ExpireEntry { at, namespace: NamespaceId::DEFAULT, account, asset, amount: 70, terms: grant_terms() }
}

fn plan() -> Plan {
    Plan {
        asset: AssetName::new("usd").unwrap(),
        amount: 5_000,
        period: Period::Month,
        utc_offset_minutes: -60,
        carry_over: CarryOver::Max(700),
    }
}

fn issued() -> PlanEntry {
    let ExpireEntry { at, namespace, account, asset, amount, terms } = expire();
    PlanEntry { at, namespace, account, asset, amount, carried: 3, terms }
}

#[test]
fn a_plan_that_issued_nothing_or_credit_without_expiry_is_refused() {
    let plain = PlanEntry { terms: GrantTerms::PLAIN, ..issued() };
    for wrong in [PlanEntry { amount: 0, ..issued() }, PlanEntry { carried: -1, ..issued() }, plain] {
        assert!(JournalRecord::decode(&bytes(&JournalRecord::Plan(wrong))).is_err(), "{wrong:?}");
    }
}

#[test]
fn an_expiry_of_nothing_or_of_credit_without_expiry_is_refused() {
    for wrong in [ExpireEntry { amount: 0, ..expire() }, ExpireEntry { terms: GrantTerms::PLAIN, ..expire() }] {
        assert!(JournalRecord::decode(&bytes(&JournalRecord::Expire(wrong))).is_err(), "{wrong:?}");
    }
}

/// One operation of each kind.
fn operations(amount: u128, revision: Option<u64>, memo: &str) -> Vec<Operation> {
    let (account, other) = (AccountName::new("acme").unwrap(), AccountName::new("bank").unwrap());
    let (asset, memo) = (AssetName::new("usd").unwrap(), memo.to_owned());
    let rolling = definition(Kind::Rolling { window_seconds: 60 }, 7);
    vec![
        Operation::PutLimit { definition: rolling, expected_revision: revision },
        Operation::PutLimit { definition: definition(Kind::Credit(terms()), 0), expected_revision: None },
        Operation::DeleteLimit { key: key(), expected_revision: revision },
        Operation::OpenVault { vault: VaultName::new("eu").unwrap() },
        Operation::DeleteVault { vault: VaultName::new("eu").unwrap() },
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Limit(7), plan: Some(plan()) },
        Operation::FreezeAccount { account: account.clone() },
        Operation::UnfreezeAccount { account: account.clone() },
        Operation::CloseAccount { account: other.clone() },
        Operation::Issue {
            account: account.clone(),
            asset: asset.clone(),
            amount,
            memo: memo.clone(),
            terms: grant_terms(),
        },
        Operation::Transfer { from: account.clone(), to: other, asset: asset.clone(), amount, memo: String::new() },
        Operation::Retire { account: account.clone(), asset, amount, memo },
        Operation::SetPlan { account: account.clone(), plan: Some(Plan { carry_over: CarryOver::None, ..plan() }) },
        Operation::SetPlan { account, plan: None },
    ]
}

fn results(number: u32, revision: u64) -> Vec<OperationResult> {
    let limit = |status| OperationResult::Limit { revision, status };
    vec![
        limit(LimitStatus::Active),
        limit(LimitStatus::Decreasing { to: revision }),
        limit(LimitStatus::Deleted),
        OperationResult::Vault(VaultId(number)),
        OperationResult::Account(AccountId(number)),
        OperationResult::Entry,
    ]
}

/// Log time `ms`, and a wall time that differs from it.
fn moment(ms: u64) -> Moment {
    Moment { log: UnixMs::new(ms), wall: UnixMs::new(ms ^ 0x100) }
}

fn change(account: u32, asset: u16, amount: i128) -> Change {
    Change { account: AccountId(account), asset: AssetId(asset), amount }
}

fn transaction() -> Transaction {
    Transaction {
        namespace: NamespaceId(1),
        vault: Some(VaultId(2)),
        id: WriteId::Sequence { client: ClientId::new("billing").unwrap(), sequence: 4 },
        receipt: Arc::new(Receipt {
            tx_id: TxId(3),
            sequence: Some(4),
            log_index: 5,
            committed_at: moment(6),
            actor: Actor::new("user:7").unwrap(),
            results: results(8, 9),
        }),
        operations: operations(10, Some(11), "why"),
        replaced: vec![replaced(0), replaced(2)],
        changes: vec![change(12, 0, -1), change(12, 1, 2), change(13, 0, i128::MIN)],
    }
}

/// A definition that an operation of [`operations`] replaced.
fn replaced(operation: usize) -> Replaced {
    Replaced { operation, definition: definition(Kind::Rolling { window_seconds: 60 }, 5) }
}

fn hold() -> HoldEntry {
    HoldEntry {
        at: moment(1),
        namespace: NamespaceId(2),
        lease: LeaseId::from_u128(3),
        limit: LimitKey::new("usd").unwrap(),
        account: AccountId(5),
        asset: AssetId(6),
        amount: 7,
        extension: 8,
        actor: None,
    }
}

fn settle() -> SettleEntry {
    SettleEntry {
        hold: hold(),
        held: 8,
        revenue: AccountId(9),
        paid: 10,
        debt: 11,
        uncollected: 12,
        reason: SettleReason::Timeout,
        labels: SettleLabels::NONE,
    }
}

fn bytes(record: &JournalRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn any_hold() -> impl Strategy<Value = HoldEntry> {
    let time = 0..=UnixMs::MAX.get();
    let numbers = any::<(u16, u128, u32, u32, u16, u64, u32)>();
    let actor = proptest::option::of("user:[a-z]{1,9}");
    (time, numbers, actor).prop_map(|(at, rest, actor)| HoldEntry {
        at: moment(at),
        namespace: NamespaceId(rest.0),
        lease: LeaseId::from_u128(rest.1),
        limit: LimitKey::new(&format!("usd:{}", rest.2)).unwrap(),
        account: AccountId(rest.3),
        asset: AssetId(rest.4),
        amount: rest.5,
        extension: rest.6,
        actor: actor.map(|actor| actor.parse().unwrap()),
    })
}

fn any_transaction() -> impl Strategy<Value = Transaction> {
    let numbers = any::<(u16, Option<u32>, u32, u64, u64, u128)>();
    let asked = (any::<u128>(), any::<Option<u64>>(), "\\PC{0,20}", vec(0_usize..11, 0..12));
    let changes = vec(any::<(u32, u16, i128)>(), 0..5);
    (numbers, asked, changes).prop_map(|(numbers, asked, mut changes)| {
        changes.sort_unstable();
        changes.dedup_by_key(|change| (change.0, change.1));
        let all = operations(asked.0, asked.1, &asked.2);
        let id = match numbers.3 {
            even if even.is_multiple_of(2) => WriteId::Key(IdempotencyKey::new("evt:1").unwrap()),
            sequence => WriteId::Sequence { client: ClientId::new("client").unwrap(), sequence },
        };
        Transaction {
            namespace: NamespaceId(numbers.0),
            vault: numbers.1.map(VaultId),
            id: id.clone(),
            receipt: Arc::new(Receipt {
                tx_id: TxId(numbers.5),
                sequence: id.sequence(),
                log_index: numbers.4,
                committed_at: moment(numbers.3),
                actor: Actor::new("system:test").unwrap(),
                results: results(numbers.2, numbers.4),
            }),
            operations: asked.3.iter().map(|position| all[*position].clone()).collect(),
            replaced: (0..asked.3.len()).filter(|each| asked.3[*each] < 3).map(replaced).collect(),
            changes: changes.iter().map(|each| change(each.0, each.1, each.2)).collect(),
        }
    })
}

fn any_key() -> impl Strategy<Value = KeyEntry> {
    let parts = (any::<(u64, bool, u32)>(), 0..Role::ALL.len(), "[a-z0-9]{1,12}", "[a-z]{1,9}");
    parts.prop_map(|((at, is_created, number), role, id, name)| KeyEntry {
        at: moment(at),
        change: if is_created { KeyChange::Created } else { KeyChange::Revoked },
        number: KeyNumber(number),
        id: id.parse().unwrap(),
        name: name.parse().unwrap(),
        role: Role::ALL[role],
        namespace: name.parse().unwrap(),
        labels: Labels::new([("tenant", &name)]).unwrap(),
        may_set: MaySet::new(is_created.then_some("user")).unwrap(),
        actor: format!("client:{id}").parse().unwrap(),
    })
}

fn any_limit() -> impl Strategy<Value = LimitEntry> {
    let definition = |capacity| match capacity {
        0 => definition(Kind::Credit(terms()), 0),
        _ => definition(Kind::Concurrency { timeout_seconds: 9 }, capacity),
    };
    let capacities = (any::<Option<u64>>(), any::<Option<u64>>());
    (any::<(u64, u16, u64)>(), capacities, "[a-z]{1,9}").prop_map(
        move |((at, namespace, revision), (old, new), name)| LimitEntry {
            at: moment(at),
            namespace: NamespaceId(namespace),
            edit: match new {
                Some(new) => LimitEdit::Put { old: old.map(definition), new: definition(new) },
                None => LimitEdit::Deleted { old: definition(old.unwrap_or(1)) },
            },
            revision,
            actor: format!("client:{name}").parse().unwrap(),
        },
    )
}

fn any_record() -> impl Strategy<Value = JournalRecord> {
    let labels = proptest::collection::btree_map("[a-z][a-z_]{0,5}", "[a-z é]{1,9}", 0..4);
    let numbers = any::<(u64, u32, u64, u64, u64, u8)>();
    let settle = (any_hold(), numbers, labels).prop_map(|(hold, rest, labels)| SettleEntry {
        hold,
        held: rest.0,
        revenue: AccountId(rest.1),
        paid: rest.2,
        debt: rest.3,
        uncollected: rest.4,
        reason: SettleReason::ALL[usize::from(rest.5) % 3],
        labels: SettleLabels::new(labels).unwrap(),
    });
    prop_oneof![
        any_transaction().prop_map(JournalRecord::Transaction),
        any_hold().prop_map(JournalRecord::Hold),
        settle.prop_map(JournalRecord::Settle),
        any_hold().prop_map(JournalRecord::Release),
        (1..i128::MAX).prop_map(|amount| JournalRecord::Expire(ExpireEntry { amount, ..expire() })),
        (1..i128::MAX).prop_map(|amount| JournalRecord::Plan(PlanEntry { amount, ..issued() })),
        any_key().prop_map(JournalRecord::Key),
        any_limit().prop_map(|limit| JournalRecord::Limit(limit.into())),
    ]
}

proptest! {
    #[test]
    fn a_record_comes_back_from_its_bytes_as_it_was(record in any_record()) {
        let bytes = bytes(&record);
        prop_assert_eq!(JournalRecord::decode(&bytes), Ok(record));
        for shorter in 0..bytes.len() {
            prop_assert!(JournalRecord::decode(&bytes[..shorter]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(JournalRecord::decode(&longer).is_err());
    }

    #[test]
    fn bytes_that_are_a_record_are_its_only_bytes(
        record in any_record(),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut damaged = bytes(&record);
        let position = position.index(damaged.len());
        damaged[position] = byte;
        if let Ok(other) = JournalRecord::decode(&damaged) {
            prop_assert_eq!(bytes(&other), damaged);
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(tag in 0_u8..8, mut noise in vec(any::<u8>(), 0..300)) {
        _ = JournalRecord::decode(&noise);
        noise.splice(0..0, [1, tag]);
        if let Ok(record) = JournalRecord::decode(&noise) {
            prop_assert_eq!(bytes(&record), noise);
        }
    }
}

#[test]
fn the_bytes_of_a_record_never_change() {
    let hold_bytes = concat!(
        "0100000000000000",
        "0101000000000000",
        "0200",
        "03000000000000000000000000000000",
        "03000000757364",
        "05000000",
        "0600",
        "0700000000000000",
        "08000000"
    );
    assert_eq!(hex(&bytes(&JournalRecord::Hold(hold()))), format!("0102{hold_bytes}00"));
    assert_eq!(hex(&bytes(&JournalRecord::Release(hold()))), format!("0104{hold_bytes}00"));
    let settle_bytes =
        "080000000000000009000000".to_owned() + "0a00000000000000" + "0b00000000000000" + "0c00000000000000" + "02";
    assert_eq!(hex(&bytes(&JournalRecord::Settle(settle()))), format!("0103{hold_bytes}00{settle_bytes}"));
    let by = HoldEntry { actor: Some("user:7".parse().unwrap()), ..hold() };
    let by_bytes = format!("{hold_bytes}0106000000757365723a37");
    assert_eq!(hex(&bytes(&JournalRecord::Hold(by.clone()))), format!("0102{by_bytes}"));
    assert_eq!(hex(&bytes(&JournalRecord::Release(by.clone()))), format!("0104{by_bytes}"));
    let settled = SettleEntry { hold: by, ..settle() };
    assert_eq!(hex(&bytes(&JournalRecord::Settle(settled))), format!("0103{by_bytes}{settle_bytes}"));
    let labels = SettleLabels::new([("model", "m")]).unwrap();
    let labelled = SettleEntry { labels, ..settle() };
    let label_bytes = "01050000006d6f64656c010000006d";
    assert_eq!(hex(&bytes(&JournalRecord::Settle(labelled))), format!("010e{hold_bytes}00{settle_bytes}{label_bytes}"));
    let transaction = bytes(&JournalRecord::Transaction(transaction()));
    assert_eq!(hex(&transaction), include_str!("golden.hex").split_whitespace().collect::<String>());
    let key = KeyEntry {
        at: moment(1),
        change: KeyChange::Revoked,
        number: KeyNumber(2),
        id: "k1".parse().unwrap(),
        name: "n".parse().unwrap(),
        role: Role::Caller,
        namespace: "team".parse().unwrap(),
        labels: Labels::new([("a", "1")]).unwrap(),
        may_set: MaySet::new(["u"]).unwrap(),
        actor: "user:7".parse().unwrap(),
    };
    let key_bytes = "010501000000000000000101000000000000020200000002000000".to_owned()
        + "6b31010000006e03040000007465616d"
        + "0100000001000000610100000031"
        + "010000000100000075"
        + "06000000757365723a37";
    assert_eq!(hex(&bytes(&JournalRecord::Key(key.clone()))), key_bytes);
    assert_eq!(JournalRecord::Key(key).accounts(), []);
    let limit = |edit| {
        let actor = "user:7".parse().unwrap();
        let entry = LimitEntry { at: moment(1), namespace: NamespaceId(2), edit, revision: 3, actor };
        JournalRecord::Limit(entry.into())
    };
    let old = definition(Kind::Rolling { window_seconds: 60 }, 5);
    let new = Definition { capacity: 7, ..old.clone() };
    let of_capacity = |capacity: u8| {
        format!("0a0000006f70656e61693a72706d013c000000{capacity:02x}0000000000000001000000750100000064") + "020001"
    };
    let (head, end) = ("0106010000000000000001010000000000000200", "030000000000000006000000757365723a37");
    let [five, seven] = [5, 7].map(of_capacity);
    for (edit, expected) in [
        (LimitEdit::Put { old: None, new: new.clone() }, format!("01{seven}")),
        (LimitEdit::Put { old: Some(old.clone()), new }, format!("02{five}{seven}")),
        (LimitEdit::Deleted { old }, format!("03{five}")),
    ] {
        assert_eq!(hex(&bytes(&limit(edit.clone()))), format!("{head}{expected}{end}"));
        assert_eq!(limit(edit).accounts(), []);
    }
}

#[test]
fn a_transaction_tells_each_limit_before_and_after() {
    let transaction = transaction();
    let found: Vec<_> = transaction.limit_changes().collect();
    let capacities: Vec<_> =
        found.iter().map(|change| [change.old, change.new].map(|of| of.map(|of| of.capacity))).collect();
    assert_eq!(capacities, [[Some(5), Some(7)], [None, Some(0)], [Some(5), None]]);
    assert!(found.iter().all(|change| *change.key == key()));
}

#[test]
fn what_is_no_record_is_refused_by_what_is_wrong_with_it() {
    let refused = |damage: &dyn Fn(&mut Transaction)| {
        let mut transaction = transaction();
        damage(&mut transaction);
        JournalRecord::decode(&bytes(&JournalRecord::Transaction(transaction))).unwrap_err().to_string()
    };
    let doubled = refused(&|transaction| transaction.changes[1].asset = AssetId(0));
    assert_eq!(doubled, "it cannot be decoded: its changes are out of order");
    let twice = refused(&|transaction| transaction.replaced = vec![replaced(2), replaced(0)]);
    assert_eq!(twice, "it cannot be decoded: its replaced definitions are out of order");
    for elsewhere in [3, 99] {
        let foreign = refused(&|transaction| transaction.replaced = vec![replaced(elsewhere)]);
        assert_eq!(foreign, "it cannot be decoded: a replaced definition is not of its operation's limit");
    }
    let many = refused(&|transaction| transaction.operations = vec![operations(1, None, "").remove(3); 257]);
    assert_eq!(many, "it cannot be decoded: it has too many operations");
    let mut late = bytes(&JournalRecord::Hold(hold()));
    late[9] = 1;
    let late = JournalRecord::decode(&late).unwrap_err().to_string();
    assert_eq!(late, "it cannot be decoded: a time is later than there are times");
    let newer = JournalRecord::decode(&[2, 1]).unwrap_err().to_string();
    assert_eq!(newer, "it cannot be decoded: its version is unknown");
}

#[test]
fn a_record_names_each_account_once() {
    let accounts = |record: JournalRecord| record.accounts().iter().map(|id| id.0).collect::<Vec<u32>>();
    assert_eq!(accounts(JournalRecord::Transaction(transaction())), [12, 13]);
    assert_eq!(accounts(JournalRecord::Hold(hold())), [5]);
    assert_eq!(accounts(JournalRecord::Release(hold())), [5]);
    assert_eq!(accounts(JournalRecord::Expire(expire())), [5]);
    assert_eq!(accounts(JournalRecord::Plan(issued())), [5]);
    assert_eq!(accounts(JournalRecord::Settle(settle())), [5, 9]);
    let to_itself = SettleEntry { revenue: AccountId(5), ..settle() };
    assert_eq!(accounts(JournalRecord::Settle(to_itself)), [5]);
}
