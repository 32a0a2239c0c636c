//! The vault that a command reads, and the paths below it.

use clap::Args;
use earmark_client::http::encoded;
use earmark_core::{NamespaceName, VaultName};

/// The name of a query parameter, and its value if it is given.
pub(crate) type Parameter = (&'static str, Option<String>);

#[derive(Args, Debug)]
pub(crate) struct VaultArgs {
    /// Vault
    #[arg(long, default_value = VaultName::MAIN)]
    pub(crate) vault: VaultName,
    /// Namespace of the vault; on a server without keys any, else that of the key [default: that of the key]
    #[arg(long)]
    pub(crate) namespace: Option<NamespaceName>,
}

impl VaultArgs {
    /// The list of vaults.
    pub(crate) fn vaults(&self, query: &[Parameter]) -> String {
        self.with_query("/v1/vaults".to_owned(), query)
    }

    /// A resource of the vault.
    pub(crate) fn path(&self, what: &str, query: &[Parameter]) -> String {
        self.with_query(format!("/v1/vaults/{}/{what}", encoded(self.vault.as_str())), query)
    }

    /// A resource of an account of the vault.
    pub(crate) fn account(&self, account: &str, what: &str, query: &[Parameter]) -> String {
        self.path(&format!("accounts/{}/{what}", encoded(account)), query)
    }

    /// Adds the namespace and those parameters that have a value.
    fn with_query(&self, path: String, query: &[Parameter]) -> String {
        let namespace = [("namespace", self.namespace.as_ref().map(ToString::to_string))];
        let named = namespace.iter().chain(query).filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let named: Vec<String> = named.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if named.is_empty() { path } else { path + "?" + &named.join("&") }
    }
}
