//! Changes of limits and templates.

use earmark_admission::{
    Amount, Backend, DeleteLimitRequest, EnforcedStatus, Limits, PutLimitRequest, PutTemplateRequest,
};
use earmark_core::{Definition, LimitKey, LimitStatus, NamespaceName, Overage, Principal, Template};

use super::{Asking, Limit, Stream, TEMPLATES};
use crate::compare;
use crate::support::wall_ms;

impl Stream {
    pub(super) async fn change(&mut self) -> Asking {
        let mut place = self.random.index(self.limits.len());
        if self.random.chance(30) {
            // Deleting an override needs two changes of the same key.
            let derived = self.limits.iter().position(|limit| limit.template.is_some());
            place = derived.unwrap_or(place);
        }
        if !self.is_clear(place) {
            return Ok(false);
        }
        match self.limits[place].template {
            Some(template) if self.random.chance(50) => self.put_template(template).await,
            Some(_) if self.limits[place].is_put && self.random.chance(50) => self.delete_override(place).await,
            None if self.limits[place].is_put && self.random.chance(20) => self.delete(place).await,
            Some(_) | None => self.put(place).await,
        }
    }

    /// The namespace of a limit and its key there.
    pub(super) fn owned(&self, key: &LimitKey) -> (NamespaceName, LimitKey) {
        key.foreign().unwrap_or_else(|| (self.namespace.clone(), key.clone()))
    }

    /// Puts a template, and reserves each of its keys, so that both backends follow the new one.
    pub(super) async fn put_template(&mut self, index: usize) -> Asking {
        let (pattern, kind) = &TEMPLATES[index];
        let capacity = self.random.between(10, 130);
        let definition = Definition::new(LimitKey::pattern(pattern).unwrap(), kind.clone(), capacity);
        let template = Template::new(definition).unwrap();
        let namespace = self.namespace.clone();
        let request = PutTemplateRequest { namespace, template: template.clone(), expected_revision: None };
        self.book.put_template(Principal::System, request).await.unwrap();
        self.registry.put_template(&self.namespace, template);
        self.lagging.catch_up();
        self.say(&("template", pattern, capacity));
        let keys = self.limits.iter().filter(|limit| limit.template == Some(index)).map(|limit| limit.key.clone());
        for key in keys.collect::<Vec<_>>() {
            let lease = self.new_lease(wall_ms());
            let (answer, _) = self.ask(lease, &[Amount { key, amount: 1 }], true).await?;
            self.tally.met(match answer {
                "allowed" => "derived, allowed",
                "decreasing" => "derived, decreasing",
                other => other,
            });
        }
        Ok(true)
    }

    /// Deletes the definition of a key that matches a template. The key follows the template again at once.
    async fn delete_override(&mut self, place: usize) -> Asking {
        let (namespace, key) = (self.namespace.clone(), self.limits[place].key.clone());
        let request = DeleteLimitRequest { namespace: namespace.clone(), key: key.clone(), expected_revision: None };
        let book = self.book.delete_limit(Principal::System, request).await.unwrap();
        assert_eq!(book.status, LimitStatus::Deleted, "{key}");
        self.registry.drop_limit(&namespace, &key);
        self.lagging.catch_up();
        self.node().apply_definition(namespace, key.clone()).await.unwrap();
        self.limits[place].is_put = false;
        self.say(&("delete override", key.as_str()));
        self.tally.met("override deleted");
        self.usage_of(&[Amount { key, amount: 0 }]).await?;
        Ok(true)
    }

    pub(super) async fn put(&mut self, place: usize) -> Asking {
        let began = wall_ms();
        let capacity = self.random.between(10, 130);
        let overage = if self.random.chance(70) { Overage::Debt } else { Overage::Deny };
        let Limit { key: name, kind, .. } = &self.limits[place];
        let (name, kind, (namespace, key)) = (name.clone(), kind.clone(), self.owned(name));
        let shared = name.foreign().is_some();
        let definition = Definition { overage, shared, ..Definition::new(key.clone(), kind, capacity) };
        let request =
            PutLimitRequest { namespace: namespace.clone(), definition: definition.clone(), expected_revision: None };
        let book = self.book.put_limit(Principal::System, request).await.unwrap();
        let before = self.registry.get(&namespace, &key).map(|info| info.definition.clone());
        self.registry.put(&namespace, definition);
        let ledger = self.node().apply_definition(namespace, key.clone()).await.unwrap();
        let is_more = before.is_none_or(|before| before.capacity <= capacity && before.overage == overage);
        if ledger != EnforcedStatus::InForce || !is_more {
            self.lagging.catch_up();
        }
        self.limits[place].is_put = true;
        self.say(&("put", name.as_str(), capacity, overage, &ledger));
        let part = [Amount { key: name, amount: 0 }];
        let what = self.check(began, &part, compare::put(book.status, ledger))?;
        self.tally.met(what);
        self.usage_of(&part).await?;
        Ok(true)
    }

    async fn delete(&mut self, place: usize) -> Asking {
        let began = wall_ms();
        let name = self.limits[place].key.clone();
        let (namespace, key) = self.owned(&name);
        let request = DeleteLimitRequest { namespace: namespace.clone(), key: key.clone(), expected_revision: None };
        let Ok(book) = self.book.delete_limit(Principal::System, request).await else {
            // It expired in the meantime.
            self.limits[place].is_put = false;
            return Ok(false);
        };
        self.registry.delete(&namespace, &key);
        let ledger = self.node().apply_definition(namespace.clone(), key.clone()).await.unwrap();
        if ledger == EnforcedStatus::Absent {
            self.registry.drop_limit(&namespace, &key);
            self.limits[place].is_put = false;
        }
        self.lagging.catch_up();
        self.say(&("delete", name.as_str(), &ledger));
        let part = [Amount { key: name, amount: 0 }];
        let what = self.check(began, &part, compare::put(book.status, ledger))?;
        self.tally.met(what);
        self.usage_of(&part).await?;
        Ok(true)
    }
}
