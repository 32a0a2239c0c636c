//! The measured workload: reserve one call against several limits.

use std::time::{SystemTime, UNIX_EPOCH};

use earmark_core::{Definition, Kind, LeaseId, LimitKey, NameError, Overage, UnixMs};

use crate::failure::Failure;

pub(super) const MODELS: usize = 20;
pub(super) const TENANTS: usize = 1_000;
/// Digits of a model or tenant number in a key. The width is fixed, so that a key can be changed in place.
pub(super) const MODEL_DIGITS: usize = 2;
pub(super) const TENANT_DIGITS: usize = 4;
/// The bounds of a call.
pub(super) const INPUT_TOKENS: u64 = 1_000;
pub(super) const OUTPUT_TOKENS: u64 = 500;
const TOKENS: u64 = INPUT_TOKENS + OUTPUT_TOKENS;
/// A call uses one third of its reserved tokens.
const USED_PART: u64 = 3;
/// Window and timeout of the limits, in seconds: the usage of a run ends after one minute.
const HOLD_SECONDS: u32 = 60;
/// Capacity of the limits: high enough that no reserve is denied.
const CAPACITY: u64 = 1 << 60;

/// Whether a limit belongs to a model or a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Model,
    Tenant,
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) owner: Owner,
    /// The key's text before and after the number of its owner.
    pub(super) before: &'static str,
    pub(super) behind: String,
    pub(super) amount: u64,
    kind: Kind,
    unit: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) lease: LeaseId,
    pub(super) model: usize,
    pub(super) tenant: usize,
}

/// The requirements of a call: requests, tokens and concurrency of a model, tokens of a tenant, then further request
/// limits of the model up to `limits`.
pub(super) fn parts(limits: usize) -> Vec<Part> {
    let rolling = Kind::Rolling { window_seconds: HOLD_SECONDS };
    let slots = Kind::Concurrency { timeout_seconds: HOLD_SECONDS };
    let model = |behind: &str, kind, amount, unit| Part {
        owner: Owner::Model,
        before: "bench:model-",
        behind: behind.to_owned(),
        amount,
        kind,
        unit,
    };
    let tenant = Part {
        owner: Owner::Tenant,
        before: "bench:tenant-",
        behind: ":tpm".to_owned(),
        amount: TOKENS,
        kind: rolling.clone(),
        unit: "tokens",
    };
    let first = [
        model(":rpm", rolling.clone(), 1, "requests"),
        model(":tpm", rolling.clone(), TOKENS, "tokens"),
        model(":concurrency", slots, 1, "calls"),
        tenant,
    ];
    let more =
        (first.len() + 1..=limits).map(|number| model(&format!(":more-{number:02}"), rolling.clone(), 1, "requests"));
    first.iter().take(limits).cloned().chain(more).collect()
}

/// The policy that gives a call these requirements.
pub(super) fn policy(parts: &[Part]) -> String {
    let limit = |part: &Part| {
        let owner = match part.owner {
            Owner::Model => "{model}",
            Owner::Tenant => "{tenant}",
        };
        let amount = if part.amount == TOKENS { "tokens" } else { "requests" };
        format!("  {{ key = \"bench:{owner}{}\", amount = \"{amount}\" }},\n", part.behind)
    };
    format!("[[rules]]\nname = \"bench\"\nlimits = [\n{}]\n", parts.iter().map(limit).collect::<String>())
}

impl Part {
    /// The actual usage of a call; `None` for a limit without an actual.
    pub(super) fn actual_amount(&self) -> Option<u64> {
        (self.amount == TOKENS).then_some(TOKENS / USED_PART)
    }

    /// The key for the model or tenant `number`.
    pub(super) fn key(&self, number: usize) -> String {
        let digits = match self.owner {
            Owner::Model => MODEL_DIGITS,
            Owner::Tenant => TENANT_DIGITS,
        };
        format!("{}{number:0digits$}{}", self.before, self.behind)
    }

    /// The keys for all models or tenants.
    pub(super) fn keys(&self) -> Result<Vec<LimitKey>, NameError> {
        let owners = match self.owner {
            Owner::Model => MODELS,
            Owner::Tenant => TENANTS,
        };
        (0..owners).map(|number| LimitKey::new(&self.key(number))).collect()
    }
}

