//! `earmark.v1.LedgerService`.

use std::sync::Arc;

use earmark_admission::{
    AccountPath, AccountQuery, AccountView, AssetStatement, BackendError, EntryChange, EntryKind, EntryOrder,
    EntryQuery, EntryView, HoldView, PAGE_MAX, StatementGroup, StatementQuery, VaultQuery, WriteAnswer, WriteRequest,
};
use earmark_core::{AccountStatus, Actor, UnixMs, redact_api_keys};
use earmark_proto::convert::{self, Invalid, WriteParts};
use earmark_proto::v1;
use earmark_proto::v1::ledger_service_server::LedgerService;
use tonic::{Request, Response, Status, async_trait};

use super::RpcResult;
use super::limits::{namespace_of, namespace_of_limits};
use super::status::{failed, of_ledger, of_statement};
use crate::app::App;
use crate::caller::AuthError;
use crate::execute::{self, PAGE_SIZE_DEFAULT, RequestContext};

pub(super) struct Ledger(pub(super) Arc<App>);

/// The context that [`Grpc`](super::Grpc) attached to the call.
pub(super) fn context<T>(request: &Request<T>) -> Result<RequestContext, Status> {
    request.extensions().get().cloned().ok_or_else(|| Status::internal("the call has no request context"))
}

#[async_trait]
impl LedgerService for Ledger {
    async fn write(&self, request: Request<v1::WriteRequest>) -> RpcResult<v1::WriteResponse> {
        let context = context(&request)?;
        let write = convert::write_parts(request.into_inner()).inspect_err(|_| execute::malformed_write(&self.0))?;
        self.apply(&context, write, None).await.map(Response::new)
    }

    async fn batch_write(&self, request: Request<v1::BatchWriteRequest>) -> RpcResult<v1::WriteResponse> {
        let context = context(&request)?;
        let request = request.into_inner();
        let parts: Vec<usize> = request.writes.iter().map(|part| part.operations.len()).collect();
        let write = convert::batch_parts(request).inspect_err(|_| execute::malformed_write(&self.0))?;
        self.apply(&context, write, Some(&parts)).await.map(Response::new)
    }

    async fn get_client_state(
        &self,
        request: Request<v1::GetClientStateRequest>,
    ) -> RpcResult<v1::GetClientStateResponse> {
        let context = context(&request)?;
        let v1::GetClientStateRequest { namespace, vault, client_id } = request.into_inner();
        let client = convert::name("client_id", &client_id)?;
        let vault = convert::optional_name("vault", vault.as_deref())?;
        let namespace = match &vault {
            None => namespace_of_limits(&context, namespace.as_deref())?,
            Some(_) => namespace_of(&context, namespace.as_deref())?,
        };
        context.caller.check_client(&client)?;
        let state = self.0.backend.client_state(namespace, vault, client);
        let state = execute::read(&self.0, &context, state).await.map_err(|error| of_ledger(&error))?;
        Ok(Response::new(v1::GetClientStateResponse { last_committed_sequence: state }))
    }

    async fn get_grants(&self, request: Request<v1::GetGrantsRequest>) -> RpcResult<v1::GetGrantsResponse> {
        let context = context(&request)?;
        let v1::GetGrantsRequest { namespace, vault, account } = request.into_inner();
        let account = path(&context, namespace.as_deref(), &vault, &account)?;
        let grants = execute::read(&self.0, &context, self.0.backend.grants(account)).await;
        let grants = grants.map_err(|error| of_ledger(&error))?.iter().map(convert::grant).collect();
        Ok(Response::new(v1::GetGrantsResponse { grants }))
    }

