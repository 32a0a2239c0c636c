//! Transactions of a script: several clients and scopes, with repeated, late and invalid ones.

use earmark_core::{
    AccountName, Actor, AssetName, CarryOver, ClientId, CreditTerms, GrantTerms, IdempotencyKey, MEMO_BYTES_MAX,
    NamespaceId, OPERATIONS_MAX, OnTimeout, Operation, Overdraft, Period, Plan, TxId, UnixMs, VaultName, Write,
    WriteId,
};

use super::profile::Amounts;
use super::{Script, TEAM};
use crate::support::bank::{account, asset};
use crate::support::step::Step;
use crate::support::writer::vault;

const WRITES_RECENT: usize = 12;
const ACCOUNTS: [&str; 6] = ["revenue", "a", "b", "c", "sales", "never"];
const ASSETS: [&str; 3] = ["usd", "usd", "eur"];

impl Script {
    /// Terms of a credit limit. Limits often share an account, and some name a missing one.
    pub(super) fn terms(&mut self, timeout_seconds: u32) -> CreditTerms {
        let random = &mut self.random;
        let (place, payer, paid) = match random.below(100) {
            _ if self.profile.is_calm => ("main", random.pick(&["a", "a", "b", "c"]), "revenue"),
            0..4 => ("nowhere", "a", "revenue"),
            4..7 => ("main", "never", "revenue"),
            7..9 => ("main", "a", "never"),
            9..25 => ("eu", random.pick(&["a", "b"]), "revenue"),
            25..30 => ("main", "a", "a"),
            30..33 => ("us", "revenue", "revenue"),
            33..50 => ("main", random.pick(&["a", "b", "c"]), "sales"),
            _ => ("main", random.pick(&["a", "a", "a", "b", "c", "revenue"]), "revenue"),
        };
        let what = random.pick(&ASSETS);
        CreditTerms {
            timeout_seconds,
            vault: vault(place),
            account: account(payer),
            asset: asset(what),
            revenue: account(paid),
            on_timeout: self.random.pick(&[OnTimeout::Release, OnTimeout::Release, OnTimeout::Charge]),
        }
    }

    /// The first transactions open most accounts that the limits name.
    pub(super) fn first_write(&mut self, place: usize) -> Option<Step> {
        let open_vault = |name| Operation::OpenVault { vault: vault(name) };
        let (scope, operations) = match place {
            0 => ((NamespaceId::DEFAULT, None), vec![open_vault("eu")]),
            1 => ((TEAM, None), vec![open_vault("main"), open_vault("eu")]),
            2 => ((NamespaceId::DEFAULT, Some("main")), self.opening(&["a", "b", "c", "sales"])),
            3 => ((NamespaceId::DEFAULT, Some("eu")), self.opening(&["a", "b"])),
            4 => ((TEAM, Some("main")), self.opening(&["a", "sales"])),
            _ => return None,
        };
        if self.random.chance(10) && !self.profile.is_calm {
            return Some(Step::Tick);
        }
        Some(self.written(scope, "setup", operations))
    }

    fn opening(&mut self, names: &[&str]) -> Vec<Operation> {
        let mut operations = Vec::new();
        for &name in names {
            let overdraft = self.overdraft(20);
            let plan = if self.random.chance(15) { self.plan() } else { None };
            operations.push(Operation::OpenAccount { account: account(name), overdraft, plan });
            for what in ["usd", "eur"] {
                if self.random.chance(60) || self.profile.is_calm {
                    let (account, amount, memo) = (account(name), self.deposit(), String::new());
                    operations.push(Operation::Issue {
                        account,
                        asset: asset(what),
                        amount,
                        memo,
                        terms: GrantTerms::PLAIN,
                    });
                }
            }
        }
        operations
    }

