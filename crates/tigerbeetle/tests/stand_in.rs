//! The stand-in for TigerBeetle answers like a server of 0.17.9. Where there is a `tigerbeetle` binary, random streams go
//! to both, and every status and every record is compared.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Limits, LimitsComplete, LimitsReserve, ReserveAnswer};
use earmark_core::{Kind, LeaseClaim, LeaseId};
use earmark_tigerbeetle::{LedgerClient, TigerBeetleLimits, TigerBeetleOptions};
use support::ledger::Ledger;
use support::random::Random;
use support::registry::TestRegistry;
use support::stand_in::{Eviction, StandIn};
use support::{amounts, definition, key, lease, namespace};
use tigerbeetle::{Account, AccountFilter, AccountFilterFlags, AccountFlags, QueryFilter, QueryFilterFlags};
use tigerbeetle::{CreateTransferStatus as Status, Transfer, TransferFlags};

/// Random streams that the stand-in and a real server are compared on.
const SEEDS: u64 = 30;
/// Different statuses that the random streams meet at least.
const STATUSES_MIN: usize = 40;
const OPERATOR: u128 = 1;
/// A limit of 10, which cannot be overdrawn.
const LIMIT: u128 = 2;

fn account(id: u128, flags: AccountFlags) -> Account {
    Account { id, ledger: 1, code: 1, flags, ..Account::default() }
}

fn pending(id: u128, amount: u128) -> Transfer {
    let flags = TransferFlags::Pending;
    let (debit_account_id, credit_account_id, timeout) = (LIMIT, OPERATOR, 1_000);
    let transfer = Transfer { id, debit_account_id, credit_account_id, amount, timeout, flags, ..Transfer::default() };
    Transfer { ledger: 1, code: 1, ..transfer }
}

fn void(id: u128, pending_id: u128) -> Transfer {
    Transfer { id, pending_id, flags: TransferFlags::VoidPendingTransfer, ..Transfer::default() }
}

fn linked(transfer: Transfer) -> Transfer {
    Transfer { flags: transfer.flags | TransferFlags::Linked, ..transfer }
}

async fn statuses(client: &dyn LedgerClient, transfers: &[Transfer]) -> Vec<Status> {
    let results = client.create_transfers(transfers.to_vec()).await.unwrap();
    results.into_iter().map(|result| result.status).collect()
}

async fn the_observed_statuses_of_chains(ledger: Ledger) {
    let client = ledger.client();
    let limit = account(LIMIT, AccountFlags::DebitsMustNotExceedCredits);
    client.create_accounts(vec![account(OPERATOR, AccountFlags::empty()), limit]).await.unwrap();
    let fund = Transfer { debit_account_id: OPERATOR, credit_account_id: LIMIT, timeout: 0, ..pending(3, 10) };
    let fund = Transfer { flags: TransferFlags::empty(), ..fund };
    assert_eq!(statuses(&*client, &[fund]).await, [Status::Created]);
    let failed = Status::LinkedEventFailed;
    let table: [(&str, Vec<Transfer>, Vec<Status>); 13] = [
        ("a chain of two", vec![linked(pending(10, 2)), pending(11, 2)], vec![Status::Created; 2]),
        ("the same chain again", vec![linked(pending(10, 2)), pending(11, 2)], vec![Status::Exists, failed]),
        ("another second amount", vec![linked(pending(10, 2)), pending(11, 3)], vec![Status::Exists, failed]),
        (
            "another first amount",
            vec![linked(pending(10, 3)), pending(11, 2)],
            vec![Status::ExistsWithDifferentAmount, failed],
        ),
        (
            "the second of three exceeds",
            vec![linked(pending(12, 1)), linked(pending(13, 9)), pending(14, 1)],
            vec![failed, Status::ExceedsCredits, failed],
        ),
        (
            "that chain again, though it would fit",
            vec![linked(pending(12, 1)), linked(pending(13, 1)), pending(14, 1)],
            vec![failed, Status::IdAlreadyFailed, failed],
        ),
        (
            "two chains, the first fails",
            vec![linked(pending(15, 1)), pending(16, 9), linked(pending(17, 1)), pending(18, 1)],
            vec![failed, Status::ExceedsCredits, Status::Created, Status::Created],
        ),
        ("an open chain", vec![linked(pending(19, 1))], vec![Status::LinkedEventChainOpen]),
        ("a void", vec![void(20, 10)], vec![Status::Created]),
        ("a void again", vec![void(20, 10)], vec![Status::Exists]),
        ("another void of it", vec![void(21, 10)], vec![Status::PendingTransferAlreadyVoided]),
        ("a void of nothing", vec![void(22, 99)], vec![Status::PendingTransferNotFound]),
        ("that void again", vec![void(22, 99)], vec![Status::IdAlreadyFailed]),
    ];
    for (name, transfers, expected) in table {
        assert_eq!(statuses(&*client, &transfers).await, expected, "{name}");
    }
    let short = Transfer { timeout: 1, ..pending(30, 3) };
    assert_eq!(statuses(&*client, &[short]).await, [Status::Created]);
    assert_eq!(held(&*client).await, 7);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(held(&*client).await, 4);
    assert_eq!(statuses(&*client, &[void(31, 30)]).await, [Status::PendingTransferExpired]);
}

