use earmark_client::core::UnixMs;

use super::*;

fn lease(number: u128) -> LeaseId {
    LeaseId::from_parts(UnixMs::new(1_700_000_000_000), number)
}

fn call() -> OpenCall {
    let attributes = Arc::new([("model".to_owned(), "gpt-4o".to_owned())].into());
    OpenCall { namespace: Some("team".into()), attributes, policy_revision: None, is_sent: false, end: None }
}

fn usage() -> End {
    End::Used(CallUsage { input_tokens: 1, output_tokens: 2, ..CallUsage::default() })
}

#[tokio::test]
async fn a_crash_leaves_what_was_written_at_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls");
    {
        let calls = OpenCalls::open(&path).unwrap();
        for number in 0..4 {
            calls.begin(lease(number), call()).unwrap();
        }
        for number in 1..4 {
            calls.sent(lease(number), Some(7)).await.unwrap();
        }
        calls.ended(lease(2), &usage());
        calls.ended(lease(3), &End::Refused);
        calls.settled(lease(3));
    }
    let calls = OpenCalls::open(&path).unwrap();
    let left = calls.list();
    let ends: Vec<End> = left.iter().map(|(_, call)| call.end_after_crash()).collect();
    assert_eq!(ends, [End::Refused, End::Unknown, usage()]);
    assert_eq!(left[0].1.policy_revision, None);
    assert_eq!(left[1].1.policy_revision, Some(7));
    assert_eq!(left[1].1.namespace.as_deref(), Some("team"));
}

/// A process that is killed while it writes leaves any beginning of its last record.
#[tokio::test]
async fn every_beginning_of_the_file_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls");
    {
        let calls = OpenCalls::open(&path).unwrap();
        calls.begin(lease(1), call()).unwrap();
        calls.sent(lease(1), None).await.unwrap();
        calls.ended(lease(1), &usage());
    }
    let whole = fs::read(path.join(FILE)).unwrap();
    let mut seen = Vec::new();
    for length in 0..=whole.len() {
        fs::write(path.join(FILE), &whole[..length]).unwrap();
        let left = OpenCalls::open(&path).unwrap().list();
        let end = left.first().map(|(_, call)| call.end_after_crash());
        if seen.last() != Some(&end) {
            seen.push(end);
        }
    }
    assert_eq!(seen, [None, Some(End::Refused), Some(End::Unknown), Some(usage())]);
}

#[tokio::test]
async fn a_damaged_record_is_left_out_and_the_others_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    {
        let calls = OpenCalls::open(folder.path()).unwrap();
        calls.begin(lease(1), call()).unwrap();
        calls.begin(lease(2), call()).unwrap();
    }
    let mut bytes = fs::read(folder.path().join(FILE)).unwrap();
    bytes[20] ^= 1;
    fs::write(folder.path().join(FILE), bytes).unwrap();
    let left = OpenCalls::open(folder.path()).unwrap().list();
    assert_eq!(left.iter().map(|(lease, _)| *lease).collect::<Vec<_>>(), [lease(2)]);
}

#[tokio::test]
async fn two_gateways_cannot_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = OpenCalls::open(folder.path()).unwrap();
    assert!(matches!(OpenCalls::open(folder.path()), Err(FolderError::InUse { .. })));
    drop(first);
    assert!(OpenCalls::open(folder.path()).is_ok());
}

#[tokio::test]
async fn the_file_stays_small_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let calls = OpenCalls::open(folder.path()).unwrap();
    let mut big = call();
    Arc::make_mut(&mut big.attributes).insert("user".into(), "u".repeat(256));
    calls.begin(lease(0), call()).unwrap();
    for number in 1..30_000 {
        calls.begin(lease(number), big.clone()).unwrap();
        calls.settled(lease(number));
    }
    calls.sent(lease(0), None).await.unwrap();
    let path = folder.path().join(FILE);
    assert!(fs::metadata(&path).unwrap().len() < REWRITE_BYTES + (1 << 20));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(folder.path()), mode(&path)), (0o700, 0o600));
    drop(calls);
    let left = OpenCalls::open(folder.path()).unwrap().list();
    assert_eq!(left.len(), 1);
    assert!(left[0].1.is_sent);
}

#[tokio::test]
async fn in_memory_nothing_is_written_and_the_rest_works() {
    let calls = OpenCalls::in_memory();
    calls.begin(lease(1), call()).unwrap();
    calls.sent(lease(1), Some(1)).await.unwrap();
    assert!(calls.list()[0].1.is_sent);
    calls.settled(lease(1));
    assert!(calls.list().is_empty() && !calls.has_failed());
}
