//! The records of vaults, accounts, grants and holds.

use super::records::i128;
use crate::book::{Book, NamespaceId, VaultId};
use crate::credits::{
    ACCOUNTS_MAX, ASSETS_MAX, Account, AccountStatus, Asset, AssetId, GRANTS_MAX, GrantTerms, Hold, Owner, State,
    Vault, second,
};
use crate::id::{AccountName, AssetName, LeaseId, VaultName};
use crate::limits::index::Found;
use crate::limits::slab::NONE;
use crate::limits::{ExtendedPart, LimitSlot, PartKind, Reservation};
use crate::wire::{Bytes, Malformed, Put, Wire};

pub(super) fn put_vault(out: &mut Vec<u8>, id: VaultId, vault: &Vault) {
    out.put_u32(id.0);
    out.put_u16(vault.namespace.0);
    out.put_text(vault.name.as_str());
    out.put_len(vault.assets.len());
    for asset in &vault.assets {
        out.put_text(asset.name.as_str());
        out.put_u128(asset.issued as u128);
        out.put_u128(asset.retired as u128);
        out.put_u128(asset.expired as u128);
    }
}

pub(super) fn read_vault(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let (id, namespace) = (VaultId(input.u32()?), NamespaceId(input.u16()?));
    let name = VaultName::new(input.text()?).map_err(|_| Malformed("a vault has no valid name"))?;
    let is_main = namespace == NamespaceId::DEFAULT && name.as_str() == VaultName::MAIN;
    let is_first = id == VaultId::MAIN && book.credits.state.vaults.is_empty();
    if !book.limits.has_namespace(namespace) || is_first != is_main {
        return Err(Malformed("vaults are in no namespace or do not start with the main one"));
    }
    if id.0 < book.credits.state.vaults_created || id.0 == u32::MAX {
        return Err(Malformed("vaults are out of order"));
    }
    if book.credits.vault(namespace, &name).is_some() {
        return Err(Malformed("a vault is doubled"));
    }
    let mut assets: Vec<Asset> = Vec::new();
    for _ in 0..input.u32()? {
        let name = AssetName::new(input.text()?).map_err(|_| Malformed("an asset has no valid name"))?;
        let (issued, retired, expired) = (i128(input)?, i128(input)?, i128(input)?);
        let is_doubled = assets.iter().any(|asset| asset.name == name);
        if is_doubled || assets.len() >= ASSETS_MAX || issued < 0 || retired < 0 || expired < 0 {
            return Err(Malformed("assets are doubled, too many, or less than nothing"));
        }
        assets.push(Asset { name, issued, retired, expired });
    }
    let added = book.credits.add_vault(id, Vault { namespace, name, accounts: 0, assets });
    added.map(drop).ok_or(Malformed("there are too many vaults"))
}

pub(super) fn put_account(out: &mut Vec<u8>, state: &State, slot: u32) {
    let account = state.accounts.get(slot);
    out.put_u32(account.vault.0);
    out.put_text(account.name.as_ref().map_or("", AccountName::as_str));
    if account.name.is_none() {
        return;
    }
    out.put_u8(account.standing as u8);
    account.overdraft.write(out);
    out.put_len(state.balance_slots(slot).count());
    for balance in state.balance_slots(slot) {
        let balance = state.balances.get(balance);
        out.put_u16(balance.asset.0);
        out.put_u128(balance.pot.amount as u128);
    }
}

pub(super) fn read_account(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let (vault, name) = (VaultId(input.u32()?), input.text()?);
    if name.is_empty() {
        let is_empty = vault == VaultId::default() && book.credits.state.accounts.used() < ACCOUNTS_MAX;
        return is_empty
            .then(|| book.credits.restore_empty_account())
            .ok_or(Malformed("an empty account has a vault, or is one too many"));
    }
    let name = AccountName::new(name).map_err(|_| Malformed("an account has no valid name"))?;
    let standing = match input.u8()? {
        1 => AccountStatus::Open,
        2 => AccountStatus::Frozen,
        3 => AccountStatus::Closed,
        _ => return Err(Malformed("the standing of an account is unknown")),
    };
    let overdraft = Wire::read(input)?;
    let credits = &mut book.credits;
    let assets = credits.state.vaults.get(&vault).map(|vault| vault.assets.len());
    let assets = assets.ok_or(Malformed("an account is in no vault"))?;
    if credits.account(vault, &name).is_some() {
        return Err(Malformed("an account is doubled"));
    }
    let account = Account { vault, name: Some(name), standing, overdraft, ..Account::default() };
    let account = credits.restore_account(account).ok_or(Malformed("there are too many accounts"))?;
    for _ in 0..input.u32()? {
        let asset = AssetId(input.u16()?);
        if usize::from(asset.0) >= assets || credits.state.balance(account, asset).is_some() {
            return Err(Malformed("balances are doubled or of no asset"));
        }
        let amount = i128(input)?;
        if standing == AccountStatus::Closed && amount != 0 {
            return Err(Malformed("a closed account is not empty"));
        }
        credits.balance_mut(account, asset).pot.amount = amount;
    }
    Ok(())
}

