//! The oracle: requests and answers, and what follows from them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use earmark_admission::{CompleteAnswer, ExtendAnswer, LeaseView, Refusal, ReserveAnswer};
use earmark_core::{LeaseId, LeaseState, Operation, Receipt, TxId};

use crate::host::BEGIN_US;
use crate::keyed::Event;

/// Limits of the simulation, with capacity and hold time.
pub const SLOTS: Limit = Limit { key: "slots", capacity: 6, hold_ms: 4_000 };
pub const RATE: Limit = Limit { key: "rate", capacity: 60, hold_ms: 6_000 };
pub const MONEY: Limit = Limit { key: "money", capacity: 0, hold_ms: 5_000 };
pub const FLEX: Limit = Limit { key: "flex", capacity: 8, hold_ms: 2_000 };
/// Tolerance of log time in milliseconds: half a simulated step, rounded up, and a margin.
const SLACK_MS: u64 = 5;
/// History lines printed on failure.
const RECENT: usize = 60;

pub struct Limit {
    pub key: &'static str,
    pub capacity: u64,
    pub hold_ms: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestMark {
    /// Its position in the history.
    pub at: u64,
    /// Highest log time in an earlier answer.
    floor_ms: u64,
    /// Highest log index in an earlier answer.
    index: u64,
    /// Highest revision of limit `flex` in an earlier answer.
    revision: u64,
}

/// Known facts about one lease, each with the time of the answer.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    pub parts: Vec<(&'static str, u64)>,
    floor_ms: u64,
    allowed: Option<(u64, u64)>,
    denied: Option<u64>,
    expired: Option<u64>,
    /// The first complete: its minimum log time and its actuals.
    completing: Option<(u64, Vec<(&'static str, u64)>)>,
    completed: Option<u64>,
    /// The answers to its renewals: their ends, by number from 1.
    pub renewed: Vec<Option<u64>>,
}

impl Lease {
    /// The latest end that a renewal was answered with; 0 without any.
    fn renewed_until(&self) -> u64 {
        self.renewed.iter().flatten().copied().max().unwrap_or(0)
    }
}

/// Known facts about one writer.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Balance after each of its writes.
    pub balances: Vec<i128>,
    pub receipts: Vec<Arc<Receipt>>,
    /// Operations of each of its writes.
    pub sent: Vec<Vec<Operation>>,
    /// Last requested sequence that can commit.
    pub asked: u64,
}

impl Writer {
    pub fn committed(&self) -> u64 {
        self.receipts.len() as u64
    }
}

pub struct Oracle {
    pub steps: u64,
    pub wrong: Vec<String>,
    pub leases: BTreeMap<LeaseId, Lease>,
    pub writers: Vec<Writer>,
    pub events: Vec<Event>,
    /// Maximum lead of log time over real time, after a majority had to use a fast wall clock.
    pub ahead_ms: u64,
    /// Whether any wall clock is ever wrong.
    pub is_clock_wrong: bool,
    at: u64,
    floor_ms: u64,
    index: u64,
    revision: u64,
    revisions: BTreeSet<u64>,
    transactions: BTreeSet<TxId>,
    digest: u64,
    recent: VecDeque<String>,
    pub is_loud: bool,
}

impl Oracle {
    pub fn new(writers: usize) -> Oracle {
        let writer = Writer { balances: vec![0], receipts: Vec::new(), sent: Vec::new(), asked: 0 };
        Oracle {
            steps: 0,
            wrong: Vec::new(),
            leases: BTreeMap::new(),
            writers: vec![writer; writers],
            events: Vec::new(),
            ahead_ms: 0,
            is_clock_wrong: false,
            at: 0,
            floor_ms: 0,
            index: 0,
            revision: 0,
            revisions: BTreeSet::new(),
            transactions: BTreeSet::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            recent: VecDeque::new(),
            is_loud: std::env::var_os("EARMARK_SIM_TRACE").is_some(),
        }
    }

    /// Adds a line to the history.
    pub fn note(&mut self, text: &str) {
        self.at += 1;
        let line = format!("{:>6} {:>7} ms {text}", self.at, right_ms() - BEGIN_US / 1_000);
        if self.is_loud {
            println!("{line}");
        }
        self.digest = fold(self.digest, line.as_bytes());
        self.recent.push_back(line);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Hash of the history.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub fn recent(&self) -> String {
        self.recent.iter().map(|line| format!("{line}\n")).collect()
    }

    pub fn ask(&mut self, text: &str) -> RequestMark {
        self.steps += 1;
        self.note(text);
        RequestMark { at: self.at, floor_ms: self.floor_ms, index: self.index, revision: self.revision }
    }

    pub fn must(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            let why = why();
            self.note(&format!("WRONG: {why}"));
            self.wrong.push(why);
        }
    }

