//! Writes, and requests about their clients and accounts.

use earmark_core::{AccountName, BalanceInfo, ClientId, GrantInfo, Operation, VaultName, WriteId};
use earmark_proto::{convert, v1};
use tonic::{Response, Status};

use super::Request;
use crate::answer::{Receipt, Scope, WriteCode, WriteRefusal};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, Method, StatusCode, encoded};
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

/// A transaction.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) scope: Scope,
    pub(crate) id: WriteId,
    pub(crate) operations: Vec<Operation>,
}

/// Reads the last sequence number that a client committed.
pub(crate) struct GetClientState<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) client: &'a ClientId,
}

/// Reads the balances of an account.
pub(crate) struct GetBalances<'a> {
    pub(crate) vault: &'a VaultName,
    pub(crate) account: &'a AccountName,
}

/// Reads the grants of an account.
pub(crate) struct GetGrants<'a> {
    pub(crate) vault: &'a VaultName,
    pub(crate) account: &'a AccountName,
}

impl Write {
    fn message(&self) -> v1::WriteRequest {
        v1::WriteRequest {
            namespace: self.scope.namespace.to_string(),
            vault: self.scope.vault.as_ref().map(ToString::to_string),
            client_id: self.id.client().map_or(String::new(), ToString::to_string),
            sequence: self.id.sequence().unwrap_or_default(),
            operations: self.operations.iter().map(convert::operation_of).collect(),
            idempotency_key: self.id.key().map(ToString::to_string),
        }
    }
}

impl Request for Write {
    type Message = v1::WriteResponse;
    type Answer = Result<Receipt, WriteRefusal>;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::POST, "/v1/write").json(serde_json::to_vec(&self.message())?))
    }

    /// A refused write has a status of its own, and its body is still an answer.
    fn is_answer(_: StatusCode, message: &v1::WriteResponse) -> bool {
        message.result.is_some()
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::WriteResponse>, Status> {
        grpc.ledger().write(grpc.request(self.message(), by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::WriteResponse) -> Result<Self::Answer, Failure> {
        reader.written(message)
    }

    fn blames_server(answer: &Self::Answer) -> bool {
        answer.as_ref().is_err_and(|refusal| refusal.code == WriteCode::Unavailable)
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Self::Answer, Failure> {
        local.write(self).await
    }
}

impl Request for GetClientState<'_> {
    type Message = v1::GetClientStateResponse;
    type Answer = u64;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let Scope { namespace, vault } = self.scope;
        let vault = vault.as_ref().map(|vault| format!("&vault={}", encoded(vault.as_str()))).unwrap_or_default();
        let path =
            format!("/v1/clients/{}?namespace={}{vault}", encoded(self.client.as_str()), encoded(namespace.as_str()));
        Ok(HttpRequest::new(Method::GET, path))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetClientStateResponse>, Status> {
        let message = v1::GetClientStateRequest {
            namespace: Some(self.scope.namespace.to_string()),
            vault: self.scope.vault.as_ref().map(ToString::to_string),
            client_id: self.client.to_string(),
        };
        grpc.ledger().get_client_state(grpc.request(message, by)).await
    }

    fn read(&self, _: Reader<'_>, message: v1::GetClientStateResponse) -> Result<u64, Failure> {
        Ok(message.last_committed_sequence)
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<u64, Failure> {
        local.client_state(self.scope.clone(), self.client.clone()).await
    }
}

impl Request for GetBalances<'_> {
    type Message = v1::GetBalancesResponse;
    type Answer = Vec<BalanceInfo>;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let path =
            format!("/v1/vaults/{}/accounts/{}/balances", encoded(self.vault.as_str()), encoded(self.account.as_str()));
        Ok(HttpRequest::new(Method::GET, path))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetBalancesResponse>, Status> {
        let (vault, account) = (self.vault.to_string(), self.account.to_string());
        let message = v1::GetBalancesRequest { namespace: grpc.owned_namespace(), vault, account };
        grpc.ledger().get_balances(grpc.request(message, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::GetBalancesResponse) -> Result<Vec<BalanceInfo>, Failure> {
        message.balances.iter().map(|balance| reader.converted(convert::balance_in(balance))).collect()
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Vec<BalanceInfo>, Failure> {
        local.balances(self.vault.clone(), self.account.clone()).await
    }
}

impl Request for GetGrants<'_> {
    type Message = v1::GetGrantsResponse;
    type Answer = Vec<GrantInfo>;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let path =
            format!("/v1/vaults/{}/accounts/{}/grants", encoded(self.vault.as_str()), encoded(self.account.as_str()));
        Ok(HttpRequest::new(Method::GET, path))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetGrantsResponse>, Status> {
        let (vault, account) = (self.vault.to_string(), self.account.to_string());
        let message = v1::GetGrantsRequest { namespace: grpc.owned_namespace(), vault, account };
        grpc.ledger().get_grants(grpc.request(message, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::GetGrantsResponse) -> Result<Vec<GrantInfo>, Failure> {
        message.grants.iter().map(|grant| reader.converted(convert::grant_in(grant))).collect()
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Vec<GrantInfo>, Failure> {
        local.grants(self.vault.clone(), self.account.clone()).await
    }
}
