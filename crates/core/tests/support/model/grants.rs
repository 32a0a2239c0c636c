//! Grants in the model: amounts by terms, and every sum counted again.

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AssetName, EXPIRY_SKEW_MS_MAX, GRANTS_MAX, GrantInfo, GrantTerms, InvalidOperation, Moment, UnixMs,
};

use super::Model;
use super::credit::Hold;

/// Due grants looked at per command.
const CLEAN: usize = 64;

/// The time by which credit expires.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expiry {
    time: UnixMs,
    is_waiting: bool,
}

impl Hold {
    /// The parts it took by terms, in spending order, with the part that its timeout charges.
    fn pieces(&self) -> Vec<(GrantTerms, u64, u64)> {
        let mut due = self.due();
        let piece = |(&terms, &amount): (&GrantTerms, &u64)| {
            let of_piece = due.min(amount);
            due -= of_piece;
            (terms, amount, of_piece)
        };
        self.parts.iter().map(piece).collect()
    }

    /// Returns a part: first what is spent last.
    fn give_back(&mut self, amount: u64) {
        let mut left = amount;
        for part in self.parts.values_mut().rev() {
            let returned = left.min(*part);
            *part -= returned;
            left -= returned;
        }
        self.parts.retain(|terms, amount| *amount > 0 || *terms == GrantTerms::PLAIN);
    }
}

impl Model {
    pub fn advance_expiry(&mut self, at: Moment) {
        self.expiry.is_waiting = at.log.get().abs_diff(at.wall.get()) > EXPIRY_SKEW_MS_MAX;
        if !self.expiry.is_waiting {
            self.expiry.time = at.log;
        }
    }

    /// Log time was moved.
    pub fn skip_expiry(&mut self) {
        if !self.expiry.is_waiting {
            self.expiry.time = self.time();
        }
    }

    pub fn is_expiry_waiting(&self) -> bool {
        self.expiry.is_waiting
    }

    pub fn expires_by(&self, now: UnixMs) -> UnixMs {
        if self.expiry.is_waiting { self.expiry.time } else { now }
    }

    fn grants_of(&self, account: AccountId, asset: &AssetName) -> BTreeMap<GrantTerms, i128> {
        let grants = self.account(account).grants.iter().filter(|((of, _), _)| of == asset);
        grants.map(|((_, terms), amount)| (*terms, *amount)).collect()
    }

    /// Plain credit, held amounts included.
    pub fn plain(&self, account: AccountId, asset: &AssetName) -> i128 {
        self.account(account).amounts.get(asset).copied().unwrap_or(0)
    }

    /// The whole balance.
    pub fn amount(&self, account: AccountId, asset: &AssetName) -> i128 {
        self.grants_of(account, asset).values().fold(self.plain(account, asset), |sum, more| sum.wrapping_add(*more))
    }

    /// The amount that holds took of the credit with these terms.
    fn held_of(&self, now: UnixMs, account: AccountId, asset: &AssetName, terms: GrantTerms) -> i128 {
        let mine = self.holds.iter().filter(|hold| hold.account == account && hold.asset == *asset);
        let piece = |hold: &Hold| {
            let pieces = hold.pieces().into_iter().filter(|(of, ..)| *of == terms);
            pieces.map(|(_, amount, due)| i128::from(if hold.end > now { amount } else { due })).sum::<i128>()
        };
        mine.map(piece).sum()
    }

    pub fn free_of(&self, now: UnixMs, account: AccountId, asset: &AssetName, terms: GrantTerms) -> i128 {
        let whole = match terms {
            GrantTerms::PLAIN => self.plain(account, asset),
            terms => self.account(account).grants.get(&(asset.clone(), terms)).copied().unwrap_or(0),
        };
        whole.saturating_sub(self.held_of(now, account, asset, terms))
    }

    /// All terms of a balance in spending order, plain ones included and expired ones not.
    fn spending_order(&self, now: UnixMs, account: AccountId, asset: &AssetName) -> Vec<GrantTerms> {
        let time = self.expires_by(now);
        let mut order: Vec<GrantTerms> = self.grants_of(account, asset).into_keys().collect();
        order.push(GrantTerms::PLAIN);
        order.sort();
        order.retain(|terms| !terms.is_expired(time));
        order
    }

    pub fn spendable(&self, now: UnixMs, account: AccountId, asset: &AssetName) -> i128 {
        // Plain credit first, as the Book adds, since sums at the ends of the range saturate.
        let plain = self.free_of(now, account, asset, GrantTerms::PLAIN);
        let order = self.spending_order(now, account, asset).into_iter().filter(|terms| *terms != GrantTerms::PLAIN);
        order.fold(plain, |sum, terms| sum.saturating_add(self.free_of(now, account, asset, terms)))
    }

