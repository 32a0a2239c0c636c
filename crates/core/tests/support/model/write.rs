//! Transactions of the model. Each works on a copy that is dropped on refusal.

use std::sync::Arc;

use earmark_core::{
    ClientId, DeleteLimit, InvalidOperation, InvalidWrite, KEY_RESULTS_MS, LimitOutcome, Moment, NamespaceId,
    OPERATIONS_MAX, Operation, OperationResult, PutLimit, QuotaKind, RESULTS_MAX, RESULTS_MS, Receipt, VaultId, Write,
    WriteError, WriteId, WriteOutcome,
};

use super::Model;

/// A committed transaction and its receipt.
#[derive(Clone, Debug)]
pub struct Committed {
    pub namespace: NamespaceId,
    pub vault: Option<VaultId>,
    pub id: WriteId,
    pub operations: Vec<Operation>,
    pub receipt: Arc<Receipt>,
    /// Whether the client was retired since.
    pub is_retired: bool,
}

impl Model {
    pub fn write(&mut self, write: &Write) -> WriteOutcome {
        let before = self.clone();
        self.try_write(write).unwrap_or_else(|error| {
            // A put that finds the table full makes the sweep look further, also when it is undone.
            let derived_now = self.derived_now;
            let touched = std::mem::take(&mut self.touched_balances);
            *self = Model { derived_now, ..before };
            for (account, asset) in touched {
                // An account or asset that the write would have made has nothing due.
                let home = self.accounts.get(account.0 as usize).map(|account| account.vault);
                let assets = home.map(|home| &self.vaults[home.0 as usize].assets);
                if assets.is_some_and(|assets| assets.iter().any(|known| known.name == asset)) {
                    self.apply_due(account, &asset);
                }
            }
            // A revision that was shown is not given again.
            if let WriteError::ConditionFailed { revision, .. } = error {
                self.revision = self.revision.max(revision);
            }
            WriteOutcome::Refused(error)
        })
    }

    fn try_write(&mut self, write: &Write) -> Result<WriteOutcome, WriteError> {
        if !self.knows(write.namespace) {
            return Err(WriteError::Invalid(InvalidWrite::UnknownNamespace));
        }
        let found = write.operations.len();
        if found > OPERATIONS_MAX {
            return Err(WriteError::Invalid(InvalidWrite::TooManyOperations { found }));
        }
        let vault = match &write.vault {
            Some(name) => Some(self.vault(write.namespace, name).ok_or(WriteError::VaultNotFound { operation: None })?),
            None => None,
        };
        let before = match &write.id {
            WriteId::Sequence { client, sequence } => self.judge_sequence(write, vault, client, *sequence)?,
            WriteId::Key(_) => self.judge_key(write, vault)?,
        };
        if let Some(receipt) = before {
            return Ok(WriteOutcome::Exists(receipt));
        }
        let gone = self.retiring(write, vault)?;
        let results = self.operate(write, vault)?;
        let receipt = Arc::new(Receipt {
            tx_id: write.tx_id,
            sequence: write.id.sequence(),
            log_index: write.log_index,
            committed_at: Moment { log: self.time(), wall: self.wall },
            actor: write.actor.clone(),
            results,
        });
        self.committed.push(Committed {
            namespace: write.namespace,
            vault,
            id: write.id.clone(),
            operations: write.operations.clone(),
            receipt: Arc::clone(&receipt),
            is_retired: false,
        });
        if let Some(vault) = vault {
            self.change_plans(vault, &write.operations);
        }
        for client in gone {
            let mine = |c: &&mut Committed| {
                c.namespace == write.namespace && c.vault == vault && c.id.client() == Some(&client)
            };
            self.committed.iter_mut().filter(mine).for_each(|c| c.is_retired = true);
            self.retired.push((write.namespace, write.vault.clone(), client));
        }
        Ok(WriteOutcome::Committed(receipt))
    }

    pub fn last_committed(&self, namespace: NamespaceId, vault: Option<VaultId>, client: &ClientId) -> u64 {
        let mine = |c: &&Committed| {
            !c.is_retired && c.namespace == namespace && c.vault == vault && c.id.client() == Some(client)
        };
        self.committed.iter().filter(mine).filter_map(|c| c.receipt.sequence).max().unwrap_or(0)
    }