/// A grant of a balance.
pub(super) struct GrantRecord {
    account: u32,
    /// The slot of its balance, which orders the balances of an account and is not stored.
    balance: u32,
    asset: AssetId,
    terms: GrantTerms,
    amount: i128,
    is_queued: bool,
}

impl GrantRecord {
    /// All grants: by account, in the order of its balances, and then in spending order.
    pub(super) fn all(state: &State) -> impl Iterator<Item = GrantRecord> + '_ {
        let balances = (0..state.accounts.used())
            .flat_map(move |account| state.balance_slots(account).map(move |balance| (account, balance)));
        balances.flat_map(move |(account, balance)| {
            let found = state.balances.get(balance);
            state.grant_slots(found).map(move |slot| {
                let grant = state.grants.get(slot);
                GrantRecord {
                    account,
                    balance,
                    asset: found.asset,
                    terms: grant.terms,
                    amount: grant.pot.amount,
                    is_queued: grant.is_queued,
                }
            })
        })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.account);
        out.put_u16(self.asset.0);
        self.terms.write(out);
        out.put_u128(self.amount as u128);
        out.put_u8(self.is_queued.into());
    }
}

pub(super) fn read_grant(
    book: &mut Book,
    last: &mut Option<GrantRecord>,
    input: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let (account, asset) = (input.u32()?, AssetId(input.u16()?));
    let state = &book.credits.state;
    let balance = (account < state.accounts.used()).then(|| state.balance(account, asset)).flatten();
    let balance = balance.ok_or(Malformed("a grant is of no balance"))?;
    let terms = GrantTerms::read(input)?;
    let grant = GrantRecord { account, balance, asset, terms, amount: i128(input)?, is_queued: input.bool()? };
    let place = |grant: &GrantRecord| (grant.account, grant.balance, grant.terms);
    if last.as_ref().is_some_and(|last| place(last) >= place(&grant)) || terms == GrantTerms::PLAIN {
        return Err(Malformed("grants are doubled, plain, or out of order"));
    }
    let is_closed = state.accounts.get(account).standing == AccountStatus::Closed;
    if grant.amount < 0 || is_closed && grant.amount != 0 || grant.is_queued && terms.expires_at().is_none() {
        return Err(Malformed("a grant is less than nothing, of a closed account, or waits for no expiry"));
    }
    if state.grant_slots(state.balances.get(balance)).count() >= GRANTS_MAX {
        return Err(Malformed("a balance has too many grants"));
    }
    let slot = book.credits.add_grant(Owner { account, balance }, terms, grant.is_queued);
    book.credits.state.grants.get_mut(slot).pot.amount = grant.amount;
    *last = Some(grant);
    Ok(())
}

/// A hold. Its amount and expiry are in the record of its lease.
pub(super) fn put_hold(out: &mut Vec<u8>, state: &State, hold: &Hold) {
    out.put_u16(hold.namespace.0);
    out.put_u128(hold.lease.to_u128());
    out.put_u32(hold.limit.0);
    out.put_u32(hold.account);
    out.put_u16(hold.asset.0);
    out.put_u32(hold.revenue);
    out.put_u64(hold.used);
    out.put_u8(hold.keeps_debt.into());
    out.put_u8(hold.charges_timeout.into());
    out.put_u8(hold.is_released.into());
    out.put_len(state.hold_parts(hold).count());
    for part in state.hold_parts(hold) {
        state.grants.get(part.grant).terms.write(out);
        out.put_u64(part.amount);
    }
}

/// The grants that a hold took from, in spending order.
fn read_parts(state: &State, hold: &Hold, input: &mut Bytes<'_>) -> Result<Vec<(u32, u64)>, Malformed> {
    let mut parts = Vec::new();
    let (mut last, mut left) = (None, hold.amount);
    for _ in 0..input.u32()? {
        let terms = GrantTerms::read(input)?;
        let amount = input.u64()?;
        let grant = state.grant_of(state.balances.get(hold.balance), terms);
        let grant = grant.ok_or(Malformed("a hold is of a grant that is not there"))?;
        if last.replace(terms) >= Some(terms) || amount == 0 || hold.is_released {
            return Err(Malformed("the grants of a hold are doubled, out of order, or released"));
        }
        left = left.checked_sub(amount).ok_or(Malformed("a hold took more from grants than it has"))?;
        parts.push((grant, amount));
    }
    Ok(parts)
}

/// Restores holds: first those not yet released, in order of release, then the released ones in the order of their
/// leases.
#[derive(Default)]
pub(super) struct HoldsRead {
    pub(super) count: u64,
    last_second: u64,
    last_released: Option<(u32, LimitSlot)>,
    parts: Vec<Reservation>,
    more: Vec<ExtendedPart>,
}