    /// The credit that pays `amount`, by terms. Plain credit owes what is missing.
    pub fn draw(&self, account: AccountId, asset: &AssetName, amount: u64) -> BTreeMap<GrantTerms, u64> {
        let now = self.time();
        let mut left = amount;
        let mut drawn = BTreeMap::new();
        for terms in self.spending_order(now, account, asset) {
            let free = u64::try_from(self.free_of(now, account, asset, terms).max(0)).unwrap_or(u64::MAX);
            let share = left.min(free);
            left -= share;
            if share > 0 {
                drawn.insert(terms, share);
            }
        }
        *drawn.entry(GrantTerms::PLAIN).or_default() += left;
        drawn
    }

    /// Takes amounts by terms off a balance.
    pub fn take_pieces(&mut self, account: AccountId, asset: &AssetName, pieces: &BTreeMap<GrantTerms, u64>) {
        for (terms, amount) in pieces {
            let account = &mut self.accounts[account.0 as usize];
            let whole = match *terms {
                GrantTerms::PLAIN => account.amounts.entry(asset.clone()).or_default(),
                terms => account.grants.entry((asset.clone(), terms)).or_default(),
            };
            *whole -= i128::from(*amount);
        }
    }

    /// Pays `cost` from what a hold took. False if plain credit would overflow.
    pub fn pay_from(&mut self, hold: &Hold, cost: u64) -> bool {
        if self.plain(hold.account, &hold.asset).checked_sub(cost.into()).is_none() {
            return false;
        }
        let mut left = cost;
        let mut paid = BTreeMap::new();
        for (terms, amount, _) in hold.pieces() {
            paid.insert(terms, left.min(amount));
            left -= left.min(amount);
        }
        self.take_pieces(hold.account, &hold.asset, &paid);
        true
    }

    /// Expires, forgets and covers debt, when a balance is touched.
    pub fn apply_due(&mut self, account: AccountId, asset: &AssetName) {
        self.touched_balances.push((account, asset.clone()));
        self.apply_plan(account, asset);
        self.expire(account, asset);
        let now = self.time();
        if self.grants_of(account, asset).is_empty() || self.plain(account, asset) >= 0 {
            return;
        }
        for terms in self.spending_order(now, account, asset) {
            if terms == GrantTerms::PLAIN {
                continue;
            }
            let owed = self.plain(account, asset).min(0).saturating_neg();
            let share = self.free_of(now, account, asset, terms).clamp(0, owed);
            let account = &mut self.accounts[account.0 as usize];
            *account.grants.get_mut(&(asset.clone(), terms)).unwrap() -= share;
            *account.amounts.entry(asset.clone()).or_default() += share;
        }
        self.expire(account, asset);
    }

    fn expire(&mut self, account: AccountId, asset: &AssetName) {
        let now = self.time();
        let time = self.expires_by(now);
        for (terms, amount) in self.grants_of(account, asset) {
            let mut left = amount;
            if terms.is_expired(time) && self.carried_terms(account, asset) != Some(terms) {
                let free = self.free_of(now, account, asset, terms).max(0);
                left -= free;
                let vault = self.account(account).vault;
                let totals = &mut self.vaults[vault.0 as usize].assets;
                totals.iter_mut().find(|totals| totals.name == *asset).unwrap().expired += free;
            }
            let is_held = self.holds.iter().any(|hold| {
                let is_open = hold.paid.is_none() && hold.account == account && hold.asset == *asset;
                is_open && hold.parts.contains_key(&terms)
            });
            let grants = &mut self.accounts[account.0 as usize].grants;
            if left == 0 && !is_held {
                grants.remove(&(asset.clone(), terms));
                self.queue.retain(|(_, of, what, queued)| (*of, what, *queued) != (account, asset, terms));
            } else {
                grants.insert((asset.clone(), terms), left);
            }
        }
    }

    /// Looks at the first due grants, in order.
    pub fn expire_due(&mut self) {
        for _ in 0..CLEAN {
            let time = self.expires_by(self.time());
            let assets = |account: AccountId| &self.vaults[self.account(account).vault.0 as usize].assets;
            let number = |account, asset: &AssetName| assets(account).iter().position(|known| known.name == *asset);
            let key = |&(at, account, ref asset, terms): &(UnixMs, AccountId, AssetName, GrantTerms)| {
                (at, account, number(account, asset), terms.priority())
            };
            let due = self.queue.iter().filter(|(at, ..)| *at <= time);
            let Some(first) = due.min_by_key(|queued| key(queued)).cloned() else { return };
            self.queue.retain(|queued| *queued != first);
            self.apply_due(first.1, &first.2);
        }
    }

