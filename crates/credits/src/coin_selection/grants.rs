//! Grants in a selection: which terms a change of a balance touches, and which postings of a grant it consumes.
//!
//! The rule is the wallet of the Book. It applies to accounts that have grants or receive some; all other changes are
//! plain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use earmark_core::credits::plan::SWEEP_MAX;
use earmark_core::credits::wallet::{self, Wallet, WalletError, WalletGrant};
use earmark_core::{AccountName, AssetName, GRANTS_MAX, GrantTerms, Operation};

use super::{BalanceChange, Chosen, SelectionOutcome};
use crate::id::ReservationId;
use crate::local_locks::AccountSlots;
use crate::model::{GrantShare, LivePosting, Posting, PostingState};
use crate::saga::{Engine, TaskError};
use crate::store::{AsOf, PostingQuery, PostingSet, Survey};

/// From this many grants on, a change consumes all grant postings of its account. So of two processes that each add a
/// grant one reads again, and neither exceeds [`GRANTS_MAX`].
const CROWDED: usize = GRANTS_MAX - 8;

/// The change of one account's credit of one asset by terms.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermChanges {
    /// The change of plain credit.
    pub(crate) plain: i128,
    /// The changes of grants, in spending order.
    pub(crate) grants: Vec<(GrantTerms, i128)>,
    /// The amounts that a withdrawal took, in spending order.
    pub(crate) taken: Vec<(GrantTerms, i128)>,
    /// Whether all grant postings are consumed.
    pub(crate) is_crowded: bool,
}

/// The wallets of some changes.
struct Wallets {
    before: Vec<Wallet>,
    after: BTreeMap<usize, Wallet>,
    taken: Vec<Vec<(GrantTerms, i128)>>,
}

impl BalanceChange {
    /// Whether a grant is involved.
    fn has_terms(&self, posting_set: &PostingSet) -> bool {
        !posting_set.grants.is_empty()
            || posting_set.plan_mark.is_some()
            || self.deposits.iter().any(|(terms, _)| *terms != GrantTerms::PLAIN)
    }

    /// The deposits whose terms have expired.
    fn expired_deposits(&self, as_of: AsOf) -> Vec<(GrantTerms, i128)> {
        self.deposits.iter().filter(|(terms, _)| terms.is_expired(as_of.expiry)).copied().collect()
    }

    /// The change without the deposits that have expired.
    fn usable_change(&self, as_of: AsOf) -> i128 {
        let expired = self.expired_deposits(as_of);
        expired.into_iter().fold(self.change, |sum, (_, amount)| sum.saturating_sub(amount))
    }
}

impl Engine {
    /// Fills in the changes by terms where a grant is involved. `operations` are those of a transaction, whose transfers
    /// carry terms from account to account. Returns an outcome if the selection ends here.
    pub(crate) async fn spread_over_grants(
        &self,
        moves: &mut [BalanceChange],
        posting_sets: &[PostingSet],
        operations: &[Operation],
    ) -> Result<Option<SelectionOutcome>, TaskError> {
        if !moves.iter().zip(posting_sets).any(|(each, posting_set)| each.has_terms(posting_set)) {
            return Ok(None);
        }
        let as_of = self.time.as_of();
        for (each, posting_set) in moves.iter().zip(posting_sets) {
            let mut unsettled = posting_set.owed.iter().chain(&posting_set.grants);
            if unsettled.any(|posting| posting.reserved_by.is_some()) {
                return Ok(Some(SelectionOutcome::Wait(Some(self.slot_table.of(&each.account)))));
            }
            if self.has_applied_due(each, posting_set, as_of).await? {
                return Ok(Some(SelectionOutcome::Wait(None)));
            }
        }
        let mut wallets = match self.wallets(moves, posting_sets, operations, as_of).await? {
            Ok(wallets) => wallets,
            Err(outcome) => return Ok(Some(outcome)),
        };
        for (place, (each, posting_set)) in moves.iter_mut().zip(posting_sets).enumerate() {
            let Some(after) = wallets.after.remove(&place) else { continue };
            let before = &wallets.before[place];
            let is_exhausted = after.plain.saturating_sub(after.plain_held) <= 0;
            if each.spends && is_exhausted && posting_set.large.len() < posting_set.active {
                // There is more plain credit than was read. The next attempt reads more.
                return Ok(Some(SelectionOutcome::Wait(None)));
            }
            let left = before.available().checked_add(each.usable_change(as_of));
            if each.change < 0 && left.is_none_or(|left| left < each.overdraft.floor()) {
                let slots = self.slot_table.of(&each.account);
                return self.classify_shortage(place, each, slots).await.map(Some);
            }
            // Credit that returns from a hold needs no room: its grant was counted.
            let count = if operations.is_empty() { 0 } else { self.count_grants(each, before, &after).await? };
            if count > GRANTS_MAX {
                return Ok(Some(SelectionOutcome::TooManyGrants(place)));
            }
            let is_crowded = count > CROWDED;
            let taken = std::mem::take(&mut wallets.taken[place]);
            // The wallet of a transaction has all deposits. A period may end between its computation and this moment.
            let expired = if operations.is_empty() { each.expired_deposits(as_of) } else { Vec::new() };
            each.by_terms = Some(changes((before, &after), taken, is_crowded, expired));
        }
        Ok(None)
    }