impl HoldsRead {
    pub(super) fn read(&mut self, book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let (namespace, lease) = (NamespaceId(input.u16()?), LeaseId::from_u128(input.u128()?));
        let limit = LimitSlot(input.u32()?);
        let hash = book.limits.hash(namespace, lease);
        let Some((_, Found::Record(slot))) = book.limits.find(hash, namespace, lease) else {
            return Err(Malformed("a hold is of no lease"));
        };
        let record = *book.limits.state.leases.get(slot);
        book.limits.state.leases.parts(&record, &mut self.parts);
        book.limits.state.leases.extended_parts(&record, &mut self.more);
        let is_meant = |part: &Reservation| part.limit == limit && part.kind() == PartKind::Credit;
        let place = self.parts.iter().position(is_meant);
        let place = place.ok_or(Malformed("a hold is of nothing that its lease took"))?;
        let (part, more) = (&self.parts[place], self.more.get(place).copied());
        let more = more.unwrap_or_else(|| ExtendedPart::of(part, record.reserved_at));
        let (account, asset, revenue) = (input.u32()?, AssetId(input.u16()?), input.u32()?);
        let state = &book.credits.state;
        if account >= state.accounts.used() || revenue >= state.accounts.used() {
            return Err(Malformed("a hold is of no account"));
        }
        let (payer, payee) = (state.accounts.get(account).vault, state.accounts.get(revenue).vault);
        let vault = state.vaults.get(&payer).map(|vault| vault.namespace);
        let balance = state.balance(account, asset);
        let hold = Hold {
            lease,
            amount: part.amount,
            ends_at: more.ends_at,
            limit,
            account,
            balance: balance.ok_or(Malformed("a hold is of no balance"))?,
            revenue,
            namespace,
            asset,
            used: input.u64()?,
            keeps_debt: input.bool()?,
            charges_timeout: input.bool()?,
            is_released: input.bool()?,
            sibling: NONE,
            ..Hold::default()
        };
        if payer != payee || vault != Some(namespace) {
            return Err(Malformed("a hold is in two vaults, or in another namespace"));
        }
        if !hold.is_released && hold.used != more.used {
            return Err(Malformed("a hold has other usage than its lease"));
        }
        let balance = state.balances.get(hold.balance);
        let now = book.limits.state.now();
        let room = u64::MAX.saturating_sub(state.held_at(balance, now));
        // An expired hold is kept for its lease and holds only what its timeout will charge.
        let held = if hold.ends_at > now { hold.amount } else { hold.due() };
        if held > room {
            return Err(Malformed("more is held than can be counted"));
        }
        let parts = read_parts(state, &hold, input)?;
        self.check_order(book, slot, &hold)?;
        add_hold(book, slot, record.holds, hold, &parts)?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    fn check_order(&mut self, book: &Book, slot: u32, hold: &Hold) -> Result<(), Malformed> {
        let now = book.limits.state.now();
        let is_in_order = if hold.is_released {
            let last = self.last_released.replace((slot, hold.limit));
            second(hold.ends_at).saturating_mul(1_000) <= now.get() && last < Some((slot, hold.limit))
        } else {
            let last = std::mem::replace(&mut self.last_second, second(hold.ends_at));
            self.last_released.is_none() && last <= self.last_second
        };
        if is_in_order { Ok(()) } else { Err(Malformed("holds are out of order")) }
    }
}

/// Inserts a hold into the list of its lease.
fn add_hold(book: &mut Book, lease: u32, first: u32, hold: Hold, parts: &[(u32, u64)]) -> Result<(), Malformed> {
    if book.credits.hold_of(first, hold.limit).is_some() {
        return Err(Malformed("a hold is doubled"));
    }
    let first = book.credits.add_hold(book.limits.state.now(), first, hold, parts);
    book.limits.state.leases.set_holds(lease, first);
    Ok(())
}

/// Checks that every vault has its revenue account and that issued minus retired and expired equals the sum of its
/// balances.
pub(super) fn check_vaults(book: &Book) -> Result<(), Malformed> {
    let revenue = AccountName::new(AccountName::REVENUE).map_err(|_| Malformed("no name for an account"))?;
    let live = book.credits.live();
    for (&number, vault) in &book.credits.state.vaults {
        if book.credits.account(number, &revenue).is_none() {
            return Err(Malformed("a vault is without its account"));
        }
        for (asset, id) in vault.assets.iter().zip(0..) {
            let live = live.get(&(number, AssetId(id))).copied().unwrap_or(0);
            let left = asset.issued.checked_sub(asset.retired).and_then(|left| left.checked_sub(asset.expired));
            if left != Some(live) {
                return Err(Malformed("accounts have more or less than was issued"));
            }
        }
    }
    Ok(())
}
