//! A double of Earmark that remembers each lease and how it was settled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_client::core::{LeaseId, LimitKey, UnixMs};
use earmark_client::{
    Call, CallAnswer, CallCompleted, CallDecision, CallExplanation, CallExtension, CallOutcome, CallResult, ClientKey,
    ExtendAnswer, Extended, Failure, Identity, ReserveAnswer,
};
use earmark_gateway::earmark::{Answer, Earmark};

/// One lease.
#[derive(Clone, Debug)]
pub struct Lease {
    pub call: Call,
    pub outcome: Option<CallOutcome>,
    pub completes: u32,
    pub extensions: Vec<CallExtension>,
}

#[derive(Default)]
struct State {
    leases: BTreeMap<LeaseId, Lease>,
    order: Vec<LeaseId>,
    /// The decisions of the next calls. Calls beyond them are allowed.
    decisions: Vec<Result<CallDecision, Failure>>,
    completes_to_lose: u32,
    /// The answers to the next extensions. Those beyond them are extended.
    extends: Vec<Result<ReserveAnswer, Failure>>,
    pauses: Vec<(String, Duration)>,
    keys: BTreeMap<String, Identity>,
    whos: u32,
    is_down: bool,
}

/// The double. Clones share their state.
#[derive(Clone, Default)]
pub struct Double(Arc<Mutex<State>>);

impl Double {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The next call gets this decision.
    pub fn decide(&self, decision: ReserveAnswer) {
        self.state().decisions.push(Ok(CallDecision::Limits(decision)));
    }

    /// The next call fails like this.
    pub fn fail(&self, failure: Failure) {
        self.state().decisions.push(Err(failure));
    }

    pub fn refuse(&self, decision: CallDecision) {
        self.state().decisions.push(Ok(decision));
    }

    /// The next extensions get these answers.
    pub fn refuse_extends(&self, answers: Vec<Result<ReserveAnswer, Failure>>) {
        self.state().extends = answers;
    }

    /// The next completes have no answer.
    pub fn lose_completes(&self, count: u32) {
        self.state().completes_to_lose = count;
    }

    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    pub fn add_key(&self, key: &str, identity: Identity) {
        self.state().keys.insert(key.to_owned(), identity);
    }

    pub fn whos(&self) -> u32 {
        self.state().whos
    }

    pub fn pauses(&self) -> Vec<(String, Duration)> {
        self.state().pauses.clone()
    }

    /// The leases that were reserved, in order.
    pub fn leases(&self) -> Vec<Lease> {
        let state = self.state();
        state.order.iter().map(|lease| state.leases[lease].clone()).collect()
    }

    /// The results of all leases, in order, once each of them is settled.
    pub async fn settled(&self) -> Vec<CallResult> {
        for _ in 0..1_000 {
            let leases = self.leases();
            if leases.iter().all(|lease| lease.outcome.is_some()) {
                return leases.into_iter().filter_map(|lease| Some(lease.outcome?.result)).collect();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("a lease is not settled: {:?}", self.leases());
    }
}

/// The cost of a usage at this double.
fn cost(result: &CallResult, call: &Call) -> u128 {
    match result {
        CallResult::Used(usage) => u128::from(usage.input_tokens + 10 * usage.output_tokens),
        CallResult::Done | CallResult::Unknown => u128::from(call.input_tokens_max + 10 * call.output_tokens_max),
        CallResult::Refused => 0,
    }
}

fn down() -> Failure {
    Failure::NoAnswer { server: "double".into(), why: "it is down".into() }
}

impl Earmark for Double {
    fn who<'a>(&'a self, client: Option<&'a ClientKey>) -> Answer<'a, Identity> {
        Box::pin(async move {
            let mut state = self.state();
            state.whos += 1;
            if state.is_down {
                return Err(down());
            }
            let Some(client) = client else {
                return Ok(identity("gateway", "default", &[], &[]));
            };
            let keys = state.keys.iter();
            let found = keys.clone().find(|(text, _)| ClientKey::new(text).unwrap() == *client);
            let message = "x-earmark-client-key: the credentials are not valid".into();
            found.map(|(_, identity)| identity.clone()).ok_or(Failure::Unauthorized { message })
        })
    }

    fn call<'a>(&'a self, call: &'a Call, _: Option<&'a ClientKey>) -> Answer<'a, CallAnswer> {
        Box::pin(async move {
            let mut state = self.state();
            if state.is_down {
                return Err(down());
            }
            let decision = match state.decisions.is_empty() {
                true => {
                    CallDecision::Limits(ReserveAnswer::Allowed { reserved_at: UnixMs::new(1), would_deny: Vec::new() })
                }
                false => state.decisions.remove(0)?,
            };
            if matches!(decision, CallDecision::Limits(ReserveAnswer::Allowed { .. })) {
                let lease = Lease { call: call.clone(), outcome: None, completes: 0, extensions: Vec::new() };
                assert!(state.leases.insert(call.lease, lease).is_none(), "each attempt has a lease of its own");
                state.order.push(call.lease);
            }
            Ok(CallAnswer { decision, requirements: Vec::new(), policy_revision: Some(3) })
        })
    }

