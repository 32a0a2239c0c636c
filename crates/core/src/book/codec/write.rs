//! Transactions as bytes. The encoding of the operations is also what the content hash covers.

use super::{
    CodecError, definition, grant_terms, overdraft, plan, put_definition, put_grant_terms, put_overdraft, put_plan,
    put_revision, revision,
};
use crate::book::{NamespaceId, Operation, TxId, Write, WriteId};
use crate::id::{AccountName, Actor, AssetName, ClientId, IdempotencyKey, LimitKey, VaultName};
use crate::wire::{Bytes, Put};

const PUT_LIMIT: u8 = 1;
const DELETE_LIMIT: u8 = 2;
const OPEN_VAULT: u8 = 3;
const OPEN_ACCOUNT: u8 = 4;
const FREEZE_ACCOUNT: u8 = 5;
const UNFREEZE_ACCOUNT: u8 = 6;
const CLOSE_ACCOUNT: u8 = 7;
const ISSUE: u8 = 8;
const TRANSFER: u8 = 9;
const RETIRE: u8 = 10;
const RETIRE_CLIENT: u8 = 11;
const SET_PLAN: u8 = 12;
const DELETE_VAULT: u8 = 13;

pub(super) fn put_write(out: &mut Vec<u8>, write: &Write) {
    out.put_u16(write.namespace.0);
    out.put_u8(write.vault.is_some().into());
    if let Some(vault) = &write.vault {
        out.put_text(vault.as_str());
    }
    put_write_id(out, &write.id);
    out.put_u128(write.tx_id.0);
    out.put_u64(write.log_index);
    out.put_text(write.actor.as_str());
    put_operations(out, &write.operations);
}

pub(super) fn write(input: &mut Bytes<'_>) -> Result<Write, CodecError> {
    let namespace = NamespaceId(input.u16()?);
    let vault = if input.bool()? { Some(VaultName::new(input.text()?)?) } else { None };
    Ok(Write {
        namespace,
        vault,
        id: write_id(input)?,
        tx_id: TxId(input.u128()?),
        log_index: input.u64()?,
        actor: Actor::new(input.text()?)?,
        operations: operations(input)?,
    })
}

/// A client with its sequence, or no client and a key.
fn put_write_id(out: &mut Vec<u8>, id: &WriteId) {
    match id {
        WriteId::Sequence { client, sequence } => {
            out.put_text(client.as_str());
            out.put_u64(*sequence);
        }
        WriteId::Key(key) => {
            out.put_text("");
            out.put_text(key.as_str());
        }
    }
}

fn write_id(input: &mut Bytes<'_>) -> Result<WriteId, CodecError> {
    match input.text()? {
        "" => Ok(WriteId::Key(IdempotencyKey::new(input.text()?)?)),
        client => Ok(WriteId::Sequence { client: ClientId::new(client)?, sequence: input.u64()? }),
    }
}

pub(crate) fn put_operations(out: &mut Vec<u8>, operations: &[Operation]) {
    out.put_len(operations.len());
    for operation in operations {
        put_operation(out, operation);
    }
}