async fn held(client: &dyn LedgerClient) -> u128 {
    client.look_up_accounts(vec![LIMIT]).await.unwrap().remove(0).debits_pending
}

on_ledgers!(the_observed_statuses_of_chains);

/// A random transfer whose ids and fields meet those of others often.
fn transfer(random: &mut Random) -> Transfer {
    let mut flags = random.pick(&[TransferFlags::empty(), TransferFlags::Pending, TransferFlags::Pending]);
    if random.once_in(3) {
        flags = random.pick(&[TransferFlags::PostPendingTransfer, TransferFlags::VoidPendingTransfer]);
    }
    let ends = flags.0 & (TransferFlags::PostPendingTransfer | TransferFlags::VoidPendingTransfer).0 != 0;
    if random.once_in(4) {
        flags = flags | TransferFlags::Linked;
    }
    let some_id = |random: &mut Random| match random.below(61) {
        60 => u128::MAX,
        id => u128::from(id),
    };
    let pending_id = match ends {
        true => some_id(random),
        false => random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1]),
    };
    let (debits, credits): (&[u128], &[u128]) = match ends {
        true => (&[0, 0, 0, 1, 2], &[0, 0, 0, 1, 2]),
        false => (&[0, 1, 1, 2, 2, 3, 4, 5, 9], &[1, 1, 2, 2, 3, 3, 4, 5, 9]),
    };
    Transfer {
        id: some_id(random),
        debit_account_id: random.pick(debits),
        credit_account_id: random.pick(credits),
        amount: random.pick(&[0, 0, 1, 2, 3, 5, 8, u128::MAX]),
        pending_id,
        user_data_128: random.pick(&[0, 7, 8]),
        user_data_64: random.pick(&[0, 0, 7]),
        user_data_32: random.pick(&[0, 0, 7]),
        timeout: random.pick(&[0, 0, 0, 1_000]),
        ledger: random.pick(&[0, 1, 1, 1, 1, 2]),
        code: random.pick(&[0, 1, 1, 1, 2]),
        flags,
        timestamp: 0,
    }
}

