//! Simulated callers. Each sends one request at a time to any node, and retries elsewhere without an answer.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Backend, CompleteRequest, CreditReadError, ExtendRequest, LimitError, PutLimitRequest, ReserveRequest, WriteAnswer,
};
use earmark_core::{
    ClientId, Definition, Kind, LeaseId, Operation, Principal, RESULTS_MS, Setting, SettingChange, UnixMs, WriteError,
};
use earmark_node::{Node, NodeBackend};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::host::{Host, TIMING};
use crate::keyed::{HOOKS, PLANNED};
use crate::oracle::{FLEX, Limit, MONEY, Oracle, RATE, SLOTS, right_ms};
use crate::support::client::{
    amounts, credit, definition, issue, key, namespace, open, path, transfer, vault, write_request,
};
use crate::support::random::Random;

/// Number of writers, each with its own account.
pub const WRITERS: usize = 2;
/// Initial balance of the account that pays for leases.
pub const PURSE: u128 = 20_000;
/// Attempts without an answer, unless the caller has to know the outcome.
pub const TRIES: usize = 6;
/// Longest time to an answer of a live node: its deadline, behind another request, with a margin.
const ANSWER: Duration = TIMING.deadline.saturating_mul(5);

/// State shared by all callers.
#[derive(Clone)]
pub struct CallerContext {
    pub hosts: Rc<Vec<Host>>,
    pub oracle: Rc<RefCell<Oracle>>,
    pub steps_max: u64,
    /// Random part of the next lease id.
    pub leases: Rc<Cell<u64>>,
}

impl CallerContext {
    pub fn is_over(&self) -> bool {
        self.oracle.borrow().steps >= self.steps_max
    }
}

pub struct Caller {
    pub context: CallerContext,
    pub name: String,
    pub random: Random,
}