    /// A plan, or none.
    fn plan(&mut self) -> Option<Plan> {
        if self.profile.is_calm || self.random.chance(40) {
            return None;
        }
        let amount = match self.random.below(20) {
            0 => 0,
            1 if matches!(self.profile.amounts, Amounts::Huge) => u64::MAX,
            _ => self.random.between(1, 60),
        };
        Some(Plan {
            asset: asset(self.random.pick(&ASSETS)),
            amount,
            period: self.random.pick(&[Period::Hour, Period::Hour, Period::Day, Period::Week, Period::Month]),
            utc_offset_minutes: self.random.pick(&[0, 0, 1, 59, -720, 840, 841]),
            carry_over: self.random.pick(&[
                CarryOver::None,
                CarryOver::Max(25),
                CarryOver::Max(300),
                CarryOver::Max(1),
                CarryOver::Max(0),
            ]),
        })
    }

    fn overdraft(&mut self, percent: u64) -> Overdraft {
        match self.random.chance(percent) {
            true => self.random.pick(&[Overdraft::Allow, Overdraft::Limit(1), Overdraft::Limit(500)]),
            false => Overdraft::Deny,
        }
    }

    /// Terms of credit: often plain, and a few that come again, so that grants merge.
    fn grant_terms(&mut self) -> GrantTerms {
        if self.profile.is_calm || self.random.chance(50) {
            return GrantTerms::PLAIN;
        }
        let priority = self.random.pick(&[0, 127, 128, 128, 129, 255]);
        let minute = UnixMs::new(self.clock - self.clock % 60_000);
        let after_ms = self.random.pick(&[0, 60_000, 61_000, 120_000, 600_000, 86_400_000]);
        let expires_at = if self.random.chance(25) { None } else { Some(minute.plus_ms(after_ms)) };
        GrantTerms::new(priority, expires_at)
    }

    fn deposit(&mut self) -> u128 {
        match self.profile.amounts {
            _ if self.profile.is_calm => self.random.between(1_000, 2_000).into(),
            Amounts::Small => self.random.between(10, 100).into(),
            Amounts::Middling => self.random.between(100, 3_000).into(),
            Amounts::Huge => {
                let most = u128::from(u64::MAX);
                self.random.pick(&[100, most, most + 7, 5 * most, 1 << 100])
            }
        }
    }

    /// The next transaction of a client, with its next sequence number.
    fn written(
        &mut self,
        (namespace, name): (NamespaceId, Option<&str>),
        client: &str,
        operations: Vec<Operation>,
    ) -> Step {
        let client = ClientId::new(client).unwrap();
        let known = name.map(|name| self.shadow.vault(namespace, &vault(name)));
        let sequence = match known {
            Some(None) => 1,
            Some(Some(vault)) => self.shadow.last_committed(namespace, Some(vault), &client) + 1,
            None => self.shadow.last_committed(namespace, None, &client) + 1,
        };
        let write = Write {
            namespace,
            vault: name.map(vault),
            id: WriteId::Sequence { client, sequence },
            operations,
            tx_id: TxId(self.random.next().into()),
            log_index: self.random.next(),
            actor: Actor::new("user:script").unwrap(),
        };
        if self.writes.len() == WRITES_RECENT {
            self.writes.remove(0);
        }
        self.writes.push(write.clone());
        Step::Write(Box::new(write))
    }

