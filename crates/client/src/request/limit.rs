//! Requests about limits.

use std::time::Duration;

use earmark_core::{Definition, LimitKey, LimitStatus, UnixMs, Usage};
use earmark_proto::{convert, v1};
use tonic::{Response, Status};

use super::Request;
use crate::answer::{LimitView, UsagePage, UsageQuery};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, Method, encoded};
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

const LIMITS: &str = "/v1/admin/limits";
const USAGE: &str = "/v1/usage";

/// Creates a limit or changes its definition.
pub(crate) struct PutLimit<'a>(pub(crate) &'a Definition);
/// Deletes a limit once it is empty.
pub(crate) struct DeleteLimit<'a>(pub(crate) &'a LimitKey);
/// Reads one limit.
pub(crate) struct GetLimit<'a>(pub(crate) &'a LimitKey);
/// Reads a page of limits.
pub(crate) struct ListLimits {
    /// `next` of the previous page.
    pub(crate) after: Option<LimitKey>,
}

/// A page of limits.
pub(crate) struct LimitViews {
    pub(crate) limits: Vec<LimitView>,
    /// `after` of the next page.
    pub(crate) next: Option<LimitKey>,
}
/// Reads a page of limits with their usage.
pub(crate) struct ListUsage<'a>(pub(crate) &'a UsageQuery);

/// Reads the usage of a limit.
pub(crate) struct GetUsage<'a>(pub(crate) &'a LimitKey);

fn limit_path(key: &LimitKey) -> String {
    format!("{LIMITS}/{}", encoded(key.as_str()))
}

