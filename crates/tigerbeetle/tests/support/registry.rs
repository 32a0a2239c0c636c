//! A registry in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{Answer, BackendError, Registry};
use earmark_core::{Config, Definition, LimitInfo, LimitKey, LimitStatus, NamespaceName};

type Name = (NamespaceName, LimitKey);
/// Number of changes, and the current definition.
type Entry = (u64, Option<Arc<LimitInfo>>);

#[derive(Default)]
pub struct TestRegistry {
    limits: Mutex<BTreeMap<Name, Entry>>,
    config: Mutex<Config>,
    pub is_idle: AtomicBool,
}

impl TestRegistry {
    pub fn put(&self, namespace: &NamespaceName, definition: Definition) {
        self.change(namespace, definition.key.clone(), |revision, _| {
            Some(LimitInfo {
                capacity: definition.capacity,
                definition,
                status: LimitStatus::Active,
                revision,
                template: None,
            })
        });
    }

    /// A deleted limit decreases to 0 and stays known until it is dropped.
    pub fn delete(&self, namespace: &NamespaceName, key: &LimitKey) {
        let status = LimitStatus::Decreasing { to: 0 };
        self.change(namespace, key.clone(), |revision, info| Some(LimitInfo { revision, status, ..info? }));
    }

    pub fn drop_limit(&self, namespace: &NamespaceName, key: &LimitKey) {
        self.change(namespace, key.clone(), |_, _| None);
    }

    fn change(
        &self,
        namespace: &NamespaceName,
        key: LimitKey,
        change: impl FnOnce(u64, Option<LimitInfo>) -> Option<LimitInfo>,
    ) {
        let mut limits = self.limits.lock().unwrap();
        let (revision, limit) = limits.entry((namespace.clone(), key)).or_default();
        *revision += 1;
        *limit = change(*revision, limit.as_deref().cloned()).map(Arc::new);
    }

    /// Changes the settings, and a limit that nobody uses, so that the version grows.
    pub fn configure(&self, config: Config) {
        *self.config.lock().unwrap() = config;
        self.drop_limit(&"default".parse().unwrap(), &"unused".parse().unwrap());
    }

    pub fn get(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.limits.lock().unwrap().get(&(namespace.clone(), key.clone())).and_then(|(_, limit)| limit.clone())
    }
}

impl Registry for TestRegistry {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.get(namespace, key)
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        let limits = self.limits.lock().unwrap();
        limits.iter().filter_map(|((name, _), (_, limit))| Some((name.clone(), limit.clone()?))).collect()
    }

    fn version(&self) -> u64 {
        self.limits.lock().unwrap().values().map(|(revision, _)| revision).sum()
    }

    fn config(&self) -> Config {
        *self.config.lock().unwrap()
    }

    fn runs_maintenance(&self) -> bool {
        !self.is_idle.load(Ordering::SeqCst)
    }
}

/// A registry that lags behind another, like a follower's.
pub struct Lagging {
    leader: Arc<TestRegistry>,
    known: Mutex<BTreeMap<Name, Entry>>,
    /// Reads of a limit that had changed.
    pub behind: AtomicU64,
}

impl Lagging {
    pub fn new(leader: Arc<TestRegistry>) -> Lagging {
        Lagging { leader, known: Mutex::default(), behind: AtomicU64::new(0) }
    }

    pub fn catch_up(&self) {
        let known = self.leader.limits.lock().unwrap().clone();
        *self.known.lock().unwrap() = known;
    }
}

impl Registry for Lagging {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let name = (namespace.clone(), key.clone());
        let known = self.known.lock().unwrap().get(&name).cloned().unwrap_or_default();
        let newest = self.leader.limits.lock().unwrap().get(&name).cloned().unwrap_or_default();
        if known.0 != newest.0 {
            self.behind.fetch_add(1, Ordering::Relaxed);
        }
        known.1
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        self.catch_up();
        Box::pin(async { Ok(()) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        let known = self.known.lock().unwrap();
        known.iter().filter_map(|((name, _), (_, limit))| Some((name.clone(), limit.clone()?))).collect()
    }

    fn version(&self) -> u64 {
        self.known.lock().unwrap().values().map(|(revision, _)| revision).sum()
    }

    fn config(&self) -> Config {
        self.leader.config()
    }

    fn runs_maintenance(&self) -> bool {
        false
    }
}
