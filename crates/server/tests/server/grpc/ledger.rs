//! `earmark.v1.LedgerService`.

use earmark_proto::v1::{self, WriteErrorCode};
use tonic::Code;

use crate::grpc::calls::{self, error, issue, open, open_vault, put_limit, refused, success, transfer, write};
use crate::support::{START_MS, TestServer};

const MAIN: Option<&str> = Some("main");

#[tokio::test]
async fn a_write_is_answered_once_and_for_all() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let first = write(MAIN, 1, vec![open("acme"), open("bob"), issue("acme", "10")]);
    let done = success(client.write(first.clone()).await.unwrap().into_inner());
    assert_eq!((done.sequence, done.committed_at_unix_ms, done.actor.as_str()), (1, START_MS, "system:local"));
    assert_eq!(done.tx_id.len(), 26);
    use v1::operation_result::Result::{Account, Entry};
    let results: Vec<_> = done.results.iter().map(|it| it.result.clone().unwrap()).collect();
    assert_eq!(results, [Account("acme".into()), Account("bob".into()), Entry(done.tx_id.clone())]);
    server.clock.advance_ms(1_000);
    assert_eq!(success(client.write(first.clone()).await.unwrap().into_inner()), done);

    let gap = error(client.write(write(MAIN, 3, vec![])).await.unwrap().into_inner());
    assert_eq!((gap.code(), gap.last_committed_sequence), (WriteErrorCode::SequenceGap, Some(1)));
    assert!(gap.message.starts_with("sequence: expected 2; the last committed sequence of this client is 1"));
    let reused = error(client.write(write(MAIN, 1, vec![])).await.unwrap().into_inner());
    assert_eq!((reused.code(), reused.operation), (WriteErrorCode::SequenceReused, None));

    let state = v1::GetClientStateRequest { namespace: None, vault: Some("main".into()), client_id: "billing".into() };
    assert_eq!(client.get_client_state(state).await.unwrap().into_inner().last_committed_sequence, 1);
}

#[tokio::test]
async fn two_copies_of_a_write_at_once_have_one_effect_and_one_answer() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    success(client.write(write(MAIN, 1, vec![open("acme")])).await.unwrap().into_inner());
    let copies: Vec<_> = (0..8)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.write(write(MAIN, 2, vec![issue("acme", "5")])).await })
        })
        .collect();
    let mut answers = Vec::new();
    for copy in copies {
        answers.push(success(copy.await.unwrap().unwrap().into_inner()));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let balances = v1::GetBalancesRequest { namespace: None, vault: "main".into(), account: "acme".into() };
    assert_eq!(client.get_balances(balances).await.unwrap().into_inner().balances[0].available, "5");
}

#[tokio::test]
async fn refusals_have_their_codes_and_name_their_operation() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    use v1::operation::Operation::{CloseAccount, FreezeAccount, Retire, UnfreezeAccount};
    let account = |account: &str| v1::AccountOperation { account: account.into() };
    let of = |operation| v1::Operation { operation: Some(operation) };
    let setup = vec![
        open("acme"),
        open("cold"),
        open("gone"),
        issue("acme", "10"),
        issue("cold", "10"),
        of(FreezeAccount(account("cold"))),
        of(CloseAccount(account("gone"))),
    ];
    success(client.write(write(MAIN, 1, setup)).await.unwrap().into_inner());
    let retire =
        v1::CreditOperation { account: "acme".into(), asset: "usd".into(), amount: "12".into(), memo: String::new() };
    for (operation, code) in [
        (transfer("acme", "cold", "12"), WriteErrorCode::InsufficientCredit),
        (of(Retire(retire)), WriteErrorCode::InsufficientCredit),
        (transfer("acme", "nobody", "1"), WriteErrorCode::AccountNotFound),
        (issue("gone", "1"), WriteErrorCode::AccountClosed),
        (transfer("cold", "acme", "1"), WriteErrorCode::AccountFrozen),
        (open("acme"), WriteErrorCode::Conflict),
        (transfer("acme", "acme", "1"), WriteErrorCode::Invalid),
        (open_vault("eu"), WriteErrorCode::WrongScope),
    ] {
        let request = write(MAIN, 2, vec![issue("acme", "1"), operation.clone()]);
        let refused = error(client.write(request).await.unwrap().into_inner());
        assert_eq!((refused.code(), refused.operation), (code, Some(1)), "{operation:?}");
    }
    let nowhere = error(client.write(write(Some("us"), 1, vec![])).await.unwrap().into_inner());
    assert_eq!(nowhere.code(), WriteErrorCode::VaultNotFound);
    let elsewhere = v1::WriteRequest { namespace: "elsewhere".into(), ..write(None, 1, vec![]) };
    assert_eq!(error(client.write(elsewhere).await.unwrap().into_inner()).code(), WriteErrorCode::Invalid);
    let condition = write(None, 1, vec![put_limit("rpm", Some(3))]);
    let refused = error(client.write(condition).await.unwrap().into_inner());
    assert_eq!((refused.code(), refused.operation), (WriteErrorCode::ConditionFailed, Some(0)));
    let thaw = vec![of(UnfreezeAccount(account("cold"))), transfer("cold", "acme", "1")];
    success(client.write(write(MAIN, 2, thaw)).await.unwrap().into_inner());
}

