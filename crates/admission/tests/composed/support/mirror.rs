//! Parts in a second Book, which copy definitions from the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Answers, Audit, Backend, BackendError, BookCredits, BookLimits,
    ChangePage, ChangeQuery, CompleteAnswer, CreditReadError, CreditRoom, Credits, DeleteLimitRequest, EnforcedStatus,
    EntryPage, EntryQuery, GrowAnswer, GrowRequest, HoldAnswer, HoldRequest, HoldState, LeaseView, LimitError, Limits,
    LimitsComplete, LimitsExtend, LimitsExtended, LimitsReserve, Local, LocalBook, PutLimitRequest, Registry,
    RenewAnswer, RenewRequest, ReserveAnswer, SettleAnswer, SettleRequest, ShrinkRequest, Stats, WriteAnswer,
    WriteRequest, Writer,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, ClientOwner, CreditTerms, Definition, GrantInfo, LeaseId, LimitInfo, LimitKey,
    LimitStatus, NamespaceName, Operation, Principal, Usage, VaultName,
};

/// Limits that copy those of a registry.
pub(crate) struct MirroredLimits {
    registry: LocalBook,
    book: LocalBook,
    limits: BookLimits<Local>,
}

impl MirroredLimits {
    pub(crate) fn new(registry: LocalBook, book: LocalBook) -> MirroredLimits {
        let limits = BookLimits::new(book.clone());
        MirroredLimits { registry, book, limits }
    }
}

impl Limits for MirroredLimits {
    fn apply_definition(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<EnforcedStatus, BackendError>> {
        Box::pin(async move {
            let wanted = Registry::limit(&self.registry, &namespace, &key);
            let wanted = wanted.filter(|limit| limit.status != LimitStatus::Decreasing { to: 0 });
            let changed = match wanted {
                Some(limit) => {
                    let definition = limit.definition.clone();
                    let request = PutLimitRequest { namespace: namespace.clone(), definition, expected_revision: None };
                    self.book.put_limit(Principal::System, request).await.map(drop)
                }
                None => {
                    let (namespace, key) = (namespace.clone(), key.clone());
                    let request = DeleteLimitRequest { namespace, key, expected_revision: None };
                    self.book.delete_limit(Principal::System, request).await.map(drop)
                }
            };
            match changed {
                Ok(()) | Err(LimitError::NotFound) => self.limits.apply_definition(namespace, key).await,
                Err(error) => Err(BackendError::Failed(error.to_string())),
            }
        })
    }

    pass_on_limits! { limits:
        reserve extend complete release enforced_status usage lease stats ready shut_down
    }
}

/// Credit in a Book that copies limits and vaults when they are first used.
pub(crate) struct MirroredCredits {
    book: LocalBook,
    credits: BookCredits<Local>,
    owners: Mutex<HashMap<(Option<VaultName>, ClientId), ClientOwner>>,
}

impl MirroredCredits {
    pub(crate) fn new(book: LocalBook) -> MirroredCredits {
        let credits = BookCredits::new(book.clone());
        MirroredCredits { book, credits, owners: Mutex::default() }
    }

    async fn has_limit(&self, namespace: &NamespaceName, definition: &Definition) {
        let (namespace, definition) = (namespace.clone(), definition.clone());
        let request = PutLimitRequest { namespace, definition, expected_revision: None };
        self.book.put_limit(Principal::System, request).await.unwrap();
    }

    async fn has_vault(&self, namespace: &NamespaceName, vault: &VaultName) {
        let client = ClientId::new("mirror").unwrap();
        loop {
            let last = match self.book.client_state(namespace.clone(), None, client.clone()).await {
                // The write that opens the vault also creates the namespace.
                Err(CreditReadError::NamespaceNotFound) => 0,
                last => last.unwrap(),
            };
            let request = WriteRequest {
                namespace: namespace.clone(),
                vault: None,
                id: earmark_core::WriteId::Sequence { client: client.clone(), sequence: last + 1 },
                operations: vec![Operation::OpenVault { vault: vault.clone() }],
                actor: Actor::new("system:mirror").unwrap(),
            };
            // Another task may have used the sequence number.
            if let WriteAnswer::Committed(_) = self.book.write(Principal::System, request).await.unwrap() {
                return;
            }
        }
    }
}

impl Credits for MirroredCredits {
    fn hold(&self, actor: Option<Actor>, requests: Vec<HoldRequest>) -> Answers<'_, HoldAnswer> {
        Box::pin(async move {
            for request in &requests {
                for part in &request.holds {
                    self.has_limit(&request.namespace, &part.limit).await;
                }
            }
            self.credits.hold(actor, requests).await
        })
    }

    fn grow(&self, actor: Option<Actor>, requests: Vec<GrowRequest>) -> Answers<'_, GrowAnswer> {
        Box::pin(async move {
            for request in &requests {
                for part in &request.holds {
                    self.has_limit(&request.namespace, &part.limit).await;
                }
            }
            self.credits.grow(actor, requests).await
        })
    }

    fn write(&self, writer: Writer, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Box::pin(async move {
            self.has_vault(&request.namespace, request.vault.as_ref().unwrap()).await;
            // The second Book has no keys, so the owners of client ids are kept here.
            let client = request.id.client().cloned();
            let stream = client.clone().map(|client| (request.vault.clone(), client));
            let current = stream.as_ref().and_then(|stream| self.owners.lock().unwrap().get(stream).cloned());
            let owner = match client.map(|client| writer.claim(&client, current.as_ref())).transpose() {
                Ok(owner) => stream.zip(owner.flatten()),
                Err(error) => return Ok(WriteAnswer::Refused(error)),
            };
            let answer = self.credits.write(Writer::system(), request).await;
            if let (Ok(WriteAnswer::Committed(_)), Some((stream, owner))) = (&answer, owner) {
                self.owners.lock().unwrap().insert(stream, owner);
            }
            answer
        })
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        Box::pin(async move {
            self.has_vault(&namespace, &vault).await;
            self.credits.client_state(namespace, vault, client).await
        })
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>> {
        Box::pin(async move {
            self.has_limit(&namespace, &limit).await;
            self.credits.usage(namespace, limit).await
        })
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        Box::pin(async move {
            self.has_vault(&namespace, &vault).await;
            self.credits.accounts(namespace, vault, query).await
        })
    }

    pass_on_credits! { credits:
        shrink renew settle holds room grants balances entries changes audit ready shut_down
    }
}
