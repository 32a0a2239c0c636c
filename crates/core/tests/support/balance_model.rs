//! Credit and sequences as plain tables. Every transaction works on a copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_core::{AccountStatus, LeaseId, Operation, Overdraft, RESULTS_MAX, RESULTS_MS, Receipt, UnixMs, Write};

pub const ACCOUNTS: [&str; 5] = ["revenue", "a", "b", "c", "d"];
pub const ASSETS: [&str; 2] = ["usd", "eur"];

#[derive(Clone, Default)]
struct Tables {
    accounts: BTreeMap<String, (AccountStatus, Overdraft)>,
    balances: BTreeMap<(String, String), i128>,
    issued: BTreeMap<String, i128>,
    retired: BTreeMap<String, i128>,
}

struct Done {
    write: Write,
    at: UnixMs,
    receipt: Option<Arc<Receipt>>,
}

pub struct BalanceModel {
    tables: Tables,
    done: Vec<Done>,
    pub holds: Vec<Held>,
    clients_max: usize,
}

/// The hold of one key of a lease, and its terms.
#[derive(Clone, Debug)]
pub struct Held {
    pub lease: LeaseId,
    pub key: usize,
    pub amount: u64,
    pub ends_at: UnixMs,
}

/// Terms of a credit limit: account, asset, revenue account, seconds, and whether overage becomes debt.
pub type Terms = (&'static str, &'static str, &'static str, u32, bool);

pub const TERMS: [Terms; 4] = [
    ("a", "usd", "revenue", 5, true),
    ("a", "usd", "revenue", 60, false),
    ("b", "usd", "c", 2, true),
    ("d", "eur", "b", 30, false),
];

type Code = &'static str;

impl BalanceModel {
    pub fn new(clients_max: usize) -> BalanceModel {
        let mut tables = Tables::default();
        tables.accounts.insert("revenue".into(), (AccountStatus::Open, Overdraft::Deny));
        BalanceModel { tables, done: Vec::new(), holds: Vec::new(), clients_max }
    }

    pub fn standing(&self, name: &str) -> Option<AccountStatus> {
        self.tables.accounts.get(name).map(|account| account.0)
    }

    pub fn balance(&self, name: &str, asset: &str) -> i128 {
        self.tables.balances.get(&(name.into(), asset.into())).copied().unwrap_or(0)
    }

    /// Stores the receipt of the last transaction.
    pub fn keep(&mut self, receipt: &Arc<Receipt>) {
        self.done.last_mut().unwrap().receipt = Some(Arc::clone(receipt));
    }

    /// The expected answer: an error code, an earlier receipt, or a new one.
    pub fn write(&mut self, now: UnixMs, write: &Write) -> Result<Option<Arc<Receipt>>, Code> {
        // The scripts of this model have no keys.
        let sequence = write.id.sequence().unwrap();
        let is_same = |done: &&Done| (done.write.id.client(), &done.write.vault) == (write.id.client(), &write.vault);
        let last = self.done.iter().filter(is_same).filter_map(|done| done.write.id.sequence()).max().unwrap_or(0);
        if sequence == 0 || sequence == u64::MAX {
            return Err("INVALID");
        }
        if sequence > last + 1 {
            return Err("SEQUENCE_GAP");
        }
        if sequence <= last {
            let is_it = |done: &Done| is_same(&done) && done.write.id == write.id;
            let place = self.done.iter().position(is_it).unwrap();
            let done = &self.done[place];
            let is_recent = self.done.len() - place <= RESULTS_MAX && now < done.at.plus_ms(RESULTS_MS);
            return match done.write.operations == write.operations {
                _ if sequence != last && !is_recent => Err("ALREADY_COMMITTED"),
                true => Ok(done.receipt.clone()),
                false => Err("SEQUENCE_REUSED"),
            };
        }
        let mut clients: Vec<_> = self.done.iter().map(|done| (done.write.id.client(), &done.write.vault)).collect();
        clients.sort();
        clients.dedup();
        if last == 0 && clients.len() >= self.clients_max {
            return Err("TOO_MANY_CLIENTS");
        }
        let mut tables = self.tables.clone();
        tables.apply(write, &self.held(now))?;
        self.tables = tables;
        self.done.push(Done { write: write.clone(), at: now, receipt: None });
        Ok(None)
    }
}

impl BalanceModel {
    /// Held credit at `now`, by account and asset.
    pub fn held(&self, now: UnixMs) -> Net {
        let mut held = Net::new();
        for hold in self.holds.iter().filter(|hold| hold.ends_at > now) {
            let (account, asset, ..) = TERMS[hold.key];
            *held.entry((account.into(), asset.into())).or_default() += i128::from(hold.amount);
        }
        held
    }

    /// Holds all keys if possible.
    pub fn reserve(&mut self, now: UnixMs, lease: LeaseId, wanted: &[(usize, u64)]) -> bool {
        let held = self.held(now);
        let can_be = wanted.iter().all(|&(key, _)| {
            let (account, asset, revenue, ..) = TERMS[key];
            let whose = |other: usize| (TERMS[other].0, TERMS[other].1);
            let mine = wanted.iter().filter(|(other, _)| whose(*other) == (account, asset));
            let sum: i128 = mine.map(|(_, amount)| i128::from(*amount)).sum();
            let place = (account.to_owned(), asset.to_owned());
            let balance = self.tables.balances.get(&place).copied().unwrap_or(0);
            let available = balance - held.get(&place).copied().unwrap_or(0);
            let is_allowed = self.tables.accounts[account].1 == Overdraft::Allow;
            self.standing(account) == Some(AccountStatus::Open)
                && self.standing(revenue).is_some_and(|standing| standing != AccountStatus::Closed)
                && (is_allowed || sum <= available)
        });
        for &(key, amount) in wanted.iter().filter(|_| can_be) {
            let ends_at = now.plus_ms(1_000 * u64::from(TERMS[key].3));
            self.holds.push(Held { lease, key, amount, ends_at });
        }
        can_be
    }

    /// Settles all holds of a lease.
    pub fn complete(&mut self, now: UnixMs, lease: LeaseId, actuals: &[(usize, u64)]) {
        let (mut mine, rest): (Vec<Held>, Vec<Held>) = self.holds.drain(..).partition(|hold| hold.lease == lease);
        self.holds = rest;
        mine.sort_by_key(|hold| hold.key);
        let held = self.held(now);
        let cost = |hold: &Held| {
            let actual = actuals.iter().find(|(key, _)| *key == hold.key);
            actual.map_or(hold.amount, |(_, actual)| *actual)
        };
        let from_hold = |hold: &Held| i128::from(if hold.ends_at > now { cost(hold).min(hold.amount) } else { 0 });
        for hold in &mine {
            let (account, asset, ..) = TERMS[hold.key];
            *self.tables.balances.get_mut(&(account.into(), asset.into())).unwrap() -= from_hold(hold);
        }
        for hold in &mine {
            let (account, asset, revenue, _, keeps_debt) = TERMS[hold.key];
            let place = (account.to_owned(), asset.to_owned());
            let missing = i128::from(cost(hold)) - from_hold(hold);
            let available = self.tables.balances[&place] - held.get(&place).copied().unwrap_or(0);
            let (standing, overdraft) = self.tables.accounts[account];
            let taken = match standing {
                AccountStatus::Closed => 0,
                _ if keeps_debt || overdraft == Overdraft::Allow => missing,
                _ => missing.min(available.max(0)),
            };
            let paid = from_hold(hold) + taken;
            *self.tables.balances.get_mut(&place).unwrap() -= taken;
            let is_closed = self.standing(revenue) == Some(AccountStatus::Closed);
            let payee = if is_closed { "revenue" } else { revenue };
            *self.tables.balances.entry((payee.into(), asset.into())).or_default() += paid;
        }
    }
}

impl Tables {
    fn apply(&mut self, write: &Write, held: &Net) -> Result<(), Code> {
        if write.operations.iter().any(|each| !each.fits(write.vault.is_some())) {
            return Err("WRONG_SCOPE");
        }
        let before = self.balances.clone();
        let (issued, retired) = (std::mem::take(&mut self.issued), std::mem::take(&mut self.retired));
        let mut net = BTreeMap::new();
        for operation in &write.operations {
            self.operation(operation, &mut net, held)?;
        }
        for (asset, amount) in issued {
            count(&mut self.issued, &asset, amount)?;
        }
        for (asset, amount) in retired {
            count(&mut self.retired, &asset, amount)?;
        }
        // Only the net change of the whole entry counts.
        for (key, change) in &net {
            let balance = before.get(key).copied().unwrap_or(0);
            let after = balance.checked_add(*change).ok_or("INVALID")?;
            if *change != 0 {
                self.balances.insert(key.clone(), after);
            }
        }
        let is_short = |key: &(String, String)| {
            let held = held.get(key).copied().unwrap_or(0);
            net[key] < 0 && self.balances[key] < held && self.accounts[&key.0].1 == Overdraft::Deny
        };
        if net.keys().any(is_short) {
            return Err("INSUFFICIENT_CREDIT");
        }
        Ok(())
    }

    fn operation(&mut self, operation: &Operation, net: &mut Net, held: &Net) -> Result<(), Code> {
        match operation {
            Operation::OpenAccount { account, overdraft, .. } => {
                if self.accounts.contains_key(account.as_str()) {
                    return Err("CONFLICT");
                }
                self.accounts.insert(account.to_string(), (AccountStatus::Open, *overdraft));
            }
            Operation::FreezeAccount { account } => self.open(account.as_str())?.0 = AccountStatus::Frozen,
            Operation::UnfreezeAccount { account } => self.open(account.as_str())?.0 = AccountStatus::Open,
            Operation::CloseAccount { account } => {
                self.open(account.as_str())?;
                let is_empty = ASSETS.iter().all(|asset| {
                    let key = (account.to_string(), (*asset).to_owned());
                    let balance = self.balances.get(&key).copied().unwrap_or(0);
                    !held.contains_key(&key) && balance.checked_add(net.get(&key).copied().unwrap_or(0)) == Some(0)
                });
                if !is_empty || account.as_str() == "revenue" {
                    return Err("CONFLICT");
                }
                self.open(account.as_str())?.0 = AccountStatus::Closed;
            }
            Operation::Issue { account, asset, amount, .. } => {
                let amount = checked(*amount)?;
                self.open(account.as_str())?;
                add(net, account.as_str(), asset.as_str(), amount)?;
                count(&mut self.issued, asset.as_str(), amount)?;
            }
            Operation::Transfer { from, to, asset, amount, .. } => {
                let amount = checked(*amount)?;
                if from == to {
                    return Err("INVALID");
                }
                self.spendable(from.as_str())?;
                self.open(to.as_str())?;
                add(net, from.as_str(), asset.as_str(), -amount)?;
                add(net, to.as_str(), asset.as_str(), amount)?;
            }
            Operation::Retire { account, asset, amount, .. } => {
                let amount = checked(*amount)?;
                self.spendable(account.as_str())?;
                add(net, account.as_str(), asset.as_str(), -amount)?;
                count(&mut self.retired, asset.as_str(), amount)?;
            }
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. }
            | Operation::SetPlan { .. }
            | Operation::RetireClient { .. } => {}
        }
        Ok(())
    }

    fn open(&mut self, name: &str) -> Result<&mut (AccountStatus, Overdraft), Code> {
        match self.accounts.get_mut(name) {
            None => Err("ACCOUNT_NOT_FOUND"),
            Some(account) if account.0 == AccountStatus::Closed => Err("ACCOUNT_CLOSED"),
            Some(account) => Ok(account),
        }
    }

    fn spendable(&mut self, name: &str) -> Result<(), Code> {
        if self.open(name)?.0 == AccountStatus::Frozen { Err("ACCOUNT_FROZEN") } else { Ok(()) }
    }
}

type Net = BTreeMap<(String, String), i128>;

fn checked(amount: u128) -> Result<i128, Code> {
    i128::try_from(amount).ok().filter(|amount| *amount > 0).ok_or("INVALID")
}

fn add(net: &mut Net, account: &str, asset: &str, amount: i128) -> Result<(), Code> {
    let sum = net.entry((account.into(), asset.into())).or_default();
    *sum = sum.checked_add(amount).ok_or("INVALID")?;
    Ok(())
}

fn count(totals: &mut BTreeMap<String, i128>, asset: &str, amount: i128) -> Result<(), Code> {
    let sum = totals.entry(asset.into()).or_default();
    *sum = sum.checked_add(amount).ok_or("INVALID")?;
    Ok(())
}
