//! The decision that the limits of a call would make now. It is read, and takes nothing.

use std::cmp::Reverse;

use earmark_admission::{Amount, BackendError, CreditRoom, Refusal, ReserveAnswer};
use earmark_core::{CreditShortage, CreditTerms, LimitKey, LimitStatus, NamespaceName, UnixMs, Usage};
use futures_util::future::join_all;

use crate::app::App;
use crate::execute::{self, RequestContext};

/// A limit as it is now. `None` if there is no such limit.
pub(super) struct Found {
    pub(super) usage: Usage,
    is_enforced: bool,
    /// The terms of a credit limit, and the most that it would give.
    credit: Option<(CreditTerms, CreditRoom)>,
}

impl Found {
    /// Whether this amount fits into the room that is left, whatever other limits say.
    pub(super) fn fits(&self, amount: u64) -> bool {
        match &self.credit {
            Some((_, room)) => room.is_ok_and(|room| amount <= room),
            None => amount <= self.usage.available,
        }
    }
}

/// The limits of these amounts, as a lease of the namespace names them.
pub(super) async fn find(
    app: &App,
    context: &RequestContext,
    own: &NamespaceName,
    amounts: &[Amount],
) -> Result<Vec<Option<Found>>, BackendError> {
    let reads = async { join_all(amounts.iter().map(|amount| find_one(app, own, &amount.key))).await };
    execute::read(app, context, async { reads.await.into_iter().collect() }).await
}

async fn find_one(app: &App, own: &NamespaceName, key: &LimitKey) -> Result<Option<Found>, BackendError> {
    let (namespace, key) = key.foreign().unwrap_or_else(|| (own.clone(), key.clone()));
    let limit = app.backend.applied_limit(&namespace, &key);
    let is_visible = namespace == *own || limit.as_ref().is_some_and(|limit| limit.definition.shared);
    let Some(usage) = app.backend.usage(namespace.clone(), key).await?.filter(|_| is_visible) else { return Ok(None) };
    let is_enforced = limit.as_ref().is_none_or(|limit| limit.definition.enforce);
    let credit = match limit.as_ref().and_then(|limit| limit.definition.kind.terms()) {
        Some(terms) => Some((terms.clone(), app.backend.credit_room(namespace, terms.clone()).await?)),
        None => None,
    };
    Ok(Some(Found { usage, is_enforced, credit }))
}

/// The answer to a reserve of these amounts, by the same precedence: what is refused by name, accounts that do not exist,
/// limits without room, accounts without credit.
pub(super) fn answer(amounts: &[Amount], found: &[Option<Found>], now: UnixMs) -> ReserveAnswer {
    let parts = || amounts.iter().zip(found);
    let by_name = parts().filter_map(|(Amount { key, .. }, found)| refused_by_name(key, found.as_ref(), now));
    if let Some((_, refusal)) = by_name.min_by_key(|(key, _)| place(key)) {
        return ReserveAnswer::Refused(refusal);
    }
    let parts: Vec<(&Amount, &Found)> = parts().filter_map(|(amount, found)| Some((amount, found.as_ref()?))).collect();
    let shortage = shortage(&parts);
    if let Some((CreditShortage::UnknownAccount, key)) = shortage {
        return ReserveAnswer::Refused(Refusal::AccountNotFound { key: key.clone(), retry_after_ms: 0 });
    }
    let is_full = |part: &&(&Amount, &Found)| {
        let (amount, found) = part;
        found.credit.is_none() && found.is_enforced && !found.fits(amount.amount)
    };
    let mut full: Vec<(bool, &LimitKey)> = parts
        .iter()
        .filter(is_full)
        .map(|(amount, found)| (amount.amount > found.usage.capacity, &amount.key))
        .collect();
    full.sort_by_cached_key(|(never, key)| (Reverse(*never), place(key)));
    match (full.first(), shortage) {
        (Some((never, _)), _) => {
            let limited_by = full.iter().map(|(_, key)| (*key).clone()).collect();
            ReserveAnswer::Denied { retry_after_ms: 0, limited_by, never: *never }
        }
        (None, Some((why, key))) => {
            ReserveAnswer::Refused(Refusal::InsufficientCredit { key: key.clone(), retry_after_ms: 0, why })
        }
        (None, None) => ReserveAnswer::Allowed { reserved_at: now, would_deny: Vec::new(), policy_revision: None },
    }
}

/// The place of a key among those of a reserve: own limits first, then those of other namespaces.
fn place<'a>(key: &&'a LimitKey) -> (Option<(NamespaceName, LimitKey)>, &'a LimitKey) {
    (key.foreign(), *key)
}

/// The first limit by key whose account does not exist, else the first whose account cannot pay all that is asked of it.
fn shortage<'a>(parts: &[(&'a Amount, &'a Found)]) -> Option<(CreditShortage, &'a LimitKey)> {
    let credit = parts.iter().filter_map(|(amount, found)| Some((&amount.key, found.credit.as_ref()?)));
    let short = credit.filter_map(|(key, (terms, room))| {
        let is_same = |found: &Found| found.credit.as_ref().is_some_and(|(of, _)| is_same_payer(of, terms));
        let same = parts.iter().filter(|(_, found)| is_same(found));
        let sum = same.fold(0_u128, |sum, (amount, _)| sum.saturating_add(amount.amount.into()));
        match room {
            Ok(room) if sum <= u128::from(*room) => None,
            Ok(_) => Some((CreditShortage::NotEnough, key)),
            Err(why) => Some((*why, key)),
        }
    });
    short.min_by_key(|(why, key)| (*why != CreditShortage::UnknownAccount, place(key)))
}

fn is_same_payer(one: &CreditTerms, other: &CreditTerms) -> bool {
    (&one.vault, &one.account, &one.asset) == (&other.vault, &other.account, &other.asset)
}

fn refused_by_name<'a>(key: &'a LimitKey, found: Option<&Found>, now: UnixMs) -> Option<(&'a LimitKey, Refusal)> {
    let Some(Found { usage, .. }) = found else { return Some((key, Refusal::UnknownLimitKey(key.clone()))) };
    let refusal = match (usage.paused_until, usage.status) {
        (Some(until), _) => {
            Refusal::LimitPaused { key: key.clone(), retry_after_ms: until.get().saturating_sub(now.get()) }
        }
        (None, LimitStatus::Active) => return None,
        (None, LimitStatus::Decreasing { .. } | LimitStatus::Deleted) => {
            Refusal::LimitDecreasing { key: key.clone(), retry_after_ms: 0 }
        }
    };
    Some((key, refusal))
}
