//! Requests about templates.

use earmark_core::{LimitKey, Template, TemplateInfo};
use earmark_proto::{convert, v1};
use tonic::{Response, Status};

use super::Request;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, Method, encoded};
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

const TEMPLATES: &str = "/v1/admin/templates";

/// Creates a template or changes its definition.
pub(crate) struct PutTemplate<'a>(pub(crate) &'a Template);
/// Deletes a template.
pub(crate) struct DeleteTemplate<'a>(pub(crate) &'a LimitKey);
/// Reads all templates.
pub(crate) struct ListTemplates;

impl Request for PutTemplate<'_> {
    type Message = v1::PutTemplateResponse;
    /// The revision after the change.
    type Answer = u64;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let body = serde_json::to_vec(&convert::definition_of(self.0.definition()))?;
        Ok(HttpRequest::new(Method::PUT, TEMPLATES).json(body))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::PutTemplateResponse>, Status> {
        let (definition, namespace) = (Some(convert::definition_of(self.0.definition())), grpc.owned_namespace());
        let request = v1::PutTemplateRequest { definition, namespace, expected_revision: None };
        grpc.limits().put_template(grpc.request(request, by)).await
    }

    fn read(&self, _: Reader<'_>, message: v1::PutTemplateResponse) -> Result<u64, Failure> {
        Ok(message.revision)
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<u64, Failure> {
        local.put_template(self.0.clone()).await
    }
}

impl Request for DeleteTemplate<'_> {
    type Message = v1::DeleteTemplateResponse;
    type Answer = ();
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::DELETE, format!("{TEMPLATES}?key={}", encoded(self.0.as_str()))))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::DeleteTemplateResponse>, Status> {
        let (key, namespace) = (self.0.to_string(), grpc.owned_namespace());
        let request = v1::DeleteTemplateRequest { key, namespace, expected_revision: None };
        grpc.limits().delete_template(grpc.request(request, by)).await
    }

    fn read(&self, _: Reader<'_>, _: v1::DeleteTemplateResponse) -> Result<(), Failure> {
        Ok(())
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<(), Failure> {
        local.delete_template(self.0.clone()).await
    }
}

impl Request for ListTemplates {
    type Message = v1::ListTemplatesResponse;
    type Answer = Vec<TemplateInfo>;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::GET, TEMPLATES))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::ListTemplatesResponse>, Status> {
        let namespace = grpc.owned_namespace();
        grpc.limits().list_templates(grpc.request(v1::ListTemplatesRequest { namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::ListTemplatesResponse) -> Result<Vec<TemplateInfo>, Failure> {
        let one = |info: v1::TemplateInfo| {
            let template = convert::template(info.definition.unwrap_or_default());
            let definition = reader.converted(template)?.into_definition();
            Ok(TemplateInfo { definition, revision: info.revision, live: info.live })
        };
        message.templates.into_iter().map(one).collect()
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Vec<TemplateInfo>, Failure> {
        local.templates().await
    }
}