    pub(super) fn write(&mut self) -> Step {
        if self.random.chance(15) && !self.writes.is_empty() {
            return self.written_again();
        }
        let scope = match self.random.below(100) {
            0..66 => (NamespaceId::DEFAULT, Some("main")),
            66..78 => (NamespaceId::DEFAULT, Some("eu")),
            78..90 => (NamespaceId::DEFAULT, None),
            90..95 => (TEAM, Some("main")),
            95..97 => (TEAM, None),
            97 => (NamespaceId(9), None),
            98 => (NamespaceId::DEFAULT, Some("us")),
            _ => (NamespaceId::DEFAULT, Some("nowhere")),
        };
        let count = self.random.pick(&[0, 1, 1, 1, 1, 2, 3, 6]);
        let mut operations: Vec<Operation> = (0..count).map(|_| self.operation(scope)).collect();
        match self.random.below(300) {
            0 => operations.resize(OPERATIONS_MAX + 1, Operation::OpenVault { vault: vault("eu") }),
            1..5 => {
                let other = if scope.1.is_some() { None } else { Some("main") };
                operations.push(self.operation((scope.0, other)));
            }
            _ => {}
        }
        if self.random.chance(3) && !self.profile.is_calm {
            operations = self.winding_up(scope);
        }
        if self.random.chance(2) {
            let client = ClientId::new(self.random.pick(&["billing", "ops", "ops-2", "nobody"])).unwrap();
            operations.push(Operation::RetireClient { client });
        }
        let client = self.random.pick(&["setup", "setup", "billing", "ops", "ops-2", "ops-3"]);
        let mut step = self.written(scope, client, operations);
        if let Step::Write(write) = &mut step {
            if self.random.chance(20) {
                write.id = WriteId::Key(IdempotencyKey::new(&format!("evt_{}", self.random.below(200))).unwrap());
                // A repeat has the same key.
                self.writes.pop();
                self.writes.push(Write::clone(write));
            }
            if let WriteId::Sequence { sequence, .. } = &mut write.id {
                let next = *sequence;
                *sequence = match self.random.below(100) {
                    0..4 => next + self.random.between(1, 3),
                    4..7 => next.saturating_sub(self.random.between(1, 3)),
                    7 => self.random.pick(&[0, u64::MAX - 1, u64::MAX]),
                    _ => next,
                };
            }
        }
        step
    }

    /// Empties and closes an account; fails while credit is held.
    fn winding_up(&mut self, (namespace, name): (NamespaceId, Option<&str>)) -> Vec<Operation> {
        let (closed, heir) = (self.random.pick(&["sales", "b", "c"]), account("revenue"));
        let vault = vault(name.unwrap_or("main"));
        let from = account(closed);
        let mut operations = vec![Operation::UnfreezeAccount { account: from.clone() }];
        for what in ["usd", "eur"] {
            let available = self.available(namespace, &vault, &from, &asset(what));
            let (asset, amount, memo) = (asset(what), available.unsigned_abs(), String::new());
            match available {
                0 => {}
                1.. => {
                    operations.push(Operation::Transfer { from: from.clone(), to: heir.clone(), asset, amount, memo })
                }
                _ => operations.push(Operation::Issue {
                    account: from.clone(),
                    asset,
                    amount,
                    memo,
                    terms: GrantTerms::PLAIN,
                }),
            }
        }
        if self.random.chance(20) {
            let what = asset(self.random.pick(&ASSETS));
            operations.push(Operation::Issue {
                account: from.clone(),
                asset: what,
                amount: 3,
                memo: String::new(),
                terms: GrantTerms::PLAIN,
            });
        }
        operations.push(Operation::CloseAccount { account: from });
        operations
    }

    /// Repeats an earlier transaction with a new id, sometimes with other content.
    fn written_again(&mut self) -> Step {
        let mut write = self.writes[self.random.index(self.writes.len())].clone();
        write.tx_id = TxId(self.random.next().into());
        match self.random.below(100) {
            0..10 => drop(write.operations.pop()),
            10..15 => match &mut write.id {
                WriteId::Sequence { client, .. } => *client = ClientId::new("other").unwrap(),
                WriteId::Key(_) => write.actor = Actor::new("user:other").unwrap(),
            },
            _ => {}
        }
        Step::Write(Box::new(write))
    }

    fn operation(&mut self, (namespace, name): (NamespaceId, Option<&str>)) -> Operation {
        match name {
            Some(name) => self.vault_operation(namespace, &vault(name)),
            None => self.namespace_operation(namespace),
        }
    }

