//! The records of vaults and accounts.

use super::records::i128;
use crate::book::{Book, NamespaceId, VaultId};
use crate::credits::{ASSETS_MAX, Account, Asset, AssetId, Overdraft, Standing, State, Vault};
use crate::id::{AccountName, AssetName, VaultName};
use crate::wire::{Bytes, Malformed, Put};

pub(super) fn put_vault(out: &mut Vec<u8>, vault: &Vault) {
    out.put_u16(vault.namespace.0);
    out.put_text(vault.name.as_str());
    out.put_len(vault.assets.len());
    for asset in &vault.assets {
        out.put_text(asset.name.as_str());
        out.put_u128(asset.issued as u128);
        out.put_u128(asset.retired as u128);
    }
}

pub(super) fn read_vault(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let namespace = NamespaceId(input.u16()?);
    let name = VaultName::new(input.text()?).map_err(|_| Malformed("a vault has no valid name"))?;
    let is_main = namespace == NamespaceId::DEFAULT && name.as_str() == VaultName::MAIN;
    if !book.limits.has_namespace(namespace) || book.credits.state.vaults.is_empty() != is_main {
        return Err(Malformed("vaults are in no namespace or do not start with the main one"));
    }
    if book.credits.vault(namespace, &name).is_some() {
        return Err(Malformed("a vault is doubled"));
    }
    let mut assets: Vec<Asset> = Vec::new();
    for _ in 0..input.u32()? {
        let name = AssetName::new(input.text()?).map_err(|_| Malformed("an asset has no valid name"))?;
        let (issued, retired) = (i128(input)?, i128(input)?);
        let is_doubled = assets.iter().any(|asset| asset.name == name);
        if is_doubled || assets.len() >= ASSETS_MAX || issued < 0 || retired < 0 {
            return Err(Malformed("assets are doubled, too many, or less than nothing"));
        }
        assets.push(Asset { name, issued, retired });
    }
    let added = book.credits.add_vault(Vault { namespace, name, assets });
    added.map(drop).ok_or(Malformed("there are too many vaults"))
}

pub(super) fn put_account(out: &mut Vec<u8>, state: &State, slot: u32) {
    let account = state.accounts.get(slot);
    out.put_u32(account.vault.0);
    out.put_text(account.name.as_ref().map_or("", AccountName::as_str));
    out.put_u8(account.standing as u8);
    out.put_u8(account.overdraft as u8);
    out.put_len(state.balance_slots(slot).count());
    for balance in state.balance_slots(slot) {
        let balance = state.balances.get(balance);
        out.put_u16(balance.asset.0);
        out.put_u128(balance.amount as u128);
    }
}

pub(super) fn read_account(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let vault = VaultId(input.u32()?);
    let name = AccountName::new(input.text()?).map_err(|_| Malformed("an account has no valid name"))?;
    let standing = match input.u8()? {
        1 => Standing::Open,
        2 => Standing::Frozen,
        3 => Standing::Closed,
        _ => return Err(Malformed("the standing of an account is unknown")),
    };
    let overdraft = match input.u8()? {
        1 => Overdraft::Deny,
        2 => Overdraft::Allow,
        _ => return Err(Malformed("the overdraft of an account is unknown")),
    };
    let credits = &mut book.credits;
    let assets = credits.state.vaults.get(vault.0 as usize).map(|vault| vault.assets.len());
    let assets = assets.ok_or(Malformed("an account is in no vault"))?;
    if credits.account(vault, &name).is_some() {
        return Err(Malformed("an account is doubled"));
    }
    let account = Account { vault, name: Some(name), standing, overdraft, ..Account::default() };
    let account = credits.add_account(account).ok_or(Malformed("there are too many accounts"))?;
    for _ in 0..input.u32()? {
        let asset = AssetId(input.u16()?);
        if usize::from(asset.0) >= assets || credits.state.balance(account, asset).is_some() {
            return Err(Malformed("balances are doubled or of no asset"));
        }
        let amount = i128(input)?;
        if standing == Standing::Closed && amount != 0 {
            return Err(Malformed("a closed account is not empty"));
        }
        credits.balance_mut(account, asset).amount = amount;
    }
    Ok(())
}

/// Every vault has its own account, and what was issued and not retired is what its accounts have.
pub(super) fn check_vaults(book: &Book) -> Result<(), Malformed> {
    let revenue = AccountName::new(AccountName::REVENUE).map_err(|_| Malformed("no name for an account"))?;
    let live = book.credits.live();
    for (vault, number) in book.credits.state.vaults.iter().zip(0..) {
        if book.credits.account(VaultId(number), &revenue).is_none() {
            return Err(Malformed("a vault is without its account"));
        }
        for (asset, id) in vault.assets.iter().zip(0..) {
            let live = live.get(&(VaultId(number), AssetId(id))).copied().unwrap_or(0);
            if asset.issued.checked_sub(asset.retired) != Some(live) {
                return Err(Malformed("accounts have more or less than was issued"));
            }
        }
    }
    Ok(())
}
