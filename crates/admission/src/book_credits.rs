//! Credit in a Book while TigerBeetle enforces the limits.

use std::sync::Arc;

use earmark_core::{
    Actor, BalanceInfo, ClientId, CreditShortage, CreditTerms, Definition, ExtendStep, GrantInfo, LeaseId, LeaseState,
    NamespaceName, Principal, UnixMs, Usage, VaultName,
};

use crate::backend::{
    AccountPath, Amount, Answer, Answers, Backend, BackendError, CompleteAnswer, CompleteRequest, Refusal,
    ReserveAnswer, ReserveRequest,
};
use crate::book_host::{BookBackend, BookHost};
use crate::book_limits::DELETED_USAGE;
use crate::book_request::by_key;
use crate::callers::{ChangeCursor, ChangeEntry, ChangePage, ChangeQuery, CreditCursor, Keys};
use crate::credit_lists::{AccountPage, AccountQuery, EntryQuery};
use crate::credits::{
    Credits, GrowAnswer, GrowRequest, HoldAnswer, HoldPart, HoldRequest, HoldState, RenewAnswer, RenewRequest,
    SettleAnswer, SettleRequest, ShrinkRequest, Writer,
};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::writes::{Audit, CreditReadError, CreditRoom, EntryPage, WriteAnswer, WriteRequest};

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
            // The limits judged the claim. The Book of the credit knows no owners.
            ReserveAnswer::Refused(Refusal::OwnedByGateway) => failed("a hold has an owner".into()),
            // A hold names no policy.
            ReserveAnswer::Refused(Refusal::DeniedByPolicy { .. }) => failed("a hold has a policy".into()),
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
                Ok(actuals) => completes.push(CompleteRequest {
                    namespace,
                    lease,
                    job: None,
                    claim: earmark_core::LeaseClaim::default(),
                    actuals,
                    labels: request.labels.clone(),
                }),
                Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        let answers = self.0.complete(right_of(actor), completes).await;
        answers.into_iter().map(|answer| answer.map(settled)).collect()
    }
}

impl<H: BookHost> BookCredits<H> {
    /// The state of the holds of a lease, apart from refusals.
    async fn hold_state(&self, namespace: &NamespaceName, lease: LeaseId) -> Result<HoldState, BackendError> {
        Credits::holds(self, namespace.clone(), lease, Vec::new()).await
    }

    /// Performs one step of an extension.
    async fn step(
        &self,
        actor: Option<Actor>,
        request: ExtendRequest,
        step: ExtendStep,
    ) -> Result<ExtendAnswer, BackendError> {
        let answers = self.0.extend_step(right_of(actor), vec![(request, step)]).await;
        answers.into_iter().next().ok_or_else(unanswered)?
    }

    async fn grow_one(&self, actor: Option<Actor>, request: GrowRequest) -> Result<GrowAnswer, BackendError> {
        let GrowRequest { namespace, lease, number, holds, first } = request;
        if !holds.is_empty() {
            let request = step_request(namespace.clone(), lease, number, &holds);
            match self.hold_more(actor, request, first).await? {
                ExtendAnswer::Refused(Refusal::LeaseExpired) => {}
                answer => return grown(answer),
            }
        }
        Ok(match self.hold_state(&namespace, lease).await? {
            HoldState::Held if holds.is_empty() => GrowAnswer::Held,
            HoldState::Unknown if holds.is_empty() => GrowAnswer::Held,
            HoldState::Unknown | HoldState::Held | HoldState::Refused { .. } | HoldState::Ended => GrowAnswer::Ended,
        })
    }

