//! `earmark.v1.CallsService`.

use std::collections::HashMap;
use std::sync::Arc;

use earmark_admission::{BackendError, ExtendAnswer, OWNED_BY_GATEWAY};
use earmark_core::{EXTENSIONS_MAX, NamespaceName};
use earmark_policy::{Attributes, Usage};
use earmark_proto::convert::{self, Invalid};
use earmark_proto::v1;
use earmark_proto::v1::calls_service_server::CallsService;
use tonic::{Request, Response, Status, async_trait};

use super::RpcResult;
use super::ledger::context;
use super::limits::{self, BATCH, completed, extended, namespace_of_limits, reserve_response};
use super::status::{failed, failed_with};
use crate::answer::Code;
use crate::app::App;
use crate::caller::{AttributeRefusal, Caller};
use crate::calls::{
    self, Asked, CallOutcome, CallRequest, CallWire, CompleteCall, CompleteCallWire, Decision, ExplainRequest,
    ExtendCall,
};
use crate::execute::RequestContext;
use crate::metrics::{Completed, Reserved};

pub(super) struct Calls(pub(super) Arc<App>);

#[async_trait]
impl CallsService for Calls {
    async fn call(&self, request: Request<v1::CallRequest>) -> RpcResult<v1::CallResponse> {
        let context = context(&request)?;
        let asked = call_request(&context, request.into_inner());
        let asked = asked.inspect_err(|_| self.0.metrics.reserved(Reserved::InvalidRequest))?;
        let called = calls::call(&self.0, &context, &asked).await;
        let wire = CallWire::of(&called);
        if let Decision::Limits(Err(error)) = &called.decision {
            return Err(failed_with(error, wire.reserve.message.map(Into::into).unwrap_or_default()));
        }
        if matches!(wire.reserve.error, Code::Forbidden) {
            return Err(Status::permission_denied(OWNED_BY_GATEWAY));
        }
        Ok(Response::new(call_response(wire)))
    }

    async fn call_batch(&self, request: Request<v1::CallBatchRequest>) -> RpcResult<v1::CallBatchResponse> {
        let context = context(&request)?;
        let asked = each(request.into_inner().requests, |request| call_request(&context, request));
        let asked = asked.inspect_err(|_| self.0.metrics.reserved(Reserved::InvalidRequest))?;
        let _permit = context.admit(&self.0, asked.len()).await?;
        let called = calls::call_all(&self.0, &context, &asked).await?;
        let results = called.iter().map(|called| call_response(CallWire::of(called))).collect();
        Ok(Response::new(v1::CallBatchResponse { results }))
    }

    async fn extend_call(&self, request: Request<v1::ExtendCallRequest>) -> RpcResult<v1::ExtendResponse> {
        let context = context(&request)?;
        let asked = extend_request(&context, request.into_inner());
        let asked = asked.inspect_err(|_| self.0.metrics.extended(Reserved::InvalidRequest))?;
        let answer: Result<ExtendAnswer, BackendError> = calls::extend(&self.0, &context, &asked).await;
        extended(&answer).map(Response::new)
    }

    async fn complete_call(&self, request: Request<v1::CompleteCallRequest>) -> RpcResult<v1::CompleteCallResponse> {
        let context = context(&request)?;
        let asked = complete_request(&context, request.into_inner());
        let asked = asked.inspect_err(|_| self.0.metrics.completed(Completed::InvalidRequest))?;
        let ended = calls::complete(&self.0, &context, &asked).await;
        completed(&ended.answer)?;
        Ok(Response::new(complete_response(CompleteCallWire::of(&ended))))
    }

