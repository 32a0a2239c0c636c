//! API keys and the change log. A backend without keys skips these cases.

use std::time::Duration;

use earmark_core::{CreateKey, InvalidWrite, KeyInfo, Operation, Principal, RevokeKey, Role, VaultName, WriteError};

use super::Harness;
use super::credit_driver::{MAIN, issue, open, open_vault, write_request};
use super::driver::{Driver, MINUTE, definition, namespace};
use crate::backend::{Amount, BackendError, DeleteLimitRequest, LimitError, PutLimitRequest};
use crate::callers::{ChangeKind, ChangeQuery, ChangedLimit, KeyError, Keys, Token};
use crate::writes::{WriteAnswer, WriteRequest};

/// Attempts to read a change log that may lag behind.
const LOOKS_MAX: u32 = 400;
const PAUSE: Duration = Duration::from_millis(25);

fn command(token: &Token, role: Role) -> CreateKey {
    CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "billing".parse().expect("a name"),
        role,
        namespace: namespace(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "system:test".parse().expect("an actor"),
    }
}

fn revoke(info: &KeyInfo) -> RevokeKey {
    RevokeKey { id: info.id.clone(), namespace: None, actor: "client:root".parse().expect("an actor") }
}

pub(super) async fn make(keys: &dyn Keys, role: Role) -> (Token, Principal) {
    let token = Token::random().expect("random bits");
    let info = keys.create(Principal::System, command(&token, role)).await.expect("a key that can be made");
    (token, Principal::Key(info.number))
}

/// A key authenticates by its secret, is listed without it, and stops working when revoked.
pub async fn a_key_is_accepted_until_it_is_revoked(harness: &impl Harness) {
    let (backend, driver) = (harness.backend(), Driver(harness));
    let Some(keys) = backend.keys() else { return };
    driver.put("rpm", MINUTE, 10).await;
    assert!(!keys.has_keys());
    assert_eq!(keys.check(Principal::Anonymous).await, Ok(()));
    make(keys, Role::Admin).await;
    let (token, by) = make(keys, Role::Caller).await;
    assert!(keys.has_keys());
    assert_eq!(keys.check(Principal::Anonymous).await, Err(BackendError::Unauthenticated));
    let info = keys.authenticate(token.id(), &token.hash()).expect("its own secret");
    assert_eq!((info.role, Principal::Key(info.number)), (Role::Caller, by.clone()));
    let other = Token::random().expect("random bits");
    assert_eq!(keys.authenticate(token.id(), &other.hash()), None);
    assert_eq!(keys.authenticate(other.id(), &token.hash()), None);
    assert_eq!(keys.list(None).await.map(|all| all.len()), Ok(2));
    let request = || driver.request(driver.lease(), &[("rpm", 1)]);
    assert!(backend.reserve(by.clone(), vec![request()]).await[0].is_ok());
    assert_eq!(backend.reserve(Principal::Anonymous, vec![request()]).await, [Err(BackendError::Unauthenticated)]);

    let revoked = keys.revoke(Principal::System, revoke(&info)).await.expect("a key that can be revoked");
    assert!(revoked.revoked_at.is_some());
    assert_eq!(keys.authenticate(token.id(), &token.hash()), None);
    assert_eq!(keys.check(by.clone()).await, Err(BackendError::Unauthenticated));
    let both = vec![request(), request()];
    let refused = Err(BackendError::Unauthenticated);
    assert_eq!(backend.reserve(by.clone(), both).await, [refused.clone(), refused]);
    assert_eq!(driver.usage("rpm").await.reserved, 1);
}

