//! A client that counts its sequence numbers.

use earmark_core::{Actor, ClientId, NamespaceId, Operation, Outcome, TxId, VaultName, Write, WriteId, WriteOutcome};

use super::step::Step;
use super::test_book::TestBook;

pub struct Writer {
    pub namespace: NamespaceId,
    vault: Option<VaultName>,
    client: ClientId,
    next: u64,
}

pub fn vault(name: &str) -> VaultName {
    VaultName::new(name).unwrap()
}

impl Writer {
    pub fn new(client: &str) -> Writer {
        let client = ClientId::new(client).unwrap();
        Writer { namespace: NamespaceId::DEFAULT, vault: None, client, next: 1 }
    }

    pub fn of_vault(client: &str, name: &str) -> Writer {
        Writer { vault: Some(vault(name)), ..Writer::new(client) }
    }

    /// Sends the next transaction; a refused one does not use up its number.
    pub fn write(&mut self, test: &mut TestBook, operations: Vec<Operation>) -> WriteOutcome {
        let outcome = self.write_as(test, self.next, operations);
        if matches!(outcome, WriteOutcome::Committed(_)) {
            self.next += 1;
        }
        outcome
    }

    pub fn write_as(&self, test: &mut TestBook, sequence: u64, operations: Vec<Operation>) -> WriteOutcome {
        let write = Write {
            namespace: self.namespace,
            vault: self.vault.clone(),
            id: WriteId::Sequence { client: self.client.clone(), sequence },
            operations,
            tx_id: TxId(u128::from(sequence)),
            log_index: test.now().get(),
            actor: Actor::new(&format!("client:{}", self.client)).unwrap(),
        };
        match test.apply(&Step::Write(Box::new(write))) {
            Outcome::Write(outcome) => outcome,
            other => panic!("no answer to a write: {other:?}"),
        }
    }

    pub fn last(&self, test: &TestBook) -> u64 {
        let vault = self.vault.as_ref().map(|name| test.book.vault(self.namespace, name).unwrap());
        test.book.last_committed(self.namespace, vault, &self.client)
    }
}
