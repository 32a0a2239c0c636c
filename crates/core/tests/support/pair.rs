//! The Book and the model side by side.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use earmark_core::{
    AccountId, AssetId, Book, Command, CompleteOutcome, Config, Definition, JournalRecord, LeaseId, LimitId, LimitKey,
    LimitStatus, Moment, NamespaceId, Operation, Outcome, SettleLabels, SettleReason, TIME_MAX, UnixMs, VaultId,
    WriteOutcome,
};

use super::journal::Journal;
use super::model::Model;
use super::random::Random;
use super::step::{Step, Timed};

const LEASES_READ: usize = 6;
const CLIENTS_READ: usize = 6;

pub struct Pair {
    pub book: Book,
    model: Model,
    /// Chooses which old lease and which future time to read after a step.
    random: Random,
    leases: Vec<(NamespaceId, LeaseId)>,
    journal: Journal,
}

/// A difference between Book and model.
#[derive(Debug)]
pub struct Difference {
    /// Index of the step.
    pub step: usize,
    pub what: String,
}

impl Pair {
    pub fn new(config: Config, seed: u64) -> Pair {
        let book = Book::new(config, seed);
        let (model, journal) = (Model::new(config), Journal::default());
        Pair { book, model, random: Random::new(seed), leases: Vec::new(), journal }
    }

    /// Applies the step to both and compares everything that can be read.
    pub fn apply(&mut self, timed: &Timed) -> Result<Outcome, String> {
        let command = timed.step.command();
        let before = self.definitions_before(timed.now, &command);
        // A jump of time settles what is due before it.
        let began = self.book.time().max(timed.now.min(TIME_MAX));
        let of_model = self.model.apply(timed.at(), command);
        let of_book = self.book.apply(timed.at(), command);
        same("outcome", &of_book, &of_model)?;
        if let Some(lease) = timed.step.lease()
            && !self.leases.contains(&lease)
        {
            self.leases.push(lease);
        }
        self.compare_journal(Moment { log: began, wall: timed.wall }, &of_book)?;
        let labels = if let Command::Complete(command) = command { command.labels } else { &SettleLabels::NONE };
        for settled in &self.journal.settled {
            let is_timeout = settled.reason == SettleReason::Timeout;
            same("labels of a settlement", &settled.labels, if is_timeout { &SettleLabels::NONE } else { labels })?;
        }
        if matches!(of_book, Outcome::Write(WriteOutcome::Committed(_))) {
            same("replaced", &self.journal.replaced, &before)?;
        }
        self.compare_reads(timed.now)?;
        Ok(of_book)
    }

    /// The definition of each limit that a write changes first, as the model has it before the write.
    fn definitions_before(&self, now: UnixMs, command: &Command<'_>) -> BTreeMap<LimitKey, Option<Definition>> {
        let Command::Write(write) = command else { return BTreeMap::new() };
        let keys = write.operations.iter().filter_map(Operation::limit);
        let of_key = |key: &LimitKey| {
            let id = self.model.resolve(write.namespace, key)?;
            let info = self.model.limit(now, id)?;
            info.template.is_none().then_some(info.definition)
        };
        keys.map(|key| (key.clone(), of_key(key))).collect()
    }