    async fn get_balances(&self, request: Request<v1::GetBalancesRequest>) -> RpcResult<v1::GetBalancesResponse> {
        let context = context(&request)?;
        let v1::GetBalancesRequest { namespace, vault, account } = request.into_inner();
        let account = path(&context, namespace.as_deref(), &vault, &account)?;
        let balances = execute::read(&self.0, &context, self.0.backend.balances(account)).await;
        let balances = balances.map_err(|error| of_ledger(&error))?;
        let balances = balances.iter().map(convert::balance).collect();
        Ok(Response::new(v1::GetBalancesResponse { balances }))
    }

    async fn list_vaults(&self, request: Request<v1::ListVaultsRequest>) -> RpcResult<v1::ListVaultsResponse> {
        let context = context(&request)?;
        let v1::ListVaultsRequest { namespace, after, page_size } = request.into_inner();
        let namespace = namespace_of(&context, namespace.as_deref())?;
        let after = convert::optional_name("after", after.as_deref())?;
        let page_size = page_size_of(page_size)?;
        let _permit = context.admit(&self.0, page_size).await?;
        let page = self.0.backend.vaults(namespace, VaultQuery { after, page_size });
        let page = execute::read(&self.0, &context, page).await.map_err(|error| failed(&error))?;
        let vaults = page.vaults.iter().map(ToString::to_string).collect();
        Ok(Response::new(v1::ListVaultsResponse { vaults, next: page.next.map(|next| next.to_string()) }))
    }

    async fn list_accounts(&self, request: Request<v1::ListAccountsRequest>) -> RpcResult<v1::ListAccountsResponse> {
        let context = context(&request)?;
        let v1::ListAccountsRequest { namespace, vault, prefix, after, page_size } = request.into_inner();
        let namespace = namespace_of(&context, namespace.as_deref())?;
        let vault = convert::name("vault", &vault)?;
        let prefix = prefix.filter(|prefix| !prefix.is_empty());
        let prefix = convert::optional_name("prefix", prefix.as_deref())?;
        let after = convert::optional_name("after", after.as_deref())?;
        let page_size = page_size_of(page_size)?;
        // A page compares all accounts of the Book, whatever its size.
        let _permit = context.admit(&self.0, PAGE_MAX).await?;
        let page = self.0.backend.accounts(namespace, vault, AccountQuery { prefix, after, page_size });
        let page = execute::read(&self.0, &context, page).await.map_err(|error| of_ledger(&error))?;
        let accounts = page.accounts.iter().map(account).collect();
        Ok(Response::new(v1::ListAccountsResponse { accounts, next: page.next.map(|next| next.to_string()) }))
    }

    async fn list_entries(&self, request: Request<v1::ListEntriesRequest>) -> RpcResult<v1::ListEntriesResponse> {
        let context = context(&request)?;
        let message = request.into_inner();
        let account = path(&context, message.namespace.as_deref(), &message.vault, &message.account)?;
        let order = match message.order() {
            v1::EntryOrder::Unspecified | v1::EntryOrder::Asc => EntryOrder::Ascending,
            v1::EntryOrder::Desc => EntryOrder::Descending,
        };
        let query = EntryQuery {
            after: message.after.unwrap_or(0),
            since: convert::time("since", message.since)?,
            until: convert::time("until", message.until)?,
            order,
            page_size: page_size_of(message.page_size)?,
        };
        let _permit = context.admit(&self.0, execute::entries_cost(&query)).await?;
        let page = self.0.backend.entries(account, query);
        let page = execute::read(&self.0, &context, page).await.map_err(|error| of_ledger(&error))?;
        let entries = page.entries.iter().map(entry).collect();
        Ok(Response::new(v1::ListEntriesResponse { entries, next: page.next }))
    }

