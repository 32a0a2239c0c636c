//! Applies transactions: each identity once, all operations or none.

use std::sync::Arc;

use super::journal::{JournalRecord, Replaced, Transaction};
use super::receipt::{InvalidOperation, InvalidWrite, OperationResult, Receipt, WriteError, WriteOutcome};
use super::transact_identity::Identity;
use super::write::{OPERATIONS_MAX, Operation, Write};
use super::{Book, DeleteLimit, LimitOutcome, NamespaceId, PutLimit, VaultId};
use crate::credits::CreditRefusal;
use crate::id::VaultName;
use crate::limits::UndoLimit;
use crate::quota::{DELETED_PER_VAULT, QuotaKind};
use crate::sequence::Scope;
use crate::time::{Moment, UnixMs};

impl Book {
    pub(super) fn write(&mut self, at: Moment, write: &Write) -> WriteOutcome {
        self.try_write(at, write).unwrap_or_else(WriteOutcome::Refused)
    }

    fn try_write(&mut self, at: Moment, write: &Write) -> Result<WriteOutcome, WriteError> {
        let now = at.log;
        let scope = self.scope(write)?;
        self.credits.prefetch_write(write);
        let content = self.content(&write.operations);
        let identity = match self.identify(now, scope, write, content)? {
            Identity::Committed(receipt) => return Ok(WriteOutcome::Exists(receipt)),
            identity => identity,
        };
        let is_of_vault = scope.vault.is_some();
        if let Some(operation) = write.operations.iter().position(|each| !each.fits(is_of_vault)) {
            return Err(WriteError::WrongScope { operation });
        }
        if !self.limits.state.quotas.has_room_in_journal(scope.namespace, now) {
            return Err(WriteError::QuotaExceeded { operation: None, kind: QuotaKind::JournalBytesPerDay });
        }
        let retired = self.retiring(scope, write)?;
        let mut replaced = Vec::new();
        let (results, changes) = match scope.vault {
            Some(vault) => self.write_vault(now, vault, &write.operations)?,
            None => (self.write_namespace(now, write, &mut replaced)?, Vec::new()),
        };
        let receipt = Arc::new(Receipt {
            tx_id: write.tx_id,
            sequence: write.id.sequence(),
            log_index: write.log_index,
            committed_at: at,
            actor: write.actor.clone(),
            results,
        });
        self.record(identity, scope, write, (content, &receipt));
        self.sequences.retire(&retired);
        self.credits.journal.push(JournalRecord::Transaction(Transaction {
            namespace: scope.namespace,
            vault: scope.vault,
            id: write.id.clone(),
            receipt: Arc::clone(&receipt),
            operations: write.operations.clone(),
            replaced,
            changes,
        }));
        if let Some(vault) = scope.vault {
            self.credits.change_plans(now, vault, &write.operations);
        }
        Ok(WriteOutcome::Committed(receipt))
    }

    /// Checks the size of a transaction and resolves its scope.
    fn scope(&self, write: &Write) -> Result<Scope, WriteError> {
        if !self.limits.has_namespace(write.namespace) {
            return Err(WriteError::Invalid(InvalidWrite::UnknownNamespace));
        }
        let found = write.operations.len();
        if found > OPERATIONS_MAX {
            return Err(WriteError::Invalid(InvalidWrite::TooManyOperations { found }));
        }
        let namespace = write.namespace;
        let vault = match &write.vault {
            Some(name) => {
                Some(self.credits.vault(namespace, name).ok_or(WriteError::VaultNotFound { operation: None })?)
            }
            None => None,
        };
        Ok(Scope { namespace, vault })
    }

