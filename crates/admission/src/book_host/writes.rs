//! Names in a write: its vault, its namespace and the limits that it changes.

use earmark_core::{Book, LimitKey, NamespaceName, Operation, VaultId, VaultName};

use crate::writes::CreditReadError;

/// The id of a vault.
pub(crate) fn vault(book: &Book, namespace: &NamespaceName, vault: &VaultName) -> Result<VaultId, CreditReadError> {
    let namespace = book.namespace(namespace).ok_or(CreditReadError::NamespaceNotFound)?;
    book.vault(namespace, vault).ok_or(CreditReadError::VaultNotFound)
}

/// Whether an operation may create its namespace.
pub(super) fn is_first_of_namespace(operation: &Operation) -> bool {
    matches!(operation, Operation::PutLimit { .. } | Operation::OpenVault { .. })
}

/// The keys of the limits that operations change.
pub(crate) fn limit_keys(operations: &[Operation]) -> Vec<LimitKey> {
    operations.iter().filter_map(Operation::limit).cloned().collect()
}