    async fn get_statement(&self, request: Request<v1::GetStatementRequest>) -> RpcResult<v1::GetStatementResponse> {
        let context = context(&request)?;
        let message = request.into_inner();
        let v1::GetStatementRequest { namespace, vault, account, since, until, group_by, after, page_size } = message;
        let account = path(&context, namespace.as_deref(), &vault, &account)?;
        let since = convert::time("since", since)?;
        let until = convert::time("until", until)?;
        let query = StatementQuery { since, until, group_by, ..StatementQuery::default() };
        let query = query.check().and_then(|()| query.page(after.as_deref(), page_size.map(u64::from)));
        let query = query.map_err(|wrong| Status::invalid_argument(redact_api_keys(&wrong)))?;
        let _permit = context.admit_audit(&self.0).await?;
        let read = earmark_admission::statement(&*self.0.backend, account, query);
        let statement = execute::read(&self.0, &context, read).await.map_err(|error| of_statement(&error))?;
        let next = statement.next.map(|next| next.to_string());
        Ok(Response::new(v1::GetStatementResponse { assets: statement.assets.into_iter().map(asset).collect(), next }))
    }

    async fn audit_vault(&self, request: Request<v1::AuditVaultRequest>) -> RpcResult<v1::AuditVaultResponse> {
        let context = context(&request)?;
        let v1::AuditVaultRequest { namespace, vault } = request.into_inner();
        let namespace = namespace_of(&context, namespace.as_deref())?;
        let vault = convert::name("vault", &vault)?;
        let _permit = context.admit_audit(&self.0).await?;
        let audit = execute::read(&self.0, &context, self.0.backend.audit(namespace, vault)).await;
        let audit = audit.map_err(|error| of_ledger(&error))?;
        let assets = audit.assets.iter().map(convert::totals).collect();
        let (balanced, message) = (audit.balanced, audit.message);
        Ok(Response::new(v1::AuditVaultResponse { balanced, assets, message }))
    }
}

impl Ledger {
    async fn apply(
        &self,
        context: &RequestContext,
        write: WriteParts,
        parts: Option<&[usize]>,
    ) -> Result<v1::WriteResponse, Status> {
        use v1::write_response::Result as Kind;
        let WriteParts { namespace, vault, id, operations } = write;
        let caller = &context.caller;
        let is_theirs = caller.check_write_to(&namespace, vault.as_ref(), &operations);
        is_theirs.and_then(|()| caller.check_write_id(&id))?;
        caller.check_operations(&operations)?;
        let _permit = context.admit(&self.0, operations.len()).await?;
        let actor = caller.actor.clone();
        let request = WriteRequest { namespace, vault, id, operations, actor };
        let written = execute::write(&self.0, context, request).await;
        let result = match &written.answer {
            Ok(WriteAnswer::Committed(receipt)) => Kind::Success(convert::success(receipt, &written.subjects)),
            Ok(WriteAnswer::Refused(error)) => Kind::Error(convert::write_error(error, written.message(error, parts))),
            Err(BackendError::Unauthenticated) => return Err(AuthError::Unauthenticated.into()),
            Err(error) => {
                let message = execute::unavailable(error);
                let code = v1::WriteErrorCode::Unavailable.into();
                Kind::Error(v1::WriteError { code, message, ..v1::WriteError::default() })
            }
        };
        Ok(v1::WriteResponse { result: Some(result) })
    }
}

fn path(context: &RequestContext, namespace: Option<&str>, vault: &str, account: &str) -> Result<AccountPath, Status> {
    Ok(AccountPath {
        namespace: namespace_of(context, namespace)?,
        vault: convert::name("vault", vault)?,
        account: convert::name("account", account)?,
    })
}

fn page_size_of(size: Option<u32>) -> Result<usize, Status> {
    let Some(size) = size else { return Ok(PAGE_SIZE_DEFAULT) };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Ok(Invalid::unless_within("page_size", size, &(1..=PAGE_MAX))?)
}

fn account(view: &AccountView) -> v1::Account {
    let status = match view.status {
        AccountStatus::Open => v1::AccountStatus::Open,
        AccountStatus::Frozen => v1::AccountStatus::Frozen,
        AccountStatus::Closed => v1::AccountStatus::Closed,
    };
    v1::Account {
        account: view.account.to_string(),
        status: status.into(),
        balances: view.balances.iter().map(convert::balance).collect(),
        plan: view.plan.as_ref().map(|info| convert::plan_of(&info.plan)),
        plan_next_at_unix_ms: view.plan.as_ref().and_then(|info| info.next_at).map(UnixMs::get),
    }
}

