//! Templates of limits: putting, deleting and listing.

use std::sync::Arc;

use earmark_core::{
    Command, DeleteTemplate, LimitKey, NamespaceId, NamespaceName, Outcome, Principal, PutTemplate, Template,
    TemplateInfo, TemplateOutcome,
};

use crate::backend::{Answer, BackendError, LimitError};
use crate::book_host::{BookBackend, BookHost, Inner};
use crate::book_request::{Answered, Applied, BookRequest};

/// Creates a template or changes its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutTemplateRequest {
    /// The namespace of the template.
    pub namespace: NamespaceName,
    /// The template.
    pub template: Template,
    /// The revision that the template must have; 0 means that it must not exist.
    pub expected_revision: Option<u64>,
}

/// Deletes a template. Its keys are unknown at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTemplateRequest {
    /// The namespace of the template.
    pub namespace: NamespaceName,
    /// The key, with placeholders.
    pub key: LimitKey,
    /// The revision that the template must have.
    pub expected_revision: Option<u64>,
}

/// A change of a template. The number is the expected revision.
struct ChangeTemplate {
    namespace: NamespaceId,
    change: TemplateCommand,
}

enum TemplateCommand {
    Put(Template, Option<u64>),
    Delete(LimitKey, Option<u64>),
}

impl BookRequest for ChangeTemplate {
    /// The revision after the change.
    type Answer = u64;
    type Error = LimitError;

    fn command(&self) -> Command<'_> {
        let namespace = self.namespace;
        match &self.change {
            TemplateCommand::Put(template, expected_revision) => {
                Command::PutTemplate(PutTemplate { namespace, template, expected_revision: *expected_revision })
            }
            TemplateCommand::Delete(key, expected_revision) => {
                Command::DeleteTemplate(DeleteTemplate { namespace, key, expected_revision: *expected_revision })
            }
        }
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        if let Outcome::Template(outcome) = outcome { Some(answer(outcome)) } else { None }
    }
}

/// Translates the outcome of a change of a template.
pub(crate) fn answer(outcome: TemplateOutcome) -> Result<u64, LimitError> {
    match outcome {
        TemplateOutcome::Changed { revision } => Ok(revision),
        TemplateOutcome::DiffersInNamesOnly { key } => Err(LimitError::SameTemplate { key }),
        TemplateOutcome::RevisionDiffers { revision } => Err(LimitError::RevisionDiffers { revision }),
        TemplateOutcome::NotFound | TemplateOutcome::UnknownNamespace => Err(LimitError::NotFound),
        TemplateOutcome::KindDiffers => Err(LimitError::KindDiffers),
        TemplateOutcome::VaultNotFound => Err(LimitError::VaultNotFound),
        TemplateOutcome::QuotaExceeded(kind) => Err(LimitError::QuotaExceeded(kind)),
    }
}

impl<H: BookHost> BookBackend<H> {
    pub(crate) fn put_template_of(
        &self,
        by: Principal,
        request: PutTemplateRequest,
    ) -> Answer<'_, Result<u64, LimitError>> {
        let change = TemplateCommand::Put(request.template, request.expected_revision);
        self.change_template(by, request.namespace, change)
    }

    pub(crate) fn delete_template_of(
        &self,
        by: Principal,
        request: DeleteTemplateRequest,
    ) -> Answer<'_, Result<u64, LimitError>> {
        let change = TemplateCommand::Delete(request.key, request.expected_revision);
        self.change_template(by, request.namespace, change)
    }

    /// The template that a key follows, as leases of `own` name it. The key may name a shared limit of another namespace.
    pub(crate) fn template_seen_from(&self, own: &NamespaceName, key: &LimitKey) -> Option<LimitKey> {
        self.0.host.with_book(|book| match key.foreign() {
            Some((owner, key)) => {
                let template = book.template_of(book.namespace(&owner)?, &key)?;
                Some(LimitKey::in_namespace(&owner, template))
            }
            None => book.template_of(book.namespace(own)?, key).cloned(),
        })
    }

    pub(crate) async fn list_templates(&self, namespace: NamespaceName) -> Result<Vec<TemplateInfo>, BackendError> {
        self.read(|book, _| book.namespace(&namespace).map_or_else(Vec::new, |id| book.templates(id))).await
    }

    /// Changes a template in its own task, so that the limits file is written even when the caller disconnects.
    fn change_template(
        &self,
        by: Principal,
        name: NamespaceName,
        change: TemplateCommand,
    ) -> Answer<'_, Result<u64, LimitError>> {
        let task = crate::spawn(Arc::clone(&self.0).change_template(by, name, change));
        Box::pin(async { task.await.map_err(|error| BackendError::Failed(error.to_string()))? })
    }
}

impl<H: BookHost> Inner<H> {
    async fn change_template(
        self: Arc<Self>,
        by: Principal,
        name: NamespaceName,
        change: TemplateCommand,
    ) -> Result<u64, LimitError> {
        let _one_at_a_time = self.changing.lock().await;
        let namespace = match &change {
            TemplateCommand::Put(..) => self.open(by.clone(), &name).await?,
            TemplateCommand::Delete(..) => {
                self.find_namespaces([&name].into_iter()).await?;
                self.namespace(&name).ok_or(LimitError::NotFound)?
            }
        };
        let changed = self.submit_one(by, ChangeTemplate { namespace, change }).await;
        if !matches!(changed, Err(LimitError::Backend(_))) {
            self.host.limits_changed(&name, changed.is_ok()).await?;
        }
        changed
    }
}