    fn judge_sequence(
        &self,
        write: &Write,
        vault: Option<VaultId>,
        client: &ClientId,
        sequence: u64,
    ) -> Result<Option<Arc<Receipt>>, WriteError> {
        if self.is_retired(write, client) {
            return Err(WriteError::Invalid(InvalidWrite::ClientRetired { client: client.clone() }));
        }
        if sequence == 0 || sequence == u64::MAX {
            return Err(WriteError::Invalid(InvalidWrite::Sequence { found: sequence }));
        }
        let last = self.last_committed(write.namespace, vault, client);
        if sequence > last + 1 {
            return Err(WriteError::SequenceGap { last_committed_sequence: last });
        }
        if sequence <= last {
            return self.written_before(write, vault, (sequence, last)).map(Some);
        }
        let is_full = self.clients() + self.retired.len().div_ceil(16) >= self.config.clients_max as usize;
        if last == 0 && (is_full || !self.has_room(write.namespace, QuotaKind::Clients)) {
            return Err(WriteError::TooManyClients);
        }
        Ok(None)
    }

    fn judge_key(&self, write: &Write, vault: Option<VaultId>) -> Result<Option<Arc<Receipt>>, WriteError> {
        let is_it = |c: &Committed| c.namespace == write.namespace && c.vault == vault && c.id == write.id;
        let Some(place) = self.committed.iter().position(is_it) else {
            let has_room = self.has_room(write.namespace, QuotaKind::IdempotencyKeys);
            return if has_room { Ok(None) } else { Err(WriteError::TooManyKeys) };
        };
        let found = &self.committed[place];
        // No script has enough writes for the bound on answers.
        if found.receipt.committed_at.log.plus_ms(KEY_RESULTS_MS) <= self.time() {
            return Err(WriteError::KeyCommitted);
        }
        if found.operations != write.operations || found.receipt.actor != write.actor {
            return Err(WriteError::KeyReused);
        }
        Ok(Some(Arc::clone(&found.receipt)))
    }

    pub fn idempotency_keys_of(&self, namespace: NamespaceId) -> usize {
        self.committed.iter().filter(|c| c.namespace == namespace && c.id.key().is_some()).count()
    }

    fn is_retired(&self, write: &Write, client: &ClientId) -> bool {
        self.retired.iter().any(|(n, v, c)| *n == write.namespace && *v == write.vault && c == client)
    }

    /// The clients that a transaction retires. Scripts write as admins.
    fn retiring(&self, write: &Write, vault: Option<VaultId>) -> Result<Vec<ClientId>, WriteError> {
        let is_wrong = |operation: &Operation| !operation.fits(vault.is_some());
        if let Some(operation) = write.operations.iter().position(is_wrong) {
            return Err(WriteError::WrongScope { operation });
        }
        if !self.has_room(write.namespace, QuotaKind::JournalBytesPerDay) {
            return Err(WriteError::QuotaExceeded { operation: None, kind: QuotaKind::JournalBytesPerDay });
        }
        let mut gone: Vec<ClientId> = Vec::new();
        for (operation, each) in write.operations.iter().enumerate() {
            let Operation::RetireClient { client } = each else { continue };
            if self.last_committed(write.namespace, vault, client) > 0 && Some(client) != write.id.client() {
                if !gone.contains(client) {
                    gone.push(client.clone());
                }
            } else if !self.is_retired(write, client) {
                let why = InvalidOperation::UnknownClient;
                return Err(WriteError::Invalid(InvalidWrite::Operation { operation, why }));
            }
        }
        Ok(gone)
    }

    /// Number of clients, counted once per scope.
    fn clients(&self) -> usize {
        (0..).map(NamespaceId).zip(&self.namespaces).map(|(namespace, _)| self.clients_of(namespace)).sum()
    }

    pub fn has_clients(&self, vault: VaultId) -> bool {
        self.committed.iter().any(|c| c.vault == Some(vault) && !c.is_retired && c.id.client().is_some())
    }

