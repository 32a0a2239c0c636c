//! Requests that both APIs support.

use earmark_proto::v1;
use serde_json::{Value, json};
use tonic::Response;

use super::message::{
    batch_write, complete, definition, extend, of_accounts, of_audit, of_balances, of_complete, of_entries, of_extend,
    of_grants, of_info, of_lease, of_reserve, of_statement, of_status, of_usage, of_usage_list, of_write, reserve,
    write,
};
use super::{Said, by_grpc, by_http, without_ids};
use crate::grpc::calls;
use crate::support::TestServer;

/// A request, with its body in JSON.
#[derive(Debug)]
pub(super) enum Ask {
    Put(Value),
    Call(Value),
    CallBatch(Vec<Value>),
    ExtendCall(Value),
    CompleteCall(Value),
    CompleteCallBatch(Vec<Value>),
    ExplainCall(Value),
    Reserve(Value),
    Complete(Value),
    Extend(Value),
    ReserveBatch(Vec<Value>),
    CompleteBatch(Vec<Value>),
    ExtendBatch(Vec<Value>),
    Get(&'static str),
    List,
    Usage(&'static str),
    /// Sort, prefix, after, page size.
    ListUsage(&'static str, Option<&'static str>, Option<&'static str>, u32),
    Delete(&'static str),
    Lease(String),
    Write(Value),
    BatchWrite(Value),
    /// Client, vault.
    State(&'static str, Option<&'static str>),
    /// Vault, account.
    Balances(&'static str, &'static str),
    /// Vault, account.
    Grants(&'static str, &'static str),
    /// `after`, page size.
    Vaults(Option<&'static str>, Option<u32>),
    /// Vault, prefix, after, page size.
    Accounts(&'static str, Option<&'static str>, Option<&'static str>, Option<u32>),
    /// Account of the vault `main`, `after`, page size.
    Entries(&'static str, Option<u64>, Option<u32>),
    /// Account, since, until, and whether the newest is first.
    EntriesOf(&'static str, Option<u64>, Option<u64>, bool),
    /// Account, since, until, label.
    Statement(&'static str, Option<u64>, Option<u64>, Option<&'static str>),
    /// A page of the groups of `acme` by model: the position and the size.
    StatementPage(Option<&'static str>, u32),
    Audit(&'static str),
    /// Advances the clock by milliseconds.
    Wait(u64),
}

fn said(value: &Option<impl ToString>) -> Option<String> {
    value.as_ref().map(ToString::to_string)
}

/// A path with the query parameters that have a value.
fn with_query(path: &str, query: &[(&str, Option<String>)]) -> String {
    let named =
        query.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?.replace(' ', "%20"))));
    format!("{path}?{}", named.collect::<Vec<_>>().join("&"))
}

impl Ask {
    pub(super) async fn over_http(&self, server: &TestServer) -> Said {
        let get = |path: String| ("GET", path, String::new());
        let post = |path: &str, body: &Value| ("POST", path.to_owned(), body.to_string());
        let (method, path, body) = match self {
            Ask::Wait(_) => return Said::Ok(Value::Null),
            Ask::Put(body) => ("PUT", "/v1/admin/limits".into(), body.to_string()),
            Ask::Call(body) => post("/v1/calls", body),
            Ask::CallBatch(requests) => post("/v1/calls/batch", &json!({"requests": requests})),
            Ask::ExtendCall(body) => post("/v1/calls/extend", body),
            Ask::CompleteCall(body) => post("/v1/calls/complete", body),
            Ask::CompleteCallBatch(requests) => post("/v1/calls/complete/batch", &json!({"requests": requests})),
            Ask::ExplainCall(body) => post("/v1/calls/explain", body),
            Ask::Reserve(body) => post("/v1/reserve", body),
            Ask::Complete(body) => post("/v1/complete", body),
            Ask::Extend(body) => post("/v1/extend", body),
            Ask::ReserveBatch(requests) => post("/v1/reserve/batch", &json!({"requests": requests})),
            Ask::CompleteBatch(requests) => post("/v1/complete/batch", &json!({"requests": requests})),
            Ask::ExtendBatch(requests) => post("/v1/extend/batch", &json!({"requests": requests})),
            // A space in a path is percent-encoded.
            Ask::Get(key) => get(format!("/v1/admin/limits/{}", key.replace(' ', "%20"))),
            Ask::List => get("/v1/admin/limits".into()),
            Ask::Usage(key) => get(format!("/v1/admin/limits/{key}/usage")),
            Ask::ListUsage(sort, prefix, after, size) => {
                let keys = [("prefix", prefix), ("after", after)].into_iter();
                let keys = keys.filter_map(|(name, key)| Some(format!("&{name}={}", key.as_ref()?)));
                get(keys.fold(format!("/v1/usage?sort={sort}&page_size={size}"), |path, part| path + &part))
            }
            Ask::Delete(key) => ("DELETE", format!("/v1/admin/limits/{key}"), String::new()),
            Ask::Lease(lease) => get(format!("/v1/leases/{lease}")),
            Ask::Write(body) => post("/v1/write", body),
            Ask::BatchWrite(body) => post("/v1/write/batch", body),
            Ask::State(client, None) => get(format!("/v1/clients/{client}")),
            Ask::State(client, Some(vault)) => get(format!("/v1/clients/{client}?vault={vault}")),
            Ask::Balances(vault, account) => get(format!("/v1/vaults/{vault}/accounts/{account}/balances")),
            Ask::Grants(vault, account) => get(format!("/v1/vaults/{vault}/accounts/{account}/grants")),
            Ask::Entries(account, after, size) => {
                let after = after.map(|after| format!("after={after}"));
                let size = size.map(|size| format!("page_size={size}"));
                let query = after.into_iter().chain(size).collect::<Vec<_>>().join("&");
                get(format!("/v1/vaults/main/accounts/{account}/entries?{query}"))
            }
            Ask::Vaults(after, size) => {
                get(with_query("/v1/vaults", &[("after", said(after)), ("page_size", said(size))]))
            }
            Ask::Accounts(vault, prefix, after, size) => {
                let query = [("prefix", said(prefix)), ("after", said(after)), ("page_size", said(size))];
                get(with_query(&format!("/v1/vaults/{vault}/accounts"), &query))
            }
            Ask::EntriesOf(account, since, until, is_newest) => {
                let order = Some(if *is_newest { "desc" } else { "asc" }.to_owned());
                let query = [("since", said(since)), ("until", said(until)), ("order", order)];
                get(with_query(&format!("/v1/vaults/main/accounts/{account}/entries"), &query))
            }
            Ask::Statement(account, since, until, group_by) => {
                let query = [("since", said(since)), ("until", said(until)), ("group_by", said(group_by))];
                get(with_query(&format!("/v1/vaults/main/accounts/{account}/statement"), &query))
            }
            Ask::StatementPage(after, page_size) => {
                let query = [("after", said(after)), ("page_size", Some(page_size.to_string()))];
                get(with_query("/v1/vaults/main/accounts/acme/statement?group_by=model&", &query).replace("&?", "&"))
            }
            Ask::Audit(vault) => get(format!("/v1/vaults/{vault}/audit")),
        };
        by_http(&server.ask(method, &path, &body).await).map(without_ids)
    }

    pub(super) async fn over_grpc(&self, server: &TestServer) -> Said {
        let said = match self {
            Ask::Wait(_) => Ok(Value::Null),
            Ask::Write(_)
            | Ask::BatchWrite(_)
            | Ask::State(..)
            | Ask::Balances(..)
            | Ask::Grants(..)
            | Ask::Vaults(..)
            | Ask::Accounts(..)
            | Ask::Entries(..)
            | Ask::EntriesOf(..)
            | Ask::Statement(..)
            | Ask::StatementPage(..)
            | Ask::Audit(_) => self.of_ledger(server).await,
            Ask::Call(_)
            | Ask::CallBatch(_)
            | Ask::ExtendCall(_)
            | Ask::CompleteCall(_)
            | Ask::CompleteCallBatch(_)
            | Ask::ExplainCall(_) => super::calls::over_grpc(self, server).await,
            _ => self.of_limits(server).await,
        };
        by_grpc(said).map(without_ids)
    }

    async fn of_limits(&self, server: &TestServer) -> Result<Value, tonic::Status> {
        let mut client = calls::limits(server).await;
        let (namespace, key) = (None, |key: &&str| (*key).to_owned());
        Ok(match self {
            Ask::Put(body) => {
                let request = v1::PutLimitRequest { definition: Some(definition(body)), namespace };
                let changed = client.put_limit(request).await?.into_inner();
                json!({"ok": changed.ok, "status": of_status(changed.status())})
            }
            Ask::Reserve(body) => of_reserve(client.reserve(reserve(body)).await?.into_inner()),
            Ask::Complete(body) => of_complete(client.complete(complete(body)).await?.into_inner()),
            Ask::Extend(body) => of_extend(client.extend(extend(body)).await?.into_inner()),
            Ask::ExtendBatch(requests) => {
                let requests = requests.iter().map(extend).collect();
                let answer = client.extend_batch(v1::ExtendBatchRequest { requests }).await?.into_inner();
                json!({"results": answer.results.into_iter().map(of_extend).collect::<Vec<_>>()})
            }
            Ask::ReserveBatch(requests) => {
                let requests = requests.iter().map(reserve).collect();
                let answer = client.reserve_batch(v1::ReserveBatchRequest { requests }).await?.into_inner();
                json!({"results": answer.results.into_iter().map(of_reserve).collect::<Vec<_>>()})
            }
            Ask::CompleteBatch(requests) => {
                let requests = requests.iter().map(complete).collect();
                let answer = client.complete_batch(v1::CompleteBatchRequest { requests }).await?.into_inner();
                json!({"results": answer.results.into_iter().map(of_complete).collect::<Vec<_>>()})
            }
            Ask::Get(name) => {
                let request = v1::GetLimitRequest { key: key(name), namespace };
                json!({"limit": of_info(&client.get_limit(request).await?.into_inner().limit.unwrap())})
            }
            Ask::List => {
                let request = v1::ListLimitsRequest { namespace, ..v1::ListLimitsRequest::default() };
                let answer = client.list_limits(request).await?.into_inner();
                assert_eq!(answer.next, None);
                json!({"limits": answer.limits.iter().map(of_info).collect::<Vec<_>>(), "next": null})
            }
            Ask::Usage(name) => {
                let request = v1::GetUsageRequest { key: key(name), namespace };
                of_usage(&client.get_usage(request).await?.into_inner())
            }
            Ask::ListUsage(sort, prefix, after, size) => {
                let sort = format!("USAGE_SORT_{}", sort.to_uppercase());
                let sort = v1::UsageSort::from_str_name(&sort).map_or(99, Into::into);
                let (prefix, after) = (prefix.as_ref().map(key), after.as_ref().map(key));
                let request = v1::ListUsageRequest { namespace, prefix, sort, after, page_size: Some(*size) };
                of_usage_list(&client.list_usage(request).await?.into_inner())
            }
            Ask::Delete(name) => {
                let request = v1::DeleteLimitRequest { key: key(name), namespace };
                let changed = client.delete_limit(request).await?.into_inner();
                json!({"ok": changed.ok, "status": of_status(changed.status())})
            }
            Ask::Lease(lease) => {
                let request = v1::GetLeaseRequest { lease_id: lease.clone(), namespace };
                of_lease(&client.get_lease(request).await?.into_inner().lease.unwrap())
            }
            other => panic!("not of this service: {other:?}"),
        })
    }

    async fn of_ledger(&self, server: &TestServer) -> Result<Value, tonic::Status> {
        let mut client = calls::ledger(server).await;
        let (namespace, owned) = (None, |name: &&str| (*name).to_owned());
        match self {
            Ask::Write(body) => client.write(write(body)).await.map(Response::into_inner).map(of_write),
            Ask::BatchWrite(body) => {
                client.batch_write(batch_write(body)).await.map(Response::into_inner).map(of_write)
            }
            Ask::State(id, vault) => {
                let (client_id, vault) = (owned(id), vault.as_ref().map(owned));
                let request = v1::GetClientStateRequest { namespace, vault, client_id };
                let state = client.get_client_state(request).await?.into_inner();
                Ok(json!({"last_committed_sequence": state.last_committed_sequence}))
            }
            Ask::Balances(vault, account) => {
                let (vault, account) = (owned(vault), owned(account));
                let request = v1::GetBalancesRequest { namespace, vault, account };
                Ok(of_balances(&client.get_balances(request).await?.into_inner()))
            }
            Ask::Grants(vault, account) => {
                let (vault, account) = (owned(vault), owned(account));
                let request = v1::GetGrantsRequest { namespace, vault, account };
                Ok(of_grants(&client.get_grants(request).await?.into_inner()))
            }
            Ask::Entries(account, after, page_size) => {
                let (vault, account) = ("main".into(), owned(account));
                let (after, page_size) = (*after, *page_size);
                let request =
                    v1::ListEntriesRequest { namespace, vault, account, after, page_size, ..Default::default() };
                Ok(of_entries(client.list_entries(request).await?.into_inner()))
            }
            Ask::EntriesOf(account, since, until, is_newest) => {
                let (vault, account, since, until) = ("main".into(), owned(account), *since, *until);
                let order = if *is_newest { v1::EntryOrder::Desc } else { v1::EntryOrder::Unspecified }.into();
                let request =
                    v1::ListEntriesRequest { namespace, vault, account, since, until, order, ..Default::default() };
                Ok(of_entries(client.list_entries(request).await?.into_inner()))
            }
            Ask::Vaults(after, page_size) => {
                let (after, page_size) = (after.as_ref().map(owned), *page_size);
                let found =
                    client.list_vaults(v1::ListVaultsRequest { namespace, after, page_size }).await?.into_inner();
                Ok(json!({"vaults": found.vaults, "next": found.next}))
            }
            Ask::Accounts(vault, prefix, after, page_size) => {
                let (vault, page_size) = (owned(vault), *page_size);
                let [prefix, after] = [prefix, after].map(|name| name.as_ref().map(owned));
                let request = v1::ListAccountsRequest { namespace, vault, prefix, after, page_size };
                Ok(of_accounts(client.list_accounts(request).await?.into_inner()))
            }
            Ask::Statement(..) | Ask::StatementPage(..) => {
                let request = self.statement_request();
                let response = client.get_statement(request.clone()).await?.into_inner();
                let v1::GetStatementRequest { account, since, until, group_by, .. } = &request;
                Ok(of_statement(response, (account, *since, *until, group_by.as_deref())))
            }
            Ask::Audit(vault) => {
                let request = v1::AuditVaultRequest { namespace, vault: owned(vault) };
                Ok(of_audit(client.audit_vault(request).await?.into_inner()))
            }
            other => panic!("not of this service: {other:?}"),
        }
    }

    fn statement_request(&self) -> v1::GetStatementRequest {
        let request = v1::GetStatementRequest { vault: "main".into(), ..v1::GetStatementRequest::default() };
        match self {
            Ask::Statement(account, since, until, group_by) => v1::GetStatementRequest {
                account: (*account).into(),
                since: *since,
                until: *until,
                group_by: group_by.map(str::to_owned),
                ..request
            },
            Ask::StatementPage(after, page_size) => v1::GetStatementRequest {
                account: "acme".into(),
                group_by: Some("model".into()),
                after: after.map(str::to_owned),
                page_size: Some(*page_size),
                ..request
            },
            other => panic!("no statement: {other:?}"),
        }
    }
}
