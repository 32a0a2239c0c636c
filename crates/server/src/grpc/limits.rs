//! `earmark.v1.LimitsService`.

use std::sync::Arc;

use earmark_admission::{
    Amount, BATCH_MAX, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest, ExtendAnswer, ExtendRequest,
    LeaseView, LimitQuery, OWNED_BY_GATEWAY, PAGE_MAX, PauseLimitRequest, PutLimitRequest, Refusal, ReserveAnswer,
    ReserveRequest, UsageQuery,
};
use earmark_core::{LeaseId, LimitKey, NameError, NamespaceName, PAUSE_MS_MAX, UnixMs};
use earmark_proto::convert::{self, ExtendParts, Invalid, Parts};
use earmark_proto::v1;
use earmark_proto::v1::limits_service_server::LimitsService;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::RpcResult;
use super::leases::LeaseStream;
use super::ledger::context;
use super::status::{failed, failed_with, of_limit, of_usage};
use super::{decisions, policies, quotas, templates};
use crate::answer::{CompleteWire, ExtendWire, ReserveWire};
use crate::app::App;
use crate::caller::AuthError;
use crate::execute::{self, LEASE_NOT_FOUND, LIMIT_NOT_FOUND, RequestContext};
use crate::metrics::{Completed, Reserved};

/// The number of items of a batch.
pub(super) const BATCH: std::ops::RangeInclusive<usize> = 1..=BATCH_MAX;

pub(super) struct Limits(pub(super) Arc<App>);

#[async_trait]
impl LimitsService for Limits {
    async fn reserve(&self, request: Request<v1::ReserveRequest>) -> RpcResult<v1::ReserveResponse> {
        let context = context(&request)?;
        let asked = reserve_request(&context, request.into_inner())
            .inspect_err(|_| self.0.metrics.reserved(Reserved::InvalidRequest))?;
        check_namespaces(&context, [&asked.namespace])?;
        let answers = execute::reserve(&self.0, &context, vec![asked]).await;
        let response = answers.first().map(reserved);
        response.unwrap_or_else(|| Err(Status::internal("no answer"))).map(Response::new)
    }

    async fn extend(&self, request: Request<v1::ExtendRequest>) -> RpcResult<v1::ExtendResponse> {
        let context = context(&request)?;
        let asked = extend_request(&context, request.into_inner())
            .inspect_err(|_| self.0.metrics.extended(Reserved::InvalidRequest))?;
        check_namespaces(&context, [&asked.namespace])?;
        let answers = execute::extend(&self.0, &context, vec![asked]).await;
        let response = answers.first().map(extended);
        response.unwrap_or_else(|| Err(Status::internal("no answer"))).map(Response::new)
    }

    async fn complete(&self, request: Request<v1::CompleteRequest>) -> RpcResult<v1::CompleteResponse> {
        let context = context(&request)?;
        let asked = complete_request(&context, request.into_inner())
            .inspect_err(|_| self.0.metrics.completed(Completed::InvalidRequest))?;
        check_namespaces(&context, [&asked.namespace])?;
        let answers = execute::complete(&self.0, &context, vec![asked]).await;
        let response = answers.first().map(completed);
        response.unwrap_or_else(|| Err(Status::internal("no answer"))).map(Response::new)
    }

    async fn reserve_batch(&self, request: Request<v1::ReserveBatchRequest>) -> RpcResult<v1::ReserveBatchResponse> {
        let context = context(&request)?;
        let one = |request| reserve_request(&context, request);
        let asked = convert::each("requests", request.into_inner().requests, &BATCH, one)
            .inspect_err(|_| self.0.metrics.reserved(Reserved::InvalidRequest))?;
        check_namespaces(&context, asked.iter().map(|asked| &asked.namespace))?;
        let _permit = context.admit(&self.0, asked.len()).await?;
        let answers = execute::reserve(&self.0, &context, asked).await;
        check_authenticated(&answers)?;
        let results = answers.iter().map(|answer| reserve_response(ReserveWire::of(answer))).collect();
        Ok(Response::new(v1::ReserveBatchResponse { results }))
    }

    async fn extend_batch(&self, request: Request<v1::ExtendBatchRequest>) -> RpcResult<v1::ExtendBatchResponse> {
        let context = context(&request)?;
        let one = |request| extend_request(&context, request);
        let asked = convert::each("requests", request.into_inner().requests, &BATCH, one)
            .inspect_err(|_| self.0.metrics.extended(Reserved::InvalidRequest))?;
        check_namespaces(&context, asked.iter().map(|asked| &asked.namespace))?;
        let _permit = context.admit(&self.0, asked.len()).await?;
        let answers = execute::extend(&self.0, &context, asked).await;
        check_authenticated(&answers)?;
        let results = answers.iter().map(|answer| extend_response(ExtendWire::of(answer))).collect();
        Ok(Response::new(v1::ExtendBatchResponse { results }))
    }

