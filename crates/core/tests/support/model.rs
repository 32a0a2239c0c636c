//! A simple model of the Book: plain lists, scanned for every question.
//!
//! It is slow on purpose and independent of the Book's data structures. Where the two differ, one of them is wrong.

mod calendar;
mod complete;
mod credit;
mod extend;
mod grants;
mod hints;
mod lease;
mod limit;
mod operation;
mod parts;
mod plans;
mod policy;
mod quota;
mod reserve;
mod slots;
mod template;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::{
    AccountId, AssetName, Charge, ClientId, Command, Config, ConfigureOutcome, CreditDenial, ExternalParts, GrantTerms,
    LeaseId, LeaseInfo, LeaseState, LimitId, LimitInfo, LimitKey, LimitRef, LimitStatus, Moment, NamespaceId,
    NamespaceName, Outcome, Part, PolicyRevision, SettingChange, TIME_MAX, UnixMs, Usage, VaultName,
};

pub use credit::{Account, Hold, Vault};
use lease::{Fate, Lease, bound_end, closed, is_live};
use limit::{Limit, LimitPhase};
use slots::Slots;
use template::ModelTemplate;
pub use write::Committed;

#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    /// The latest time applied; `None` before the first command.
    time: Option<UnixMs>,
    /// The wall time of the command being applied.
    wall: UnixMs,
    forgotten_before: UnixMs,
    namespaces: Vec<NamespaceName>,
    limits: Slots,
    templates: Vec<ModelTemplate>,
    /// The revision of the last change of templates.
    template_changes: BTreeMap<NamespaceId, u64>,
    /// The last number given to a template.
    template_number: u64,
    /// Limits that the command being applied derived.
    derived_now: usize,
    /// Limits that the command being applied may free.
    touched: Vec<LimitId>,
    /// Derived limits that the command deleted.
    cleared: Vec<LimitId>,
    /// The last revision given.
    revision: u64,
    reservations: Vec<Reservation>,
    /// All remembered leases, in the order in which they reached their state.
    leases: Vec<Lease>,
    pub vaults: Vec<Vault>,
    /// Accounts of all vaults, in order of opening.
    pub accounts: Vec<Account>,
    holds: Vec<Hold>,
    /// Grants whose expiry was not looked at yet.
    queue: Vec<(UnixMs, AccountId, AssetName, GrantTerms)>,
    /// The balances whose due changes this command applied. A refused write applies them too.
    touched_balances: Vec<(AccountId, AssetName)>,
    /// The balances that accounts have or had.
    balances: BTreeSet<(AccountId, AssetName)>,
    /// Those that the write being applied adds.
    added_balances: BTreeSet<(AccountId, AssetName)>,
    expiry: grants::Expiry,
    /// The last number given to a lease or hold for its order within a second.
    queued: u64,
    /// The charges of timeouts in the last command.
    pub timeouts: Vec<Charge>,
    external: ExternalParts,
    /// All committed transactions, in order.
    pub committed: Vec<Committed>,
    quotas: quota::Quotas,
    /// All revisions of policies that are kept, the oldest first.
    policies: Vec<(NamespaceId, PolicyRevision)>,
    /// Retired client ids with the names of their scopes.
    retired: Vec<(NamespaceId, Option<VaultName>, ClientId)>,
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    limit: LimitId,
    amount: u64,
    end: UnixMs,
    /// The lease that may still be completed; `None` afterwards.
    unsettled: Option<(NamespaceId, LeaseId)>,
}

impl Model {
    pub fn new(config: Config) -> Model {
        let mut model = Model {
            config,
            time: None,
            wall: UnixMs::default(),
            forgotten_before: UnixMs::new(0),
            namespaces: vec![NamespaceName::new(NamespaceName::DEFAULT).unwrap()],
            limits: Slots::default(),
            templates: Vec::new(),
            template_changes: BTreeMap::new(),
            template_number: 0,
            derived_now: 0,
            touched: Vec::new(),
            cleared: Vec::new(),
            revision: 0,
            reservations: Vec::new(),
            leases: Vec::new(),
            vaults: Vec::new(),
            accounts: Vec::new(),
            holds: Vec::new(),
            queue: Vec::new(),
            touched_balances: Vec::new(),
            balances: BTreeSet::new(),
            added_balances: BTreeSet::new(),
            expiry: grants::Expiry::default(),
            queued: 0,
            timeouts: Vec::new(),
            external: ExternalParts::default(),
            committed: Vec::new(),
            quotas: quota::Quotas::default(),
            policies: Vec::new(),
            retired: Vec::new(),
        };
        model.open_vault(NamespaceId::DEFAULT, &VaultName::new(VaultName::MAIN).unwrap());
        model
    }

