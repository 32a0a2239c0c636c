//! A registry in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{Answer, BackendError, Registry};
use earmark_core::{Config, Definition, LimitInfo, LimitKey, LimitStatus, NamespaceName, Template};

type Name = (NamespaceName, LimitKey);

/// Limits and templates, with the number of changes so far.
#[derive(Clone, Default)]
struct State {
    changes: u64,
    limits: BTreeMap<Name, Arc<LimitInfo>>,
    templates: BTreeMap<Name, (u64, Template)>,
}

impl State {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let limit = self.limits.get(&(namespace.clone(), key.clone())).cloned();
        limit.or_else(|| self.derive(namespace, key).map(Arc::new))
    }

    /// No two templates of a test match the same key.
    fn derive(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitInfo> {
        let of_namespace = self.templates.iter().filter(|((name, _), _)| name == namespace);
        let (_, (revision, template)) = of_namespace.into_iter().find(|(_, (_, template))| template.matches(key))?;
        let info = info(template.derive(key)?, *revision);
        Some(LimitInfo { template: Some(template.key().clone()), ..info })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.limits.iter().map(|((name, _), limit)| (name.clone(), Arc::clone(limit))).collect()
    }
}

fn info(definition: Definition, revision: u64) -> LimitInfo {
    let (capacity, status) = (definition.capacity, LimitStatus::Active);
    LimitInfo { capacity, definition, status, revision, template: None, pause: None }
}

#[derive(Default)]
pub struct TestRegistry {
    state: Mutex<State>,
    config: Mutex<Config>,
    pub is_idle: AtomicBool,
}

impl TestRegistry {
    pub fn put(&self, namespace: &NamespaceName, definition: Definition) {
        self.change(namespace, definition.key.clone(), |revision, _| Some(info(definition, revision)));
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
        let mut state = self.state.lock().unwrap();
        state.changes += 1;
        let (revision, name) = (state.changes, (namespace.clone(), key));
        let limit = state.limits.remove(&name).map(Arc::unwrap_or_clone);
        if let Some(limit) = change(revision, limit) {
            state.limits.insert(name, Arc::new(limit));
        }
    }

    pub fn put_template(&self, namespace: &NamespaceName, template: Template) {
        let mut state = self.state.lock().unwrap();
        state.changes += 1;
        let revision = state.changes;
        state.templates.insert((namespace.clone(), template.key().clone()), (revision, template));
    }

    pub fn delete_template(&self, namespace: &NamespaceName, key: &LimitKey) {
        let mut state = self.state.lock().unwrap();
        state.changes += 1;
        state.templates.remove(&(namespace.clone(), key.clone()));
    }

    /// Changes the settings, and a limit that nobody uses, so that the version grows.
    pub fn configure(&self, config: Config) {
        *self.config.lock().unwrap() = config;
        self.drop_limit(&"default".parse().unwrap(), &"unused".parse().unwrap());
    }

    pub fn get(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.state.lock().unwrap().limit(namespace, key)
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
        self.state.lock().unwrap().limits()
    }

    fn version(&self) -> u64 {
        self.state.lock().unwrap().changes
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
    known: Mutex<State>,
    /// Reads of a limit that had changed.
    pub behind: AtomicU64,
}

impl Lagging {
    pub fn new(leader: Arc<TestRegistry>) -> Lagging {
        Lagging { leader, known: Mutex::default(), behind: AtomicU64::new(0) }
    }

    pub fn catch_up(&self) {
        let known = self.leader.state.lock().unwrap().clone();
        *self.known.lock().unwrap() = known;
    }
}

impl Registry for Lagging {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let known = self.known.lock().unwrap().limit(namespace, key);
        if known != self.leader.get(namespace, key) {
            self.behind.fetch_add(1, Ordering::Relaxed);
        }
        known
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        self.catch_up();
        Box::pin(async { Ok(()) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.known.lock().unwrap().limits()
    }

    fn version(&self) -> u64 {
        self.known.lock().unwrap().changes
    }

    fn config(&self) -> Config {
        self.leader.config()
    }

    fn runs_maintenance(&self) -> bool {
        false
    }
}
