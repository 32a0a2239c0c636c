//! The identity of a transaction: whether it is new, and what is recorded once it is committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Book;
use super::codec::operations;
use super::receipt::{InvalidOperation, InvalidWrite, Receipt, WriteError};
use super::write::{Operation, Write, WriteId};
use crate::id::{ClientId, VaultName};
use crate::idempotency::{KeyHash, KeyVerdict, UsedKey};
use crate::keys::ClientOwner;
use crate::quota::QuotaKind;
use crate::sequence::{ClientHash, ContentHash, Kept, Scope, SequenceClaim, Verdict};
use crate::time::UnixMs;

/// The decision about the identity of a transaction.
pub(super) enum Identity {
    /// Committed before, with this receipt.
    Committed(Arc<Receipt>),
    /// The next sequence of a client, and the owner that the client id gets.
    Sequence(SequenceClaim, Option<ClientOwner>),
    /// A new key.
    Key(UsedKey),
}

impl Book {
    /// Decides whether a transaction is new, by its identity and content.
    pub(super) fn identify(
        &self,
        now: UnixMs,
        scope: Scope,
        write: &Write,
        content: ContentHash,
    ) -> Result<Identity, WriteError> {
        match &write.id {
            WriteId::Sequence { client, sequence } => {
                self.identify_sequence(now, scope, write, (client, *sequence), content)
            }
            WriteId::Key(key) => {
                let hash = KeyHash(half_hash(write.vault.as_ref(), key.as_str()));
                let used = UsedKey { namespace: scope.namespace, hash };
                let quota = self.quota(scope.namespace, QuotaKind::IdempotencyKeys);
                match self.idempotency.judge(now, used, (content, &write.actor), quota) {
                    KeyVerdict::Committed(receipt) => Ok(Identity::Committed(Arc::clone(receipt))),
                    KeyVerdict::Reused => Err(WriteError::KeyReused),
                    KeyVerdict::Forgotten => Err(WriteError::KeyCommitted),
                    KeyVerdict::TooMany => Err(WriteError::TooManyKeys),
                    KeyVerdict::New => Ok(Identity::Key(used)),
                }
            }
        }
    }

    fn identify_sequence(
        &self,
        now: UnixMs,
        scope: Scope,
        write: &Write,
        (client, sequence): (&ClientId, u64),
        content: ContentHash,
    ) -> Result<Identity, WriteError> {
        let owner = self.claim(now, scope, client)?;
        self.check_not_retired(scope, write, client)?;
        let clients_quota = self.quota(scope.namespace, QuotaKind::Clients);
        match self.sequences.judge(now, (scope, client), (sequence, content), clients_quota) {
            Verdict::Invalid => Err(WriteError::Invalid(InvalidWrite::Sequence { found: sequence })),
            Verdict::Committed(Some(receipt)) => Ok(Identity::Committed(Arc::clone(receipt))),
            Verdict::Committed(None) | Verdict::TooManyClients => Err(WriteError::TooManyClients),
            Verdict::Reused { last } => Err(WriteError::SequenceReused { last_committed_sequence: last }),
            Verdict::Forgotten { last } => Err(WriteError::AlreadyCommitted { last_committed_sequence: last }),
            Verdict::Gap { last } => Err(WriteError::SequenceGap { last_committed_sequence: last }),
            Verdict::Next(claim) => Ok(Identity::Sequence(claim, owner)),
        }
    }

    /// Records the identity of a committed transaction with its receipt.
    pub(super) fn record(
        &mut self,
        identity: Identity,
        scope: Scope,
        write: &Write,
        (content, receipt): (ContentHash, &Arc<Receipt>),
    ) {
        let (at, receipt) = (receipt.committed_at.log, Arc::clone(receipt));
        match (identity, write.id.client()) {
            (Identity::Sequence(claim, owner), Some(client)) => {
                self.sequences.commit(claim, (scope, client), Kept { content, at, result: Some(receipt) });
                if let Some(owner) = owner {
                    self.sequences.claim(scope, client, owner);
                }
            }
            (Identity::Key(key), _) => self.idempotency.commit(key, Kept { content, at, result: receipt }),
            (Identity::Committed(_), _) | (Identity::Sequence(..), None) => {}
        }
    }

    /// The owner of the client id once the write is committed, if the writer claims it. The first key or user that
    /// writes with a client id owns it; a key only until it is revoked or expires. A key bound to the client id takes
    /// it over; an admin may always write.
    fn claim(&self, now: UnixMs, scope: Scope, client: &ClientId) -> Result<Option<ClientOwner>, WriteError> {
        let Some(claim) = &self.client_claim else { return Ok(None) };
        let current = self.sequences.owner(scope, client);
        if claim.is_taken(current, |owner| self.keys.is_owner_valid(now, owner)) {
            return Err(WriteError::Invalid(InvalidWrite::ClientClaimed { client: client.clone() }));
        }
        Ok((current != Some(&claim.owner)).then(|| claim.owner.clone()))
    }

    /// The content hash of a list of operations: half of the SHA-256 of their encoding.
    pub(super) fn content(&mut self, operations: &[Operation]) -> ContentHash {
        self.scratch.clear();
        operations::write(operations, &mut self.scratch);
        let mut half = [0; 16];
        half.copy_from_slice(&Sha256::digest(&self.scratch)[..16]);
        ContentHash(half)
    }

    fn check_not_retired(&self, scope: Scope, write: &Write, client: &ClientId) -> Result<(), WriteError> {
        let is_retired = self.sequences.has_retired()
            && self.sequences.number(scope, client).is_none()
            && self.sequences.is_retired(scope.namespace, client_hash(write, client));
        if !is_retired {
            return Ok(());
        }
        Err(WriteError::Invalid(InvalidWrite::ClientRetired { client: client.clone() }))
    }

    /// The records of the clients that a transaction retires, with their hashes.
    pub(super) fn retiring(&self, scope: Scope, write: &Write) -> Result<BTreeMap<u32, ClientHash>, WriteError> {
        let mut retired = BTreeMap::new();
        for (operation, each) in write.operations.iter().enumerate() {
            let Operation::RetireClient { client } = each else { continue };
            let invalid = |why| Err(WriteError::Invalid(InvalidWrite::Operation { operation, why }));
            let hash = client_hash(write, client);
            match self.sequences.number(scope, client) {
                // Only a writer that is no admin claims client ids.
                _ if self.client_claim.is_some() => return invalid(InvalidOperation::NeedsAdmin),
                Some(number) if Some(client) != write.id.client() => _ = retired.insert(number, hash),
                None if self.sequences.is_retired(scope.namespace, hash) => {}
                Some(_) | None => return invalid(InvalidOperation::UnknownClient),
            }
        }
        Ok(retired)
    }
}

/// The hash by which a retired client id is remembered.
fn client_hash(write: &Write, client: &ClientId) -> ClientHash {
    ClientHash(half_hash(write.vault.as_ref(), client.as_str()))
}

/// Half of the SHA-256 of a name in its scope. It covers names, so that it outlives the ids of its scope.
fn half_hash(vault: Option<&VaultName>, name: &str) -> [u8; 16] {
    let vault = vault.map_or("", VaultName::as_str);
    let digest = Sha256::new().chain_update(vault).chain_update([0]).chain_update(name).finalize();
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}
