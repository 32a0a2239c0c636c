//! Policies: the documents that say which limits a call needs. The Book keeps their text and judges no call.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::book::NamespaceId;
use crate::id::NamespaceName;
use crate::quota::QuotaKind;

/// The maximum length of a policy in bytes.
pub const POLICY_BYTES_MAX: usize = 256 << 10;
/// The revisions of a policy that are kept, the newest included. A call is settled by the revision it was reserved by.
pub const POLICY_REVISIONS_MAX: usize = 32;

/// One revision of the policy of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRevision {
    /// The revision. Revisions come from one counter of the Book, so they rise but have gaps.
    pub revision: u64,
    /// The document.
    pub text: Arc<str>,
}

/// Replaces the policy of a namespace. The sender has checked the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutPolicy {
    /// The namespace. It is opened if it does not exist.
    pub namespace: NamespaceName,
    /// The document, at most [`POLICY_BYTES_MAX`] bytes.
    pub text: Arc<str>,
    /// The revision that the policy must have; 0 if there must be no policy.
    pub expected_revision: Option<u64>,
}

/// The outcome of `PutPolicy`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// The document is longer than [`POLICY_BYTES_MAX`].
    TooLarge,
    /// The policy does not have the `expected_revision`.
    RevisionDiffers {
        /// The revision it has; 0 if there is no policy.
        revision: u64,
    },
    /// The namespace has used up a quota.
    QuotaExceeded(QuotaKind),
    /// The maximum number of namespaces is reached.
    TooManyNamespaces,
    /// The policy has this text, now or before.
    Changed {
        /// The revision of the policy.
        revision: u64,
    },
}

/// The policies of all namespaces: their last revisions, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(BTreeMap<NamespaceId, Vec<PolicyRevision>>);

impl Policies {
    /// The revisions of a namespace, the oldest first.
    pub(crate) fn revisions(&self, namespace: NamespaceId) -> &[PolicyRevision] {
        self.0.get(&namespace).map_or(&[], Vec::as_slice)
    }

    /// The bytes of all kept revisions of a namespace.
    pub(crate) fn bytes(&self, namespace: NamespaceId) -> u64 {
        bytes(self.revisions(namespace))
    }

    /// Adds a revision. The oldest ones make room for it in the quota and in the list.
    pub(crate) fn add(&mut self, namespace: NamespaceId, added: PolicyRevision, quota: u64) {
        let revisions = self.0.entry(namespace).or_default();
        revisions.push(added);
        let is_over = |kept: &[PolicyRevision]| kept.len() > POLICY_REVISIONS_MAX || bytes(kept) > quota;
        let over =
            (0..revisions.len().saturating_sub(1)).take_while(|drop| is_over(revisions.get(*drop..).unwrap_or(&[])));
        let count = over.count();
        revisions.drain(..count);
    }

    /// Adds a revision from a snapshot, which must be newer than the others of its namespace. Returns false if it is not,
    /// or if there are too many.
    pub(crate) fn restore(&mut self, namespace: NamespaceId, added: PolicyRevision) -> bool {
        let revisions = self.0.entry(namespace).or_default();
        let is_newest = revisions.last().is_none_or(|last| last.revision < added.revision);
        let has_room = revisions.len() < POLICY_REVISIONS_MAX && added.text.len() <= POLICY_BYTES_MAX;
        revisions.push(added);
        is_newest && has_room
    }

    /// All revisions, by namespace and revision.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NamespaceId, &PolicyRevision)> + Send {
        self.0.iter().flat_map(|(namespace, revisions)| revisions.iter().map(|revision| (*namespace, revision)))
    }
}

fn bytes(revisions: &[PolicyRevision]) -> u64 {
    revisions.iter().fold(0, |sum, revision| sum.saturating_add(revision.text.len() as u64))
}