fn put_operation(out: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::PutLimit { definition, expected_revision } => {
            out.put_u8(PUT_LIMIT);
            put_revision(out, *expected_revision);
            put_definition(out, definition);
        }
        Operation::DeleteLimit { key, expected_revision } => {
            out.put_u8(DELETE_LIMIT);
            put_revision(out, *expected_revision);
            out.put_text(key.as_str());
        }
        Operation::OpenVault { vault } => {
            out.put_u8(OPEN_VAULT);
            out.put_text(vault.as_str());
        }
        Operation::DeleteVault { vault } => {
            out.put_u8(DELETE_VAULT);
            out.put_text(vault.as_str());
        }
        Operation::RetireClient { client } => {
            out.put_u8(RETIRE_CLIENT);
            out.put_text(client.as_str());
        }
        Operation::OpenAccount { account, overdraft, plan } => {
            put_account(out, OPEN_ACCOUNT, account);
            put_overdraft(out, *overdraft);
            put_plan(out, plan.as_ref());
        }
        Operation::SetPlan { account, plan } => {
            put_account(out, SET_PLAN, account);
            put_plan(out, plan.as_ref());
        }
        Operation::FreezeAccount { account } => put_account(out, FREEZE_ACCOUNT, account),
        Operation::UnfreezeAccount { account } => put_account(out, UNFREEZE_ACCOUNT, account),
        Operation::CloseAccount { account } => put_account(out, CLOSE_ACCOUNT, account),
        Operation::Issue { account, asset, amount, memo, terms } => {
            put_account(out, ISSUE, account);
            put_amount(out, asset, *amount, memo);
            put_grant_terms(out, *terms);
        }
        Operation::Transfer { from, to, asset, amount, memo } => {
            put_account(out, TRANSFER, from);
            out.put_text(to.as_str());
            put_amount(out, asset, *amount, memo);
        }
        Operation::Retire { account, asset, amount, memo } => {
            put_account(out, RETIRE, account);
            put_amount(out, asset, *amount, memo);
        }
    }
}

fn put_account(out: &mut Vec<u8>, tag: u8, account: &AccountName) {
    out.put_u8(tag);
    out.put_text(account.as_str());
}

fn put_amount(out: &mut Vec<u8>, asset: &AssetName, amount: u128, memo: &str) {
    out.put_text(asset.as_str());
    out.put_u128(amount);
    out.put_text(memo);
}

pub(crate) fn operations(input: &mut Bytes<'_>) -> Result<Vec<Operation>, CodecError> {
    let count = input.u32()?;
    (0..count).map(|_| operation(input)).collect()
}

fn operation(input: &mut Bytes<'_>) -> Result<Operation, CodecError> {
    Ok(match input.u8()? {
        PUT_LIMIT => {
            let expected_revision = revision(input)?;
            Operation::PutLimit { expected_revision, definition: definition(input)? }
        }
        DELETE_LIMIT => {
            let expected_revision = revision(input)?;
            Operation::DeleteLimit { expected_revision, key: LimitKey::new(input.text()?)? }
        }
        OPEN_VAULT => Operation::OpenVault { vault: VaultName::new(input.text()?)? },
        DELETE_VAULT => Operation::DeleteVault { vault: VaultName::new(input.text()?)? },
        RETIRE_CLIENT => Operation::RetireClient { client: ClientId::new(input.text()?)? },
        OPEN_ACCOUNT => {
            Operation::OpenAccount { account: account(input)?, overdraft: overdraft(input)?, plan: plan(input)? }
        }
        SET_PLAN => Operation::SetPlan { account: account(input)?, plan: plan(input)? },
        FREEZE_ACCOUNT => Operation::FreezeAccount { account: account(input)? },
        UNFREEZE_ACCOUNT => Operation::UnfreezeAccount { account: account(input)? },
        CLOSE_ACCOUNT => Operation::CloseAccount { account: account(input)? },
        ISSUE => {
            let account = account(input)?;
            let (asset, amount, memo) = amount(input)?;
            Operation::Issue { account, asset, amount, memo, terms: grant_terms(input)? }
        }
        TRANSFER => {
            let (from, to) = (account(input)?, account(input)?);
            let (asset, amount, memo) = amount(input)?;
            Operation::Transfer { from, to, asset, amount, memo }
        }
        RETIRE => {
            let account = account(input)?;
            let (asset, amount, memo) = amount(input)?;
            Operation::Retire { account, asset, amount, memo }
        }
        _ => return Err(CodecError::Malformed("its operation is unknown")),
    })
}

fn account(input: &mut Bytes<'_>) -> Result<AccountName, CodecError> {
    Ok(AccountName::new(input.text()?)?)
}

fn amount(input: &mut Bytes<'_>) -> Result<(AssetName, u128, String), CodecError> {
    Ok((AssetName::new(input.text()?)?, input.u128()?, input.text()?.to_owned()))
}