/// Records without the times, which differ.
fn timeless(transfers: Vec<Transfer>) -> Vec<Transfer> {
    transfers.into_iter().map(|transfer| Transfer { timestamp: 0, ..transfer }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_and_a_real_server_give_the_same_statuses() {
    let Some(server) = Ledger::server() else { return };
    let mut met = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let base = u128::from(seed + 1) << 64;
        let clients = [server.client(), Ledger::stand_in().unwrap().client()];
        // Ids of other seeds differ, since the server keeps its records.
        let scoped = |id: u128| if id == 0 || id == u128::MAX { id } else { base + id };
        let exceeds = [AccountFlags::DebitsMustNotExceedCredits, AccountFlags::CreditsMustNotExceedDebits];
        let mut accounts: Vec<Account> = (1..=3).map(|id| account(scoped(id), AccountFlags::empty())).collect();
        accounts.extend([account(scoped(4), exceeds[0]), account(scoped(5), exceeds[1])]);
        accounts[2].ledger = 2;
        for client in &clients {
            client.create_accounts(accounts.clone()).await.unwrap();
        }
        for step in 0..60 {
            let batch: Vec<Transfer> = (0..=random.below(8))
                .map(|_| transfer(&mut random))
                .map(|t| Transfer {
                    id: scoped(t.id),
                    debit_account_id: scoped(t.debit_account_id),
                    credit_account_id: scoped(t.credit_account_id),
                    pending_id: scoped(t.pending_id),
                    user_data_128: scoped(t.user_data_128),
                    ..t
                })
                .collect();
            let [real, ours] = [statuses(&*clients[0], &batch).await, statuses(&*clients[1], &batch).await];
            assert_eq!(real, ours, "seed {seed}, step {step}: {batch:#?}");
            met.extend(ours.into_iter().map(|status| status as u32));
        }
        same_records(&clients, base, &accounts).await;
    }
    println!("statuses met: {}", met.len());
    assert!(met.len() >= STATUSES_MIN, "{} statuses", met.len());
}

/// Compares accounts, and transfers by lease and by account, in both directions.
async fn same_records(clients: &[Box<dyn LedgerClient>; 2], base: u128, accounts: &[Account]) {
    let ids: Vec<u128> = accounts.iter().map(|account| account.id).collect();
    let mut read = Vec::new();
    for client in clients {
        let accounts = client.look_up_accounts(ids.clone()).await.unwrap();
        let accounts: Vec<Account> = accounts.into_iter().map(|account| Account { timestamp: 0, ..account }).collect();
        let mut transfers = Vec::new();
        for flags in [QueryFilterFlags::empty(), QueryFilterFlags::Reversed] {
            let filter =
                QueryFilter { user_data_128: base + 7, ledger: 1, limit: 100, flags, ..QueryFilter::default() };
            transfers.push(timeless(client.query_transfers(filter).await.unwrap()));
        }
        for id in &ids {
            let flags = AccountFilterFlags::Debits | AccountFilterFlags::Credits | AccountFilterFlags::Reversed;
            let filter = AccountFilter { account_id: *id, code: 1, limit: 20, flags, ..AccountFilter::default() };
            transfers.push(timeless(client.account_transfers(filter).await.unwrap()));
        }
        read.push((accounts, transfers));
    }
    assert_eq!(read[0], read[1], "records of {base:x}");
}

const HOUR: Kind = Kind::Rolling { window_seconds: 3_600 };

struct Faulty {
    ledger: StandIn,
    limits: TigerBeetleLimits,
    registry: Arc<TestRegistry>,
}

impl Faulty {
    async fn start() -> Faulty {
        let (ledger, registry) = (StandIn::start(), Arc::new(TestRegistry::default()));
        let options = TigerBeetleOptions { deadline: Duration::from_secs(10), ..ledger.options() };
        let limits = TigerBeetleLimits::open(options, registry.clone()).await.unwrap();
        registry.put(&namespace(), definition("tpm", HOUR, 1_000));
        limits.apply_definition(namespace(), key("tpm")).await.unwrap();
        Faulty { ledger, limits, registry }
    }

    async fn reserve(&self, lease: LeaseId, amount: u64) -> ReserveAnswer {
        let requirements = amounts(&[("tpm", amount)]);
        let request =
            LimitsReserve { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        self.limits.reserve(vec![request]).await.remove(0).unwrap()
    }

    async fn complete(&self, lease: LeaseId, amount: u64) -> bool {
        let (namespace, claim, actuals) = (namespace(), LeaseClaim::default(), amounts(&[("tpm", amount)]));
        let request = LimitsComplete { namespace, lease, claim, actuals };
        self.limits.complete(vec![request]).await.remove(0).unwrap().reconciled
    }

    async fn reserved(&self) -> u64 {
        let info = self.registry.get(&namespace(), &key("tpm")).unwrap();
        self.limits.usage(namespace(), info).await.unwrap().reserved
    }
}

/// TigerBeetle ends the sessions of a process. The request in flight may have taken effect or not, and is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_answer_is_lost_takes_effect_once() {
    let faulty = Faulty::start().await;
    for (round, eviction) in (1..).zip([Eviction::AfterTheEffect, Eviction::BeforeTheEffect].repeat(5)) {
        let lease = lease();
        faulty.ledger.evict(eviction);
        assert!(matches!(faulty.reserve(lease, 50).await, ReserveAnswer::Allowed { .. }), "{eviction:?}");
        faulty.ledger.evict(eviction);
        assert!(faulty.complete(lease, 7).await, "{eviction:?}");
        assert_eq!(faulty.reserved().await, 7 * round, "{eviction:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_for_a_ledger_that_is_down() {
    let faulty = Faulty::start().await;
    faulty.ledger.down();
    let lease = lease();
    let mut waiting = Box::pin(faulty.reserve(lease, 50));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    faulty.ledger.up();
    assert!(matches!(waiting.await, ReserveAnswer::Allowed { .. }));
    assert_eq!(faulty.reserved().await, 50);
}