    /// Applies the operations of a namespace in order, and undoes all of them if one is refused. Appends the
    /// definitions that they replace to `replaced`.
    fn write_namespace(
        &mut self,
        now: UnixMs,
        write: &Write,
        replaced: &mut Vec<Replaced>,
    ) -> Result<Vec<OperationResult>, WriteError> {
        let mut results = Vec::with_capacity(write.operations.len());
        let mut undo: Vec<UndoLimit> = Vec::new();
        let mut deleted: Vec<VaultId> = Vec::new();
        let vaults = self.credits.state.vaults_created;
        let (revision, reclaimable) = (self.limits.state.revision, self.limits.state.reclaimable);
        let freeable = self.limits.freeable.len();
        for (position, operation) in write.operations.iter().enumerate() {
            let old = operation.limit().and_then(|key| self.definition(now, write.namespace, key));
            replaced.extend(old.map(|definition| Replaced { operation: position, definition }));
            let result = self.change_namespace(now, write, operation, (&mut undo, &mut deleted));
            match result.map_err(|refusal| refusal.at(position)) {
                Ok(result) => results.push(result),
                Err(error) => {
                    self.credits.undo_vaults(vaults);
                    for change in undo.into_iter().rev() {
                        self.limits.undo(change);
                    }
                    self.limits.freeable.truncate(freeable);
                    // A revision that the refusal shows must not be given to another change.
                    let shown = if let WriteError::ConditionFailed { revision, .. } = error { revision } else { 0 };
                    (self.limits.state.revision, self.limits.state.reclaimable) = (revision.max(shown), reclaimable);
                    return Err(error);
                }
            }
        }
        for vault in deleted {
            self.credits.remove_vault(vault);
            self.limits.state.quotas.add_deleted_vault(write.namespace);
        }
        Ok(results)
    }

    fn change_namespace(
        &mut self,
        now: UnixMs,
        write: &Write,
        operation: &Operation,
        (undo, deleted): (&mut Vec<UndoLimit>, &mut Vec<VaultId>),
    ) -> Result<OperationResult, Refusal> {
        let namespace = write.namespace;
        let outcome = match operation {
            &Operation::PutLimit { ref definition, expected_revision } => {
                if self.lacks_vault(namespace, definition) {
                    return Err(Refusal::VaultNotFound);
                }
                undo.push(self.limits.remember(namespace, &definition.key));
                self.limits.put_limit(now, &PutLimit { namespace, definition, expected_revision })
            }
            &Operation::DeleteLimit { ref key, expected_revision } => {
                undo.push(self.limits.remember(namespace, key));
                self.limits.delete_limit(now, &DeleteLimit { namespace, key, expected_revision })
            }
            Operation::OpenVault { vault } => {
                self.check_open_vault(namespace, vault, deleted)?;
                let opened = self.credits.open_vault(namespace, vault);
                let vault = opened.ok_or(Refusal::Invalid(InvalidOperation::TooManyVaults))?;
                return Ok(OperationResult::Vault(vault));
            }
            Operation::DeleteVault { vault } => {
                let vault = self.deletable_vault(namespace, vault, deleted)?;
                deleted.push(vault);
                return Ok(OperationResult::Vault(vault));
            }
            Operation::RetireClient { .. } => return Ok(OperationResult::Client),
            Operation::OpenAccount { .. }
            | Operation::SetPlan { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. }
            | Operation::Issue { .. }
            | Operation::Transfer { .. }
            | Operation::Retire { .. } => return Err(Refusal::WrongScope),
        };
        match outcome {
            LimitOutcome::Changed { revision, status, .. } => Ok(OperationResult::Limit { revision, status }),
            LimitOutcome::Invalid(error) => Err(Refusal::Invalid(InvalidOperation::Definition(error))),
            LimitOutcome::RevisionDiffers { revision } => Err(Refusal::Condition { revision }),
            LimitOutcome::NotFound | LimitOutcome::UnknownNamespace => Err(Refusal::Condition { revision: 0 }),
            LimitOutcome::KindDiffers => Err(Refusal::Invalid(InvalidOperation::LimitKindDiffers)),
            LimitOutcome::TooMany => Err(Refusal::Invalid(InvalidOperation::TooManyLimits)),
            LimitOutcome::QuotaExceeded(kind) => Err(Refusal::Quota(kind)),
            LimitOutcome::VaultNotFound => Err(Refusal::VaultNotFound),
        }
    }
}