    /// Issues the plan and records the expiry of grants that are due on an account. Returns whether it must be read again.
    async fn has_applied_due(
        &self,
        each: &BalanceChange,
        posting_set: &PostingSet,
        as_of: AsOf,
    ) -> Result<bool, TaskError> {
        let is_due = |terms: GrantTerms| terms.is_expired(as_of.expiry);
        let is_plan_due = posting_set.plan_mark.as_ref().is_some_and(|mark| is_due(mark.terms));
        if is_plan_due && self.issue(each.account.clone()).await? {
            return Ok(true);
        }
        let terms = posting_set.grants.iter().map(|grant| grant.terms);
        let expired: BTreeSet<GrantTerms> = terms.filter(|terms| is_due(*terms)).collect();
        if expired.is_empty() {
            return Ok(false);
        }
        if is_plan_due {
            // A plan without room for a grant keeps the one that it will carry over.
            let mark = self.call(self.store.plan_mark(each.account.clone())).await?;
            let carried = mark.and_then(|(mark, _)| mark.plan?.carried_grant(as_of.expiry));
            if expired.into_iter().all(|terms| Some(terms) == carried) {
                return Ok(false);
            }
        }
        self.apply_due(each.account.clone()).await?;
        Ok(true)
    }

    /// The wallets before and after the changes. Only those of a transaction depend on each other.
    async fn wallets(
        &self,
        moves: &[BalanceChange],
        posting_sets: &[PostingSet],
        operations: &[Operation],
        as_of: AsOf,
    ) -> Result<Result<Wallets, SelectionOutcome>, TaskError> {
        let mut wallets = Wallets { before: Vec::new(), after: BTreeMap::new(), taken: Vec::new() };
        for (place, (each, posting_set)) in moves.iter().zip(posting_sets).enumerate() {
            let is_involved = !operations.is_empty() || each.has_terms(posting_set);
            let before = if is_involved { self.wallet(each, posting_set, as_of).await? } else { Wallet::default() };
            if is_involved {
                wallets.after.insert(place, covered(each, &before));
            }
            wallets.before.push(before);
            wallets.taken.push(Vec::new());
        }
        let failed = |error, place| match error {
            WalletError::OutOfRange => SelectionOutcome::OutOfRange(place),
            WalletError::TooManyGrants => SelectionOutcome::TooManyGrants(place),
        };
        if !operations.is_empty() {
            let key_of = |account: &AccountName, asset: &AssetName| {
                moves.iter().position(|each| each.account.account == *account && each.asset == *asset)
            };
            let tried = wallet::try_moves(&mut wallets.after, operations, key_of);
            return Ok(tried.map(|()| wallets).map_err(|(error, place)| failed(error, place)));
        }
        for (place, after) in &mut wallets.after {
            match each_move(&moves[*place], after, as_of) {
                Ok(taken) => wallets.taken[*place] = taken,
                Err(error) => return Ok(Err(failed(error, *place))),
            }
        }
        Ok(Ok(wallets))
    }

