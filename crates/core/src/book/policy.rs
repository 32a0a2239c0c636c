//! The command that replaces a policy, and its journal record.

use super::{Book, JournalRecord, NamespaceId, NamespaceOutcome, PolicyEntry};
use crate::id::id128;
use crate::policies::{POLICY_BYTES_MAX, PolicyOutcome, PolicyRevision, PutPolicy};
use crate::quota::QuotaKind;
use crate::time::Moment;

impl Book {
    pub(super) fn put_policy(&mut self, at: Moment, command: &PutPolicy) -> PolicyOutcome {
        if command.text.len() > POLICY_BYTES_MAX {
            return PolicyOutcome::TooLarge;
        }
        let known = self.limits.namespace(&command.namespace);
        let old = known.and_then(|namespace| self.policy(namespace, None));
        let revision = old.map_or(0, |old| old.revision);
        if command.expected_revision.is_some_and(|expected| expected != revision) {
            return PolicyOutcome::RevisionDiffers { revision };
        }
        if old.is_some_and(|old| old.text == command.text) {
            return PolicyOutcome::Changed { revision };
        }
        // A namespace that does not exist yet has the quota of the next one.
        let quota = self.quota(known.unwrap_or(NamespaceId(u16::MAX)), QuotaKind::PolicyBytes);
        if command.text.len() as u64 > quota {
            return PolicyOutcome::QuotaExceeded(QuotaKind::PolicyBytes);
        }
        if known.is_some_and(|namespace| self.full_journal(namespace, at.log).is_some()) {
            return PolicyOutcome::QuotaExceeded(QuotaKind::JournalBytesPerDay);
        }
        let (NamespaceOutcome::Opened(namespace) | NamespaceOutcome::Exists(namespace)) =
            self.open_namespace(&command.namespace)
        else {
            return PolicyOutcome::TooManyNamespaces;
        };
        let old = revision;
        let revision = self.limits.state.next_revision();
        self.policies.add(namespace, PolicyRevision { revision, text: command.text.clone() }, quota);
        self.limits.version = self.limits.version.wrapping_add(1);
        if let Some(actor) = self.credits.actor.clone() {
            let (bytes, digest) = (command.text.len() as u64, id128(&command.text).to_u128());
            let entry = PolicyEntry { at, namespace, old, revision, bytes, digest, actor };
            self.credits.journal.push(JournalRecord::Policy(entry));
        }
        PolicyOutcome::Changed { revision }
    }

    /// The policy of a namespace: the newest, or the one with this revision if it is still kept.
    #[must_use]
    pub fn policy(&self, namespace: NamespaceId, revision: Option<u64>) -> Option<&PolicyRevision> {
        let revisions = self.policies.revisions(namespace);
        match revision {
            None => revisions.last(),
            Some(revision) => revisions.iter().find(|kept| kept.revision == revision),
        }
    }
}