    async fn complete_call_batch(
        &self,
        request: Request<v1::CompleteCallBatchRequest>,
    ) -> RpcResult<v1::CompleteCallBatchResponse> {
        let context = context(&request)?;
        let asked = each(request.into_inner().requests, |request| complete_request(&context, request));
        let asked = asked.inspect_err(|_| self.0.metrics.completed(Completed::InvalidRequest))?;
        let _permit = context.admit(&self.0, asked.len()).await?;
        let ended = calls::complete_all(&self.0, &context, &asked).await?;
        let results = ended.iter().map(|ended| complete_response(CompleteCallWire::of(ended))).collect();
        Ok(Response::new(v1::CompleteCallBatchResponse { results }))
    }

    async fn explain_call(&self, request: Request<v1::ExplainCallRequest>) -> RpcResult<v1::ExplainCallResponse> {
        let context = context(&request)?;
        let v1::ExplainCallRequest { attributes, input_tokens_max, output_tokens_max, namespace } =
            request.into_inner();
        let namespace = namespace_of_limits(&context, namespace.as_deref())?;
        let attributes = context.caller.attributes_to_explain(sorted(attributes)).map_err(refused)?;
        let asked = ExplainRequest { namespace, attributes, input_tokens_max, output_tokens_max };
        let explained = calls::explain(&self.0, &context, &asked).await.map_err(|error| failed(&error))?;
        Ok(Response::new(explanation(explained)))
    }
}

/// The requests of a batch. One that is malformed or not allowed refuses the whole batch.
fn each<Q, R>(requests: Vec<Q>, request: impl Fn(Q) -> Result<R, Status>) -> Result<Vec<R>, Status> {
    convert::each("requests", vec![(); requests.len()], &BATCH, Ok)?;
    let at = |index: usize, status: Status| match status.code() {
        tonic::Code::InvalidArgument => Status::invalid_argument(format!("requests[{index}].{}", status.message())),
        _ => status,
    };
    let items = requests.into_iter().enumerate();
    items.map(|(index, one)| request(one).map_err(|status| at(index, status))).collect()
}

fn call_response(wire: CallWire<'_>) -> v1::CallResponse {
    let requirement = |part: &calls::RequirementWire<'_>| v1::Requirement {
        key: part.key.to_owned(),
        amount: part.amount,
        namespace: part.namespace.map(Into::into),
    };
    let requirements = wire.requirements.iter().map(requirement).collect();
    let reserve = Some(reserve_response(wire.reserve));
    v1::CallResponse { reserve, requirements, policy_revision: wire.policy_revision }
}

fn complete_response(wire: CompleteCallWire<'_>) -> v1::CompleteCallResponse {
    let actual = |part: &calls::ActualWire<'_>| v1::Actual {
        key: part.key.to_owned(),
        actual_amount: part.actual_amount,
        namespace: part.namespace.map(Into::into),
    };
    let actuals = wire.actuals.iter().map(actual).collect();
    let cost = wire.cost.map(|cost| cost.to_string());
    v1::CompleteCallResponse { complete: Some(limits::complete_response(wire.complete)), actuals, cost }
}

/// The attributes of a message, in an order that does not change.
fn sorted(attributes: HashMap<String, String>) -> Vec<(String, String)> {
    let mut attributes: Vec<(String, String)> = attributes.into_iter().collect();
    attributes.sort_unstable();
    attributes
}

fn attributes_of(caller: &Caller, attributes: HashMap<String, String>) -> Result<Attributes, Status> {
    caller.attributes(sorted(attributes)).map_err(refused)
}

fn refused(refusal: AttributeRefusal) -> Status {
    match refusal {
        AttributeRefusal::Forbidden(error) => error.into(),
        AttributeRefusal::Malformed(message) => Status::invalid_argument(message),
    }
}

fn namespace(caller: &Caller, named: Option<&str>) -> Result<NamespaceName, Status> {
    let named = convert::optional_name("namespace", named)?;
    calls::namespace_of(caller, named).map_err(Status::from)
}