impl Book {
    /// Checks that the namespace may open another vault, which has an account of its own. A vault that the transaction
    /// deletes is there until its end.
    fn check_open_vault(&self, namespace: NamespaceId, vault: &VaultName, deleted: &[VaultId]) -> Result<(), Refusal> {
        if let Some(vault) = self.credits.vault(namespace, vault) {
            let is_deleted = deleted.contains(&vault);
            return if is_deleted { Err(Refusal::Credit(CreditRefusal::Conflict)) } else { Ok(()) };
        }
        let used = [
            (QuotaKind::Vaults, self.vaults_of(namespace)),
            (QuotaKind::Accounts, self.credits.account_use_of(namespace).into()),
        ];
        let full = used.into_iter().find(|(kind, used)| *used >= self.quota(namespace, *kind));
        full.map_or(Ok(()), |(kind, _)| Err(Refusal::Quota(kind)))
    }
}

impl Book {
    /// The vault to delete. The first vault of all stays, because a Book always has it.
    fn deletable_vault(
        &self,
        namespace: NamespaceId,
        vault: &VaultName,
        deleted: &[VaultId],
    ) -> Result<VaultId, Refusal> {
        if self.external_parts().credit {
            return Err(Refusal::Invalid(InvalidOperation::CreditExternal));
        }
        let vault = self.credits.vault(namespace, vault).filter(|vault| !deleted.contains(vault));
        let vault = vault.ok_or(Refusal::VaultNotFound)?;
        let is_used = !self.credits.is_unused(vault) || self.sequences.has_clients(vault);
        if is_used || vault == VaultId::MAIN {
            return Err(Refusal::Credit(CreditRefusal::Conflict));
        }
        Ok(vault)
    }

    /// The use of the quota of vaults. The number of a vault is not used again, so deleted ones count a little.
    pub(super) fn vaults_of(&self, namespace: NamespaceId) -> u64 {
        let deleted = self.limits.state.quotas.deleted_vaults(namespace);
        self.credits.vaults_of(namespace).saturating_add(deleted / DELETED_PER_VAULT)
    }
}

/// Why an operation is refused, without its index.
pub(super) enum Refusal {
    Invalid(InvalidOperation),
    Condition { revision: u64 },
    Credit(CreditRefusal),
    WrongScope,
    VaultNotFound,
    Quota(QuotaKind),
}

impl Refusal {
    pub(super) fn at(self, operation: usize) -> WriteError {
        match self {
            Refusal::Invalid(why) => WriteError::Invalid(InvalidWrite::Operation { operation, why }),
            Refusal::Condition { revision } => WriteError::ConditionFailed { operation, revision },
            Refusal::WrongScope => WriteError::WrongScope { operation },
            Refusal::VaultNotFound => WriteError::VaultNotFound { operation: Some(operation) },
            Refusal::Quota(kind) => WriteError::QuotaExceeded { operation: Some(operation), kind },
            Refusal::Credit(refusal) => {
                let invalid = |why| WriteError::Invalid(InvalidWrite::Operation { operation, why });
                match refusal {
                    CreditRefusal::TooManyAccounts => invalid(InvalidOperation::TooManyAccounts),
                    CreditRefusal::AccountsQuota => Refusal::Quota(QuotaKind::Accounts).at(operation),
                    CreditRefusal::TooManyAssets => invalid(InvalidOperation::TooManyAssets),
                    CreditRefusal::TooManyGrants => invalid(InvalidOperation::TooManyGrants),
                    CreditRefusal::ExpiryPast => invalid(InvalidOperation::ExpiryPast),
                    CreditRefusal::OutOfRange => invalid(InvalidOperation::OutOfRange),
                    CreditRefusal::NotFound => WriteError::AccountNotFound { operation },
                    CreditRefusal::Closed => WriteError::AccountClosed { operation },
                    CreditRefusal::Frozen => WriteError::AccountFrozen { operation },
                    CreditRefusal::Conflict => WriteError::Conflict { operation },
                    CreditRefusal::Insufficient => WriteError::InsufficientCredit { operation },
                }
            }
        }
    }
}