#[tokio::test]
async fn limits_and_vaults_are_written_in_the_scope_of_the_namespace() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let request = write(None, 1, vec![open_vault("eu"), put_limit("rpm", Some(0))]);
    let done = success(client.write(request).await.unwrap().into_inner());
    let limit = v1::LimitResult { limit: "rpm".into(), revision: 1, status: v1::LimitStatus::Active.into() };
    use v1::operation_result::Result::{Limit, Vault};
    let results: Vec<_> = done.results.into_iter().map(|it| it.result.unwrap()).collect();
    assert_eq!(results, [Vault("eu".into()), Limit(limit)]);
    let delete = v1::DeleteLimitOperation { key: "rpm".into(), expected_revision: Some(1) };
    let delete = v1::Operation { operation: Some(v1::operation::Operation::DeleteLimit(delete)) };
    success(client.write(write(None, 2, vec![delete])).await.unwrap().into_inner());
    success(client.write(write(Some("eu"), 1, vec![open("acme")])).await.unwrap().into_inner());
}

#[tokio::test]
async fn a_batch_is_one_write() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let batch = |sequence, parts: Vec<Vec<v1::Operation>>| v1::BatchWriteRequest {
        namespace: "default".into(),
        vault: Some("main".into()),
        client_id: "billing".into(),
        sequence,
        writes: parts.into_iter().map(|operations| v1::WritePart { operations }).collect(),
        idempotency_key: None,
    };
    let good = batch(1, vec![vec![open("acme")], vec![issue("acme", "5")]]);
    let done = success(client.batch_write(good.clone()).await.unwrap().into_inner());
    assert_eq!(done.results.len(), 2);
    assert_eq!(success(client.batch_write(good).await.unwrap().into_inner()), done);
    let bad = batch(2, vec![vec![issue("acme", "1")], vec![issue("nobody", "1")]]);
    let refused = error(client.batch_write(bad).await.unwrap().into_inner());
    assert_eq!((refused.code(), refused.operation), (WriteErrorCode::AccountNotFound, Some(1)));
    let over = batch(2, vec![vec![issue("acme", "1"); 256], vec![issue("acme", "1")]]);
    let refused = error(client.batch_write(over).await.unwrap().into_inner());
    assert_eq!(refused.code(), WriteErrorCode::Invalid);
    assert_eq!(refused.message, "operations: found 257, allowed are up to 256");
    let full = batch(2, vec![vec![issue("acme", "1"); 128]; 2]);
    success(client.batch_write(full).await.unwrap().into_inner());
}