    fn explain<'a>(&'a self, call: &'a Call, _: Option<&'a ClientKey>) -> Answer<'a, CallExplanation> {
        Box::pin(async move {
            // The policy of this double denies the model both, needs the user of the body, and a limit is paused.
            let error = match call.attributes["alias"].as_str() {
                "both" => "denied_by_rule:both",
                "fast" => "limit_paused:openai:rpm",
                _ => "missing_attribute:user",
            };
            let (error, rules, limits) = (error.to_owned(), Vec::new(), Vec::new());
            Ok(CallExplanation { allowed: false, error, rules, limits, cost: None })
        })
    }

    fn extend<'a>(&'a self, lease: LeaseId, extension: &'a CallExtension) -> Answer<'a, ExtendAnswer> {
        Box::pin(async move {
            let mut state = self.state();
            let lease = state.leases.get_mut(&lease).unwrap();
            lease.extensions.push(extension.clone());
            if !state.extends.is_empty() {
                return state.extends.remove(0).map(ExtendAnswer::Not);
            }
            Ok(ExtendAnswer::Extended(Extended { ends_at: None, message: None }))
        })
    }

    fn complete<'a>(&'a self, lease: LeaseId, outcome: &'a CallOutcome) -> Answer<'a, CallCompleted> {
        Box::pin(async move {
            let mut state = self.state();
            if state.is_down {
                return Err(down());
            }
            let is_lost = state.completes_to_lose > 0;
            state.completes_to_lose = state.completes_to_lose.saturating_sub(1);
            let Some(lease) = state.leases.get_mut(&lease) else {
                return Ok(CallCompleted { reconciled: false, message: None, actuals: Vec::new(), cost: None });
            };
            lease.completes += 1;
            let first = lease.outcome.get_or_insert_with(|| outcome.clone());
            assert_eq!(first, outcome, "a repeated settlement is the same");
            if is_lost {
                return Err(down());
            }
            let cost = Some(cost(&outcome.result, &lease.call));
            Ok(CallCompleted { reconciled: true, message: None, actuals: Vec::new(), cost })
        })
    }

    fn pause<'a>(&'a self, key: &'a LimitKey, length: Duration, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.state().pauses.push((key.to_string(), length));
            Ok(())
        })
    }

    fn releasing(&self) -> Answer<'_, Vec<LimitKey>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

pub fn identity(role: &str, namespace: &str, labels: &[(&str, &str)], may_set: &[&str]) -> Identity {
    Identity {
        actor: format!("client:{role}"),
        namespace: namespace.to_owned(),
        role: role.to_owned(),
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        may_set: may_set.iter().map(|name| (*name).to_owned()).collect(),
        key_id: None,
    }
}