    /// Checks a log time from an answer; it is at least `floor_ms`.
    fn log_time(&mut self, ms: u64, floor_ms: u64) {
        let right = right_ms();
        let drift = (right - BEGIN_US / 1_000) / 500 + SLACK_MS;
        let top = right + self.ahead_ms + drift;
        self.must(ms <= top, || format!("log time leapt to {ms}, and can be {top} at most"));
        self.must(ms >= floor_ms, || format!("log time ran backwards to {ms}, and was {floor_ms} before"));
        self.floor_ms = self.floor_ms.max(ms);
    }

    pub fn reserving(&mut self, lease: LeaseId, parts: &[(&'static str, u64)], asked: RequestMark) {
        self.leases.entry(lease).or_insert_with(|| Lease {
            parts: parts.to_vec(),
            floor_ms: asked.floor_ms,
            ..Lease::default()
        });
    }

    pub fn reserved(&mut self, lease: LeaseId, asked: RequestMark, answer: &ReserveAnswer) {
        self.note(&format!("{lease} {answer:?}"));
        let now = self.at;
        let facts = self.leases[&lease].clone();
        let before = |at: Option<u64>| at.is_some_and(|at| at < asked.at);
        let was_allowed = before(facts.allowed.map(|(_, at)| at));
        let told = |what: &str| format!("{lease} was {what}, and is now told {answer:?}: {facts:?}");
        let mut next = facts.clone();
        match answer {
            ReserveAnswer::Allowed { reserved_at, .. } => {
                let ms = reserved_at.get();
                self.log_time(ms, facts.floor_ms);
                self.must(!before(facts.denied), || told("denied"));
                self.must(!before(facts.expired), || told("expired"));
                self.must(!before(facts.completed), || told("completed"));
                self.must(facts.allowed.is_none_or(|(first, _)| first == ms), || told("allowed at another time"));
                next.allowed = facts.allowed.or(Some((ms, now)));
            }
            ReserveAnswer::Denied { .. } | ReserveAnswer::Refused(Refusal::InsufficientCredit { .. }) => {
                self.must(!was_allowed, || told("allowed"));
                self.must(!before(facts.expired), || told("expired"));
                next.denied = facts.denied.or(Some(now));
            }
            ReserveAnswer::Refused(Refusal::LeaseExpired) => {
                self.must(!before(facts.denied), || told("denied"));
                if let (Some((ms, _)), None) = (facts.allowed, &facts.completing) {
                    self.may_have_ended(lease, ms, &facts);
                }
                next.expired = facts.expired.or(Some(now));
            }
            ReserveAnswer::Refused(Refusal::InvalidRequest { .. }) => {
                let wrong = self.is_clock_wrong;
                self.must(wrong && !was_allowed, || told("asked for by a good clock"));
            }
            ReserveAnswer::Refused(Refusal::LimitPaused { .. }) => {
                self.must(false, || told("asked for a limit that nobody paused"));
            }
            ReserveAnswer::Refused(Refusal::LimitDecreasing { key, .. }) => {
                self.must(key.as_str() == FLEX.key && !was_allowed, || told("allowed"));
            }
            ReserveAnswer::Refused(
                Refusal::OwnedByGateway
                | Refusal::UnknownLimitKey(_)
                | Refusal::AccountNotFound { .. }
                | Refusal::QuotaExceeded { .. }
                | Refusal::DeniedByPolicy { .. },
            ) => {
                self.must(false, || told("for known limits"));
            }
        }
        self.leases.insert(lease, next);
    }

    /// Checks that an uncompleted lease did not expire early.
    fn may_have_ended(&mut self, lease: LeaseId, reserved_ms: u64, facts: &Lease) {
        let held = facts.parts.iter().map(|(key, _)| hold_ms(key)).min().unwrap_or(0);
        let end = (reserved_ms + held).max(facts.renewed_until());
        let right = right_ms();
        let top = right + self.ahead_ms + (right - BEGIN_US / 1_000) / 500 + SLACK_MS;
        self.must(end <= top, || format!("{lease} ended before its time: {facts:?}"));
    }

    /// The answer to a renewal: the same for the same number, as long as the lease lives.
    pub fn renewed(&mut self, lease: LeaseId, number: usize, asked: RequestMark, answer: &ExtendAnswer) {
        self.note(&format!("{lease} renewal {number}: {answer:?}"));
        let facts = self.leases[&lease].clone();
        let told = || format!("{lease}, renewal {number}, is told {answer:?}: {facts:?}");
        let before = |at: Option<u64>| at.is_some_and(|at| at < asked.at);
        match answer {
            ExtendAnswer::Extended { ends_at, .. } => {
                let ends_at = ends_at.map(|end| end.get());
                self.must(!before(facts.denied) && !before(facts.completed), told);
                match facts.renewed.get(number - 1) {
                    Some(first) => self.must(*first == ends_at, told),
                    None => self.leases.get_mut(&lease).unwrap().renewed.push(ends_at),
                }
            }
            ExtendAnswer::Refused(Refusal::LeaseExpired) => {
                if let (Some((ms, at)), None) = (facts.allowed, &facts.completing)
                    && at < asked.at
                {
                    self.may_have_ended(lease, ms, &facts);
                }
            }
            ExtendAnswer::Denied { .. } | ExtendAnswer::Refused(_) => self.must(false, told),
        }
    }

    pub fn completing(&mut self, lease: LeaseId, actuals: &[(&'static str, u64)], asked: RequestMark) {
        let facts = self.leases.get_mut(&lease).unwrap();
        facts.completing.get_or_insert_with(|| (asked.floor_ms, actuals.to_vec()));
    }

    pub fn completed(&mut self, lease: LeaseId, asked: RequestMark, answer: &CompleteAnswer) {
        self.note(&format!("{lease} {answer:?}"));
        let now = self.at;
        let facts = self.leases[&lease].clone();
        let was_allowed = facts.allowed.is_some_and(|(_, at)| at < asked.at);
        let told = || format!("{lease} was allowed and is unknown to a complete: {answer:?} {facts:?}");
        self.must(answer.reconciled || !was_allowed, told);
        let is_marked = answer.message.as_ref().is_some_and(|message| message.contains("arrives late"));
        if answer.reconciled || is_marked {
            self.leases.get_mut(&lease).unwrap().completed.get_or_insert(now);
        }
    }

    pub fn looked_at(&mut self, lease: LeaseId, asked: RequestMark, view: Option<&LeaseView>) {
        self.note(&format!("{lease} is {view:?}"));
        let facts = self.leases[&lease].clone();
        let before = |at: Option<u64>| at.is_some_and(|at| at < asked.at);
        let wrong = || format!("a read of {lease} misses what was acknowledged: {view:?} {facts:?}");
        let state = view.map(|view| view.state);
        if let Some((ms, at)) = facts.allowed.filter(|(_, at)| *at < asked.at) {
            let seen = view.and_then(|view| view.reserved_at).map(earmark_core::UnixMs::get);
            let is_there = state.is_some_and(|state| state != LeaseState::Denied);
            self.must(is_there && seen.is_none_or(|seen| seen == ms), wrong);
            if state == Some(LeaseState::Expired) && facts.completing.is_none() && at < asked.at {
                self.may_have_ended(lease, ms, &facts);
            }
        }
        if before(facts.denied) {
            self.must(state == Some(LeaseState::Denied), wrong);
        }
        if before(facts.completed) {
            self.must(state == Some(LeaseState::Completed), wrong);
        }
    }

    /// A committed write: the next sequence, or a repeat of an earlier one.
    pub fn committed(&mut self, writer: usize, asked: RequestMark, sequence: u64, receipt: &Arc<Receipt>) {
        self.note(&format!("w{writer} {receipt:?}"));
        self.must(receipt.sequence == Some(sequence), || format!("{sequence} was answered for {receipt:?}"));
        let known = self.writers[writer].receipts.get(sequence as usize - 1).cloned();
        if let Some(known) = known {
            return self.must(known == *receipt, || {
                format!("w{writer}: {sequence} has two receipts, {known:?} and {receipt:?}")
            });
        }
        let expected = self.writers[writer].committed() + 1;
        self.must(sequence == expected, || format!("w{writer}: {sequence} committed before {expected}"));
        // A repeated request may have committed since it was first sent, but not before the previous one.
        let last = self.writers[writer].receipts.last().cloned();
        let (floor_ms, index) = last.map_or((0, 0), |last| (last.committed_at.log.get(), last.log_index));
        self.log_time(receipt.committed_at.log.get(), floor_ms);
        self.must(receipt.log_index > index, || format!("w{writer}: out of order in the log: {receipt:?}"));
        let is_new = self.transactions.insert(receipt.tx_id);
        self.must(is_new, || format!("two transactions have the id of {receipt:?}"));
        self.index = self.index.max(receipt.log_index);
        self.writers[writer].receipts.push(Arc::clone(receipt));
        let _ = asked;
    }

    /// A write that was sent once and answered at once is later than all earlier answers.
    pub fn in_order(&mut self, asked: RequestMark, receipt: &Receipt) {
        self.must(receipt.committed_at.log.get() >= asked.floor_ms, || {
            format!("log time ran backwards: {receipt:?} after {}", asked.floor_ms)
        });
        self.must(receipt.log_index > asked.index, || {
            format!("the log ran backwards: {receipt:?} after {}", asked.index)
        });
    }

    pub fn counted(&mut self, writer: usize, from: u64, last: u64) {
        self.note(&format!("w{writer} is at {last}"));
        let asked = self.writers[writer].asked;
        self.must((from..=asked).contains(&last), || {
            format!("w{writer} is at {last}, and should be at {from} to {asked}")
        });
    }

    pub fn balance(&mut self, writer: usize, from: u64, has: i128) {
        self.note(&format!("w{writer} has {has}"));
        let balances = &self.writers[writer].balances[from as usize..];
        let allowed = format!("w{writer} has {has}, and should have one of {balances:?}");
        let holds = balances.contains(&has);
        self.must(holds, || allowed);
    }

    pub fn changed_flex(&mut self, asked: RequestMark, revision: u64) {
        self.note(&format!("flex has revision {revision}"));
        let is_new = self.revisions.insert(revision);
        self.must(is_new && revision > asked.revision, || {
            format!("a change of flex got revision {revision}, and {} was told before", asked.revision)
        });
        self.revision = self.revision.max(revision);
    }

    pub fn saw_flex(&mut self, asked: RequestMark, revision: u64) {
        self.note(&format!("flex is at revision {revision}"));
        self.must(revision >= asked.revision, || {
            format!("a read found revision {revision} of flex, and {} was told before", asked.revision)
        });
        self.revision = self.revision.max(revision);
    }

    pub fn saw_usage(&mut self, limit: &Limit, reserved: u64) {
        self.note(&format!("{} holds {reserved}", limit.key));
        self.must(reserved <= limit.capacity, || format!("{} holds {reserved}", limit.key));
    }

    /// Checks that at no log time the leases held more than the capacity.
    pub fn check_capacity(&mut self, limit: &Limit) {
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for lease in self.leases.values() {
            let part = |parts: &[(&str, u64)]| parts.iter().find(|part| part.0 == limit.key).map(|part| part.1);
            let (Some(amount), Some((start, _))) = (part(&lease.parts), lease.allowed) else { continue };
            let amount = i64::try_from(amount).unwrap();
            let is_renewed = limit.key == SLOTS.key;
            let end = (start + limit.hold_ms).max(if is_renewed { lease.renewed_until() } else { 0 });
            let mut kept = amount;
            if let Some((floor_ms, actuals)) = &lease.completing {
                let settled = (*floor_ms).clamp(start, end);
                let used = match (limit.key == RATE.key, part(actuals)) {
                    (false, _) => 0,
                    (true, Some(actual)) => i64::try_from(actual).unwrap().min(amount),
                    (true, None) => amount,
                };
                changes.push((settled, used - amount));
                kept = used;
            }
            changes.push((start, amount));
            changes.push((end, -kept));
        }
        // Capacity that expires at a time is free at that time.
        changes.sort_unstable();
        let mut held = 0;
        for (ms, change) in changes {
            held += change;
            let most = i64::try_from(limit.capacity).unwrap();
            self.must(held <= most, || format!("{} held {held} at {ms}, and has {most}", limit.key));
        }
    }
}

fn hold_ms(key: &str) -> u64 {
    [SLOTS, RATE, MONEY, FLEX].iter().find(|limit| limit.key == key).unwrap().hold_ms
}

pub fn right_ms() -> u64 {
    let elapsed = turmoil::sim_elapsed().map_or(0, |elapsed| elapsed.as_micros());
    (BEGIN_US + u64::try_from(elapsed).unwrap()) / 1_000
}

/// FNV-1a.
pub fn fold(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