impl Call {
    /// The number of this call's model or tenant.
    pub(super) fn number(&self, owner: Owner) -> usize {
        match owner {
            Owner::Model => self.model,
            Owner::Tenant => self.tenant,
        }
    }
}

/// The limit keys of one requirement, for all models or tenants.
pub(super) struct Keys {
    owner: Owner,
    keys: Vec<LimitKey>,
    pub(super) amount: u64,
    pub(super) actual_amount: Option<u64>,
}

impl Keys {
    pub(super) fn of(parts: &[Part]) -> Result<Vec<Keys>, Failure> {
        let keys = |part: &Part| {
            let (owner, amount, actual_amount) = (part.owner, part.amount, part.actual_amount());
            Ok(Keys { owner, keys: part.keys()?, amount, actual_amount })
        };
        parts.iter().map(keys).collect::<Result<_, NameError>>().map_err(|error| Failure::Bench(error.to_string()))
    }

    /// The key for the model or tenant of `call`.
    pub(super) fn key(&self, call: &Call) -> LimitKey {
        self.keys[call.number(self.owner)].clone()
    }
}

/// The definitions of all limits. If calls are to be denied, each limit of tokens holds one call.
pub(super) fn definitions(parts: &[Part], denied: bool) -> Result<Vec<Definition>, NameError> {
    let capacity = if denied { TOKENS } else { CAPACITY };
    let mut definitions = Vec::new();
    for part in parts {
        definitions.extend(part.keys()?.into_iter().map(|key| Definition {
            key,
            kind: part.kind.clone(),
            capacity,
            unit: part.unit.to_owned(),
            description: "created by earmark bench".to_owned(),
            overage: Overage::Debt,
            shared: false,
            enforce: true,
        }));
    }
    Ok(definitions)
}

/// A random stream of calls with unique leases.
pub(super) struct Calls {
    state: u64,
    now: UnixMs,
}

impl Calls {
    /// A stream with its own random seed.
    pub(super) fn new() -> Calls {
        let mut calls = Calls { state: ulid::Ulid::generate().0 as u64, now: UnixMs::default() };
        calls.tick();
        calls
    }

    /// Updates the timestamp of the following leases.
    pub(super) fn tick(&mut self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now = UnixMs::new(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX));
    }

    pub(super) fn next(&mut self) -> Call {
        let (random, more) = (self.random(), self.random());
        let lease = LeaseId::from_parts(self.now, (u128::from(random) << 16) | u128::from(more & 0xffff));
        Call { lease, model: (more >> 16) as usize % MODELS, tenant: (more >> 32) as usize % TENANTS }
    }

    /// SplitMix64, which repeats no number within its period.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_job_has_as_many_parts_as_asked_and_each_its_own_key() {
        for limits in 1..=32 {
            let parts = parts(limits);
            let keys: BTreeSet<String> = parts.iter().map(|part| part.key(7)).collect();
            assert_eq!((parts.len(), keys.len()), (limits, limits));
            assert!(keys.iter().all(|key| key.starts_with("bench:")), "{keys:?}");
        }
    }

    #[test]
    fn four_limits_are_three_of_a_model_and_one_of_a_tenant() {
        let keys: Vec<String> = parts(4).iter().map(|part| part.key(7)).collect();
        assert_eq!(
            keys,
            ["bench:model-07:rpm", "bench:model-07:tpm", "bench:model-07:concurrency", "bench:tenant-0007:tpm"]
        );
        let definitions = definitions(&parts(4), false).unwrap();
        assert_eq!(definitions.len(), 3 * MODELS + TENANTS);
        assert!(definitions.iter().all(|definition| definition.validate().is_ok()));
    }

    #[test]
    fn leases_differ_between_calls_and_workers() {
        let (mut one, mut other) = (Calls::new(), Calls::new());
        let leases: BTreeSet<LeaseId> = (0..1_000).flat_map(|_| [one.next().lease, other.next().lease]).collect();
        assert_eq!(leases.len(), 2_000);
        let call = one.next();
        assert!(call.model < MODELS && call.tenant < TENANTS);
    }
}