/// A revoked key cannot change anything.
pub async fn nothing_is_changed_by_a_revoked_key(harness: &impl Harness) {
    let (backend, driver) = (harness.backend(), Driver(harness));
    let Some(keys) = backend.keys() else { return };
    driver.put("rpm", MINUTE, 10).await;
    let taken = driver.admit(&[("rpm", 4)]).await;
    make(keys, Role::Admin).await;
    let (token, by) = make(keys, Role::Writer).await;
    let info = keys.authenticate(token.id(), &token.hash()).expect("its own secret");
    let write = |sequence| {
        let open = Operation::OpenVault { vault: VaultName::new("eu").expect("a vault") };
        write_request(None, "billing", sequence, vec![open])
    };
    let written = backend.write(by.clone(), write(1)).await;
    assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
    keys.revoke(Principal::System, revoke(&info)).await.expect("a key that can be revoked");

    let unauthenticated = BackendError::Unauthenticated;
    assert_eq!(backend.write(by.clone(), write(2)).await, Err(unauthenticated.clone()));
    // It cannot read the result of an earlier write either.
    assert_eq!(backend.write(by.clone(), write(1)).await, Err(unauthenticated.clone()));
    let definition = definition("rpm", MINUTE, 99);
    let put = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
    assert_eq!(backend.put_limit(by.clone(), put).await, Err(LimitError::Backend(unauthenticated.clone())));
    let actuals = vec![Amount { key: super::driver::key("rpm"), amount: 0 }];
    let complete = crate::backend::CompleteRequest {
        namespace: namespace(),
        lease: taken,
        job: None,
        claim: earmark_core::LeaseClaim::default(),
        actuals,
        labels: earmark_core::SettleLabels::NONE,
    };
    assert_eq!(backend.complete(by.clone(), vec![complete]).await, [Err(unauthenticated.clone())]);
    let token = Token::random().expect("random bits");
    assert_eq!(keys.create(by.clone(), command(&token, Role::Admin)).await, Err(KeyError::Backend(unauthenticated)));
    let usage = driver.usage("rpm").await;
    assert_eq!((usage.capacity, usage.reserved), (10, 4));
    let last = backend.client_state(namespace(), None, "billing".parse().expect("a client")).await;
    assert_eq!(last, Ok(1));
}

/// The first key or user that writes with a client id owns it, in a namespace and in a vault alike.
pub async fn a_client_id_belongs_to_its_first_writer(harness: &impl Harness) {
    let backend = harness.backend();
    let Some(keys) = backend.keys() else { return };
    let (_, root) = make(keys, Role::Admin).await;
    let session = |user: &str, role| Principal::Session { actor: user.parse().expect("an actor"), role };
    for (vault, client, owner) in [(MAIN, "billing", "vault"), (None, "payroll", "namespace")] {
        let (token, first) = make(keys, Role::Writer).await;
        let (_, second) = make(keys, Role::Writer).await;
        let bound = Token::random().expect("random bits");
        let bound = CreateKey { client: Some(client.parse().expect("a client")), ..command(&bound, Role::Writer) };
        let bound = keys.create(Principal::System, bound).await.expect("a key that can be made");
        let ann = session("user:ann", Role::Writer);
        let write = async |by: &Principal, sequence| {
            let request = write_request(vault, client, sequence, Vec::new());
            match backend.write(by.clone(), request).await.expect("a backend that answers") {
                WriteAnswer::Committed(_) => true,
                WriteAnswer::Refused(WriteError::Invalid(InvalidWrite::ClientClaimed { client: named })) => {
                    assert_eq!(named.as_str(), client);
                    false
                }
                WriteAnswer::Refused(other) => panic!("{owner}: {other:?}"),
            }
        };
        assert!(write(&first, 1).await, "{owner}");
        for other in [&second, &ann] {
            assert!(!write(other, 2).await, "{owner}: another writer");
            assert!(!write(other, 1).await, "{owner}: not even a receipt");
        }
        assert!(write(&root, 2).await && write(&session("user:eve", Role::Admin), 3).await, "{owner}: admins may");
        assert!(write(&first, 4).await, "{owner}: admins claim nothing");
        let info = keys.authenticate(token.id(), &token.hash()).expect("its own secret");
        keys.revoke(Principal::System, revoke(&info)).await.expect("a key that can be revoked");
        assert!(write(&ann, 5).await, "{owner}: a revoked key owns nothing");
        assert!(!write(&second, 6).await && !write(&session("user:bob", Role::Writer), 6).await, "{owner}: a user");
        assert!(write(&ann, 5).await, "{owner}: a retry");
        assert!(write(&Principal::Key(bound.number), 6).await, "{owner}: a bound key takes over");
        assert!(!write(&ann, 7).await, "{owner}: from the user");
    }
}