    fn namespace_operation(&mut self, namespace: NamespaceId) -> Operation {
        match self.random.below(100) {
            0..60 => match self.put_in(namespace) {
                Step::Put { definition, expected_revision, .. } => {
                    Operation::PutLimit { definition, expected_revision }
                }
                other => panic!("{other:?} puts nothing"),
            },
            60..75 if !self.profile.is_calm => match self.delete_in(namespace) {
                Step::Delete { key, expected_revision, .. } => Operation::DeleteLimit { key, expected_revision },
                other => panic!("{other:?} deletes nothing"),
            },
            75..88 => Operation::DeleteVault { vault: vault(self.random.pick(&["us", "us", "eu", "main"])) },
            _ => Operation::OpenVault { vault: vault(self.random.pick(&["eu", "main", "us", "us"])) },
        }
    }

    fn vault_operation(&mut self, namespace: NamespaceId, vault: &VaultName) -> Operation {
        let random = &mut self.random;
        let (from, to) = (account(random.pick(&ACCOUNTS)), account(random.pick(&ACCOUNTS)));
        let asset = asset(random.pick(&ASSETS));
        let memo = if random.chance(1) { MEMO_BYTES_MAX + random.index(2) } else { 0 };
        let (account, memo) = (from.clone(), "m".repeat(memo));
        match random.below(100) {
            8..13 | 24..27 if self.profile.is_calm => Operation::UnfreezeAccount { account },
            0..6 => Operation::OpenAccount { account, overdraft: self.overdraft(30), plan: self.plan() },
            6..8 => Operation::SetPlan { account, plan: self.plan() },
            8..13 => Operation::FreezeAccount { account },
            13..24 => Operation::UnfreezeAccount { account },
            24..27 => Operation::CloseAccount { account },
            27..55 => {
                let amount = self.added(namespace, vault, &account, &asset);
                Operation::Issue { account, asset, amount, memo, terms: self.grant_terms() }
            }
            55..88 => {
                let amount = self.taken(namespace, vault, &from, &asset);
                Operation::Transfer { from, to, asset, amount, memo }
            }
            _ => {
                let amount = self.taken(namespace, vault, &account, &asset);
                Operation::Retire { account, asset, amount, memo }
            }
        }
    }

    /// Spendable credit of an account.
    pub(super) fn available(
        &self,
        namespace: NamespaceId,
        vault: &VaultName,
        account: &AccountName,
        asset: &AssetName,
    ) -> i128 {
        let info = self.shadow.vault(namespace, vault).and_then(|v| self.shadow.account(v, account));
        let balances = info.map(|info| self.shadow.balances(UnixMs::new(self.clock), info.id));
        let found = balances.iter().flatten().find(|balance| balance.asset == *asset);
        found.map_or(0, |balance| balance.available)
    }

    /// An amount to issue: near or equal to a debt, or arbitrary.
    fn added(&mut self, namespace: NamespaceId, vault: &VaultName, account: &AccountName, asset: &AssetName) -> u128 {
        let available = self.available(namespace, vault, account, asset);
        if available < 0 && self.random.chance(70) {
            let owed = available.unsigned_abs();
            return self.random.pick(&[owed, owed - 1, owed + 1, owed + 50]);
        }
        match self.random.below(60) {
            0 => self.random.pick(&[0, u128::MAX]),
            1 if matches!(self.profile.amounts, Amounts::Huge) => i128::MAX as u128,
            _ => self.deposit(),
        }
    }

    /// An amount to take: a part of the balance, all of it, or slightly more.
    fn taken(&mut self, namespace: NamespaceId, vault: &VaultName, account: &AccountName, asset: &AssetName) -> u128 {
        let available = self.available(namespace, vault, account, asset).max(0).unsigned_abs();
        match self.random.below(60) {
            0 => 0,
            1 if matches!(self.profile.amounts, Amounts::Huge) => i128::MAX as u128,
            2 => u128::MAX,
            3..10 if self.profile.is_calm => available / 8,
            3..10 => available,
            10..16 => available + 1,
            16..30 => available / 4,
            _ => self.random.between(1, 20).into(),
        }
    }
}
