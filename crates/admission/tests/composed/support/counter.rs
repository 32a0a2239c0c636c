//! Helpers for fault tests: one account, one lease, reserved amounts and balances.

use std::time::Duration;

use earmark_admission::{
    AccountPath, Amount, Backend, BackendError, Clock, CompleteAnswer, CompleteRequest, DeleteLimitRequest,
    ExtendAnswer, ExtendRequest, PutLimitRequest, ReserveAnswer, ReserveRequest, WriteAnswer, WriteRequest,
};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, GrantTerms, Kind, LeaseId, LimitKey,
    NamespaceName, Operation, Overdraft, Principal, VaultName,
};

use super::Pair;

/// How long to wait for a hanging step.
const PATIENCE: Duration = Duration::from_millis(60);
/// How long to wait for an answer when no step is to hang.
const ANSWER_MAX: Duration = Duration::from_secs(10);

pub(crate) fn namespace() -> NamespaceName {
    NamespaceName::new(NamespaceName::DEFAULT).unwrap()
}

pub(crate) fn key(name: &str) -> LimitKey {
    LimitKey::new(name).unwrap()
}

fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

fn amounts(parts: &[(&str, u64)]) -> Vec<Amount> {
    parts.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect()
}

/// Reserved amounts of both limits; available, held and paid credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) rpm: u64,
    pub(crate) slots: u64,
    pub(crate) usd: i128,
    pub(crate) held: i128,
    pub(crate) paid: i128,
}

impl Pair {
    /// Creates limits `rpm` and `slots`, and an account with 100 usd behind the credit limit `usd`.
    pub(crate) async fn furnish(&self) {
        self.put("rpm", Kind::Rolling { window_seconds: 60 }, 10).await;
        self.put("slots", Kind::Concurrency { timeout_seconds: 30 }, 2).await;
        self.put_credit().await;
        let open = Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Deny, plan: None };
        let (asset, memo) = (usd(), String::new());
        let issue = Operation::Issue { account: account("acme"), asset, amount: 100, memo, terms: GrantTerms::PLAIN };
        let request = WriteRequest {
            namespace: namespace(),
            vault: Some(VaultName::new(VaultName::MAIN).unwrap()),
            id: earmark_core::WriteId::Sequence { client: ClientId::new("billing").unwrap(), sequence: 1 },
            operations: vec![open, issue],
            actor: Actor::new("system:test").unwrap(),
        };
        let answer = self.backend.write(Principal::System, request).await.unwrap();
        assert!(matches!(answer, WriteAnswer::Committed(_)), "{answer:?}");
    }

    pub(crate) async fn put(&self, name: &str, kind: Kind, capacity: u64) {
        let definition = Definition::new(key(name), kind, capacity);
        let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
        self.backend.put_limit(Principal::System, request).await.unwrap();
    }

    pub(crate) async fn put_credit(&self) {
        let terms = CreditTerms {
            timeout_seconds: 40,
            vault: VaultName::new(VaultName::MAIN).unwrap(),
            account: account("acme"),
            asset: usd(),
            revenue: account(AccountName::REVENUE),
            on_timeout: Default::default(),
        };
        self.put("usd", Kind::Credit(terms), 0).await;
    }

    pub(crate) async fn delete(&self, name: &str) {
        let request = DeleteLimitRequest { namespace: namespace(), key: key(name), expected_revision: None };
        self.backend.delete_limit(Principal::System, request).await.unwrap();
    }

    pub(crate) fn lease(&self, number: u128) -> LeaseId {
        LeaseId::from_parts(self.clock.now().wall, number)
    }

    /// Reserves, with a timeout.
    pub(crate) async fn reserve(
        &self,
        lease: LeaseId,
        parts: &[(&str, u64)],
    ) -> Option<Result<ReserveAnswer, BackendError>> {
        tokio::time::timeout(self.patience(), self.reserve_patiently(lease, parts)).await.ok()
    }

    /// Reserves without a timeout.
    pub(crate) async fn reserve_patiently(
        &self,
        lease: LeaseId,
        parts: &[(&str, u64)],
    ) -> Result<ReserveAnswer, BackendError> {
        let requirements = amounts(parts);
        let request =
            ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        self.backend.reserve(Principal::System, vec![request]).await.into_iter().next().unwrap()
    }

    /// Extends with `renew`, with a timeout.
    pub(crate) async fn extend(
        &self,
        lease: LeaseId,
        number: u32,
        [add, used]: [&[(&str, u64)]; 2],
    ) -> Option<Result<ExtendAnswer, BackendError>> {
        let (add, used) = (amounts(add), amounts(used));
        let request = ExtendRequest {
            namespace: namespace(),
            lease,
            number,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew: true,
        };
        let answer = tokio::time::timeout(self.patience(), self.backend.extend(Principal::System, vec![request])).await;
        answer.ok().map(|answers| answers.into_iter().next().unwrap())
    }

    fn patience(&self) -> Duration {
        if self.faults.has_happened() { ANSWER_MAX } else { PATIENCE }
    }

    /// Completes, with a timeout.
    pub(crate) async fn complete(
        &self,
        lease: LeaseId,
        parts: &[(&str, u64)],
    ) -> Option<Result<CompleteAnswer, BackendError>> {
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(parts),
            labels: earmark_core::SettleLabels::NONE,
        };
        let answer =
            tokio::time::timeout(self.patience(), self.backend.complete(Principal::System, vec![request])).await;
        answer.ok().map(|answers| answers.into_iter().next().unwrap())
    }

    /// Resumes hanging steps and waits for background tasks.
    pub(crate) async fn settle_down(&self) {
        self.faults.go_on();
        tokio::time::sleep(PATIENCE / 2).await;
    }

    pub(crate) async fn sums(&self) -> Sums {
        let reserved = async |name: &str| self.backend.usage(namespace(), key(name)).await.unwrap().unwrap().reserved;
        let purse = async |name: &str| {
            let vault = VaultName::new(VaultName::MAIN).unwrap();
            let path = AccountPath { namespace: namespace(), vault, account: account(name) };
            let balances = self.backend.balances(path).await.unwrap();
            balances.first().map_or((0, 0), |balance| (balance.available, balance.held))
        };
        let (usd, held) = purse("acme").await;
        let (paid, _) = purse(AccountName::REVENUE).await;
        Sums { rpm: reserved("rpm").await, slots: reserved("slots").await, usd, held, paid }
    }
}