impl Request for PutLimit<'_> {
    type Message = v1::PutLimitResponse;
    type Answer = LimitStatus;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let body = serde_json::to_vec(&convert::definition_of(self.0))?;
        Ok(HttpRequest::new(Method::PUT, LIMITS).json(body))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::PutLimitResponse>, Status> {
        let (definition, namespace) = (Some(convert::definition_of(self.0)), grpc.owned_namespace());
        grpc.limits().put_limit(grpc.request(v1::PutLimitRequest { definition, namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::PutLimitResponse) -> Result<LimitStatus, Failure> {
        reader.converted(convert::status_in(message.status, Some(self.0.capacity)))
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<LimitStatus, Failure> {
        local.put_limit(self.0.clone()).await
    }
}

impl Request for DeleteLimit<'_> {
    type Message = v1::DeleteLimitResponse;
    type Answer = LimitStatus;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::DELETE, limit_path(self.0)))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::DeleteLimitResponse>, Status> {
        let (key, namespace) = (self.0.to_string(), grpc.owned_namespace());
        grpc.limits().delete_limit(grpc.request(v1::DeleteLimitRequest { key, namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::DeleteLimitResponse) -> Result<LimitStatus, Failure> {
        reader.converted(convert::status_in(message.status, Some(0)))
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<LimitStatus, Failure> {
        local.delete_limit(self.0.clone()).await
    }
}

/// Pauses or resumes a limit.
pub(crate) struct PauseLimit<'a>(pub(crate) &'a LimitKey, pub(crate) Pause<'a>);

/// The length and reason of a pause.
pub(crate) struct Pause<'a> {
    pub(crate) length: Duration,
    pub(crate) reason: &'a str,
}

impl Pause<'_> {
    pub(crate) fn for_ms(&self) -> u64 {
        u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Request for PauseLimit<'_> {
    type Message = v1::PauseLimitResponse;
    type Answer = Option<UnixMs>;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let body = serde_json::json!({"for_ms": self.1.for_ms(), "reason": self.1.reason});
        Ok(HttpRequest::new(Method::POST, format!("{}/pause", limit_path(self.0))).json(serde_json::to_vec(&body)?))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::PauseLimitResponse>, Status> {
        let (key, namespace) = (self.0.to_string(), grpc.owned_namespace());
        let (for_ms, reason) = (Some(self.1.for_ms()), self.1.reason.to_owned());
        grpc.limits().pause_limit(grpc.request(v1::PauseLimitRequest { key, for_ms, reason, namespace }, by)).await
    }

    fn read(&self, _: Reader<'_>, message: v1::PauseLimitResponse) -> Result<Option<UnixMs>, Failure> {
        Ok(Some(UnixMs::new(message.paused_until_unix_ms)).filter(|until| until.get() > 0))
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Option<UnixMs>, Failure> {
        local.pause_limit(self.0.clone(), &self.1).await
    }
}

impl Request for GetLimit<'_> {
    type Message = v1::GetLimitResponse;
    type Answer = LimitView;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::GET, limit_path(self.0)))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetLimitResponse>, Status> {
        let (key, namespace) = (self.0.to_string(), grpc.owned_namespace());
        grpc.limits().get_limit(grpc.request(v1::GetLimitRequest { key, namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::GetLimitResponse) -> Result<LimitView, Failure> {
        reader.limit(message.limit.unwrap_or_default())
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<LimitView, Failure> {
        local.limit(self.0.clone()).await
    }
}

impl Request for ListLimits {
    type Message = v1::ListLimitsResponse;
    type Answer = LimitViews;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(match &self.after {
            None => HttpRequest::new(Method::GET, LIMITS),
            Some(after) => HttpRequest::new(Method::GET, format!("{LIMITS}?after={}", encoded(after.as_str()))),
        })
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::ListLimitsResponse>, Status> {
        let (namespace, after) = (grpc.owned_namespace(), self.after.as_ref().map(ToString::to_string));
        let request = v1::ListLimitsRequest { namespace, after, ..v1::ListLimitsRequest::default() };
        grpc.limits().list_limits(grpc.request(request, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::ListLimitsResponse) -> Result<LimitViews, Failure> {
        let next = message.next.as_deref().map(LimitKey::new).transpose();
        let next = next.map_err(|error| reader.unexpected(error))?;
        let limits = message.limits.into_iter().map(|limit| reader.limit(limit)).collect::<Result<_, _>>()?;
        Ok(LimitViews { limits, next })
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<LimitViews, Failure> {
        local.limits(self.after.clone()).await
    }
}

impl Request for GetUsage<'_> {
    type Message = v1::GetUsageResponse;
    type Answer = Usage;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::GET, format!("{}/usage", limit_path(self.0))))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetUsageResponse>, Status> {
        let (key, namespace) = (self.0.to_string(), grpc.owned_namespace());
        grpc.limits().get_usage(grpc.request(v1::GetUsageRequest { key, namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::GetUsageResponse) -> Result<Usage, Failure> {
        reader.converted(convert::usage_in(&message))
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Usage, Failure> {
        local.usage(self.0.clone()).await
    }
}

impl Request for ListUsage<'_> {
    type Message = v1::ListUsageResponse;
    type Answer = UsagePage;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let UsageQuery { prefix, sort, after, page_size } = self.0;
        let keys = [("prefix", prefix), ("after", after)].into_iter();
        let keys = keys.filter_map(|(name, key)| Some(format!("&{name}={}", encoded(key.as_ref()?.as_str()))));
        let page_size = page_size.map(|size| format!("&page_size={size}"));
        let path = format!("{USAGE}?sort={}", sort.name());
        Ok(HttpRequest::new(Method::GET, keys.chain(page_size).fold(path, |path, part| path + &part)))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::ListUsageResponse>, Status> {
        let UsageQuery { prefix, sort, after, page_size } = self.0;
        let request = v1::ListUsageRequest {
            namespace: grpc.owned_namespace(),
            prefix: prefix.as_ref().map(ToString::to_string),
            sort: convert::sort_of(*sort).into(),
            after: after.as_ref().map(ToString::to_string),
            page_size: *page_size,
        };
        grpc.limits().list_usage(grpc.request(request, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::ListUsageResponse) -> Result<UsagePage, Failure> {
        let next = message.next.as_deref().map(LimitKey::new).transpose();
        let next = next.map_err(|error| reader.unexpected(error))?;
        let usage = message.usage.iter().map(|limit| reader.converted(convert::limit_usage_in(limit)));
        Ok(UsagePage { usage: usage.collect::<Result<_, _>>()?, next })
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<UsagePage, Failure> {
        local.usage_page(self.0.clone()).await
    }
}