    pub fn clients_of(&self, namespace: NamespaceId) -> usize {
        let mine = self.committed.iter().filter(|c| c.namespace == namespace && !c.is_retired);
        let mut all: Vec<_> = mine.filter_map(|c| Some((c.namespace, c.vault, c.id.client()?.as_str()))).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    fn written_before(
        &self,
        write: &Write,
        vault: Option<VaultId>,
        (sequence, last): (u64, u64),
    ) -> Result<Arc<Receipt>, WriteError> {
        let is_it = |c: &Committed| c.namespace == write.namespace && c.vault == vault && c.id == write.id;
        let place = self.committed.iter().rposition(is_it).unwrap();
        let found = &self.committed[place];
        let later = self.committed[place..].iter().filter(|c| c.id.client().is_some()).count();
        let is_recent = later <= RESULTS_MAX && self.time() < found.receipt.committed_at.log.plus_ms(RESULTS_MS);
        if sequence < last && !is_recent {
            return Err(WriteError::AlreadyCommitted { last_committed_sequence: last });
        }
        if found.operations != write.operations {
            return Err(WriteError::SequenceReused { last_committed_sequence: last });
        }
        Ok(Arc::clone(&found.receipt))
    }

    fn operate(&mut self, write: &Write, vault: Option<VaultId>) -> Result<Vec<OperationResult>, WriteError> {
        match vault {
            Some(vault) => self.write_vault(vault, &write.operations),
            None => {
                let mut deleted = Vec::new();
                let results = (write.operations.iter().enumerate())
                    .map(|(place, operation)| self.change_namespace(write.namespace, (place, operation), &mut deleted))
                    .collect();
                deleted.into_iter().for_each(|vault| self.delete_vault(vault));
                results
            }
        }
    }

    fn change_namespace(
        &mut self,
        namespace: NamespaceId,
        (operation, asked): (usize, &Operation),
        deleted: &mut Vec<VaultId>,
    ) -> Result<OperationResult, WriteError> {
        let outcome = match asked {
            Operation::PutLimit { definition, expected_revision } => {
                let vault = definition.kind.terms().map(|terms| &terms.vault);
                if vault.is_some_and(|vault| self.vault(namespace, vault).is_none()) {
                    return Err(WriteError::VaultNotFound { operation: Some(operation) });
                }
                self.put(PutLimit { namespace, definition, expected_revision: *expected_revision })
            }
            Operation::DeleteLimit { key, expected_revision } => {
                self.delete(DeleteLimit { namespace, key, expected_revision: *expected_revision })
            }
            Operation::RetireClient { .. } => return Ok(OperationResult::Client),
            Operation::DeleteVault { vault } => {
                deleted.push(self.deletable(operation, (namespace, vault), deleted)?);
                return Ok(OperationResult::Vault(*deleted.last().unwrap()));
            }
            Operation::OpenVault { vault } => {
                if self.vault(namespace, vault).is_some_and(|vault| deleted.contains(&vault)) {
                    return Err(WriteError::Conflict { operation });
                }
                for kind in [QuotaKind::Vaults, QuotaKind::Accounts] {
                    if self.vault(namespace, vault).is_none() && !self.has_room(namespace, kind) {
                        return Err(WriteError::QuotaExceeded { operation: Some(operation), kind });
                    }
                }
                return Ok(OperationResult::Vault(self.open_vault(namespace, vault)));
            }
            other => panic!("{other:?} is not about a namespace"),
        };
        let invalid = |why| WriteError::Invalid(InvalidWrite::Operation { operation, why });
        match outcome {
            LimitOutcome::Changed { revision, status, .. } => Ok(OperationResult::Limit { revision, status }),
            LimitOutcome::Invalid(error) => Err(invalid(InvalidOperation::Definition(error))),
            LimitOutcome::RevisionDiffers { revision } => Err(WriteError::ConditionFailed { operation, revision }),
            LimitOutcome::NotFound => Err(WriteError::ConditionFailed { operation, revision: 0 }),
            LimitOutcome::KindDiffers => Err(invalid(InvalidOperation::LimitKindDiffers)),
            LimitOutcome::TooMany => Err(invalid(InvalidOperation::TooManyLimits)),
            LimitOutcome::QuotaExceeded(kind) => Err(WriteError::QuotaExceeded { operation: Some(operation), kind }),
            other => panic!("{other:?} in a namespace that is known"),
        }
    }
}
