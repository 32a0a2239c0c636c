//! Random records about a few accounts.

use std::sync::Arc;

use earmark_core::{
    AccountId, AccountName, Actor, AssetId, AssetName, Change, ClientId, Definition, GrantTerms, HoldEntry,
    JournalRecord, Kind, LeaseId, LimitEdit, LimitEntry, NamespaceId, Operation, Overage, Receipt, SettleEntry,
    SettleReason, Transaction, TxId, UnixMs, VaultId,
};
use rand::Rng;
use rand::rngs::StdRng;

pub const ACCOUNTS: u32 = 6;

pub fn record(random: &mut StdRng) -> JournalRecord {
    match random.gen_range(0..6) {
        0 => JournalRecord::Transaction(transaction(random)),
        1 => JournalRecord::Release(hold(random)),
        2 => JournalRecord::Settle(SettleEntry {
            labels: earmark_core::SettleLabels::NONE,
            hold: hold(random),
            held: random.r#gen(),
            revenue: AccountId(random.gen_range(0..ACCOUNTS)),
            paid: random.r#gen(),
            debt: random.r#gen(),
            uncollected: random.r#gen(),
            reason: SettleReason::ALL[random.gen_range(0..3)],
        }),
        3 => limit_put(),
        _ => JournalRecord::Hold(hold(random)),
    }
}

pub fn records(random: &mut StdRng, count: usize) -> Vec<JournalRecord> {
    (0..count).map(|_| record(random)).collect()
}

/// A limit that was redefined.
pub fn limit_put() -> JournalRecord {
    let definition = |capacity| Definition {
        key: "rpm".parse().unwrap(),
        kind: Kind::Rolling { window_seconds: 60 },
        capacity,
        unit: "requests".into(),
        description: String::new(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    };
    JournalRecord::Limit(Box::new(LimitEntry {
        at: UnixMs::new(1_700_000_000_000).into(),
        namespace: NamespaceId::DEFAULT,
        edit: LimitEdit::Put { old: Some(definition(60)), new: definition(120) },
        revision: 2,
        actor: Actor::new("user:7").unwrap(),
    }))
}

pub fn hold_of(account: u32, amount: u64) -> JournalRecord {
    JournalRecord::Hold(HoldEntry {
        at: UnixMs::new(1_700_000_000_000).into(),
        namespace: NamespaceId::DEFAULT,
        lease: LeaseId::from_u128(amount.into()),
        limit: "usd".parse().unwrap(),
        account: AccountId(account),
        asset: AssetId(0),
        amount,
        extension: 0,
        actor: None,
    })
}

fn hold(random: &mut StdRng) -> HoldEntry {
    HoldEntry {
        at: UnixMs::new(random.r#gen()).into(),
        namespace: NamespaceId(random.r#gen()),
        lease: LeaseId::from_u128(random.r#gen()),
        limit: format!("usd:{}", random.r#gen::<u32>()).parse().unwrap(),
        account: AccountId(random.gen_range(0..ACCOUNTS)),
        asset: AssetId(random.gen_range(0..2)),
        amount: random.r#gen(),
        extension: random.r#gen(),
        actor: random.r#gen::<bool>().then(|| Actor::new("client:billing").unwrap()),
    }
}

fn transaction(random: &mut StdRng) -> Transaction {
    let (account, asset) = (AccountName::new("acme").unwrap(), AssetName::new("usd").unwrap());
    // Some records exceed the first read of a lookup.
    let memo = "m".repeat(if random.gen_bool(0.1) { 256 } else { 3 });
    let issue = Operation::Issue { account, asset, amount: random.r#gen(), memo, terms: GrantTerms::PLAIN };
    let changes = (0..ACCOUNTS).filter(|_| random.gen_bool(0.3)).collect::<Vec<_>>();
    let sequence = random.gen_range(1..u64::MAX);
    Transaction {
        namespace: NamespaceId::DEFAULT,
        vault: Some(VaultId::MAIN),
        id: earmark_core::WriteId::Sequence { client: ClientId::new("billing").unwrap(), sequence },
        receipt: Arc::new(Receipt {
            tx_id: TxId(random.r#gen()),
            sequence: Some(sequence),
            log_index: random.r#gen(),
            committed_at: UnixMs::new(random.r#gen()).into(),
            actor: Actor::new("user:1").unwrap(),
            results: Vec::new(),
        }),
        operations: vec![issue; random.gen_range(0..3)],
        replaced: Vec::new(),
        changes: (changes.into_iter())
            .map(|account| Change { account: AccountId(account), asset: AssetId(0), amount: random.r#gen() })
            .collect(),
    }
}
