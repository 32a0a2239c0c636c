//! Sample rows with every field set.

use earmark_core::{
    AccountName, AccountStatus, Actor, CarryOver, ClientId, CreditShortage, GrantTerms, LeaseId, Operation, Overdraft,
    Period, SettleLabels, TxId, UnixMs,
};

use super::driver::{
    NOW, account, change, client, entry, held, home, lease, limit, moving, opening, owner, posting, usd, usd_key,
};
use crate::model::{
    AccountPlan, Claim, ClaimKind, Entry, EntryBody, EntryReason, Expiry, GrantShare, Growth, HoldTerms, Need, Plan,
    PlanIssue, Posting, SagaToken, SequenceClaim, Settlement, TotalsChange, Transaction, UsageKey, UsageKind, VaultKey,
};

fn name(text: &str) -> AccountName {
    AccountName::new(text).expect("a valid account")
}

/// The terms of a grant that expires.
fn grant() -> GrantTerms {
    GrantTerms::new(255, Some(NOW.plus_ms(7)))
}

fn plan(carry_over: CarryOver) -> earmark_core::Plan {
    let (asset, period) = (usd(), Period::Month);
    earmark_core::Plan { asset, amount: u64::MAX, period, utc_offset_minutes: -720, carry_over }
}

/// A plan mark that replaces another one.
pub(super) fn marking(mark: Posting, carry_over: CarryOver, issued_until: Option<UnixMs>) -> Posting {
    let plan = AccountPlan { terms: Some(plan(carry_over)), issued_until };
    Posting { terms: plan.mark_terms(), plan: Some(Box::new(plan)), ..mark }
}

fn actor(text: &str) -> Actor {
    Actor::new(text).expect("a valid actor")
}

fn terms(lease: LeaseId) -> HoldTerms {
    HoldTerms {
        lease,
        limit: limit("tenant:acme:usd"),
        account: name("tenant:acme+eu@1_.-"),
        asset: usd(),
        amount: u64::MAX,
        revenue: name("revenue"),
        keeps_debt: true,
        ends_at: NOW.plus_ms(1),
        charges: true,
        extension: 7,
    }
}

fn operations() -> Vec<Operation> {
    let (account, asset, amount) = (name("acme"), usd(), i128::MAX as u128);
    // A memo is any text.
    let memo = "it's \"50% off\"; \\ \n \u{1F600} \0 {}".to_owned();
    vec![
        Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Deny, plan: None },
        Operation::OpenAccount { account: name("bob"), overdraft: Overdraft::Allow, plan: None },
        Operation::OpenAccount { account: name("carl"), overdraft: Overdraft::Limit(u64::MAX), plan: None },
        Operation::OpenAccount { account: name("dora"), overdraft: Overdraft::Deny, plan: Some(plan(CarryOver::None)) },
        Operation::SetPlan { account: name("dora"), plan: Some(plan(CarryOver::Max(u64::MAX))) },
        Operation::SetPlan { account: name("dora"), plan: None },
        Operation::FreezeAccount { account: account.clone() },
        Operation::UnfreezeAccount { account: account.clone() },
        Operation::CloseAccount { account: account.clone() },
        Operation::Issue {
            account: account.clone(),
            asset: asset.clone(),
            amount,
            memo: memo.clone(),
            terms: GrantTerms::PLAIN,
        },
        Operation::Issue {
            account: account.clone(),
            asset: asset.clone(),
            amount: 3,
            memo: String::new(),
            terms: grant(),
        },
        Operation::Transfer { from: account.clone(), to: name("bob"), asset: asset.clone(), amount: 1, memo },
        Operation::Retire { account, asset, amount: 2, memo: String::new() },
    ]
}