/// The change log lists every change with its actor, in pages.
pub async fn changes_are_logged_with_who_made_them(harness: &impl Harness) {
    let (backend, driver) = (harness.backend(), Driver(harness));
    let Some(keys) = backend.keys() else { return };
    let (root, by) = make(keys, Role::Admin).await;
    // Changes by Earmark itself are not listed.
    driver.put("rpm", MINUTE, 10).await;
    let put =
        PutLimitRequest { namespace: namespace(), definition: definition("rpm", MINUTE, 20), expected_revision: None };
    backend.put_limit(by, put).await.expect("a limit");
    let user = Principal::Actor("user:7".parse().expect("an actor"));
    let delete = DeleteLimitRequest { namespace: namespace(), key: super::driver::key("rpm"), expected_revision: None };
    backend.delete_limit(user, delete).await.expect("a limit to delete");
    let again = Operation::PutLimit { definition: definition("rpm", MINUTE, 30), expected_revision: None };
    let again = vec![open_vault("eu"), again];
    let written = backend.write(Principal::System, write_request(None, "billing", 1, again)).await;
    assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
    // Merged lists are ordered by time.
    harness.advance_ms(20).await;
    let user = "user:8".parse().expect("an actor");
    let request = WriteRequest { actor: user, ..write_request(MAIN, "billing", 1, vec![open("acme")]) };
    let written = backend.write(Principal::Actor(request.actor.clone()), request).await;
    assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
    driver.does(MAIN, vec![issue("acme", 5), open("bob")]).await;
    harness.advance_ms(20).await;
    let (token, _) = make(keys, Role::Reader).await;
    let info = keys.authenticate(token.id(), &token.hash()).expect("its own secret");
    keys.revoke(Principal::System, revoke(&info)).await.expect("a key that can be revoked");
    let expected = [
        "Revoked reader by client:root".to_owned(),
        "Created reader by system:test".to_owned(),
        "issue 5 usd to acme, open_account bob by system:test".to_owned(),
        "open_account acme by user:8".to_owned(),
        "open_vault eu, put_limit rpm [None -> Some(30)] by system:test".to_owned(),
        "[Some(20) -> None] 3 by user:7".to_owned(),
        format!("[Some(10) -> Some(20)] 2 by client:{}", root.id()),
        "Created admin by system:test".to_owned(),
    ];
    let all = || ChangeQuery::all(1);
    let mut said = said_of(keys, all()).await;
    // SQL shows a commit once all transactions that began before it have ended.
    for _ in 0..LOOKS_MAX {
        if said.len() >= expected.len() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        said = said_of(keys, all()).await;
    }
    assert_eq!(said, expected);
    let of_namespace = |name: &str| ChangeQuery { namespace: name.parse().ok(), ..ChangeQuery::all(100) };
    assert_eq!(said_of(keys, of_namespace("elsewhere")).await, [""; 0]);
    assert_eq!(said_of(keys, of_namespace("default")).await, expected);
    // Filters.
    let by = |actor: &str| ChangeQuery { actor: actor.parse().ok(), ..all() };
    assert_eq!(said_of(keys, by("user:8")).await, expected[3..4]);
    assert_eq!(said_of(keys, by("user:7")).await, expected[5..6]);
    assert_eq!(said_of(keys, by("user:9")).await, [""; 0]);
    let mine = [1, 2, 4, 7].map(|place: usize| expected[place].clone());
    assert_eq!(said_of(keys, by("system:test")).await, mine);
    let about = |key: &str| ChangeQuery { key: key.parse().ok(), ..all() };
    assert_eq!(said_of(keys, about("rpm")).await, expected[4..7]);
    assert_eq!(said_of(keys, about("rp")).await, [""; 0], "a key is exact");
    assert_eq!(said_of(keys, ChangeQuery { actor: "user:7".parse().ok(), ..about("rpm") }).await, expected[5..6]);
    assert_eq!(said_of(keys, ChangeQuery { actor: "user:8".parse().ok(), ..about("rpm") }).await, [""; 0]);
}

/// Reads the change log page by page, as text.
async fn said_of(keys: &dyn Keys, query: ChangeQuery) -> Vec<String> {
    let (mut said, mut query) = (Vec::new(), query);
    let capacities = |limit: &ChangedLimit| {
        let [old, new] = [&limit.old, &limit.new].map(|of| of.as_ref().map(|definition| definition.capacity));
        assert!([&limit.old, &limit.new].into_iter().flatten().all(|definition| definition.key == limit.key));
        format!("[{old:?} -> {new:?}]")
    };
    loop {
        let page = keys.log(query.clone()).await.expect("a log");
        assert!(page.entries.len() <= query.page_size);
        said.extend(page.entries.into_iter().map(|entry| {
            let what = match entry.what {
                ChangeKind::Transaction { operations, limits, .. } => {
                    let limits = limits.iter().map(|limit| format!(" {}", capacities(limit))).collect::<String>();
                    operations.join(", ") + &limits
                }
                ChangeKind::Key { change, role, .. } => format!("{change:?} {role}"),
                ChangeKind::Limit { limit, revision } => format!("{} {revision}", capacities(&limit)),
                ChangeKind::Template { template, revision } => format!("{} {revision}", capacities(&template)),
                ChangeKind::Pause { key, until, .. } => format!("pause {key} {}", until.is_some()),
                ChangeKind::Quotas { changes } => format!("quotas {}", changes.len()),
                ChangeKind::Policy { old, revision, .. } => format!("policy {old} {revision}"),
            };
            format!("{} by {}", what, entry.actor)
        }));
        match page.next {
            Some(next) => query.after = next,
            None => return said,
        }
    }
}