    /// Takes the growth of an extension. The first growth of a lease, which was reserved at `first`, makes its record in
    /// this Book.
    async fn hold_more(
        &self,
        actor: Option<Actor>,
        request: ExtendRequest,
        first: Option<UnixMs>,
    ) -> Result<ExtendAnswer, BackendError> {
        let answer = self.step(actor.clone(), request.clone(), ExtendStep::Grow).await?;
        let Some(reserved_at) = first.filter(|_| !request.add.is_empty() && answer == ExtendAnswer::expired()) else {
            return Ok(answer);
        };
        match self.hold_state(&request.namespace, request.lease).await? {
            HoldState::Unknown => self.step(actor, request, ExtendStep::Begin { reserved_at }).await,
            HoldState::Held | HoldState::Refused { .. } | HoldState::Ended => Ok(answer),
        }
    }

    async fn renew_one(&self, actor: Option<Actor>, request: RenewRequest) -> Result<RenewAnswer, BackendError> {
        let RenewRequest { namespace, lease, number, holds, used, renew, reserved_at, .. } = request;
        let grow = step_request(namespace.clone(), lease, number, &holds);
        // The limits have accepted this body. Growth of another body under this number was abandoned and is returned;
        // growth of this one that a copy of the request returned is held again.
        let mut answer = self.hold_more(actor.clone(), grow.clone(), Some(reserved_at)).await?;
        if let ExtendAnswer::Refused(Refusal::InvalidRequest { .. }) = answer {
            self.step(actor.clone(), grow.clone(), ExtendStep::Return).await?;
            answer = self.hold_more(actor.clone(), grow.clone(), Some(reserved_at)).await?;
        }
        match answer {
            ExtendAnswer::Extended { .. } | ExtendAnswer::Refused(Refusal::LeaseExpired) => {}
            ExtendAnswer::Refused(Refusal::InsufficientCredit { key, why, .. }) => {
                return Ok(RenewAnswer::Refused { key, why });
            }
            other => {
                let message = format!("the growth of extension {number} was returned, and not held again: {other:?}");
                return Err(BackendError::Failed(message));
            }
        }
        let last = ExtendRequest { used: used.clone(), renew, ..grow };
        let renewed = self.step(actor, last, ExtendStep::Renew).await?;
        match renewed {
            ExtendAnswer::Extended { ends_at, ignored, above } => Ok(RenewAnswer::Alive { ends_at, ignored, above }),
            ExtendAnswer::Refused(Refusal::LeaseExpired) => match self.hold_state(&namespace, lease).await? {
                HoldState::Unknown if holds.is_empty() => {
                    let ignored = used.into_iter().map(|used| used.key).collect();
                    Ok(RenewAnswer::Alive { ends_at: None, ignored, above: Vec::new() })
                }
                HoldState::Unknown | HoldState::Held | HoldState::Refused { .. } | HoldState::Ended => {
                    Ok(RenewAnswer::Ended)
                }
            },
            other => Err(BackendError::Failed(format!("the Book refused the last step of an extension: {other:?}"))),
        }
    }
}

fn step_request(namespace: NamespaceName, lease: LeaseId, number: u32, holds: &[HoldPart]) -> ExtendRequest {
    let amount = |part: &HoldPart| Amount { key: part.limit.key.clone(), amount: part.amount };
    let add = holds.iter().map(amount).collect();
    ExtendRequest {
        namespace,
        lease,
        number,
        add,
        used: Vec::new(),
        claim: earmark_core::LeaseClaim::default(),
        renew: false,
    }
}

fn grown(answer: ExtendAnswer) -> Result<GrowAnswer, BackendError> {
    match answer {
        ExtendAnswer::Extended { .. } => Ok(GrowAnswer::Held),
        ExtendAnswer::Refused(Refusal::InsufficientCredit { key, why, .. }) => Ok(GrowAnswer::Refused { key, why }),
        ExtendAnswer::Refused(Refusal::AccountNotFound { key, .. }) => {
            Ok(GrowAnswer::Refused { key, why: CreditShortage::UnknownAccount })
        }
        ExtendAnswer::Refused(Refusal::InvalidRequest { .. }) => Ok(GrowAnswer::Differs),
        ExtendAnswer::Refused(
            refusal @ (Refusal::QuotaExceeded { .. }
            | Refusal::UnknownLimitKey(_)
            | Refusal::LimitPaused { .. }
            | Refusal::LimitDecreasing { .. }),
        ) => Ok(GrowAnswer::Blocked(refusal)),
        other @ (ExtendAnswer::Denied { .. }
        | ExtendAnswer::Refused(
            Refusal::LeaseExpired | Refusal::OwnedByGateway | Refusal::DeniedByPolicy { .. },
        )) => Err(BackendError::Failed(format!("the Book refused to hold more: {other:?}"))),
    }
}

