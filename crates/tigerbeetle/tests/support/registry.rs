//! A registry in memory, which says what it is told to say.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{Answer, BackendError, Registry};
use earmark_core::{Definition, LimitId, LimitInfo, LimitKey, LimitStatus, NamespaceName};

use super::namespace;

#[derive(Default)]
pub struct TestRegistry {
    limits: Mutex<BTreeMap<LimitKey, Arc<LimitInfo>>>,
    pub is_idle: AtomicBool,
}

impl TestRegistry {
    pub fn put(&self, definition: Definition) {
        let info = LimitInfo { id: LimitId(0), definition, status: LimitStatus::Active, revision: 1 };
        self.limits.lock().unwrap().insert(info.definition.key.clone(), Arc::new(info));
    }

    pub fn delete(&self, key: &LimitKey) {
        self.limits.lock().unwrap().remove(key);
    }

    pub fn get(&self, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.limits.lock().unwrap().get(key).cloned()
    }
}

impl Registry for TestRegistry {
    fn limit(&self, _: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.get(key)
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.limits.lock().unwrap().values().map(|info| (namespace(), Arc::clone(info))).collect()
    }

    fn is_in_charge(&self) -> bool {
        !self.is_idle.load(Ordering::SeqCst)
    }
}
