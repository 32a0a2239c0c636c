//! Credit in a Book while TigerBeetle enforces the limits.

use std::sync::Arc;

use earmark_core::{
    Actor, BalanceInfo, ClientId, CreditShortage, Definition, LeaseId, LeaseState, NamespaceName, Principal, Usage,
    VaultName,
};

use crate::backend::{
    AccountPath, Amount, Answer, Backend, BackendError, CompleteAnswer, CompleteRequest, Refusal, ReserveAnswer,
    ReserveRequest,
};
use crate::book_host::{BookBackend, BookHost};
use crate::book_limits::DELETED_USAGE;
use crate::book_request::by_key;
use crate::callers::{ChangeCursor, ChangeEntry, ChangePage, ChangeQuery, CreditCursor, Keys};
use crate::credits::{Credits, HoldAnswer, HoldRequest, HoldState, SettleAnswer, SettleRequest, Writer};
use crate::writes::{Audit, CreditReadError, EntryPage, WriteAnswer, WriteRequest};

/// The credit of a Book that does not enforce limits; see [`BookBackend::record_placement`]. In this Book a lease covers credit
/// only: a hold is a reserve, and a settlement is a complete.
pub struct BookCredits<H>(BookBackend<H>);

impl<H: BookHost> BookCredits<H> {
    /// The credit of this Book.
    pub fn new(book: BookBackend<H>) -> BookCredits<H> {
        BookCredits(book)
    }

    fn held(&self, lease: LeaseId, answer: ReserveAnswer) -> Result<HoldAnswer, BackendError> {
        let failed = |why: String| Err(BackendError::Failed(why));
        match answer {
            ReserveAnswer::Allowed { .. } => Ok(HoldAnswer::Held),
            ReserveAnswer::Refused(Refusal::InsufficientCredit { key, why, .. }) => {
                Ok(HoldAnswer::Refused { key, why })
            }
            ReserveAnswer::Refused(Refusal::AccountNotFound { key, .. }) => {
                Ok(HoldAnswer::Refused { key, why: CreditShortage::UnknownAccount })
            }
            ReserveAnswer::Refused(Refusal::LeaseExpired) => Ok(HoldAnswer::Ended),
            // The limits allowed this lease, so it was young enough once. Its hold has ended and was forgotten.
            ReserveAnswer::Refused(Refusal::InvalidRequest { .. }) if self.is_forgotten(lease) => Ok(HoldAnswer::Ended),
            ReserveAnswer::Refused(Refusal::InvalidRequest { message }) => failed(message),
            ReserveAnswer::Refused(
                Refusal::UnknownLimitKey(key) | Refusal::LimitDecreasing { key, .. } | Refusal::LimitPaused { key, .. },
            ) => failed(format!("the limit {key} was deleted while credit was held for it")),
            ReserveAnswer::Refused(Refusal::QuotaExceeded { .. }) => {
                Err(BackendError::Overloaded("the namespace has used up its quota of leases or of journal bytes"))
            }
            ReserveAnswer::Denied { .. } => failed("the limits of a hold are not of kind credit".into()),
        }
    }

    fn is_forgotten(&self, lease: LeaseId) -> bool {
        self.0.0.host.with_book(|book| lease.time() < book.forgotten_before())
    }

    /// The actuals of a settlement. In a release, keys without an actual cost nothing.
    async fn actuals(&self, request: &SettleRequest) -> Result<Vec<Amount>, BackendError> {
        let mut actuals = request.actuals.clone();
        if request.is_release
            && let Some(view) = self.0.lease(request.namespace.clone(), request.lease).await?
        {
            let is_said = |held: &Amount| request.actuals.iter().any(|actual| actual.key == held.key);
            let unsaid = view.requirements.into_iter().filter(|held| !is_said(held));
            actuals.extend(unsaid.map(|held| Amount { amount: 0, ..held }));
        }
        Ok(actuals)
    }