    async fn complete_batch(&self, request: Request<v1::CompleteBatchRequest>) -> RpcResult<v1::CompleteBatchResponse> {
        let context = context(&request)?;
        let one = |request| complete_request(&context, request);
        let asked = convert::each("requests", request.into_inner().requests, &BATCH, one)
            .inspect_err(|_| self.0.metrics.completed(Completed::InvalidRequest))?;
        check_namespaces(&context, asked.iter().map(|asked| &asked.namespace))?;
        let _permit = context.admit(&self.0, asked.len()).await?;
        let answers = execute::complete(&self.0, &context, asked).await;
        check_authenticated(&answers)?;
        let results = answers.iter().map(|answer| complete_response(CompleteWire::of(answer))).collect();
        Ok(Response::new(v1::CompleteBatchResponse { results }))
    }

    type LeasesStream = LeaseStream;

    async fn leases(&self, request: Request<Streaming<v1::LeasesRequest>>) -> RpcResult<LeaseStream> {
        LeaseStream::new(Arc::clone(&self.0), request).map(Response::new)
    }

    async fn put_limit(&self, request: Request<v1::PutLimitRequest>) -> RpcResult<v1::PutLimitResponse> {
        let context = context(&request)?;
        let v1::PutLimitRequest { definition, namespace } = request.into_inner();
        let given = definition.ok_or_else(|| Invalid::missing("definition"))?;
        let definition = convert::definition(given)?;
        let namespace = namespace_of_limits(&context, namespace.as_deref())?;
        let request = PutLimitRequest { namespace, definition, expected_revision: None };
        let change = execute::put_limit(&self.0, &context, request).await.map_err(|error| of_limit(&error))?;
        let status = convert::status(change.status).into();
        Ok(Response::new(v1::PutLimitResponse { ok: true, status }))
    }