    pub fn apply(&mut self, at: Moment, command: Command<'_>) -> Outcome {
        self.wall = at.wall;
        let now = at.log.min(TIME_MAX);
        if self.time.is_none() {
            self.forgotten_before = now.minus_ms(self.config.retention_ms);
        }
        let now = now.max(self.time());
        self.time = Some(now);
        self.advance_expiry(Moment { log: now, ..at });
        self.touched_balances.clear();
        self.reservations.retain(|r| r.end > now);
        self.finish_decreases();
        self.timeouts.clear();
        self.forget();
        self.issue_due();
        self.expire_due();
        self.time_out_due();
        let outcome = match command {
            Command::OpenNamespace(name) => Outcome::Namespace(self.open_namespace(name)),
            Command::PutLimit(put) => Outcome::Limit(self.put(put)),
            Command::DeleteLimit(delete) => Outcome::Limit(self.delete(delete)),
            Command::PutTemplate(put) => Outcome::Template(self.put_template(put)),
            Command::DeleteTemplate(delete) => Outcome::Template(self.delete_template(delete)),
            Command::PauseLimit(pause) => Outcome::Pause(self.pause(pause)),
            Command::Reserve(reserve) => Outcome::Reserve(self.reserve(reserve)),
            Command::Extend(extend) => Outcome::Extend(self.extend(extend)),
            Command::Complete(complete) => Outcome::Complete(self.complete(complete)),
            Command::Release(release) => Outcome::Complete(self.release(release)),
            Command::DropLimit(gone) => Outcome::Limit(self.drop_limit(gone)),
            Command::SetExternal(setup) => {
                self.external = setup.parts;
                Outcome::ExternalSet
            }
            Command::Configure(changes) => Outcome::Configure(self.configure(changes)),
            Command::Write(write) => Outcome::Write(self.write(write)),
            // Scripts have no API keys; the rules in `keys.rs` test them.
            Command::CreateKey(_) | Command::RevokeKey(_) => Outcome::Unauthenticated,
            Command::SetQuotas(set) => Outcome::Quotas(self.set_quotas(set)),
            Command::PutPolicy(put) => Outcome::Policy(self.put_policy(put)),
            Command::Tick => Outcome::Ticked,
            Command::AdvanceTime(to) => self.advance_time(to),
        };
        self.finish_decreases();
        self.sweep(matches!(command, Command::Tick));
        outcome
    }

    fn configure(&mut self, changes: &[SettingChange]) -> ConfigureOutcome {
        if let Some(change) = changes.iter().find(|change| !change.setting.allowed().contains(&change.value)) {
            return ConfigureOutcome::Invalid(*change);
        }
        self.config = self.config.with(changes);
        ConfigureOutcome::Configured
    }

    fn advance_time(&mut self, to: UnixMs) -> Outcome {
        let now = self.time();
        if self.reservations.is_empty() && self.holds.iter().all(|hold| hold.end <= now) {
            self.time = Some(to.min(TIME_MAX).max(now));
            self.forget();
            self.skip_expiry();
        }
        Outcome::Ticked
    }

    // The time of reads: `now`, or the latest time applied if that is later.

    pub fn time(&self) -> UnixMs {
        self.time.unwrap_or_default()
    }

    pub fn forgotten_before(&self) -> UnixMs {
        self.forgotten_before
    }

    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    pub fn limit_ids(&self) -> Vec<LimitId> {
        self.limits.ids()
    }

    pub fn namespaces(&self) -> &[NamespaceName] {
        &self.namespaces
    }

    pub fn resolve(&self, namespace: NamespaceId, key: &LimitKey) -> Option<LimitId> {
        let is_meant = |limit: &Limit| limit.namespace == namespace && limit.definition.key == *key;
        self.limits.ids().into_iter().find(|id| is_meant(&self.limits[*id]))
    }

    pub fn usage(&self, now: UnixMs, id: LimitId) -> Option<Usage> {
        let now = now.min(TIME_MAX).max(self.time());
        let limit = self.limit_as_of(now, id)?;
        self.shown(&limit)?;
        if let Some(usage) = self.credit_usage(now, id, limit.status()) {
            return Some(Usage { paused_until: limit.pause_at(now).map(|pause| pause.until), ..usage });
        }
        let reserved = self.reserved(now, id);
        Some(Usage {
            capacity: limit.capacity,
            reserved,
            available: if limit.status() == LimitStatus::Active { limit.capacity.saturating_sub(reserved) } else { 0 },
            debt: limit.debt,
            status: limit.status(),
            paused_until: limit.pause_at(now).map(|pause| pause.until),
        })
    }

