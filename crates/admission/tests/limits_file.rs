//! The limits file of an in-memory server.

use std::path::Path;

use earmark_admission::*;
use earmark_core::{
    Actor, ClientId, Definition, Kind, LimitKey, LimitStatus, NamespaceName, Operation, Overage, Principal,
};

fn namespace() -> NamespaceName {
    NamespaceName::new("default").expect("a valid name")
}

fn rpm(capacity: u64) -> PutLimitRequest {
    let definition = Definition {
        key: LimitKey::new("rpm").expect("a valid key"),
        kind: Kind::Rolling { window_seconds: 60 },
        capacity,
        unit: "requests".into(),
        description: String::new(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    };
    PutLimitRequest { namespace: namespace(), definition, expected_revision: None }
}

async fn open(path: &Path) -> Result<LocalBook, LimitsFileError> {
    LocalBook::open(LocalOptions { limits_file: Some(path.into()), ..LocalOptions::default() }).await
}

async fn capacities(book: &LocalBook) -> Vec<u64> {
    let page = Backend::limits(book, namespace(), LimitQuery::default()).await.expect("a backend that answers");
    page.limits.into_iter().map(|limit| limit.definition.capacity).collect()
}

#[tokio::test]
async fn limits_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let book = open(&path).await.expect("no file yet");
    book.put_limit(Principal::System, rpm(10)).await.expect("a limit that can be put");
    book.put_limit(Principal::System, rpm(20)).await.expect("a limit that can be put");
    book.shut_down().await;
    let book = open(&path).await.expect("a good file");
    assert_eq!(capacities(&book).await, [20]);
    let delete = DeleteLimitRequest {
        namespace: namespace(),
        key: LimitKey::new("rpm").expect("a valid key"),
        expected_revision: None,
    };
    let change = book.delete_limit(Principal::System, delete).await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Deleted);
    assert_eq!(capacities(&open(&path).await.expect("a good file")).await, [0_u64; 0]);
}

/// The file kept the limits of namespace `default` only, so that a restart lost all others.
#[tokio::test]
async fn limits_of_every_namespace_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let book = open(&path).await.expect("no file yet");
    let team = NamespaceName::new("team").expect("a valid name");
    let of_team = PutLimitRequest { namespace: team.clone(), ..rpm(7) };
    book.put_limit(Principal::System, rpm(10)).await.expect("a limit that can be put");
    book.put_limit(Principal::System, of_team).await.expect("a limit that can be put");
    book.shut_down().await;
    let book = open(&path).await.expect("a good file");
    assert_eq!(capacities(&book).await, [10]);
    let page = Backend::limits(&book, team, LimitQuery::default()).await.expect("a backend that answers");
    assert_eq!(page.limits.iter().map(|limit| limit.definition.capacity).collect::<Vec<_>>(), [7]);
}

#[tokio::test]
async fn a_credit_limit_survives_a_restart_with_its_terms() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let file = r#"{"limits":[{"key":"usd","kind":"credit","timeout_seconds":60,"vault":"eu","account":"acme","asset":"usd","revenue":"shop"}]}"#;
    std::fs::write(&path, file).expect("a file");
    let read = async || {
        let book = open(&path).await.expect("a good file");
        let page = Backend::limits(&book, namespace(), LimitQuery::default()).await;
        page.expect("a backend that answers").limits.remove(0).definition
    };
    let definition = read().await;
    let terms = definition.kind.terms().expect("a credit limit");
    assert_eq!((terms.vault.as_str(), terms.revenue.as_str()), ("eu", "shop"));
    let request = PutLimitRequest {
        namespace: namespace(),
        definition: Definition { overage: Overage::Deny, ..definition.clone() },
        expected_revision: None,
    };
    let book = open(&path).await.expect("a good file");
    book.put_limit(Principal::System, request).await.expect("a limit that can be put");
    assert_eq!(read().await, Definition { overage: Overage::Deny, ..definition });
}

#[tokio::test]
async fn a_damaged_file_stops_the_start_and_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let text =
        "{\"limits\": [\n  {\"key\": \"rpm\", \"kind\": \"rolling\", \"window_seconds\": 60, \"capacity\": 0}\n]}";
    std::fs::write(&path, text).expect("a writable folder");
    let error = open(&path).await.err().expect("an error").to_string();
    assert!(error.contains("limits.json"), "{error}");
    assert!(error.contains("capacity: found 0, allowed are integers from 1"), "{error}");
    assert!(error.contains("line 2"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), text);
}

/// A delete whose file could not be written failed, its retry got `not found`, and a restart brought the limit back.
#[tokio::test]
async fn a_file_that_could_not_be_written_is_written_by_the_next_change_whatever_its_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let book = open(&path).await.expect("no file yet");
    book.put_limit(Principal::System, rpm(10)).await.expect("a limit that can be put");
    let delete = || DeleteLimitRequest {
        namespace: namespace(),
        key: LimitKey::new("rpm").expect("a valid key"),
        expected_revision: None,
    };
    let in_the_way = folder.path().join("limits.json.new");
    std::fs::create_dir(&in_the_way).expect("a writable folder");
    let error =
        book.delete_limit(Principal::System, delete()).await.expect_err("the file cannot be written").to_string();
    assert!(error.contains("the change is in force, but was not saved"), "{error}");
    let reason = book.ready().expect_err("the file is behind");
    assert!(reason.contains("limits.json"), "{reason}");
    std::fs::remove_dir(&in_the_way).expect("an empty folder");
    assert_eq!(book.delete_limit(Principal::System, delete()).await, Err(LimitError::NotFound));
    assert_eq!(book.ready(), Ok(()));
    assert_eq!(capacities(&open(&path).await.expect("a good file")).await, [0_u64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_caller_goes_away_is_written_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let book = open(&path).await.expect("no file yet");
    let mut asked = book.put_limit(Principal::System, rpm(10));
    std::future::poll_fn(|context| {
        _ = asked.as_mut().poll(context);
        std::task::Poll::Ready(())
    })
    .await;
    drop(asked);
    for _ in 0..500 {
        if path.exists() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(capacities(&open(&path).await.expect("a good file")).await, [10]);
}

#[tokio::test]
async fn limits_that_a_write_changes_survive_a_restart_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.json");
    let write = |sequence, operation| WriteRequest {
        namespace: namespace(),
        vault: None,
        id: earmark_core::WriteId::Sequence { client: ClientId::new("ops").expect("a valid client"), sequence },
        operations: vec![operation],
        actor: Actor::new("system:test").expect("a valid actor"),
    };
    let put = Operation::PutLimit { definition: rpm(10).definition, expected_revision: None };
    let book = open(&path).await.expect("no file yet");
    let first = book.write(Principal::System, write(1, put.clone())).await.expect("a backend that answers");
    assert!(matches!(first, WriteAnswer::Committed(_)), "{first:?}");
    // A retry writes a file that went missing.
    std::fs::remove_file(&path).expect("a file");
    assert_eq!(book.write(Principal::System, write(1, put)).await, Ok(first));
    let book = open(&path).await.expect("a good file");
    assert_eq!(capacities(&book).await, [10]);
    let delete = Operation::DeleteLimit { key: rpm(1).definition.key, expected_revision: None };
    let deleted = book.write(Principal::System, write(1, delete)).await.expect("a backend that answers");
    assert!(matches!(deleted, WriteAnswer::Committed(_)), "{deleted:?}");
    assert_eq!(capacities(&open(&path).await.expect("a good file")).await, [0_u64; 0]);
}
