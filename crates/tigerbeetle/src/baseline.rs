//! Baseline for benchmarks: a client that only sends full batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earmark_core::{LimitKey, NamespaceName};
use tigerbeetle::{Client, Completion, CreateTransferStatus, Error, Transfer, TransferFlags};

use crate::batch::RequestSize;
use crate::options::LedgerUrl;
use crate::schema::{Code, CommonAccounts, Holding, LEDGER, LimitAccounts, LimitName, link};

/// Measures the calls per second that a cluster admits from clients that ignore the results. Each call is a chain like
/// that of a reserve. `calls` lists the limits of each call, used round-robin; their accounts must exist.
///
/// # Errors
/// A message for the operator.
pub async fn measure_bare_client(
    url: &LedgerUrl,
    sessions: usize,
    calls: &[Vec<LimitKey>],
    duration: Duration,
) -> Result<f64, String> {
    let start = Instant::now();
    let tasks: Vec<_> =
        (0..sessions.max(1)).map(|_| tokio::spawn(send(url.clone(), templates(calls), start, duration))).collect();
    let mut admitted = 0_u64;
    for task in tasks {
        admitted = admitted.saturating_add(task.await.map_err(|error| error.to_string())??);
    }
    Ok(admitted as f64 / start.elapsed().as_secs_f64())
}

/// Unique ids, seeded by the clock and mixed like hashes.
fn next_id() -> u128 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    if number == 0 {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        NUMBER.store(u64::try_from(since_1970.as_nanos()).unwrap_or(1), Ordering::Relaxed);
        return next_id();
    }
    let spread = |number: u64, salt: u64| {
        let mixed = (number ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    (u128::from(spread(number, 0)) << 64) | u128::from(spread(number, 0x5851_f42d_4c95_7f2d))
}

/// One chain per call, without ids.
fn templates(calls: &[Vec<LimitKey>]) -> Vec<Vec<Transfer>> {
    let common = CommonAccounts::new();
    let namespace = NamespaceName::new(NamespaceName::DEFAULT);
    let account = |key: &LimitKey| {
        let limit = |namespace: &NamespaceName| LimitName { namespace: namespace.clone(), key: key.clone() };
        namespace.as_ref().map_or(0, |namespace| LimitAccounts::of(&limit(namespace)).limit)
    };
    let chain = |keys: &Vec<LimitKey>| {
        let anchor = Transfer {
            debit_account_id: common.operator,
            credit_account_id: common.lease,
            ledger: LEDGER,
            code: Code::Anchor as u16,
            flags: TransferFlags::Pending,
            ..Transfer::default()
        };
        let mut chain = vec![anchor];
        chain.extend(keys.iter().map(|key| Transfer {
            debit_account_id: account(key),
            credit_account_id: common.operator,
            amount: 1,
            user_data_32: Holding::Rolling as u32,
            timeout: 60,
            ledger: LEDGER,
            code: Code::Reserve as u16,
            flags: TransferFlags::Pending,
            ..Transfer::default()
        }));
        link(&mut chain);
        chain
    };
    calls.iter().map(chain).collect()
}

async fn send(
    url: LedgerUrl,
    templates: Vec<Vec<Transfer>>,
    start: Instant,
    duration: Duration,
) -> Result<u64, String> {
    let client = Client::new(url.cluster, &url.addresses()).map_err(|error| error.to_string())?;
    let mut size = RequestSize::new();
    let mut calls = templates.iter().cycle();
    let (mut batch, mut admitted) = (Vec::new(), 0_u64);
    let (mut results, mut completion) = (Vec::new(), Completion::new());
    while start.elapsed() < duration {
        let mut chains = 0_u64;
        batch.clear();
        for chain in calls.by_ref() {
            batch.extend_from_slice(chain);
            chains = chains.saturating_add(1);
            if batch.len().saturating_add(chain.len()) > size.events() {
                break;
            }
        }
        for transfer in &mut batch {
            transfer.id = next_id();
            transfer.user_data_128 = transfer.id;
        }
        results.clear();
        let events = batch.len();
        match client.create_transfers_reusable(completion, batch, results).await {
            Ok(buffers) => {
                (completion, batch, results) = buffers;
                size.taken(events);
                if let Some(refused) = results.iter().find(|result| result.status != CreateTransferStatus::Created) {
                    return Err(format!("TigerBeetle refused a transfer: {}", refused.status));
                }
                admitted = admitted.saturating_add(chains);
            }
            Err(Error::TooMuchData) => {
                size.refused(events);
                (completion, batch, results) = (Completion::new(), Vec::new(), Vec::new());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    client.close().await.map_err(|error| error.to_string())?;
    Ok(admitted)
}
