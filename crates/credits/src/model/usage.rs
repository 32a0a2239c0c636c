//! Counters of the rows that quotas bound.

use earmark_core::{NamespaceName, VaultName};
use serde::{Deserialize, Serialize};

use crate::document::optional_text;

/// The rows that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageKind {
    /// Accounts that a transaction opened. The account `revenue` of a vault comes with the vault.
    Accounts,
    /// Assets.
    Assets,
    /// Clients.
    Clients,
    /// Idempotency keys, which are transactions that have one.
    IdempotencyKeys,
}

impl UsageKind {
    /// The word of the column. The words are in the order of the kinds.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            UsageKind::Accounts => "accounts",
            UsageKind::Assets => "assets",
            UsageKind::Clients => "clients",
            UsageKind::IdempotencyKeys => "idempotency_keys",
        }
    }
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UsageKey {
    /// The namespace; `None` for all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
    pub namespace: Option<NamespaceName>,
    /// The vault, if each vault has a counter.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
    pub vault: Option<VaultName>,
    /// The rows.
    pub kind: UsageKind,
}

impl UsageKey {
    /// The counter of a namespace.
    #[must_use]
    pub fn of(namespace: &NamespaceName, kind: UsageKind) -> UsageKey {
        UsageKey { namespace: Some(namespace.clone()), vault: None, kind }
    }

    /// Its column values. The empty text stands for all namespaces, and for all vaults.
    pub(crate) fn columns(&self) -> [&str; 3] {
        let namespace = self.namespace.as_ref().map_or("", NamespaceName::as_str);
        let vault = self.vault.as_ref().map_or("", VaultName::as_str);
        [namespace, vault, self.kind.word()]
    }
}

/// Rows that a plan adds. The plan takes effect only while the counter with them does not exceed a maximum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// The counter.
    #[serde(flatten)]
    pub key: UsageKey,
    /// The number of rows.
    pub added: u64,
    /// The highest value that the counter may have after it.
    pub max: u64,
}
