//! Random transactions of several clients: new, repeated, late and invalid ones.

use earmark_core::{
    Actor, ClientId, GrantTerms, NamespaceId, Operation, Overdraft, TxId, UnixMs, Write, WriteId, WriteOutcome,
};

use super::balance_model::{ACCOUNTS, ASSETS};
use super::bank::{account, asset, issue, open};
use super::random::Random;
use super::test_book::START;
use super::writer::vault;

const CLIENTS: usize = 4;

pub struct RandomWriter {
    random: Random,
    now: UnixMs,
    /// Last committed sequence of each client.
    last: [u64; CLIENTS],
    sent: Vec<(usize, Write)>,
    client: usize,
    count: u64,
    /// Whether to use amounts at the ends of the range.
    pub has_extremes: bool,
}

impl RandomWriter {
    pub fn new(seed: u64) -> RandomWriter {
        let random = Random::new(seed ^ 0x7e11e5);
        RandomWriter {
            random,
            now: START,
            last: [0; CLIENTS],
            sent: Vec::new(),
            client: 0,
            count: 0,
            has_extremes: true,
        }
    }

    pub fn next_write(&mut self) -> (UnixMs, Write) {
        let now = self.advance();
        self.count += 1;
        if self.random.chance(15) && !self.sent.is_empty() {
            let newest = self.sent.len().min(8);
            let place = self.sent.len() - 1 - self.random.index(newest);
            let (client, mut write) = self.sent[place].clone();
            self.client = client;
            write.tx_id = TxId(u128::from(self.count));
            if self.random.chance(15) {
                write.operations.pop();
            }
            return (now, write);
        }
        self.client = self.random.index(CLIENTS);
        let sequence = match self.random.below(40) {
            0 => self.last[self.client] + 2,
            1 => self.last[self.client],
            2 => self.random.pick(&[0, u64::MAX]),
            _ => self.last[self.client] + 1,
        };
        let count = self.random.pick(&[0, 1, 1, 1, 2, 3, 6]);
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: (!self.random.chance(2)).then(|| vault("main")),
            id: WriteId::Sequence { client: ClientId::new(&format!("client-{}", self.client)).unwrap(), sequence },
            operations: (0..count).map(|_| self.operation()).collect(),
            tx_id: TxId(u128::from(self.count)),
            log_index: self.count,
            actor: Actor::new("user:test").unwrap(),
        };
        self.sent.push((self.client, write.clone()));
        (now, write)
    }

    /// A transaction that opens accounts and funds them.
    pub fn funds(&self) -> Write {
        let names = ["a", "b", "c", "d"];
        let opened = names.map(open);
        let issued = names.iter().flat_map(|name| ASSETS.map(|what| issue(name, what, 2_000)));
        Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(vault("main")),
            id: WriteId::Sequence { client: ClientId::new("funds").unwrap(), sequence: 1 },
            operations: opened.into_iter().chain(issued).collect(),
            tx_id: TxId(0),
            log_index: 0,
            actor: Actor::new("system:test").unwrap(),
        }
    }

    /// Advances the clock.
    pub fn advance(&mut self) -> UnixMs {
        let passed = self.random.pick(&[0, 1, 500, 1_000, 2_000, 60_000]);
        self.now = self.now.plus_ms(if self.random.chance(2) { 400_000 } else { passed });
        self.now
    }

    /// Processes the outcome of the last transaction.
    pub fn observe(&mut self, outcome: &WriteOutcome) {
        if let WriteOutcome::Committed(receipt) = outcome {
            self.last[self.client] = receipt.sequence.unwrap();
        }
    }

    fn operation(&mut self) -> Operation {
        let random = &mut self.random;
        let (from, to) = (account(random.pick(&ACCOUNTS)), account(random.pick(&ACCOUNTS)));
        let (asset, memo) = (asset(random.pick(&ASSETS)), String::new());
        let amount = match random.below(60) {
            0 => 0,
            1 if self.has_extremes => u128::MAX,
            2 if self.has_extremes => i128::MAX as u128,
            _ => u128::from(random.between(1, 60)),
        };
        let account = from.clone();
        match random.below(100) {
            0..12 => {
                let overdraft = if random.chance(20) { Overdraft::Allow } else { Overdraft::Deny };
                Operation::OpenAccount { account, overdraft, plan: None }
            }
            12..15 => Operation::FreezeAccount { account },
            15..21 => Operation::UnfreezeAccount { account },
            21..24 => Operation::CloseAccount { account },
            24..50 => Operation::Issue { account, asset, amount, memo, terms: GrantTerms::PLAIN },
            50..88 => Operation::Transfer { from, to, asset, amount, memo },
            88..99 => Operation::Retire { account, asset, amount, memo },
            _ => Operation::OpenVault { vault: vault("other") },
        }
    }
}