fn asset(asset: AssetStatement) -> v1::AssetStatement {
    let AssetStatement { asset, opening, moved, closing, groups } = asset;
    let group = |StatementGroup { value, spent, settlements }| v1::StatementGroup {
        value,
        spent: spent.to_string(),
        settlements,
    };
    v1::AssetStatement {
        asset: asset.to_string(),
        opening: opening.to_string(),
        issued: moved.issued.to_string(),
        received: moved.received.to_string(),
        transferred_in: moved.transferred_in.to_string(),
        spent: moved.spent.to_string(),
        transferred_out: moved.transferred_out.to_string(),
        expired: moved.expired.to_string(),
        retired: moved.retired.to_string(),
        closing: closing.to_string(),
        settlements: moved.settlements,
        groups: groups.into_iter().map(group).collect(),
    }
}

/// An amount that is left out if it is 0.
fn unless_zero(amount: u128) -> Option<String> {
    (amount != 0).then(|| amount.to_string())
}

fn entry(entry: &EntryView) -> v1::Entry {
    use v1::entry::Kind;
    let change = |change: &EntryChange| v1::Change {
        asset: change.asset.to_string(),
        amount: change.amount.to_string(),
        held: change.held.to_string(),
        issued: unless_zero(change.flows.issued),
        retired: unless_zero(change.flows.retired),
        transferred_in: unless_zero(change.flows.transferred_in),
        transferred_out: unless_zero(change.flows.transferred_out),
    };
    let kind = match &entry.what {
        EntryKind::Transaction { id, receipt, memos } => Kind::Transaction(v1::TransactionEntry {
            tx_id: receipt.tx_id.to_string(),
            log_index: receipt.log_index,
            actor: receipt.actor.to_string(),
            client_id: id.client().map_or(String::new(), ToString::to_string),
            sequence: id.sequence().unwrap_or_default(),
            memos: memos.clone(),
            idempotency_key: id.key().map(ToString::to_string),
        }),
        EntryKind::Hold(view) => Kind::Hold(hold(view)),
        EntryKind::Settle { hold, paid, debt, uncollected, reason, labels } => Kind::Settle(v1::SettleEntry {
            lease_id: hold.lease.to_string(),
            limit: hold.limit.to_string(),
            hold: hold.amount.to_string(),
            paid: paid.to_string(),
            debt: debt.to_string(),
            uncollected: uncollected.to_string(),
            actor: hold.actor.as_ref().map(ToString::to_string),
            reason: reason.name().to_owned(),
            labels: labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }),
        EntryKind::Release(view) => Kind::Release(hold(view)),
        EntryKind::Expire(terms) => Kind::Expire(v1::ExpireEntry {
            priority: terms.priority().into(),
            expires_at_unix_ms: terms.expires_at().map(UnixMs::get),
        }),
        EntryKind::Plan { carried, terms } => Kind::Plan(v1::PlanEntry {
            carried: carried.to_string(),
            priority: terms.priority().into(),
            expires_at_unix_ms: terms.expires_at().map(UnixMs::get),
            actor: Actor::ITSELF.to_owned(),
        }),
    };
    v1::Entry {
        number: entry.number,
        committed_at_unix_ms: entry.at.get(),
        changes: entry.changes.iter().map(change).collect(),
        kind: Some(kind),
    }
}

fn hold(hold: &HoldView) -> v1::HoldEntry {
    v1::HoldEntry {
        lease_id: hold.lease.to_string(),
        limit: hold.limit.to_string(),
        hold: hold.amount.to_string(),
        actor: hold.actor.as_ref().map(ToString::to_string),
    }
}