    fn compare_reads(&mut self, now: UnixMs) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        same("time", &book.time(), &model.time())?;
        same("forgotten_before", &book.forgotten_before(), &model.forgotten_before())?;
        same("leases", &book.leases(), &model.leases())?;
        for (number, name) in (0..).zip(model.namespaces()) {
            same("namespace", &book.namespace(name), &Some(NamespaceId(number)))?;
        }
        let ahead = match self.random.below(4) {
            0 => self.random.below(1_500),
            1 => 500 * self.random.below(12),
            2 => self.random.below(100_000),
            _ => self.random.below(1 << 36),
        };
        for at in [now, book.time().plus_ms(ahead)] {
            self.compare_limits(at)?;
            self.compare_credit(at)?;
        }
        self.compare_totals()?;
        self.compare_quotas()?;
        self.compare_policies()?;
        let newest = self.leases.iter().rev().take(LEASES_READ);
        let older = (!self.leases.is_empty()).then(|| &self.leases[self.random.index(self.leases.len())]);
        for &(namespace, lease) in newest.chain(older) {
            for at in [now, self.book.time().plus_ms(ahead)] {
                let of_book = self.book.lease(at, namespace, lease);
                let (denial, requirements) = self.model.credit_denial(at, namespace, lease);
                same("denial", &self.book.credit_denial(at, (namespace, lease), &requirements), &denial)
                    .map_err(|difference| format!("{lease} at {at}: {difference}"))?;
                same("lease", &of_book, &self.model.lease(at, namespace, lease))
                    .map_err(|difference| format!("{lease} at {at}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Compares every quota and its use with a new count.
    fn compare_quotas(&self) -> Result<(), String> {
        for (number, name) in (0..).zip(self.model.namespaces()) {
            let at = self.book.time();
            for found in self.book.quotas(at, NamespaceId(number)) {
                let quota = self.model.quota(NamespaceId(number), found.kind);
                let used = self.model.used(at, NamespaceId(number), found.kind);
                same("quota and use", &(found.quota, found.used), &(quota, used))
                    .map_err(|difference| format!("{name} {}: {difference}", found.kind))?;
            }
        }
        Ok(())
    }

    /// Compares every kept revision of every policy.
    fn compare_policies(&self) -> Result<(), String> {
        for (number, name) in (0..).zip(self.model.namespaces()) {
            let (namespace, kept) = (NamespaceId(number), self.model.policies(NamespaceId(number)));
            same("policy", &self.book.policy(namespace, None), &kept.last())
                .map_err(|difference| format!("{name}: {difference}"))?;
            for policy in &kept {
                same("revision of a policy", &self.book.policy(namespace, Some(policy.revision)), &Some(policy))
                    .map_err(|difference| format!("{name}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Checks that the journal records of this step match its outcome.
    fn compare_journal(&mut self, at: Moment, outcome: &Outcome) -> Result<(), String> {
        let records = self.book.drain_journal();
        for record in &records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            self.model.add_journal_bytes(namespace_of(record), bytes.len() as u64);
        }
        self.journal.add(records)?;
        let charges = match outcome {
            Outcome::Complete(CompleteOutcome::Completed(settlement)) => settlement.charges.as_slice(),
            _ => &[],
        };
        let timeouts = &self.model.timeouts;
        if !self.journal.says(at, charges, timeouts) {
            let settled = &self.journal.settled;
            return Err(format!("{charges:?} and {timeouts:?} were written down as {settled:?}"));
        }
        same("transactions written down", &self.journal.transactions, &self.model.committed.len())?;
        if let Outcome::Write(WriteOutcome::Committed(receipt)) = outcome {
            same("receipt", receipt, &self.model.committed.last().unwrap().receipt)?;
        }
        Ok(())
    }

    /// Compares all balances at a time.
    fn compare_credit(&self, at: UnixMs) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        for (id, account) in (0..).map(AccountId).zip(&model.accounts) {
            let found = book.account(account.vault, &account.name);
            if account.is_gone {
                same("deleted account", &(found, book.account_name(id)), &(None, None))?;
                continue;
            }
            same("account", &found, &Some(model.info(id)))?;
            let balances = book.balances(at, id);
            let assets = &model.vaults[account.vault.0 as usize].assets;
            for asset in assets {
                let found = balances.iter().find(|balance| balance.asset == asset.name);
                let found = found.map_or((0, 0), |balance| (balance.available, balance.held));
                let at = at.min(TIME_MAX).max(model.time());
                let expected = (model.spendable(at, id, &asset.name), model.held(at, id, &asset.name));
                same("available and held", &found, &expected)
                    .map_err(|difference| format!("{} {} at {at}: {difference}", account.name, asset.name))?;
            }
            let at_book = at.min(TIME_MAX).max(model.time());
            same("grants", &book.grants(at, id), &model.grants(at_book, id))
                .map_err(|difference| format!("{} at {at}: {difference}", account.name))?;
            if balances.iter().any(|balance| !assets.iter().any(|asset| asset.name == balance.asset)) {
                return Err(format!("{}: an asset that nobody knows: {balances:?}", account.name));
            }
        }
        let further = AccountId(u32::try_from(model.accounts.len()).unwrap());
        same("accounts", &book.account_name(further), &None)
    }

    /// Compares the totals by counters, accounts and journal, and the client sequences.
    fn compare_totals(&self) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        // Debug builds compare the counters of limits with a read of all of them.
        for later_ms in [0, 60_000] {
            _ = book.totals(book.time().plus_ms(later_ms));
        }
        for (id, vault) in (0..).map(VaultId).zip(&model.vaults) {
            if vault.is_deleted {
                same("deleted vault", &book.vault_name(id), &None)?;
                continue;
            }
            same("vault", &book.vault(vault.namespace, &vault.name), &Some(id))?;
            let totals = book.audit(id);
            same("audit", &totals, &model.audit(id))?;
            if let Some(total) = totals.iter().find(|t| t.issued.checked_sub(t.retired + t.expired) != Some(t.live)) {
                return Err(format!("{}: there is more or less than was issued: {total:?}", vault.name));
            }
        }
        for (id, account) in (0..).map(AccountId).zip(&model.accounts) {
            let assets = &model.vaults[account.vault.0 as usize].assets;
            for (asset, known) in (0..).map(AssetId).zip(assets) {
                same("asset", &book.asset_name(account.vault, asset), &Some(&known.name))?;
                same("by the journal", &self.journal.amount(id, asset), &model.amount(id, &known.name))
                    .map_err(|difference| format!("{} {}: {difference}", account.name, known.name))?;
            }
        }
        for done in model.committed.iter().rev().take(CLIENTS_READ) {
            let Some(client) = done.id.client() else { continue };
            let last = book.last_committed(done.namespace, done.vault, client);
            same("last", &last, &model.last_committed(done.namespace, done.vault, client))?;
        }
        Ok(())
    }

    /// Checks that nothing is held after everything has expired.
    pub fn end(&mut self) -> Result<(), String> {
        let far = self.book.time().plus_ms(2 * 366 * 24 * 60 * 60 * 1_000);
        if far > TIME_MAX {
            // At the end of time nothing expires.
            return Ok(());
        }
        let ticks = self.journal.open() / 32 + 2;
        for _ in 0..ticks {
            self.apply(&Timed { now: far, wall: far, step: Step::Tick })?;
        }
        same("holds without an end", &self.journal.open(), &0)
    }

    fn compare_limits(&self, at: UnixMs) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        same("limit count", &(book.limit_count() as usize), &model.limit_ids().len())?;
        for id in model.limit_ids() {
            let stale = [
                LimitId { generation: id.generation + 1, ..id },
                LimitId { generation: id.generation.wrapping_sub(1), ..id },
            ];
            same("stale", &stale.map(|id| book.key(id)), &[None, None])?;
            let usage = book.usage(at, id);
            same("usage", &usage, &model.usage(at, id))
                .and_then(|()| same("limit", &book.limit(at, id), &model.limit(at, id)))
                .map_err(|difference| format!("{id:?} at {at}: {difference}"))?;
            let Some(usage) = usage else { continue };
            let is_decreasing = matches!(usage.status, LimitStatus::Decreasing { .. });
            // A derived limit keeps the old definition until its next decision.
            let is_shadow = model.is_shadow(id);
            if usage.reserved > usage.capacity && !is_decreasing && !is_shadow {
                return Err(format!("{id:?} at {at}: more is reserved than there is: {usage:?}"));
            }
            let free = if is_decreasing { 0 } else { usage.capacity.saturating_sub(usage.reserved) };
            if usage.available != free {
                return Err(format!("{id:?} at {at}: available is not what is left: {usage:?}"));
            }
        }
        for namespace in [NamespaceId::DEFAULT, NamespaceId(1), NamespaceId(7)] {
            same("templates", &book.templates(namespace), &model.templates(namespace))?;
            let limits = book.limits(at, namespace);
            same("limits", &limits, &model.limits(at, namespace))?;
            let defined = limits.iter().filter(|info| info.template.is_none()).cloned().collect();
            same("defined limits", &book.defined_limits(at, namespace), &defined)?;
            for info in limits {
                let key = &info.definition.key;
                same("resolve", &book.resolve(namespace, key), &model.resolve(namespace, key))?;
            }
        }
        Ok(())
    }
}

fn namespace_of(record: &JournalRecord) -> NamespaceId {
    match record {
        JournalRecord::Transaction(transaction) => transaction.namespace,
        JournalRecord::Hold(hold) | JournalRecord::Release(hold) => hold.namespace,
        JournalRecord::Settle(settle) => settle.hold.namespace,
        JournalRecord::Expire(expire) => expire.namespace,
        JournalRecord::Plan(plan) => plan.namespace,
        other => panic!("a change that no script made: {other:?}"),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, of_book: &T, of_model: &T) -> Result<(), String> {
    if of_book == of_model {
        return Ok(());
    }
    Err(format!("{what}\n   book: {of_book:?}\n  model: {of_model:?}"))
}

/// Runs all steps on a new pair. A panic counts as a difference, so that it can be shrunk.
pub fn compare(config: Config, seed: u64, steps: &[Timed], mut seen: impl FnMut(&Outcome)) -> Result<(), Difference> {
    let mut pair = Pair::new(config, seed);
    for (step, timed) in steps.iter().enumerate() {
        let what = match catch_unwind(AssertUnwindSafe(|| pair.apply(timed))) {
            Ok(Ok(outcome)) => {
                seen(&outcome);
                continue;
            }
            Ok(Err(difference)) => difference,
            Err(_) => "a panic, printed above".to_owned(),
        };
        return Err(Difference { step, what });
    }
    pair.end().map_err(|what| Difference { step: steps.len().saturating_sub(1), what })
}

/// Maximum steps executed while shrinking.
const SHRINK_STEPS_MAX: usize = 3_000_000;

/// Removes steps while the rest still shows a difference.
pub fn shrink(config: Config, seed: u64, mut steps: Vec<Timed>) -> (Vec<Timed>, Difference) {
    let mut difference = compare(config, seed, &steps, |_| ()).unwrap_err();
    steps.truncate(difference.step + 1);
    let mut size = steps.len() / 2;
    let mut spent = 0;
    while size > 0 {
        let mut start = 0;
        while start < steps.len() {
            spent += steps.len();
            if spent > SHRINK_STEPS_MAX {
                return (steps, difference);
            }
            let mut fewer = steps.clone();
            fewer.drain(start..steps.len().min(start + size));
            match compare(config, seed, &fewer, |_| ()) {
                Err(found) => {
                    fewer.truncate(found.step + 1);
                    (steps, difference) = (fewer, found);
                }
                Ok(()) => start += size,
            }
        }
        size /= 2;
    }
    (steps, difference)
}