fn unanswered() -> BackendError {
    BackendError::Failed("the Book did not answer a step of an extension".into())
}

/// The caller was authorized before the first step. Only the actor's name is left to record.
fn right_of(actor: Option<Actor>) -> Principal {
    actor.map_or(Principal::System, Principal::Actor)
}

fn settled(answer: CompleteAnswer) -> SettleAnswer {
    SettleAnswer {
        is_known: answer.reconciled,
        ignored: answer.ignored,
        raised: answer.raised,
        paid: answer.credit_paid,
        debt: answer.credit_debt,
        uncollected: answer.credit_uncollected,
    }
}

impl<H: BookHost> Credits for BookCredits<H> {
    fn hold(&self, actor: Option<Actor>, requests: Vec<HoldRequest>) -> Answers<'_, HoldAnswer> {
        Box::pin(async move {
            let leases: Vec<LeaseId> = requests.iter().map(|request| request.lease).collect();
            let requests = requests.into_iter().map(|HoldRequest { namespace, lease, holds }| {
                let amount =
                    |part: &crate::credits::HoldPart| Amount { key: part.limit.key.clone(), amount: part.amount };
                let requirements = holds.iter().map(amount).collect();
                ReserveRequest { namespace, lease, job: None, call: None, by_gateway: false, requirements }
            });
            let answers = self.0.reserve(right_of(actor), requests.collect()).await;
            let answers = leases.into_iter().zip(answers);
            answers.map(|(lease, answer)| self.held(lease, answer?)).collect()
        })
    }

    fn grow(&self, actor: Option<Actor>, requests: Vec<GrowRequest>) -> Answers<'_, GrowAnswer> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for request in requests {
                answers.push(self.grow_one(actor.clone(), request).await);
            }
            answers
        })
    }

    fn shrink(&self, actor: Option<Actor>, request: ShrinkRequest) -> Answer<'_, Result<(), BackendError>> {
        let ShrinkRequest { namespace, lease, number, holds } = request;
        let request = step_request(namespace, lease, number, &holds);
        Box::pin(async move {
            let answers = self.0.extend_step(right_of(actor), vec![(request, ExtendStep::Return)]).await;
            answers.into_iter().try_for_each(|answer| answer.map(drop))
        })
    }

    fn renew(&self, actor: Option<Actor>, requests: Vec<RenewRequest>) -> Answers<'_, RenewAnswer> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for request in requests {
                answers.push(self.renew_one(actor.clone(), request).await);
            }
            answers
        })
    }

    fn settle(&self, actor: Option<Actor>, requests: Vec<SettleRequest>) -> Answers<'_, SettleAnswer> {
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

    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        Backend::grants(&self.0, account)
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Backend::balances(&self.0, account)
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>> {
        let key = limit.key.clone();
        Box::pin(async move { Ok(Backend::usage(&self.0, namespace, key).await?.unwrap_or(DELETED_USAGE)) })
    }

    fn room(&self, namespace: NamespaceName, terms: CreditTerms) -> Answer<'_, Result<CreditRoom, BackendError>> {
        Backend::credit_room(&self.0, namespace, terms)
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        Backend::accounts(&self.0, namespace, vault, query)
    }

    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Backend::entries(&self.0, account, query)
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