    async fn get_limit(&self, request: Request<v1::GetLimitRequest>) -> RpcResult<v1::GetLimitResponse> {
        let context = context(&request)?;
        let v1::GetLimitRequest { key, namespace } = request.into_inner();
        let (key, namespace) = (key_of(&key)?, namespace_of_limits(&context, namespace.as_deref())?);
        match execute::read(&self.0, &context, self.0.backend.limit(namespace, key)).await {
            Ok(Some(limit)) => Ok(Response::new(v1::GetLimitResponse { limit: Some(convert::info(&limit)) })),
            Ok(None) => Err(Status::not_found(LIMIT_NOT_FOUND)),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn list_limits(&self, request: Request<v1::ListLimitsRequest>) -> RpcResult<v1::ListLimitsResponse> {
        let context = context(&request)?;
        let v1::ListLimitsRequest { namespace, prefix, after, page_size, defined } = request.into_inner();
        let namespace = namespace_of_limits(&context, namespace.as_deref())?;
        let (page_size, prefix) = (page_size_of(page_size)?, prefix_of(prefix.as_deref())?);
        let query = LimitQuery { prefix, after: optional("after", after.as_deref())?, page_size, defined };
        let _permit = context.admit(&self.0, page_size).await?;
        match execute::read(&self.0, &context, self.0.backend.limits(namespace, query)).await {
            Ok(page) => {
                let limits = page.limits.iter().map(convert::info).collect();
                let next = page.next.map(|key| key.to_string());
                Ok(Response::new(v1::ListLimitsResponse { limits, next }))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    async fn delete_limit(&self, request: Request<v1::DeleteLimitRequest>) -> RpcResult<v1::DeleteLimitResponse> {
        let context = context(&request)?;
        let v1::DeleteLimitRequest { key, namespace } = request.into_inner();
        let (key, namespace) = (key_of(&key)?, namespace_of_limits(&context, namespace.as_deref())?);
        let request = DeleteLimitRequest { namespace, key, expected_revision: None };
        let change = execute::delete_limit(&self.0, &context, request).await.map_err(|error| of_limit(&error))?;
        let status = convert::status(change.status).into();
        Ok(Response::new(v1::DeleteLimitResponse { ok: true, status }))
    }

    async fn pause_limit(&self, request: Request<v1::PauseLimitRequest>) -> RpcResult<v1::PauseLimitResponse> {
        let context = context(&request)?;
        let v1::PauseLimitRequest { key, for_ms, reason, namespace } = request.into_inner();
        let (key, namespace) = (key_of(&key)?, namespace_of_limits(&context, namespace.as_deref())?);
        let for_ms = for_ms.ok_or_else(|| Status::invalid_argument("for_ms is required"))?;
        let for_ms = Invalid::unless_within("for_ms", for_ms, &(0..=PAUSE_MS_MAX))?;
        Invalid::unless_free_of_keys("reason", &reason)?;
        let request = PauseLimitRequest { namespace, key, for_ms, reason, only_lengthen: false };
        let until = execute::pause_limit(&self.0, &context, request).await.map_err(|error| of_limit(&error))?;
        let paused_until_unix_ms = until.map_or(0, UnixMs::get);
        Ok(Response::new(v1::PauseLimitResponse { ok: true, paused_until_unix_ms }))
    }

    async fn get_usage(&self, request: Request<v1::GetUsageRequest>) -> RpcResult<v1::GetUsageResponse> {
        let context = context(&request)?;
        let v1::GetUsageRequest { key, namespace } = request.into_inner();
        let (key, namespace) = (key_of(&key)?, namespace_of_limits(&context, namespace.as_deref())?);
        match execute::read(&self.0, &context, self.0.backend.usage(namespace, key)).await {
            Ok(Some(usage)) => Ok(Response::new(convert::usage(&usage))),
            Ok(None) => Err(Status::not_found(LIMIT_NOT_FOUND)),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn list_usage(&self, request: Request<v1::ListUsageRequest>) -> RpcResult<v1::ListUsageResponse> {
        let context = context(&request)?;
        let v1::ListUsageRequest { namespace, prefix, sort, after, page_size } = request.into_inner();
        let namespace = namespace_of_limits(&context, namespace.as_deref())?;
        let query = UsageQuery {
            prefix: prefix_of(prefix.as_deref())?,
            sort: convert::sort(sort)?,
            after: optional("after", after.as_deref())?,
            page_size: page_size_of(page_size)?,
        };
        query.check().map_err(|error| of_usage(&error))?;
        let _permit = context.admit_usage(&self.0, &query).await?;
        let page = execute::read(&self.0, &context, self.0.backend.usage_page(namespace, query)).await;
        let page = page.map_err(|error| of_usage(&error))?;
        let (usage, next) = (page.usage.iter().map(convert::limit_usage).collect(), page.next);
        Ok(Response::new(v1::ListUsageResponse { usage, next: next.map(|key| key.to_string()) }))
    }

    async fn list_decisions(&self, request: Request<v1::ListDecisionsRequest>) -> RpcResult<v1::ListDecisionsResponse> {
        let context = context(&request)?;
        decisions::list(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn get_top(&self, request: Request<v1::GetTopRequest>) -> RpcResult<v1::GetTopResponse> {
        let context = context(&request)?;
        decisions::top(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn get_lease(&self, request: Request<v1::GetLeaseRequest>) -> RpcResult<v1::GetLeaseResponse> {
        let context = context(&request)?;
        let v1::GetLeaseRequest { lease_id, namespace } = request.into_inner();
        let lease = convert::lease_id(&lease_id)?;
        let namespace = namespace_of(&context, namespace.as_deref())?;
        match execute::read(&self.0, &context, self.0.backend.lease(namespace, lease)).await {
            Ok(Some(view)) => Ok(Response::new(v1::GetLeaseResponse { lease: Some(lease_view(lease, &view)) })),
            Ok(None) => Err(Status::not_found(LEASE_NOT_FOUND)),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn put_template(&self, request: Request<v1::PutTemplateRequest>) -> RpcResult<v1::PutTemplateResponse> {
        let context = context(&request)?;
        templates::put(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn list_templates(&self, request: Request<v1::ListTemplatesRequest>) -> RpcResult<v1::ListTemplatesResponse> {
        let context = context(&request)?;
        templates::list(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn delete_template(
        &self,
        request: Request<v1::DeleteTemplateRequest>,
    ) -> RpcResult<v1::DeleteTemplateResponse> {
        let context = context(&request)?;
        templates::delete(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn get_quotas(&self, request: Request<v1::GetQuotasRequest>) -> RpcResult<v1::GetQuotasResponse> {
        let context = context(&request)?;
        quotas::get(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn put_quotas(&self, request: Request<v1::PutQuotasRequest>) -> RpcResult<v1::PutQuotasResponse> {
        let context = context(&request)?;
        quotas::put(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn get_policy(&self, request: Request<v1::GetPolicyRequest>) -> RpcResult<v1::GetPolicyResponse> {
        let context = context(&request)?;
        policies::get(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn put_policy(&self, request: Request<v1::PutPolicyRequest>) -> RpcResult<v1::PutPolicyResponse> {
        let context = context(&request)?;
        policies::put(&self.0, &context, request.into_inner()).await.map(Response::new)
    }

    async fn whoami(&self, request: Request<v1::WhoamiRequest>) -> RpcResult<v1::WhoamiResponse> {
        let context = context(&request)?;
        execute::check_key(&self.0, &context).await.map_err(|error| failed(&error))?;
        let caller = &context.caller;
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Ok(Response::new(v1::WhoamiResponse {
            actor: caller.actor.to_string(),
            namespace: caller.namespace.to_string(),
            role: caller.role.to_string(),
            labels: caller.labels.iter().map(owned).collect(),
            may_set: caller.may_set.iter().map(str::to_owned).collect(),
        }))
    }
}

/// The namespace of a request: the caller's, which the request may name.
pub(super) fn namespace_of(context: &RequestContext, text: Option<&str>) -> Result<NamespaceName, Status> {
    let Some(text) = text else { return Ok(context.caller.namespace.clone()) };
    let namespace = convert::name("namespace", text)?;
    context.caller.check_namespace(&namespace)?;
    Ok(namespace)
}

/// The namespace of a request about limits: the caller's, or any for an admin of the server.
pub(super) fn namespace_of_limits(context: &RequestContext, text: Option<&str>) -> Result<NamespaceName, Status> {
    let Some(text) = text else { return Ok(context.caller.namespace.clone()) };
    let namespace = convert::name("namespace", text)?;
    context.caller.check_limits_of(&namespace)?;
    Ok(namespace)
}

pub(super) fn optional<T: std::str::FromStr<Err = NameError>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Status> {
    Ok(convert::optional_name(field, text)?)
}

/// An empty prefix is the default in protobuf, and means all limits.
fn prefix_of(prefix: Option<&str>) -> Result<Option<LimitKey>, Status> {
    optional("prefix", prefix.filter(|prefix| !prefix.is_empty()))
}

fn page_size_of(page_size: Option<u32>) -> Result<usize, Status> {
    let Some(size) = page_size else { return Ok(PAGE_MAX) };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Ok(Invalid::unless_within("page_size", size, &(1..=PAGE_MAX))?)
}

fn key_of(text: &str) -> Result<LimitKey, Status> {
    Ok(convert::name("key", text)?)
}

fn amounts(amounts: Vec<(LimitKey, u64)>) -> Vec<Amount> {
    amounts.into_iter().map(|(key, amount)| Amount { key, amount }).collect()
}

/// Rejects requests for other namespaces than the caller's.
pub(super) fn check_namespaces<'a>(
    context: &RequestContext,
    namespaces: impl IntoIterator<Item = &'a NamespaceName>,
) -> Result<(), Status> {
    let mut all = namespaces.into_iter().map(|namespace| context.caller.check_namespace(namespace));
    all.try_for_each(|checked| checked).map_err(Status::from)
}

/// Rejects a batch whose key the state machine rejected.
pub(super) fn check_authenticated<T>(answers: &[Result<T, BackendError>]) -> Result<(), Status> {
    match execute::is_unauthenticated(answers) {
        true => Err(AuthError::Unauthenticated.into()),
        false => Ok(()),
    }
}

pub(super) fn reserve_request(
    context: &RequestContext,
    mut request: v1::ReserveRequest,
) -> Result<ReserveRequest, Invalid> {
    request.namespace.get_or_insert_with(|| context.caller.namespace.to_string());
    let Parts { namespace, lease, job, amounts: parts } = convert::reserve_parts(request)?;
    Ok(ReserveRequest { namespace, lease, job, call: None, by_gateway: false, requirements: amounts(parts) })
}

pub(super) fn extend_request(
    context: &RequestContext,
    mut request: v1::ExtendRequest,
) -> Result<ExtendRequest, Invalid> {
    request.namespace.get_or_insert_with(|| context.caller.namespace.to_string());
    let ExtendParts { namespace, lease, number, add, used, renew } = convert::extend_parts(request)?;
    Ok(ExtendRequest {
        namespace,
        lease,
        number,
        add: amounts(add),
        used: amounts(used),
        claim: earmark_core::LeaseClaim::default(),
        renew,
    })
}

pub(super) fn complete_request(
    context: &RequestContext,
    mut request: v1::CompleteRequest,
) -> Result<CompleteRequest, Invalid> {
    request.namespace.get_or_insert_with(|| context.caller.namespace.to_string());
    let (Parts { namespace, lease, job, amounts: parts }, labels) = convert::complete_parts(request)?;
    let claim = earmark_core::LeaseClaim::default();
    Ok(CompleteRequest { namespace, lease, job, claim, actuals: amounts(parts), labels })
}

/// The answer to a single reserve. A failure fails the call.
fn reserved(answer: &Result<ReserveAnswer, BackendError>) -> Result<v1::ReserveResponse, Status> {
    let response = reserve_response(ReserveWire::of(answer));
    match answer {
        Ok(ReserveAnswer::Refused(Refusal::OwnedByGateway)) => Err(Status::permission_denied(OWNED_BY_GATEWAY)),
        Ok(_) => Ok(response),
        Err(error) => Err(failed_with(error, response.message.unwrap_or_default())),
    }
}

pub(super) fn reserve_response(wire: ReserveWire<'_>) -> v1::ReserveResponse {
    v1::ReserveResponse {
        allowed: wire.allowed,
        retry_after_ms: wire.retry_after_ms,
        reserved_at_unix_ms: wire.reserved_at_unix_ms,
        error: wire.error.to_string(),
        message: wire.message.map(Into::into),
        limited_by: wire.limited_by.iter().map(LimitKey::to_string).collect(),
        never: wire.never,
        would_deny: wire.would_deny.iter().map(LimitKey::to_string).collect(),
    }
}

/// The answer to a single extension. A failure fails the call.
pub(super) fn extended(answer: &Result<ExtendAnswer, BackendError>) -> Result<v1::ExtendResponse, Status> {
    let response = extend_response(ExtendWire::of(answer));
    match answer {
        Ok(ExtendAnswer::Refused(Refusal::OwnedByGateway)) => Err(Status::permission_denied(OWNED_BY_GATEWAY)),
        Ok(_) => Ok(response),
        Err(error) => Err(failed_with(error, response.message.unwrap_or_default())),
    }
}

pub(super) fn extend_response(wire: ExtendWire<'_>) -> v1::ExtendResponse {
    v1::ExtendResponse {
        allowed: wire.allowed,
        retry_after_ms: wire.retry_after_ms,
        error: wire.error.to_string(),
        message: wire.message.map(Into::into),
        limited_by: wire.limited_by.iter().map(LimitKey::to_string).collect(),
        never: wire.never,
        ends_at_unix_ms: wire.ends_at_unix_ms,
    }
}

/// The answer to a single complete. A failure fails the call.
pub(super) fn completed(answer: &Result<CompleteAnswer, BackendError>) -> Result<v1::CompleteResponse, Status> {
    let response = complete_response(CompleteWire::of(answer));
    match answer {
        Ok(CompleteAnswer { is_invalid: false, owned_by_gateway: false, .. }) => Ok(response),
        Ok(CompleteAnswer { owned_by_gateway: true, .. }) => {
            Err(Status::permission_denied(response.message.unwrap_or_default()))
        }
        Ok(_) => Err(Status::invalid_argument(response.message.unwrap_or_default())),
        Err(error) => Err(failed_with(error, response.message.unwrap_or_default())),
    }
}

pub(super) fn complete_response(wire: CompleteWire<'_>) -> v1::CompleteResponse {
    v1::CompleteResponse {
        ok: wire.ok,
        error: wire.error.to_string(),
        message: wire.message.map(Into::into),
        reconciled: wire.reconciled,
    }
}

fn lease_view(lease: LeaseId, view: &LeaseView) -> v1::Lease {
    let requirement =
        |part: &Amount| v1::Requirement { key: part.key.to_string(), amount: part.amount, namespace: None };
    let used = |part: &Amount| v1::Actual { key: part.key.to_string(), actual_amount: part.amount, namespace: None };
    v1::Lease {
        lease_id: lease.to_string(),
        reserved_at_unix_ms: view.reserved_at.map_or(0, UnixMs::get),
        requirements: view.requirements.iter().map(requirement).collect(),
        state: convert::state(view.state).into(),
        job_id: view.job.as_ref().map(ToString::to_string),
        extensions: view.extensions,
        used: view.used.iter().map(used).collect(),
        ends_at_unix_ms: view.ends_at.map_or(0, UnixMs::get),
    }
}
