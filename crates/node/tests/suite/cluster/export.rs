//! An audit export: what a node writes, and what its verification finds.

use std::ops::Range;

use earmark_admission::{Cluster as _, ClusterError, FileStream, WriteAnswer};
use earmark_core::{CarryOver, ExternalParts, GrantTerms, Operation, Period, Plan, UnixMs};
use earmark_node::{ExpectedKey, ExportDefect, ExportExpected, Node, PublicKey, Verified, verify_export};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};

use super::backup::begun_with;
use crate::support::client::{
    START_MS, Scenario, account, credit, issue, lease, open, reserve_request, transfer, usd, write_request,
};
use crate::support::disk::SimDisk;
use crate::support::sim_cluster::{SMALL, Settings, SimCluster};

/// Bytes of the header: 28, a body of 104, and a checksum.
const HEADER: usize = 136;
/// Bytes of a frame beside its payload: length, two numbers and two checksums.
const FRAME: usize = 4 + 16 + 4 + 4;
const HASH: usize = 32;

fn read(mut stream: Box<dyn FileStream>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

async fn export(node: &Node) -> Vec<u8> {
    read(node.export_audit().await.unwrap())
}

fn verify(bytes: &[u8]) -> Result<Verified, ExportDefect> {
    verify_export(bytes, ExportExpected::default(), |_, _| {})
}

/// The bytes of each record, its hash included.
fn records(bytes: &[u8]) -> Vec<Range<usize>> {
    let count = u64::from_le_bytes(bytes[52..60].try_into().unwrap());
    let mut at = HEADER;
    (0..count)
        .map(|_| {
            let payload = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let start = at;
            at += FRAME + payload + HASH;
            start..at
        })
        .collect()
}

/// The export of a node with some history.
async fn some_export() -> Vec<u8> {
    let cluster = SimCluster::of(1, Settings::default()).await;
    Scenario::run(&cluster.client(1)).await;
    export(cluster.node(1)).await
}

#[tokio::test(start_paused = true)]
async fn exports_of_all_nodes_have_one_head_after_failover_snapshot_and_restart() {
    for settings in [Settings::default(), SMALL] {
        let mut cluster = SimCluster::of(3, settings).await;
        let mut scenario = Scenario::run(&cluster.client(1)).await;
        cluster.node(1).snapshot().await.unwrap();
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.leader().await;
        let other = leader % 3 + 1;
        scenario.reserve(&cluster.client(other), &[("rpm", 2), ("usd", 3)]).await;
        cluster.node(other).snapshot().await.unwrap();
        cluster.start(leader).await;
        cluster.leader().await;
        cluster.add(4).await;
        let mut heads = Vec::new();
        let mut keys = Vec::new();
        for id in 1..=4 {
            let verified = verify(&export(cluster.node(id)).await).unwrap();
            assert_eq!(verified.header.node, id);
            heads.push(verified.header.journal);
            keys.push(verified.header.public_key);
            assert_eq!(verified.assets.len(), 1, "{:?}", verified.assets);
        }
        assert!(heads.iter().all(|head| *head == heads[0]), "{heads:?}");
        assert!((1..4).all(|at| !keys[..at].contains(&keys[at])), "{keys:?}");
        // The key of a node stays.
        cluster.kill(2);
        cluster.start(2).await;
        cluster.leader().await;
        let again = verify(&export(cluster.node(2)).await).unwrap();
        assert_eq!((again.header.journal, again.header.public_key), (heads[0], keys[1]));
    }
}

/// The keys that a node names: of which node, and whether that is a member.
async fn published(node: &Node) -> Vec<(String, u64, bool)> {
    let keys = node.signing_keys().await.unwrap();
    keys.into_iter().map(|info| (info.public_key, info.node, info.is_member)).collect()
}

/// An auditor has the keys before an export, and still has them when the node that signed it is gone.
#[tokio::test(start_paused = true)]
async fn the_key_of_each_export_is_published_and_stays_when_its_node_is_replaced() {
    let mut cluster = SimCluster::of(3, SMALL).await;
    Scenario::run(&cluster.client(1)).await;
    assert_eq!(published(cluster.node(1)).await, []);
    let mut keys = Vec::new();
    // A leader and two followers.
    for id in 1..=3 {
        let signed = verify(&export(cluster.node(id)).await).unwrap().header;
        keys.push((signed.public_key.to_string(), id, true));
        assert_eq!(published(cluster.node(id % 3 + 1)).await, keys, "after the export of node {id}");
    }
    // A second export changes nothing.
    export(cluster.node(2)).await;
    assert_eq!(published(cluster.node(3)).await, keys);
    cluster.node(1).snapshot().await.unwrap();
    let leader = cluster.leader().await;
    let gone = leader % 3 + 1;
    cluster.kill(gone);
    cluster.node(leader).remove(gone).await.unwrap();
    // The replacement starts from a snapshot.
    cluster.add(4).await;
    let at = usize::try_from(gone).unwrap() - 1;
    keys[at].2 = false;
    assert_eq!(published(cluster.node(4)).await, keys);
    let signed = verify(&export(cluster.node(4)).await).unwrap().header;
    keys.push((signed.public_key.to_string(), 4, true));
    cluster.kill(leader);
    cluster.start(leader).await;
    cluster.leader().await;
    assert_eq!(published(cluster.node(leader)).await, keys);
    cluster.agree().await;
}

/// All nodes were lost, and an old export has to be verified.
#[tokio::test(start_paused = true)]
async fn a_restored_backup_names_the_keys_of_its_cluster_and_signs_with_its_own() {
    let cluster = SimCluster::of(1, Settings::default()).await;
    Scenario::run(&cluster.client(1)).await;
    let old = verify(&export(cluster.node(1)).await).unwrap().header;
    let disk = SimDisk::new();
    cluster.node(1).backup(disk.mount()).await.unwrap();
    let restored = begun_with(&disk, Settings::default()).await;
    let new = verify(&export(restored.node(1)).await).unwrap().header;
    assert!(new.public_key != old.public_key && new.cluster != old.cluster);
    let keys = restored.node(1).signing_keys().await.unwrap();
    let found: Vec<_> = keys.iter().map(|info| (info.public_key.clone(), info.cluster, info.is_member)).collect();
    let expected = [(old, false), (new, true)];
    assert_eq!(found, expected.map(|(header, is_member)| (header.public_key.to_string(), header.cluster, is_member)));
}

#[tokio::test(start_paused = true)]
async fn a_changed_byte_anywhere_is_found_and_named_by_its_record() {
    let bytes = some_export().await;
    let whole = verify(&bytes).unwrap();
    let records = records(&bytes);
    assert_eq!(records.len() as u64, whole.header.journal.records);
    assert!(records.len() > 5);
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (place % 8);
        let defect = verify(&damaged).unwrap_err();
        match records.iter().position(|record| record.contains(&place)) {
            Some(at) => {
                let named = matches!(&defect, ExportDefect::Record { number, .. } if *number == at as u64 + 1);
                assert!(named, "byte {place} of record {}: {defect}", at + 1);
            }
            None if place < HEADER => assert!(matches!(defect, ExportDefect::Header(_)), "byte {place}: {defect}"),
            None => assert!(!matches!(defect, ExportDefect::Record { .. }), "byte {place}: {defect}"),
        }
    }
    for len in 0..bytes.len() {
        assert!(verify(&bytes[..len]).is_err(), "cut to {len} bytes");
    }
    let defect = verify(&[&bytes[..], b"x"].concat()).unwrap_err();
    assert_eq!(defect.to_string(), "end: something follows it");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_missing_moved_or_repeated_is_named() {
    let bytes = some_export().await;
    let records = records(&bytes);
    let build = |order: &[usize]| {
        let mut file = bytes[..HEADER].to_vec();
        order.iter().for_each(|at| file.extend_from_slice(&bytes[records[*at].clone()]));
        file.extend_from_slice(&bytes[records.last().unwrap().end..]);
        file
    };
    let all: Vec<usize> = (0..records.len()).collect();
    verify(&build(&all)).unwrap();
    let number = |order: &[usize]| match verify(&build(order)).unwrap_err() {
        ExportDefect::Record { number, .. } => number as usize,
        defect => panic!("{defect}"),
    };
    for at in 0..records.len() {
        let missing: Vec<usize> = all.iter().copied().filter(|place| *place != at).collect();
        assert_eq!(number(&missing), at + 1);
        let mut repeated = all.clone();
        repeated.insert(at, at);
        if at + 1 < records.len() {
            assert_eq!(number(&repeated), at + 2);
        } else {
            // The header counts the records, so one more stands where the accounts begin.
            let defect = verify(&build(&repeated)).unwrap_err();
            assert!(matches!(defect, ExportDefect::Account { number: 0, .. }), "{defect}");
        }
        if at > 0 {
            let mut swapped = all.clone();
            swapped.swap(at - 1, at);
            assert_eq!(number(&swapped), at);
        }
    }
}

fn sum(bytes: &[u8]) -> [u8; 4] {
    crc32fast::hash(bytes).to_le_bytes()
}

/// A forger changes an amount and corrects every checksum. Only the chain and the signature are left.
#[tokio::test(start_paused = true)]
async fn a_rewritten_history_is_found_by_its_chain_its_signature_and_a_published_head() {
    let mut bytes = some_export().await;
    let whole = verify(&bytes).unwrap();
    let records = records(&bytes);
    let last = records.len() - 1;
    // Log index of the last record.
    let frame = records[last].start..records[last].end - HASH;
    bytes[frame.start + 12] ^= 1;
    let header = sum(&bytes[frame.start..frame.start + 20]);
    bytes[frame.start + 20..frame.start + 24].copy_from_slice(&header);
    let body = sum(&bytes[frame.start..frame.end - 4]);
    bytes[frame.end - 4..frame.end].copy_from_slice(&body);
    let defect = verify(&bytes).unwrap_err();
    assert!(matches!(&defect, ExportDefect::Record { number, .. } if *number == last as u64 + 1), "{defect}");

    let before = bytes[records[last - 1].end - HASH..records[last - 1].end].to_vec();
    let head = Sha256::new().chain_update(before).chain_update(&bytes[frame.clone()]).finalize();
    bytes[frame.end..frame.end + HASH].copy_from_slice(&head);
    bytes[68..100].copy_from_slice(&head);
    let header = sum(&bytes[..HEADER - 4]);
    bytes[HEADER - 4..HEADER].copy_from_slice(&header);
    let defect = verify(&bytes).unwrap_err();
    assert!(matches!(defect, ExportDefect::Signature { .. }), "{defect}");

    let published = (whole.header.journal.records, whole.header.journal.head);
    let expected = ExportExpected { head: Some(published), ..ExportExpected::default() };
    let defect = verify_export(&bytes[..], expected, |_, _| {}).unwrap_err();
    assert!(defect.to_string().contains("the history was rewritten"), "{defect}");
}

#[tokio::test(start_paused = true)]
async fn an_export_by_another_key_or_without_the_given_head_is_refused() {
    let bytes = some_export().await;
    let own = verify(&bytes).unwrap().header;
    let with = |expected: ExportExpected<'_>| verify_export(&bytes[..], expected, |_, _| {});
    let key = |key, origin| ExpectedKey { key, origin };
    let (other, origin) = (PublicKey([7; 32]), Some((own.cluster, own.node)));
    for (keys, is_right) in [
        (&[key(own.public_key, None)][..], true),
        (&[key(other, origin), key(own.public_key, origin)], true),
        (&[key(other, origin)], false),
        (&[key(own.public_key, Some((own.cluster, own.node + 1)))], false),
        (&[key(own.public_key, Some((own.cluster ^ 1, own.node)))], false),
        (&[], false),
    ] {
        match with(ExportExpected { keys: Some(keys), head: None }) {
            Ok(_) => assert!(is_right, "{keys:?}"),
            Err(defect) => assert!(!is_right && matches!(defect, ExportDefect::OtherKey { .. }), "{keys:?}: {defect}"),
        }
    }
    with(ExportExpected { keys: None, head: Some((own.journal.records, own.journal.head)) }).unwrap();
    let later = ExportExpected { keys: None, head: Some((own.journal.records + 1, own.journal.head)) };
    assert!(matches!(with(later), Err(ExportDefect::Header(_))));
    let elsewhere = ExportExpected { keys: None, head: Some((1, own.journal.head)) };
    assert!(matches!(with(elsewhere), Err(ExportDefect::Record { number: 1, .. })));
    let before = |hash: &str| ExportExpected { keys: None, head: Some((0, hash.repeat(64).parse().unwrap())) };
    with(before("0")).unwrap();
    assert!(matches!(with(before("1")), Err(ExportDefect::Record { number: 0, .. })));
    assert_eq!(own.public_key.to_string().parse(), Ok(own.public_key));
}

#[tokio::test(start_paused = true)]
async fn credit_in_a_database_is_refused_by_name_and_one_export_runs_at_a_time() {
    let cluster = SimCluster::of(1, Settings::default()).await;
    let node = cluster.node(1);
    let running = node.export_audit().await.unwrap();
    let Err(ClusterError::Unavailable(why)) = node.export_audit().await else { panic!("two at once") };
    assert!(why.contains("another export"), "{why}");
    drop(running);
    let parts = ExternalParts { limits: false, credit: true };
    cluster.client(1).0.record_placement(parts).await.unwrap();
    let Err(ClusterError::Refused(why)) = node.export_audit().await else { panic!("exported") };
    assert!(why.contains("--credits"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn random_histories_verify_with_their_balances() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let cluster = SimCluster::of(1, SMALL).await;
        let client = cluster.client(1);
        let names = ["a", "b", "c"];
        let mut opened = names.map(open).to_vec();
        let plan =
            Plan { asset: usd(), amount: 70, period: Period::Hour, utc_offset_minutes: 0, carry_over: CarryOver::None };
        opened.push(Operation::SetPlan { account: account("b"), plan: Some(plan) });
        client.write("w", 1, opened).await;
        client.put(credit("pay", "a", 5)).await;
        let mut sequence = 1;
        for _ in 0..60 {
            let (from, to) = (names[random.gen_range(0..3)], names[random.gen_range(0..3)]);
            let amount = random.gen_range(1..100);
            let expires_at = Some(UnixMs::new(START_MS + random.gen_range(1_000..20_000)));
            let granted = Operation::Issue {
                account: account(to),
                asset: usd(),
                amount: u128::from(amount),
                memo: String::new(),
                terms: GrantTerms::new(random.gen_range(0..4), expires_at),
            };
            let retired = Operation::Retire {
                account: account(from),
                asset: usd(),
                amount: u128::from(amount),
                memo: String::new(),
            };
            let operation = match random.gen_range(0..6) {
                0 => issue(to, u128::from(amount)),
                1 => granted,
                2 => retired,
                3 if from != to => transfer(from, to, u128::from(amount)),
                _ => {
                    let request = reserve_request(lease(), &[("pay", amount)]);
                    let reserved = request.lease;
                    client.ask(request).await.unwrap();
                    if random.gen_bool(0.7) {
                        client.complete(reserved, &[("pay", random.gen_range(0..150))]).await;
                    }
                    cluster.advance_ms(random.gen_range(0..2_000));
                    continue;
                }
            };
            // A refused write leaves its sequence free.
            let answer = client.try_write(write_request("w", sequence + 1, vec![operation])).await.unwrap();
            if matches!(answer, WriteAnswer::Committed(_)) {
                sequence += 1;
            }
        }
        let verified = verify(&export(cluster.node(1)).await).unwrap_or_else(|defect| panic!("seed {seed}: {defect}"));
        let usd = &verified.assets[0];
        assert_eq!(usd.live, usd.issued - usd.retired - usd.expired, "seed {seed}");
        assert!(usd.issued > 0, "seed {seed}");
    }
}