    pub fn limit(&self, now: UnixMs, id: LimitId) -> Option<LimitInfo> {
        let limit = self.limit_as_of(now.min(TIME_MAX).max(self.time()), id)?;
        let status = limit.status();
        let (capacity, revision) = (limit.capacity, self.shown_revision(&limit)?);
        let (definition, template) = self.shown(&limit)?;
        let pause = limit.pause_at(now.min(TIME_MAX).max(self.time())).cloned();
        Some(LimitInfo { definition, capacity, status, revision, template, pause })
    }

    pub fn limits(&self, now: UnixMs, namespace: NamespaceId) -> Vec<LimitInfo> {
        let ids = self.limits.ids().into_iter();
        let mut found: Vec<LimitInfo> =
            ids.filter(|id| self.limits[*id].namespace == namespace).filter_map(|id| self.limit(now, id)).collect();
        found.sort_by(|a, b| a.definition.key.cmp(&b.definition.key));
        found
    }

    pub fn lease(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<LeaseInfo> {
        let now = now.min(TIME_MAX).max(self.time());
        let lease = &self.leases[self.remembered(namespace, lease)?];
        if self.is_due(now, lease) {
            return None;
        }
        Some(match lease.fate {
            Fate::Held { reserved_at, ref parts } => LeaseInfo {
                reserved_at: Some(reserved_at),
                requirements: parts.iter().map(|part| (part.limit, part.total())).collect(),
                job: lease.job.clone(),
                extensions: lease.extended.as_ref().map_or(0, |extended| extended.number),
                used: parts.iter().filter(|part| part.used > 0).map(|part| (part.limit, part.used)).collect(),
                ends_at: bound_end(parts),
                state: if is_live(now, lease) { LeaseState::Live } else { LeaseState::Expired },
                call: lease.mark.call,
                by_gateway: lease.mark.by_gateway,
                has_credit: parts.iter().any(|part| matches!(part.kind, earmark_core::Kind::Credit(_))),
            },
            Fate::Completed { reserved_at, .. } => closed(Some(reserved_at), LeaseState::Completed, lease),
            Fate::Marked { .. } => closed(None, LeaseState::Completed, lease),
            Fate::Denied { .. } | Fate::NoCredit { .. } | Fate::Released { .. } => {
                closed(None, LeaseState::Denied, lease)
            }
        })
    }

    /// The credit denial of a lease, and its requirements.
    pub fn credit_denial(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        lease: LeaseId,
    ) -> (Option<CreditDenial>, Vec<Part>) {
        let now = now.min(TIME_MAX).max(self.time());
        let Some(place) = self.remembered(namespace, lease) else { return (None, Vec::new()) };
        let lease = &self.leases[place];
        let part = |(key, amount): (LimitKey, u64)| Part { limit: LimitRef::from(key), amount };
        let parts = lease.requirements().into_iter().flatten().map(part).collect();
        let denial = match lease.fate {
            Fate::NoCredit { resolved_at, denial, .. } if !self.is_due(now, lease) => {
                let retry_after_ms = resolved_at.plus_ms(denial.retry_after_ms).ms_since(now);
                Some(CreditDenial { retry_after_ms, ..denial })
            }
            _ => None,
        };
        (denial, parts)
    }

    fn reserved(&self, now: UnixMs, limit: LimitId) -> u64 {
        self.reservations.iter().filter(|r| r.limit == limit && r.end > now).map(|r| r.amount).sum()
    }

    fn available(&self, limit: LimitId) -> u64 {
        self.limits[limit].capacity.saturating_sub(self.reserved(self.time(), limit))
    }

    /// The amount that a decision may add. A shadow limit decides as if it had the largest capacity.
    fn room(&self, limit: LimitId) -> u64 {
        let is_shadow = !self.limits[limit].definition.enforce;
        if is_shadow { u64::MAX - self.reserved(self.time(), limit) } else { self.available(limit) }
    }

    /// The limit after a decrease that is done by `now`; `None` if it is deleted by then.
    fn limit_as_of(&self, now: UnixMs, id: LimitId) -> Option<Limit> {
        let mut limit = self.limits.get(id)?.clone();
        limit.finish_decrease(self.reserved(now, id));
        (limit.standing != LimitPhase::Deleted).then_some(limit)
    }

    fn finish_decreases(&mut self) {
        for id in self.limits.ids() {
            let reserved = self.reserved(self.time(), id);
            self.limits[id].finish_decrease(reserved);
        }
    }
}