    /// The credit of an account by terms, as far as it was read.
    async fn wallet(&self, each: &BalanceChange, posting_set: &PostingSet, as_of: AsOf) -> Result<Wallet, TaskError> {
        let mut wallet = Wallet { plain: plain_of(posting_set), ..Wallet::default() };
        for posting in &posting_set.grants {
            // Of what has expired, a plan keeps what it will carry over.
            let is_held = posting.terms.is_expired(as_of.expiry);
            let amount = if is_held { 0 } else { posting.amount };
            match wallet.grants.last_mut().filter(|grant| grant.terms == posting.terms) {
                Some(grant) => grant.free = grant.free.saturating_add(amount),
                None => wallet.grants.push(WalletGrant { terms: posting.terms, before: 0, free: amount, is_held }),
            }
        }
        wallet.grants.iter_mut().for_each(|grant| grant.before = grant.free);
        if !posting_set.owed.is_empty() {
            // Only real debt is covered: free plain credit and held credit outweigh postings that are owed. Held credit is
            // read first. So a settlement between the reads only hides debt, which a later change covers.
            wallet.plain_held = self.held_plain(each).await?.saturating_sub(each.released);
            wallet.plain = self.free_plain(each).await?.saturating_add(wallet.plain_held);
        }
        Ok(wallet)
    }

    /// The plain credit that no lease holds, less what is owed. A deposit reads only the latter.
    async fn free_plain(&self, each: &BalanceChange) -> Result<i128, TaskError> {
        let (account, asset) = (each.account.clone(), each.asset.clone());
        let query = PostingQuery { account, asset, largest: super::LOOK_MAX, smallest: 0, count_max: 0 };
        let survey = Survey { posting_sets: vec![query], ..Survey::default() };
        let found = self.call(self.store.survey(survey)).await?;
        Ok(found.posting_sets.first().map_or(0, plain_of))
    }

    async fn held_plain(&self, each: &BalanceChange) -> Result<i128, TaskError> {
        let found = self.call(self.store.grants(each.account.clone())).await?;
        Ok(plain_share(&held_shares(&found, &each.asset).collect::<Vec<_>>()))
    }

    /// The number of grants after a change. Those of which only a part is held are counted if the change adds one.
    async fn count_grants(&self, each: &BalanceChange, before: &Wallet, after: &Wallet) -> Result<usize, TaskError> {
        if after.grants.len() <= before.grants.len() {
            return Ok(after.live_grants());
        }
        let found = self.call(self.store.grants(each.account.clone())).await?;
        let held = held_shares(&found, &each.asset).map(|share| share.terms);
        let free = after.grants.iter().filter(|grant| grant.free > 0).map(|grant| grant.terms);
        let terms: BTreeSet<GrantTerms> = free.chain(held).filter(|terms| *terms != GrantTerms::PLAIN).collect();
        Ok(terms.len())
    }
}

/// The sum of the plain postings that were read.
fn plain_of(posting_set: &PostingSet) -> i128 {
    let plain = posting_set.owed.iter().chain(&posting_set.large);
    plain.fold(0, |sum, posting| sum.saturating_add(posting.amount))
}

/// The shares of all holds of an asset among the grants and holds of an account.
pub(crate) fn held_shares<'a>(
    found: &'a [(Posting, PostingState)],
    asset: &'a AssetName,
) -> impl Iterator<Item = GrantShare> + 'a {
    let held = found.iter().map(|(posting, _)| posting).filter(move |posting| posting.asset == *asset);
    held.filter(|posting| posting.hold.is_some()).flat_map(Posting::shares)
}

/// The wallet in which grants have covered debt. The holds that a change releases still outweigh debt.
fn covered(each: &BalanceChange, before: &Wallet) -> Wallet {
    let mut wallet = Wallet { plain: before.plain.saturating_add(each.released), ..before.clone() };
    wallet.cover_debt();
    wallet.plain = wallet.plain.saturating_sub(each.released);
    wallet
}

/// Makes one change in a wallet: first what it deposits, then what it takes. Plain credit covers debt before grants do.
fn each_move(each: &BalanceChange, wallet: &mut Wallet, as_of: AsOf) -> Result<Vec<(GrantTerms, i128)>, WalletError> {
    let mut withdrawn = each.change.checked_neg().ok_or(WalletError::OutOfRange)?;
    let plain = std::mem::take(&mut wallet.plain);
    for (terms, amount) in &each.deposits {
        withdrawn = withdrawn.checked_add(*amount).ok_or(WalletError::OutOfRange)?;
        if !terms.is_expired(as_of.expiry) {
            wallet.deposit(*terms, *amount)?;
        }
    }
    wallet.plain = wallet.plain.checked_add(plain).ok_or(WalletError::OutOfRange)?;
    wallet.cover_debt();
    if withdrawn < 0 {
        wallet.deposit(GrantTerms::PLAIN, withdrawn.saturating_neg())?;
        return Ok(Vec::new());
    }
    wallet.withdraw(withdrawn)
}