    async fn settle_all(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Vec<Result<SettleAnswer, BackendError>> {
        let mut completes = Vec::with_capacity(requests.len());
        for request in &requests {
            let (namespace, lease) = (request.namespace.clone(), request.lease);
            match self.actuals(request).await {
                Ok(actuals) => completes.push(CompleteRequest { namespace, lease, job: None, actuals }),
                Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        let answers = self.0.complete(right_of(actor), completes).await;
        answers.into_iter().map(|answer| answer.map(settled)).collect()
    }
}

/// The caller was authorized before the first step. Only the actor's name is left to record.
fn right_of(actor: Option<Actor>) -> Principal {
    actor.map_or(Principal::System, Principal::Actor)
}

fn settled(answer: CompleteAnswer) -> SettleAnswer {
    SettleAnswer {
        is_known: answer.reconciled,
        ignored: answer.ignored,
        paid: answer.credit_paid,
        debt: answer.credit_debt,
        uncollected: answer.credit_uncollected,
    }
}

impl<H: BookHost> Credits for BookCredits<H> {
    fn hold(
        &self,
        actor: Option<Actor>,
        requests: Vec<HoldRequest>,
    ) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>> {
        Box::pin(async move {
            let leases: Vec<LeaseId> = requests.iter().map(|request| request.lease).collect();
            let requests = requests.into_iter().map(|HoldRequest { namespace, lease, holds }| {
                let amount =
                    |part: &crate::credits::HoldPart| Amount { key: part.limit.key.clone(), amount: part.amount };
                let requirements = holds.iter().map(amount).collect();
                ReserveRequest { namespace, lease, job: None, requirements }
            });
            let answers = self.0.reserve(right_of(actor), requests.collect()).await;
            let answers = leases.into_iter().zip(answers);
            answers.map(|(lease, answer)| self.held(lease, answer?)).collect()
        })
    }

    fn settle(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>> {
        Box::pin(self.settle_all(actor, requests))
    }

    fn holds(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
        requirements: Vec<Amount>,
    ) -> Answer<'_, Result<HoldState, BackendError>> {
        let read = self.0.read(move |book, now| {
            let Some(id) = book.namespace(&namespace) else { return HoldState::Unknown };
            let parts = by_key(&requirements);
            if let Some(denial) = book.credit_denial(now, (id, lease), &parts)
                && let Some(limit) = requirements.get(denial.requirement)
            {
                return HoldState::Refused { key: limit.key.clone(), why: denial.why };
            }
            match book.lease(now, id, lease).map(|lease| lease.state) {
                None => HoldState::Unknown,
                Some(LeaseState::Live) => HoldState::Held,
                Some(LeaseState::Expired | LeaseState::Completed | LeaseState::Denied) => HoldState::Ended,
            }
        });
        Box::pin(read)
    }

    fn write(&self, writer: Writer, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Backend::write(&self.0, writer.by, request)
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        Backend::client_state(&self.0, namespace, Some(vault), client)
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Backend::balances(&self.0, account)
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>> {
        let key = limit.key.clone();
        Box::pin(async move { Ok(Backend::usage(&self.0, namespace, key).await?.unwrap_or(DELETED_USAGE)) })
    }

    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Backend::entries(&self.0, account, after, page_size)
    }

    fn changes(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>> {
        let placed = |place: ChangeCursor| ChangeCursor::of_credit(CreditCursor { commit: place.book, given: 1 });
        // A record is a commit of its own.
        let after = match query.after.credit {
            CreditCursor::END => ChangeCursor::BOOK_END,
            CreditCursor { commit, given: 0 } if commit > 0 => commit.saturating_add(1),
            CreditCursor { commit, .. } => commit,
        };
        Box::pin(async move {
            let page = Keys::log(&self.0, ChangeQuery { after: ChangeCursor::of_book(after), ..query }).await?;
            let of_vaults = page.entries.into_iter().filter(|entry| entry.vault.is_some());
            let entries = of_vaults.map(|entry| ChangeEntry { place: placed(entry.place), ..entry }).collect();
            Ok(ChangePage { entries, next: page.next.map(placed) })
        })
    }

    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        Backend::audit(&self.0, namespace, vault)
    }

    fn ready(&self) -> Result<(), String> {
        Backend::ready(&self.0)
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Backend::shut_down(&self.0)
    }
}
