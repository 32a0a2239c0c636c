//! Policies of the model: one list of all kept revisions.

use earmark_core::{NamespaceId, NamespaceOutcome, PolicyOutcome, PolicyRevision, PutPolicy, QuotaKind};

use super::Model;

impl Model {
    pub fn put_policy(&mut self, command: &PutPolicy) -> PolicyOutcome {
        if command.text.len() > 262_144 {
            return PolicyOutcome::TooLarge;
        }
        let place = self.namespaces.iter().position(|name| *name == command.namespace);
        let known = place.map(|place| NamespaceId(place as u16));
        let newest = known.and_then(|namespace| self.policies(namespace).pop());
        let revision = newest.as_ref().map_or(0, |newest| newest.revision);
        if command.expected_revision.is_some_and(|expected| expected != revision) {
            return PolicyOutcome::RevisionDiffers { revision };
        }
        if newest.is_some_and(|newest| newest.text == command.text) {
            return PolicyOutcome::Changed { revision };
        }
        let quota = self.quota(known.unwrap_or(NamespaceId(u16::MAX)), QuotaKind::PolicyBytes);
        if command.text.len() as u64 > quota {
            return PolicyOutcome::QuotaExceeded(QuotaKind::PolicyBytes);
        }
        let namespace = match self.open_namespace(&command.namespace) {
            NamespaceOutcome::Opened(namespace) | NamespaceOutcome::Exists(namespace) => namespace,
            NamespaceOutcome::TooMany => return PolicyOutcome::TooManyNamespaces,
        };
        self.revision += 1;
        self.policies.push((namespace, PolicyRevision { revision: self.revision, text: command.text.clone() }));
        while self.policies(namespace).len() > 32
            || self.policies(namespace).len() > 1 && self.used(self.time(), namespace, QuotaKind::PolicyBytes) > quota
        {
            let oldest = self.policies.iter().position(|(home, _)| *home == namespace).unwrap();
            self.policies.remove(oldest);
        }
        PolicyOutcome::Changed { revision: self.revision }
    }

    /// The kept revisions of a namespace, the oldest first.
    pub fn policies(&self, namespace: NamespaceId) -> Vec<PolicyRevision> {
        self.policies.iter().filter(|(home, _)| *home == namespace).map(|(_, policy)| policy.clone()).collect()
    }
}
