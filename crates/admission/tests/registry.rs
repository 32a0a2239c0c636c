//! The Book as a registry: fast to read, and never behind its own answers.

use std::sync::Arc;

use earmark_admission::{
    Backend, DeleteLimitRequest, LocalBook, LocalOptions, PutLimitRequest, Registry, WriteAnswer, WriteRequest,
};
use earmark_core::{
    Actor, ClientId, Definition, ExternalParts, Kind, LimitInfo, LimitKey, LimitStatus, NamespaceName, Operation,
    Principal,
};

fn namespace(name: &str) -> NamespaceName {
    NamespaceName::new(name).unwrap()
}

fn definition(capacity: u64) -> Definition {
    let kind = Kind::Rolling { window_seconds: 60 };
    Definition::new(key(), kind, capacity)
}

fn key() -> LimitKey {
    LimitKey::new("rpm").unwrap()
}

async fn put(book: &LocalBook, name: &str, capacity: u64) {
    let (namespace, definition) = (namespace(name), definition(capacity));
    book.put_limit(Principal::System, PutLimitRequest { namespace, definition, expected_revision: None })
        .await
        .unwrap();
}

fn find(book: &LocalBook, name: &str) -> Option<Arc<LimitInfo>> {
    Registry::limit(book, &namespace(name), &key())
}

async fn open() -> LocalBook {
    let book = LocalBook::open(LocalOptions::default()).await.unwrap();
    book.record_placement(ExternalParts { limits: true, credit: false }).await.unwrap();
    book
}

#[tokio::test]
async fn a_limit_is_copied_once_and_looked_up_again_after_every_change() {
    let book = open().await;
    assert_eq!(find(&book, "default"), None);
    put(&book, "default", 5).await;
    let first = find(&book, "default").unwrap();
    assert_eq!((first.definition.capacity, first.revision), (5, 1));
    assert!(Arc::ptr_eq(&first, &find(&book, "default").unwrap()));
    put(&book, "default", 3).await;
    let second = find(&book, "default").unwrap();
    assert_eq!((second.definition.capacity, second.status), (3, LimitStatus::Active));
    let write = WriteRequest {
        namespace: namespace("default"),
        vault: None,
        id: earmark_core::WriteId::Sequence { client: ClientId::new("ops").unwrap(), sequence: 1 },
        operations: vec![Operation::PutLimit { definition: definition(4), expected_revision: None }],
        actor: Actor::new("system:test").unwrap(),
    };
    assert!(matches!(book.write(Principal::System, write).await, Ok(WriteAnswer::Committed(_))));
    assert_eq!(find(&book, "default").unwrap().definition.capacity, 4);
    let delete = DeleteLimitRequest { namespace: namespace("default"), key: key(), expected_revision: None };
    book.delete_limit(Principal::System, delete).await.unwrap();
    assert_eq!(find(&book, "default").unwrap().status, LimitStatus::Decreasing { to: 0 });
}

#[tokio::test]
async fn limits_of_the_same_name_in_two_namespaces_are_two() {
    let book = open().await;
    put(&book, "default", 5).await;
    put(&book, "team", 7).await;
    assert_eq!(find(&book, "default").unwrap().definition.capacity, 5);
    assert_eq!(find(&book, "team").unwrap().definition.capacity, 7);
    assert_eq!(find(&book, "nobody"), None);
    let all: Vec<(String, u64)> = Registry::limits(&book)
        .into_iter()
        .map(|(name, limit)| (name.to_string(), limit.definition.capacity))
        .collect();
    assert_eq!(all, [("default".to_owned(), 5), ("team".to_owned(), 7)]);
    Registry::refresh(&book).await.unwrap();
    assert!(Registry::runs_maintenance(&book));
}
