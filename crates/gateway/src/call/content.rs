//! The content of a call: a body that was scanned, or a configured route with a flat charge.

use std::sync::Arc;

use bytes::Bytes;
use earmark_client::CallUsage;
use hyper::Method;

use crate::api::{Api, Endpoint};
use crate::body::{BodyRefusal, Bound, CallBody, ModelRules};
use crate::config::{Model, Route};

/// The content of a call.
pub(crate) enum Content {
    /// A body of an API, with the model that it asks for.
    Scanned(Box<CallBody>, Arc<Model>),
    /// A request of a configured route.
    Flat(Arc<Route>),
}

impl Content {
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Content::Scanned(scan, _) => scan.endpoint,
            Content::Flat(_) => Endpoint::Flat,
        }
    }

    /// The API of the client's errors and of the targets.
    pub(crate) fn api(&self) -> Api {
        match self {
            Content::Scanned(scan, _) => scan.endpoint.api().unwrap_or(Api::OpenAi),
            Content::Flat(route) => route.api(),
        }
    }

    /// The model, with its targets.
    pub(crate) fn model(&self) -> &Model {
        match self {
            Content::Scanned(_, model) => model,
            Content::Flat(route) => &route.model,
        }
    }

    /// The user that the body names.
    pub(crate) fn user(&self) -> Option<&str> {
        match self {
            Content::Scanned(scan, _) => scan.user.as_deref(),
            Content::Flat(_) => None,
        }
    }

    /// The most tokens that the call may use. A flat route always uses them.
    pub(crate) fn bound(&self, body: &[u8], rules: &ModelRules) -> Result<Bound, BodyRefusal> {
        match self {
            Content::Scanned(scan, _) => scan.bound(body, rules),
            Content::Flat(route) => Ok(Bound {
                input_tokens_max: route.input_tokens,
                output_tokens_max: route.output_tokens,
                fee_output_tokens: 0,
                inserted_cap: None,
            }),
        }
    }

    /// The method and the path behind an upstream's `base_url`.
    pub(crate) fn upstream_route(&self) -> (Method, &str) {
        match self {
            Content::Scanned(scan, _) => (Method::POST, scan.endpoint.upstream_path()),
            Content::Flat(route) => (route.method.clone(), route.upstream_path()),
        }
    }

    /// The pieces of the body for a target.
    pub(crate) fn body_for(&self, bound: &Bound, upstream_model: &str, body: &Bytes) -> Vec<Bytes> {
        match self {
            Content::Scanned(scan, _) => scan.splices(bound, upstream_model).pieces(body),
            Content::Flat(_) => vec![body.clone()],
        }
    }

    /// Whether the chunk with the usage must be removed from the stream again.
    pub(crate) fn removes_usage_chunk(&self) -> bool {
        matches!(self, Content::Scanned(scan, _) if scan.removes_usage_chunk())
    }

    /// The usage of a call that was answered, if it does not depend on the answer.
    pub(crate) fn fixed_usage(&self) -> Option<CallUsage> {
        match self {
            Content::Scanned(scan, _) if scan.endpoint == Endpoint::CountTokens => Some(CallUsage::default()),
            Content::Scanned(_, _) => None,
            Content::Flat(route) => Some(CallUsage {
                input_tokens: u64::from(route.input_tokens),
                output_tokens: u64::from(route.output_tokens),
                ..CallUsage::default()
            }),
        }
    }
}