fn call_request(context: &RequestContext, request: v1::CallRequest) -> Result<CallRequest, Status> {
    let v1::CallRequest { lease_id, job_id, attributes, input_tokens_max, output_tokens_max } = request;
    Ok(CallRequest {
        namespace: context.caller.namespace.clone(),
        lease: convert::lease_id(&lease_id)?,
        job: convert::optional_name("job_id", job_id.as_deref())?,
        asked: Asked::Call {
            attributes: attributes_of(&context.caller, attributes)?,
            input_tokens_max,
            output_tokens_max,
        },
    })
}

fn extend_request(context: &RequestContext, request: v1::ExtendCallRequest) -> Result<ExtendCall, Status> {
    let v1::ExtendCallRequest {
        lease_id,
        extension,
        attributes,
        add_output_tokens,
        used,
        policy_revision,
        namespace: named,
    } = request;
    let lease = convert::lease_id(&lease_id)?;
    let number = Invalid::unless_within("extension", extension, &(1..=EXTENSIONS_MAX));
    let number = number?;
    let namespace = namespace(&context.caller, named.as_deref())?;
    let attributes = attributes_of(&context.caller, attributes)?;
    let used = used.map(|used| usage("used", used)).transpose()?;
    Ok(ExtendCall { namespace, lease, number, attributes, add_output_tokens, used, policy_revision })
}

fn complete_request(context: &RequestContext, request: v1::CompleteCallRequest) -> Result<CompleteCall, Status> {
    let outcome = match request.outcome() {
        v1::CallOutcome::Done => CallOutcome::Done,
        v1::CallOutcome::Refused => CallOutcome::Refused,
        v1::CallOutcome::Unknown => CallOutcome::Unknown,
        v1::CallOutcome::Unspecified => return Err(Status::invalid_argument("outcome is required")),
    };
    let v1::CompleteCallRequest {
        lease_id, attributes, usage: used, policy_revision, namespace: named, labels, ..
    } = request;
    let labels = convert::settle_labels(labels)?;
    let lease = convert::lease_id(&lease_id)?;
    let used = used.map(|used| usage("usage", used)).transpose()?;
    if CompleteCall::is_contradictory(used.as_ref(), outcome) {
        return Err(Status::invalid_argument(CompleteCall::USAGE_MISPLACED));
    }
    let namespace = namespace(&context.caller, named.as_deref())?;
    let attributes = attributes_of(&context.caller, attributes)?;
    Ok(CompleteCall { namespace, lease, attributes, usage: used, outcome, policy_revision, labels })
}

fn usage(field: &str, usage: v1::CallUsage) -> Result<Usage, Status> {
    let tier = usage.service_tier.unwrap_or_default();
    calls::check_service_tier(&tier)
        .map_err(|what| Status::invalid_argument(format!("{field}.service_tier: {what}")))?;
    Ok(Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_input_tokens: usage.cached_input_tokens.unwrap_or(0),
        cache_write_tokens: usage.cache_write_tokens.unwrap_or(0),
        cache_write_1h_tokens: usage.cache_write_1h_tokens.unwrap_or(0),
        reasoning_tokens: usage.reasoning_tokens.unwrap_or(0),
    })
}

fn explanation(explained: calls::Explained) -> v1::ExplainCallResponse {
    let calls::Explained { allowed, error, message, rules, limits, cost, policy_revision } = explained;
    let rule = |rule: calls::ExplainedRule| v1::ExplainedRule { name: rule.name.into(), matched: rule.matched };
    let limit = |limit: calls::ExplainedLimit| v1::ExplainedLimit {
        key: limit.key,
        amount: limit.amount,
        capacity: limit.state.map(|state| state.capacity),
        available: limit.state.map(|state| state.available),
        fits: limit.state.map(|state| state.fits),
    };
    v1::ExplainCallResponse {
        allowed,
        error,
        message,
        rules: rules.into_iter().map(rule).collect(),
        limits: limits.into_iter().map(limit).collect(),
        cost: cost.map(|cost| cost.to_string()),
        policy_revision,
    }
}