/// The changes by terms. Credit that returns to an expired grant is left for its expiry.
fn changes(
    (before, after): (&Wallet, &Wallet),
    taken: Vec<(GrantTerms, i128)>,
    is_crowded: bool,
    expired: Vec<(GrantTerms, i128)>,
) -> TermChanges {
    let changed = after.grants.iter().map(|grant| (grant.terms, grant.free.saturating_sub(grant.before)));
    let grants = changed.filter(|(_, change)| *change != 0 || is_crowded).chain(expired).collect();
    TermChanges { plain: after.plain.saturating_sub(before.plain), grants, taken, is_crowded }
}

/// The postings of a grant for one change of it. `None` if calls of this process use them.
pub(super) fn choose_grant(
    posting_set: &PostingSet,
    (terms, change): (GrantTerms, i128),
    is_crowded: bool,
    slots: &Arc<AccountSlots>,
    rid: ReservationId,
) -> Option<Chosen> {
    let all = || posting_set.grants.iter().filter(move |posting| posting.terms == terms);
    let mut free: Vec<&LivePosting> = all().filter(|posting| !slots.is_taken(posting.id)).collect();
    free.sort_unstable_by_key(|posting| (std::cmp::Reverse(posting.amount), posting.id));
    let beyond = free.len().saturating_sub(super::SPLIT);
    let wanted = change.min(0).saturating_neg();
    let enough: Vec<&LivePosting> = free.iter().filter(|posting| posting.amount >= wanted).copied().collect();
    let mut inputs: Vec<LivePosting> = Vec::new();
    if is_crowded {
        if free.len() < all().count() {
            return None;
        }
        inputs.extend(free.iter().map(|posting| (*posting).clone()));
    } else if wanted > 0 && !enough.is_empty() {
        // A random choice seldom meets that of another process.
        inputs.push(enough[(rid.0 as usize) % enough.len()].clone());
    } else {
        let mut sum = 0_i128;
        for posting in &free {
            if sum >= wanted {
                break;
            }
            sum = sum.saturating_add(posting.amount);
            inputs.push((*posting).clone());
        }
        if sum < wanted {
            return None;
        }
    }
    // Small postings do not pile up.
    let small =
        free.iter().rev().take(beyond.min(SWEEP_MAX)).filter(|small| inputs.iter().all(|each| each.id != small.id));
    let small: Vec<LivePosting> = small.map(|posting| (*posting).clone()).collect();
    inputs.extend(small);
    let output = inputs.iter().fold(change, |sum, posting| sum.saturating_add(posting.amount));
    Some(Chosen { inputs, output, pieces: if change > 0 { super::SPLIT.saturating_sub(free.len()).max(1) } else { 1 } })
}

/// Splits shares in spending order: the first that add up to `amount`, and the rest.
pub(crate) fn split_shares(shares: &[GrantShare], amount: u64) -> (Vec<GrantShare>, Vec<GrantShare>) {
    let (mut left, mut first, mut rest) = (amount, Vec::new(), Vec::new());
    for share in shares {
        let part = share.amount.min(left);
        left = left.saturating_sub(part);
        for (list, amount) in [(&mut first, part), (&mut rest, share.amount.saturating_sub(part))] {
            if amount > 0 {
                list.push(GrantShare { terms: share.terms, amount });
            }
        }
    }
    (first, rest)
}

/// The sum of two lists of shares, in spending order.
pub(crate) fn join_shares(a: &[GrantShare], b: &[GrantShare]) -> Vec<GrantShare> {
    let mut sums: BTreeMap<GrantTerms, u64> = BTreeMap::new();
    for share in a.iter().chain(b) {
        let sum = sums.entry(share.terms).or_default();
        *sum = sum.saturating_add(share.amount);
    }
    sums.into_iter().map(|(terms, amount)| GrantShare { terms, amount }).collect()
}

/// The shares of grants among some shares.
pub(crate) fn in_grants(shares: &[GrantShare]) -> Vec<GrantShare> {
    shares.iter().filter(|share| share.terms != GrantTerms::PLAIN).copied().collect()
}

/// The sum of the plain credit among some shares.
pub(crate) fn plain_share(shares: &[GrantShare]) -> i128 {
    let plain = shares.iter().filter(|share| share.terms == GrantTerms::PLAIN);
    plain.fold(0, |sum, share| sum.saturating_add(share.amount.into()))
}