#[tokio::test]
async fn amounts_of_128_bits_are_read_back_as_they_were_written() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let most = i128::MAX.to_string();
    let request = write(MAIN, 1, vec![open("a"), open("b"), issue("a", &most)]);
    success(client.write(request).await.unwrap().into_inner());
    let large = "100000000000000000000000000000000000001";
    success(client.write(write(MAIN, 2, vec![transfer("a", "b", large)])).await.unwrap().into_inner());
    let balances = v1::GetBalancesRequest { namespace: None, vault: "main".into(), account: "b".into() };
    assert_eq!(client.get_balances(balances).await.unwrap().into_inner().balances[0].available, large);
}

#[tokio::test]
async fn the_history_of_an_account_is_read_page_by_page_and_adds_up() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let first = write(MAIN, 1, vec![open("acme"), open("bob"), issue("acme", "10")]);
    success(client.write(first).await.unwrap().into_inner());
    let second = success(client.write(write(MAIN, 2, vec![transfer("acme", "bob", "4")])).await.unwrap().into_inner());
    let list = |after, page_size| v1::ListEntriesRequest {
        namespace: None,
        vault: "main".into(),
        account: "acme".into(),
        after,
        page_size,
        ..Default::default()
    };
    let change = |amount: &str| v1::Change {
        asset: "usd".into(),
        amount: amount.into(),
        held: "0".into(),
        ..Default::default()
    };
    let issued = v1::Change { issued: Some("10".into()), ..change("10") };
    let sent = v1::Change { transferred_out: Some("4".into()), ..change("-4") };
    let page = client.list_entries(list(None, Some(1))).await.unwrap().into_inner();
    assert_eq!(page.entries[0].changes, [issued]);
    let rest = client.list_entries(list(page.next, None)).await.unwrap().into_inner();
    let transaction = v1::TransactionEntry {
        tx_id: second.tx_id,
        log_index: second.log_index,
        actor: "system:local".into(),
        client_id: "billing".into(),
        sequence: 2,
        memos: vec!["rent".into()],
        idempotency_key: None,
    };
    let entry = v1::Entry {
        number: 2,
        committed_at_unix_ms: START_MS,
        changes: vec![sent],
        kind: Some(v1::entry::Kind::Transaction(transaction)),
    };
    assert_eq!((rest.entries, rest.next), (vec![entry], None));
    for size in [0, 1_001] {
        let message = refused(client.list_entries(list(None, Some(size))).await, Code::InvalidArgument);
        assert_eq!(message, format!("page_size: found {size}, allowed are integers from 1 to 1000"));
    }
    let audit = v1::AuditVaultRequest { namespace: None, vault: "main".into() };
    let audit = client.audit_vault(audit).await.unwrap().into_inner();
    let totals = v1::AssetTotals {
        asset: "usd".into(),
        issued: "10".into(),
        retired: "0".into(),
        expired: "0".into(),
        live: "10".into(),
    };
    assert_eq!((audit.balanced, audit.assets, audit.message), (true, vec![totals], None));
}

#[tokio::test]
async fn reads_of_what_is_not_there_or_malformed_are_refused() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let balances = |vault: &str, account: &str| v1::GetBalancesRequest {
        namespace: None,
        vault: vault.into(),
        account: account.into(),
    };
    let message = refused(client.get_balances(balances("us", "a")).await, Code::NotFound);
    assert_eq!(message, "vault: no vault has this name; open it with open_vault");
    let message = refused(client.get_balances(balances("main", "a")).await, Code::NotFound);
    assert!(message.starts_with("account: no account has this name"), "{message}");
    let message = refused(client.get_balances(balances("a:b", "a")).await, Code::InvalidArgument);
    assert!(message.starts_with("vault: found ':' at byte 1"), "{message}");
    let audit = v1::AuditVaultRequest { namespace: Some("elsewhere".into()), vault: "main".into() };
    assert_eq!(
        refused(client.audit_vault(audit).await, Code::NotFound),
        "namespace: no namespace has this name; the first limit, vault or key in it creates it"
    );
    let state = v1::GetClientStateRequest { client_id: "a:b".into(), ..Default::default() };
    let message = refused(client.get_client_state(state).await, Code::InvalidArgument);
    assert!(message.starts_with("client_id: found ':' at byte 1"), "{message}");
}