    /// Adds credit; it covers debt first.
    pub fn deposit(
        &mut self,
        account: AccountId,
        asset: &AssetName,
        (terms, amount): (GrantTerms, i128),
    ) -> Result<(), InvalidOperation> {
        let owed = self.plain(account, asset).min(0).saturating_neg();
        let covered = if terms == GrantTerms::PLAIN { amount } else { amount.min(owed) };
        let of_account = &mut self.accounts[account.0 as usize];
        let plain = of_account.amounts.entry(asset.clone()).or_default();
        *plain = plain.checked_add(covered).ok_or(InvalidOperation::OutOfRange)?;
        if amount > covered {
            let is_new = !of_account.grants.contains_key(&(asset.clone(), terms));
            let grant = of_account.grants.entry((asset.clone(), terms)).or_default();
            *grant = grant.checked_add(amount - covered).ok_or(InvalidOperation::OutOfRange)?;
            if let Some(at) = terms.expires_at().filter(|_| is_new) {
                self.queue.push((at, account, asset.clone(), terms));
            }
        }
        Ok(())
    }

    /// Takes credit in spending order. Plain credit owes what is missing.
    pub fn withdraw(
        &mut self,
        account: AccountId,
        asset: &AssetName,
        amount: i128,
    ) -> Result<Vec<(GrantTerms, i128)>, InvalidOperation> {
        let now = self.time();
        let mut left = amount;
        let mut taken = Vec::new();
        for terms in self.spending_order(now, account, asset) {
            let share = self.free_of(now, account, asset, terms).clamp(0, left);
            left -= share;
            let of_account = &mut self.accounts[account.0 as usize];
            match terms {
                GrantTerms::PLAIN => *of_account.amounts.entry(asset.clone()).or_default() -= share,
                terms => *of_account.grants.get_mut(&(asset.clone(), terms)).unwrap() -= share,
            }
            taken.extend((share > 0).then_some((terms, share)));
        }
        if left > 0 {
            let plain = self.accounts[account.0 as usize].amounts.entry(asset.clone()).or_default();
            *plain = plain.checked_sub(left).ok_or(InvalidOperation::OutOfRange)?;
            taken.push((GrantTerms::PLAIN, left));
        }
        Ok(taken)
    }

    pub fn has_grants(&self, account: AccountId, asset: &AssetName) -> bool {
        !self.grants_of(account, asset).is_empty()
    }

    pub fn has_too_many_grants(&self, account: AccountId, asset: &AssetName) -> bool {
        let is_kept = |terms: &GrantTerms| {
            let mut mine = self.holds.iter().filter(|hold| hold.account == account && hold.asset == *asset);
            mine.any(|hold| hold.paid.is_none() && hold.parts.contains_key(terms))
        };
        let grants = self.grants_of(account, asset).into_iter();
        grants.filter(|(terms, amount)| *amount > 0 || is_kept(terms)).count() > GRANTS_MAX
    }

    /// The number of grants that stay when expired ones are removed.
    pub fn kept_grants(&self, account: AccountId, asset: &AssetName) -> usize {
        let is_held = |terms: &GrantTerms| {
            let mut mine = self.holds.iter().filter(|hold| hold.account == account && hold.asset == *asset);
            mine.any(|hold| hold.paid.is_none() && hold.parts.contains_key(terms))
        };
        let now = self.time();
        self.grants_of(account, asset).keys().filter(|terms| !terms.is_expired(now) || is_held(terms)).count()
    }

    /// Grows the hold of a limit.
    pub fn grow(&mut self, place: usize, amount: u64) {
        let (account, asset) = (self.holds[place].account, self.holds[place].asset.clone());
        let drawn = self.draw(account, &asset, amount);
        let hold = &mut self.holds[place];
        hold.amount += amount;
        for (terms, more) in drawn {
            *hold.parts.entry(terms).or_default() += more;
        }
    }

    /// Shrinks the hold of a limit.
    pub fn shrink(&mut self, place: usize, less: u64) {
        let hold = &mut self.holds[place];
        hold.amount -= less;
        hold.give_back(less);
        let (account, asset) = (hold.account, hold.asset.clone());
        self.apply_due(account, &asset);
    }

    /// The grants of an account at a time.
    pub fn grants(&self, now: UnixMs, id: AccountId) -> Vec<GrantInfo> {
        let time = self.expires_by(now);
        let mut infos = Vec::new();
        let mut assets: Vec<AssetName> =
            self.vaults[self.account(id).vault.0 as usize].assets.iter().map(|asset| asset.name.clone()).collect();
        assets.sort();
        for asset in assets {
            let mut all: Vec<GrantTerms> = self.grants_of(id, &asset).into_keys().collect();
            all.push(GrantTerms::PLAIN);
            all.sort();
            for terms in all {
                let remaining = if terms.is_expired(time) { 0 } else { self.free_of(now, id, &asset, terms) };
                let held = self.held_of(now, id, &asset, terms);
                if (remaining, held) != (0, 0) {
                    infos.push(GrantInfo { asset: asset.clone(), remaining, held, terms });
                }
            }
        }
        infos
    }
}