/// Every kind of entry.
pub(super) fn bodies() -> Vec<EntryBody> {
    let settlement = |debt| Settlement {
        hold: HoldTerms { keeps_debt: false, charges: false, extension: 0, ..terms(lease().lease) },
        reason: if debt > 0 { EntryReason::Timeout } else { EntryReason::Complete },
        held: 3,
        revenue: name("elsewhere"),
        paid: u64::MAX,
        debt,
        uncollected: 5,
        actor: (debt > 0).then(|| actor("client:gateway")),
        labels: match debt {
            0 => SettleLabels::new([("model", "gpt \u{1f600}"), ("user", "u1")]).expect("valid labels"),
            _ => SettleLabels::NONE,
        },
    };
    let release = |reason, actor| EntryBody::Release { terms: terms(lease().lease), reason, actor };
    let mut bodies = vec![
        EntryBody::Transaction(Transaction {
            tx_id: TxId(u128::MAX),
            id: earmark_core::WriteId::Sequence {
                client: ClientId::new("billing").expect("a valid client"),
                sequence: u64::MAX - 1,
            },
            actor: actor("user:789"),
            operations: operations(),
        }),
        EntryBody::Hold { terms: terms(lease().lease), actor: Some(actor("user:789")) },
        EntryBody::Hold { terms: terms(lease().lease), actor: None },
        EntryBody::Settle(settlement(0)),
        EntryBody::Settle(settlement(9)),
        release(EntryReason::Timeout, Some(actor(Actor::ITSELF))),
        release(EntryReason::Returned, Some(actor("user:789"))),
        release(EntryReason::Late, None),
        release(EntryReason::Complete, None),
        EntryBody::Ended { lease: lease().lease },
        EntryBody::Expire(Expiry { account: name("acme"), asset: usd(), amount: i128::MAX, terms: grant() }),
        EntryBody::Plan(PlanIssue {
            account: name("acme"),
            asset: usd(),
            amount: i128::MAX,
            carried: i128::MAX,
            terms: grant(),
        }),
    ];
    for why in
        [CreditShortage::UnknownAccount, CreditShortage::Frozen, CreditShortage::Closed, CreditShortage::NotEnough]
    {
        bodies.push(EntryBody::Refused { lease: lease().lease, limit: limit("usd"), why });
    }
    bodies
}

fn growth(namespace: Option<VaultKey>, vault: Option<VaultKey>, kind: UsageKind) -> Growth {
    let key = UsageKey { namespace: namespace.map(|home| home.namespace), vault: vault.map(|home| home.vault), kind };
    Growth { key, added: 1, max: 1 << 53 }
}

/// A plan with every field set.
pub(super) fn full_plan(token: SagaToken) -> Plan {
    let overdrawn = Claim { overdraft: Overdraft::Limit(u64::MAX), ..opening("new") };
    let freeze = moving("bob", ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let close = moving("carl", ClaimKind::Closing, AccountStatus::Frozen, AccountStatus::Closed);
    let mut hold = held(posting(token, 2, "acme", 1), &lease(), NOW.plus_ms(60_000));
    if let Some(hold) = &mut hold.hold {
        (hold.used, hold.kept, hold.extension) = (u64::MAX, 1, 9);
        let share = |terms| GrantShare { terms, amount: u64::MAX };
        hold.shares = vec![share(GrantTerms::new(0, None)), share(grant())];
    }
    let changes = vec![change("acme", i128::MIN, 1), change("bob", i128::MAX, 0)];
    let entries = bodies().into_iter().map(|body| Entry { body, ..entry(changes.clone()) });
    Plan {
        inputs: vec![
            posting(token, 0, "acme", i128::MIN),
            hold.clone(),
            marking(posting(token, 4, "bob", 0), CarryOver::None, None),
        ],
        outputs: vec![
            posting(token, 1, "bob", i128::MAX),
            Posting { terms: grant(), ..posting(token, 3, "bob", 8) },
            marking(posting(token, 5, "bob", 0), CarryOver::Max(1), Some(NOW)),
            hold,
        ],
        entries: entries.collect(),
        needs: vec![Need { account: account("acme"), spends: true }, Need { account: account("bob"), spends: false }],
        claims: vec![overdrawn, freeze, close],
        totals: vec![TotalsChange { asset: usd_key(), issued: 1, retired: i128::MAX, expired: 7 }],
        sequence_claim: Some(SequenceClaim { client: client("billing"), sequence: u64::MAX - 1, owner: owner() }),
        growth: vec![
            growth(None, None, UsageKind::Clients),
            growth(Some(home()), None, UsageKind::IdempotencyKeys),
            growth(Some(home()), Some(home()), UsageKind::Assets),
        ],
    }
}