impl Caller {
    pub fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.random.between(low, high))
    }

    /// A random node, preferably a running one.
    pub fn any(&mut self) -> usize {
        let hosts = &self.context.hosts;
        let mut node = self.random.index(hosts.len());
        for _ in 0..3 {
            if hosts[node].node().is_some() {
                break;
            }
            node = self.random.index(hosts.len());
        }
        node
    }

    pub fn say(&self, node: usize, what: &str) -> String {
        format!("{} asks n{}: {what}", self.name, self.context.hosts[node].id)
    }

    /// Sends a request. `None` if the node died or the caller gave up.
    pub async fn ask<T: Send + 'static, F: Future<Output = T> + Send>(
        &mut self,
        node: usize,
        ask: impl FnOnce(Arc<NodeBackend>) -> F + Send + 'static,
    ) -> Option<T> {
        self.do_at(node, |node: Arc<Node>| ask(node.backend())).await
    }

    async fn do_at<T: Send + 'static, F: Future<Output = T> + Send>(
        &mut self,
        node: usize,
        ask: impl FnOnce(Arc<Node>) -> F + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let job = |node| Box::pin(async { _ = sender.send(ask(node).await) }) as _;
        if !self.context.hosts[node].hand_over(Box::new(job)) {
            let wait = self.ms(1, 30);
            sleep(wait).await;
            return None;
        }
        let is_patient = !self.random.chance(10);
        let patience = if is_patient { ANSWER } else { self.ms(1, 60) };
        match timeout(patience, receiver).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                let mut oracle = self.context.oracle.borrow_mut();
                oracle.must(!is_patient, || format!("n{} never answers {}", node + 1, self.name));
                None
            }
        }
    }

    pub async fn reserve(&mut self, node: usize, lease: LeaseId, parts: &[(&'static str, u64)]) -> bool {
        let text = self.say(node, &format!("reserve {lease} {parts:?}"));
        let asked = self.context.oracle.borrow_mut().ask(&text);
        self.context.oracle.borrow_mut().reserving(lease, parts, asked);
        let requirements = amounts(parts);
        let request =
            ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        let answer = self
            .ask(node, async move |backend| backend.reserve(Principal::System, vec![request]).await.remove(0))
            .await;
        if let Some(Ok(answer)) = &answer {
            self.context.oracle.borrow_mut().reserved(lease, asked, answer);
        }
        matches!(answer, Some(Ok(_)))
    }

    pub async fn complete(&mut self, node: usize, lease: LeaseId, parts: &[(&'static str, u64)]) -> bool {
        let text = self.say(node, &format!("complete {lease} {parts:?}"));
        let asked = self.context.oracle.borrow_mut().ask(&text);
        self.context.oracle.borrow_mut().completing(lease, parts, asked);
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(parts),
            labels: earmark_core::SettleLabels::NONE,
        };
        let answer = self
            .ask(node, async move |backend| backend.complete(Principal::System, vec![request]).await.remove(0))
            .await;
        if let Some(Ok(answer)) = &answer {
            self.context.oracle.borrow_mut().completed(lease, asked, answer);
        }
        matches!(answer, Some(Ok(_)))
    }

    /// Renews a lease, with the next number or again with the last one.
    pub async fn renew(&mut self, node: usize, lease: LeaseId, number: usize) -> bool {
        let text = self.say(node, &format!("renewal {number} of {lease}"));
        let asked = self.context.oracle.borrow_mut().ask(&text);
        let number_sent = u32::try_from(number).unwrap();
        let (add, used) = (Vec::new(), Vec::new());
        let request = ExtendRequest {
            namespace: namespace(),
            lease,
            number: number_sent,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew: true,
        };
        let answer =
            self.ask(node, async move |backend| backend.extend(Principal::System, vec![request]).await.remove(0)).await;
        if let Some(Ok(answer)) = &answer {
            self.context.oracle.borrow_mut().renewed(lease, number, asked, answer);
        }
        matches!(answer, Some(Ok(_)))
    }

    /// Repeats a renewal until it is answered, on any node, as after a failover.
    async fn until_renewed(&mut self, lease: LeaseId) {
        let answered = self.context.oracle.borrow().leases[&lease].renewed.len();
        let number = if answered > 0 && self.random.chance(20) { answered } else { answered + 1 };
        for _ in 0..TRIES {
            let node = self.any();
            if self.renew(node, lease, number).await {
                return;
            }
            let pause = self.ms(0, 200);
            sleep(pause).await;
        }
    }

    pub async fn look_at(&mut self, node: usize, lease: LeaseId) -> bool {
        let text = self.say(node, &format!("lease {lease}"));
        let asked = self.context.oracle.borrow_mut().ask(&text);
        let answer = self.ask(node, async move |backend| backend.lease(namespace(), lease).await).await;
        if let Some(Ok(view)) = &answer {
            self.context.oracle.borrow_mut().looked_at(lease, asked, view.as_ref());
        }
        matches!(answer, Some(Ok(_)))
    }

    fn some_parts(&mut self) -> Vec<(&'static str, u64)> {
        let random = &mut self.random;
        let mut parts = Vec::new();
        for (limit, percent, most) in [(FLEX, 20, 2), (MONEY, 40, 20), (RATE, 50, 6), (SLOTS, 60, 2)] {
            if random.chance(percent) {
                parts.push((limit.key, random.between(1, most)));
            }
        }
        if parts.is_empty() { vec![(SLOTS.key, 1)] } else { parts }
    }

    /// Actual usage: less, equal or more, or unreported.
    fn some_actuals(&mut self, parts: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let mut actuals = Vec::new();
        for (key, amount) in parts {
            if self.random.chance(80) {
                actuals.push((*key, self.random.below(amount + 2)));
            }
        }
        actuals
    }

    /// Reserves and completes leases, and repeats requests for old ones.
    pub async fn hold_leases(mut self) {
        let mut held: Vec<LeaseId> = Vec::new();
        let mut all: Vec<LeaseId> = Vec::new();
        while !self.context.is_over() {
            let what = self.random.below(100);
            let old = match all.len() {
                0 => None,
                len => Some(all[len - 1 - self.random.index(len.min(40))]),
            };
            match (what, old) {
                (0..55, _) | (_, None) => {
                    let lease = self.new_lease();
                    let parts = self.some_parts();
                    all.push(lease);
                    held.push(lease);
                    self.until_answered(lease, &parts).await;
                }
                (55..68, _) if !held.is_empty() => {
                    let lease = held[self.random.index(held.len())];
                    self.until_renewed(lease).await;
                }
                (68..82, _) if !held.is_empty() => {
                    let at = self.random.index(held.len());
                    let lease = held.swap_remove(at);
                    self.settle(lease).await;
                }
                (_, Some(lease)) if what < 92 => {
                    let parts = self.context.oracle.borrow().leases[&lease].parts.clone();
                    let node = self.any();
                    self.reserve(node, lease, &parts).await;
                }
                (_, Some(lease)) if what < 97 => {
                    let node = self.any();
                    self.look_at(node, lease).await;
                }
                (_, Some(lease)) => self.settle(lease).await,
            }
            let pause = self.ms(0, 40);
            sleep(pause).await;
        }
    }

    pub fn new_lease(&mut self) -> LeaseId {
        let number = self.context.leases.get();
        self.context.leases.set(number + 1);
        let bits = (u128::from(number) << 40) | u128::from(self.random.below(1 << 40));
        LeaseId::from_parts(UnixMs::new(right_ms()), bits)
    }

    async fn until_answered(&mut self, lease: LeaseId, parts: &[(&'static str, u64)]) {
        for _ in 0..TRIES {
            let node = self.any();
            if self.reserve(node, lease, parts).await {
                return;
            }
            let pause = self.ms(0, 200);
            sleep(pause).await;
        }
    }

    async fn settle(&mut self, lease: LeaseId) {
        let parts = self.context.oracle.borrow().leases[&lease].parts.clone();
        let actuals = self.some_actuals(&parts);
        for _ in 0..TRIES {
            let node = self.any();
            if self.complete(node, lease, &actuals).await {
                return;
            }
            let pause = self.ms(0, 200);
            sleep(pause).await;
        }
    }

    /// Issues and transfers credit in its own account, sequence by sequence.
    pub async fn write_on(mut self, writer: usize) {
        while !self.context.is_over() {
            let committed = self.context.oracle.borrow().writers[writer].committed();
            match self.random.below(100) {
                0..10 if committed > 0 => {
                    let sequence = self.random.between(committed.saturating_sub(30).max(1), committed);
                    self.write_again(writer, sequence).await;
                }
                10..13 => self.leave_a_gap(writer, committed).await,
                _ => {
                    let (operations, has) = self.some_operations(writer);
                    self.write_next(writer, operations, has).await;
                }
            }
            let pause = self.ms(0, 40);
            sleep(pause).await;
        }
    }

    /// Random operations and the balance after them; `None` if it would be negative.
    fn some_operations(&mut self, writer: usize) -> (Vec<Operation>, Option<i128>) {
        let mut has = *self.context.oracle.borrow().writers[writer].balances.last().unwrap();
        let mut operations = Vec::new();
        for _ in 0..self.random.below(3) {
            let amount = self.random.between(1, 50);
            let put = self.random.chance(60);
            operations.push(credit_operation(writer, put, amount));
            has += if put { i128::from(amount) } else { -i128::from(amount) };
        }
        // All operations of a transaction are applied together, so only the final balance counts.
        (operations, (has >= 0).then_some(has))
    }

    async fn write_next(&mut self, writer: usize, operations: Vec<Operation>, has: Option<i128>) {
        let sequence = self.context.oracle.borrow().writers[writer].committed() + 1;
        if let Some(has) = has {
            let mut oracle = self.context.oracle.borrow_mut();
            oracle.writers[writer].asked = sequence;
            oracle.writers[writer].balances.push(has);
            oracle.writers[writer].sent.push(operations.clone());
        }
        let mut is_first = true;
        loop {
            let node = self.any();
            let text = self.say(node, &format!("write {sequence} {}", operations.len()));
            let asked = self.context.oracle.borrow_mut().ask(&text);
            let request = write_request(&format!("w{writer}"), sequence, operations.clone());
            let answer = self.ask(node, async move |backend| backend.write(Principal::System, request).await).await;
            let mut oracle = self.context.oracle.borrow_mut();
            match (answer, has) {
                (Some(Ok(WriteAnswer::Committed(receipt))), Some(_)) => {
                    if is_first {
                        oracle.in_order(asked, &receipt);
                    }
                    return oracle.committed(writer, asked, sequence, &receipt);
                }
                (Some(Ok(WriteAnswer::Refused(WriteError::InsufficientCredit { .. }))), None) => return,
                (Some(Ok(answer)), _) => {
                    return oracle.must(false, || format!("w{writer} {sequence} leaves {has:?}: {answer:?}"));
                }
                (Some(Err(_)) | None, _) => is_first = false,
            }
            drop(oracle);
            let pause = self.ms(0, 200);
            sleep(pause).await;
        }
    }

    /// Repeats an earlier write.
    pub async fn write_again(&mut self, writer: usize, sequence: u64) -> bool {
        let node = self.any();
        self.write_again_at(node, writer, sequence).await
    }

    pub async fn write_again_at(&mut self, node: usize, writer: usize, sequence: u64) -> bool {
        let text = self.say(node, &format!("write {sequence} again"));
        let asked = self.context.oracle.borrow_mut().ask(&text);
        let first = self.context.oracle.borrow().writers[writer].receipts[sequence as usize - 1].clone();
        let operations = self.context.oracle.borrow().writers[writer].sent[sequence as usize - 1].clone();
        let request = write_request(&format!("w{writer}"), sequence, operations);
        let answer = self.ask(node, async move |backend| backend.write(Principal::System, request).await).await;
        let mut oracle = self.context.oracle.borrow_mut();
        match answer {
            Some(Ok(WriteAnswer::Committed(receipt))) => {
                oracle.committed(writer, asked, sequence, &receipt);
                true
            }
            Some(Ok(WriteAnswer::Refused(error))) => {
                let passed = (right_ms() + oracle.ahead_ms).saturating_sub(first.committed_at.log.get());
                let may_be_gone = matches!(error, WriteError::AlreadyCommitted { .. }) && passed + 1_000 >= RESULTS_MS;
                oracle.must(may_be_gone, || format!("w{writer} {sequence} is refused: {error:?}"));
                true
            }
            Some(Err(_)) | None => false,
        }
    }

    async fn leave_a_gap(&mut self, writer: usize, committed: u64) {
        let node = self.any();
        // So far ahead that it stays too early, however late a copy arrives.
        let sequence = committed + 1_000_000;
        let text = self.say(node, &format!("write {sequence} too early"));
        self.context.oracle.borrow_mut().ask(&text);
        let request = write_request(&format!("w{writer}"), sequence, Vec::new());
        let answer = self.ask(node, async move |backend| backend.write(Principal::System, request).await).await;
        if let Some(Ok(answer)) = answer {
            let gap = WriteError::SequenceGap { last_committed_sequence: committed };
            let mut oracle = self.context.oracle.borrow_mut();
            oracle.must(answer == WriteAnswer::Refused(gap), || format!("w{writer} {sequence}: {answer:?}"));
        }
    }

    /// Changes a limit and reads it.
    pub async fn change_limits(mut self) {
        while !self.context.is_over() {
            let node = self.any();
            let key = key(FLEX.key);
            if self.random.chance(50) {
                let capacity = self.random.between(1, 12);
                let text = self.say(node, &format!("flex to {capacity}"));
                let asked = self.context.oracle.borrow_mut().ask(&text);
                let mut request = put_request(&FLEX, capacity);
                // A change without a difference gets no revision.
                request.definition.description = asked.at.to_string();
                let answer =
                    self.ask(node, async move |backend| backend.put_limit(Principal::System, request).await).await;
                self.check_flex(asked, answer);
            } else {
                let text = self.say(node, "flex");
                let asked = self.context.oracle.borrow_mut().ask(&text);
                let answer = self.ask(node, async move |backend| backend.limit(namespace(), key).await).await;
                if let Some(Ok(found)) = answer {
                    let revision = found.map_or(0, |found| found.revision);
                    self.context.oracle.borrow_mut().saw_flex(asked, revision);
                }
            }
            if self.random.chance(10) {
                self.change_settings().await;
            }
            let pause = self.ms(0, 150);
            sleep(pause).await;
        }
    }

    /// Changes settings that no answer depends on: the snapshots of all nodes must be the same afterwards.
    async fn change_settings(&mut self) {
        let node = self.any();
        let text = self.say(node, "configure");
        self.context.oracle.borrow_mut().ask(&text);
        let changes = [
            (Setting::RetentionMs, self.random.between(900_000, 1_800_000)),
            (Setting::LeasesMax, self.random.between(100_000, 200_000)),
            (Setting::HintJitterPercent, self.random.between(0, 100)),
        ];
        let changes = changes.map(|(setting, value)| SettingChange { setting, value });
        self.ask(node, async move |backend| backend.configure(Principal::System, &changes).await.map(drop)).await;
    }

    fn check_flex(
        &self,
        asked: crate::oracle::RequestMark,
        answer: Option<Result<earmark_admission::LimitChange, LimitError>>,
    ) {
        let mut oracle = self.context.oracle.borrow_mut();
        match answer {
            Some(Ok(change)) => oracle.changed_flex(asked, change.revision),
            Some(Err(LimitError::Backend(_))) | None => {}
            Some(Err(error)) => oracle.must(false, || format!("flex: {error}")),
        }
    }

    /// Reads what others wrote.
    pub async fn read_on(mut self) {
        while !self.context.is_over() {
            let node = self.any();
            let writer = self.random.index(WRITERS);
            match self.random.below(4) {
                0 => _ = self.read_client(node, writer).await,
                1 => _ = self.read_balance(node, writer).await,
                2 => {
                    let limit = if self.random.chance(50) { SLOTS } else { RATE };
                    self.read_usage(node, &limit).await;
                }
                _ => {
                    let some = self.some_lease();
                    if let Some(lease) = some {
                        self.look_at(node, lease).await;
                    }
                }
            }
            let pause = self.ms(0, 40);
            sleep(pause).await;
        }
    }

    /// One of the newest leases.
    fn some_lease(&mut self) -> Option<LeaseId> {
        let oracle = self.context.oracle.borrow();
        let back = self.random.index(30);
        oracle.leases.keys().nth_back(back).copied()
    }

    pub async fn read_client(&mut self, node: usize, writer: usize) -> bool {
        let text = self.say(node, &format!("client w{writer}"));
        self.context.oracle.borrow_mut().ask(&text);
        let from = self.context.oracle.borrow().writers[writer].committed();
        let client = ClientId::new(&format!("w{writer}")).unwrap();
        let ask = async move |backend: Arc<NodeBackend>| backend.client_state(namespace(), Some(vault()), client).await;
        let answer = self.ask(node, ask).await;
        match &answer {
            Some(Ok(last)) => self.context.oracle.borrow_mut().counted(writer, from, *last),
            other => self.must_be_backend(other),
        }
        matches!(answer, Some(Ok(_)))
    }

    pub async fn read_balance(&mut self, node: usize, writer: usize) -> bool {
        let text = self.say(node, &format!("balance w{writer}"));
        self.context.oracle.borrow_mut().ask(&text);
        let from = self.context.oracle.borrow().writers[writer].committed();
        let path = path(&format!("w{writer}"));
        let answer = self.ask(node, async move |backend| backend.balances(path).await).await;
        match &answer {
            Some(Ok(balances)) => {
                let has = balances.first().map_or(0, |balance| balance.available);
                self.context.oracle.borrow_mut().balance(writer, from, has);
            }
            other => self.must_be_backend(other),
        }
        matches!(answer, Some(Ok(_)))
    }

    fn must_be_backend<T>(&self, answer: &Option<Result<T, CreditReadError>>) {
        if let Some(Err(error)) = answer {
            let is_backend = matches!(error, CreditReadError::Backend(_));
            self.context.oracle.borrow_mut().must(is_backend, || format!("{}: {error}", self.name));
        }
    }

    async fn read_usage(&mut self, node: usize, limit: &Limit) {
        let text = self.say(node, &format!("usage {}", limit.key));
        self.context.oracle.borrow_mut().ask(&text);
        let key = key(limit.key);
        let answer = self.ask(node, async move |backend| backend.usage(namespace(), key).await).await;
        if let Some(Ok(Some(usage))) = answer {
            self.context.oracle.borrow_mut().saw_usage(limit, usage.reserved);
        }
    }

    /// Retries until there is an answer.
    pub async fn insist<T: Send + 'static, F: Future<Output = Result<T, E>> + Send, E: Send + 'static>(
        &mut self,
        node: usize,
        ask: impl Fn(Arc<Node>) -> F + Clone + Send + 'static,
    ) -> T {
        loop {
            if let Some(Ok(answer)) = self.do_at(node, ask.clone()).await {
                return answer;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Creates the limits and accounts of the simulation.
    pub async fn set_up(&mut self) {
        for limit in [SLOTS, RATE, FLEX, MONEY] {
            let request = put_request(&limit, limit.capacity);
            self.insist(0, move |node| {
                let request = request.clone();
                async move { node.backend().put_limit(Principal::System, request).await }
            })
            .await;
        }
        let mut operations = vec![open("pool"), open("purse"), open(HOOKS), open(PLANNED)];
        operations.extend((0..WRITERS).map(|writer| open(&format!("w{writer}"))));
        operations.push(issue("purse", PURSE));
        let request = write_request("founder", 1, operations);
        let answer = self.insist(0, move |node| {
            let request = request.clone();
            async move { node.backend().write(Principal::System, request).await }
        });
        assert!(matches!(answer.await, WriteAnswer::Committed(_)));
    }
}

fn credit_operation(writer: usize, put: bool, amount: u64) -> Operation {
    let (own, amount) = (format!("w{writer}"), u128::from(amount));
    if put { issue(&own, amount) } else { transfer(&own, "pool", amount) }
}

fn put_request(limit: &Limit, capacity: u64) -> PutLimitRequest {
    let seconds = u32::try_from(limit.hold_ms / 1_000).unwrap();
    let definition = match limit.key {
        key if key == RATE.key => definition(key, Kind::Rolling { window_seconds: seconds }, capacity),
        key if key == MONEY.key => Definition { capacity, ..credit(key, "purse", seconds) },
        key => definition(key, Kind::Concurrency { timeout_seconds: seconds }, capacity),
    };
    PutLimitRequest { namespace: namespace(), definition, expected_revision: None }
}
