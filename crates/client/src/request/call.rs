//! Calls, over HTTP only.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use earmark_core::{JobId, LeaseId, LimitKey, NamespaceName};
use earmark_proto::v1;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tonic::{Response, Status};

use super::plain::{self, Object, Rest};
use super::{Item, Request};
use crate::answer::ExtendAnswer;
use crate::call::{
    Call, CallAnswer, CallCompleted, CallDecision, CallExplanation, CallExtension, CallOutcome, CallResult, CallUsage,
    ExplainedLimit, Identity, PolicyRefusal,
};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, Method};
use crate::key::ClientKey;
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

const CALLS: &str = "/v1/calls";
/// Upper bounds in bytes: an item without its attributes, and an attribute without its name and value.
const ITEM_BYTES: usize = 768;
const ATTRIBUTE_BYTES: usize = 8;
/// Why a client over gRPC or of a Book in this process makes no calls.
const HTTP_ONLY: &str = "calls need a client with Protocol::Http";

/// Asks for a call.
#[derive(Clone)]
pub(crate) struct PlaceCall(pub(crate) Arc<Call>, pub(crate) Option<ClientKey>);
/// Extends a live call.
pub(crate) struct ExtendCall<'a>(pub(crate) LeaseId, pub(crate) &'a CallExtension);
/// Settles a call.
#[derive(Clone)]
pub(crate) struct CompleteCall(pub(crate) LeaseId, pub(crate) Arc<CallOutcome>);
/// Asks what the answer to a call would be. Its lease and job do not matter.
pub(crate) struct ExplainCall<'a>(pub(crate) &'a Call, pub(crate) Option<&'a ClientKey>);
/// Asks who the caller is, or the client that a gateway calls for.
pub(crate) struct WhoAmI<'a>(pub(crate) Option<&'a ClientKey>);

/// The body of an explanation.
#[derive(Serialize)]
struct ExplainBody<'a> {
    attributes: &'a BTreeMap<String, String>,
    input_tokens_max: u64,
    output_tokens_max: u64,
}

#[derive(Serialize)]
struct ExtendBody<'a> {
    lease_id: String,
    extension: u32,
    attributes: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<&'a CallUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

/// The fields of a [`v1::ReserveResponse`], and more. A flattened struct would first copy every field.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct CallReply {
    pub(super) allowed: bool,
    pub(super) retry_after_ms: u64,
    pub(super) reserved_at_unix_ms: u64,
    pub(super) error: String,
    pub(super) message: Option<String>,
    #[serde(default)]
    pub(super) limited_by: Vec<String>,
    #[serde(default)]
    pub(super) never: bool,
    #[serde(default)]
    pub(super) would_deny: Vec<String>,
    #[serde(default)]
    pub(super) requirements: Vec<PartReply>,
    pub(super) policy_revision: Option<u64>,
}

/// A limit with its amount.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct PartReply {
    #[serde(deserialize_with = "parsed")]
    pub(super) key: LimitKey,
    #[serde(alias = "actual_amount")]
    pub(super) amount: u64,
    #[serde(default, deserialize_with = "some_parsed")]
    pub(super) namespace: Option<NamespaceName>,
}

impl PartReply {
    fn into_amount(self) -> (LimitKey, u64) {
        let PartReply { key, amount, namespace } = self;
        match namespace {
            None => (key, amount),
            Some(namespace) => (LimitKey::in_namespace(&namespace, &key), amount),
        }
    }
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn some_parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

/// The fields of a [`v1::CompleteResponse`], and more.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct CompleteReply {
    pub(super) ok: bool,
    pub(super) error: String,
    pub(super) message: Option<String>,
    pub(super) reconciled: bool,
    #[serde(default)]
    pub(super) actuals: Vec<PartReply>,
    pub(super) cost: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct ExplainReply {
    allowed: bool,
    #[serde(default)]
    error: String,
    #[serde(default)]
    rules: Vec<RuleReply>,
    #[serde(default)]
    limits: Vec<ExplainedLimit>,
    cost: Option<Value>,
}

#[derive(Deserialize)]
struct RuleReply {
    name: String,
    matched: bool,
}

fn post(path: &str, body: &impl Serialize, client: Option<&ClientKey>) -> serde_json::Result<HttpRequest> {
    Ok(HttpRequest::new(Method::POST, path).json(serde_json::to_vec(body)?).for_client(client.cloned()))
}

fn cost(reader: Reader<'_>, text: Option<&str>) -> Result<Option<u128>, Failure> {
    let wrong = |_| reader.unexpected(format!("cost: found {text:?}, allowed is a decimal number"));
    text.map(str::parse).transpose().map_err(wrong)
}

/// The parts of [`Item`] that calls do not have.
macro_rules! items_over_http_only {
    () => {
        fn message(&self, _: Option<&str>) {}

        async fn grpc(_: &Grpc, _: Vec<()>, _: Deadline) -> Result<Response<Vec<Self::Reply>>, Status> {
            Err(Status::invalid_argument(HTTP_ONLY))
        }

        #[cfg(feature = "local")]
        async fn local(_: &Local, items: &[Self]) -> Vec<Result<Self::Answer, Failure>> {
            items.iter().map(|_| Err(Failure::Invalid { message: HTTP_ONLY.to_owned() })).collect()
        }
    };
}

/// The parts of [`Request`] that calls do not have.
macro_rules! http_only {
    () => {
        async fn grpc(&self, _: &Grpc, _: Deadline) -> Result<Response<Self::Message>, Status> {
            Err(Status::invalid_argument(HTTP_ONLY))
        }

        #[cfg(feature = "local")]
        async fn local(&self, _: &Local) -> Result<Self::Answer, Failure> {
            Err(Failure::Invalid { message: HTTP_ONLY.to_owned() })
        }
    };
}

/// Names and values.
fn texts(attributes: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// An upper bound for the size of an item with these attributes.
fn bytes(attributes: &BTreeMap<String, String>) -> usize {
    let attributes = attributes.iter().map(|(name, value)| name.len() + 2 * value.len() + ATTRIBUTE_BYTES);
    ITEM_BYTES + attributes.sum::<usize>()
}

impl Item for PlaceCall {
    type Answer = CallAnswer;
    type Message = ();
    type Reply = CallReply;
    const PATH: &'static str = CALLS;

    fn bytes(&self) -> usize {
        bytes(&self.0.attributes)
    }

    fn client(&self) -> Option<&ClientKey> {
        self.1.as_ref()
    }

    fn write_json(&self, json: &mut Vec<u8>) -> serde_json::Result<()> {
        let Call { lease, job, attributes, input_tokens_max, output_tokens_max } = &*self.0;
        let mut body = Object::of(*lease, json);
        body.text("job_id", job.as_ref().map(JobId::as_str))?;
        body.texts("attributes", texts(attributes))?;
        body.number("input_tokens_max", Some(*input_tokens_max))?;
        body.number("output_tokens_max", Some(*output_tokens_max))?;
        body.end();
        Ok(())
    }

    fn plain(rest: &mut Rest<'_>) -> Option<CallReply> {
        plain::call(rest)
    }

    fn read(reader: Reader<'_>, message: CallReply) -> Result<CallAnswer, Failure> {
        let CallReply {
            allowed,
            retry_after_ms,
            reserved_at_unix_ms,
            error,
            message,
            limited_by,
            never,
            would_deny,
            requirements,
            policy_revision,
        } = message;
        let requirements = requirements.into_iter().map(PartReply::into_amount).collect();
        let code = error.split(':').next().unwrap_or_default();
        let decision = match code {
            "missing_attribute" | "no_price" | "no_rule" | "denied_by_rule" if !allowed => {
                CallDecision::Refused(PolicyRefusal { error, message: message.unwrap_or_default() })
            }
            _ => CallDecision::Limits(reader.reserved(v1::ReserveResponse {
                allowed,
                retry_after_ms,
                reserved_at_unix_ms,
                error,
                message,
                limited_by,
                never,
                would_deny,
            })?),
        };
        Ok(CallAnswer { decision, requirements, policy_revision })
    }

    items_over_http_only!();
}

impl Request for ExtendCall<'_> {
    type Message = v1::ExtendResponse;
    type Answer = ExtendAnswer;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let ExtendCall(lease, extension) = self;
        let body = ExtendBody {
            lease_id: lease.to_string(),
            extension: extension.number,
            attributes: &extension.attributes,
            add_output_tokens: Some(extension.add_output_tokens).filter(|more| *more > 0),
            used: extension.used.as_ref(),
            policy_revision: extension.policy_revision,
            namespace: extension.namespace.as_ref().map(NamespaceName::as_str),
        };
        post("/v1/calls/extend", &body, None)
    }

    fn read(&self, reader: Reader<'_>, message: v1::ExtendResponse) -> Result<ExtendAnswer, Failure> {
        reader.extended(message)
    }

    http_only!();
}

impl Item for CompleteCall {
    type Answer = CallCompleted;
    type Message = ();
    type Reply = CompleteReply;
    const PATH: &'static str = "/v1/calls/complete";

    fn bytes(&self) -> usize {
        let labels = self.1.labels.iter().map(|(name, value)| name.len() + 2 * value.len() + ATTRIBUTE_BYTES);
        bytes(&self.1.attributes) + labels.sum::<usize>()
    }

    fn write_json(&self, json: &mut Vec<u8>) -> serde_json::Result<()> {
        let CompleteCall(lease, outcome) = self;
        let (usage, name) = match &outcome.result {
            CallResult::Used(usage) => (Some(usage), "done"),
            CallResult::Done => (None, "done"),
            CallResult::Refused => (None, "refused"),
            CallResult::Unknown => (None, "unknown"),
        };
        let CallOutcome { attributes, namespace, policy_revision, labels, .. } = &**outcome;
        let mut body = Object::of(*lease, json);
        body.texts("attributes", texts(attributes))?;
        body.value("usage", usage)?;
        body.text("outcome", Some(name))?;
        body.number("policy_revision", *policy_revision)?;
        body.text("namespace", namespace.as_ref().map(NamespaceName::as_str))?;
        if !labels.is_empty() {
            body.texts("labels", labels.iter())?;
        }
        body.end();
        Ok(())
    }

    fn plain(rest: &mut Rest<'_>) -> Option<CompleteReply> {
        plain::completed(rest)
    }

    fn read(reader: Reader<'_>, message: CompleteReply) -> Result<CallCompleted, Failure> {
        let CompleteReply { ok, error, message, reconciled, actuals, cost: text } = message;
        let completed = reader.completed(v1::CompleteResponse { ok, error, message, reconciled })?;
        Ok(CallCompleted {
            reconciled: completed.reconciled,
            message: completed.message,
            actuals: actuals.into_iter().map(PartReply::into_amount).collect(),
            cost: cost(reader, text.as_deref())?,
        })
    }

    items_over_http_only!();
}

impl Request for ExplainCall<'_> {
    type Message = ExplainReply;
    type Answer = CallExplanation;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let Call { attributes, input_tokens_max, output_tokens_max, .. } = self.0;
        let (input_tokens_max, output_tokens_max) = (*input_tokens_max, *output_tokens_max);
        post("/v1/calls/explain", &ExplainBody { attributes, input_tokens_max, output_tokens_max }, self.1)
    }

    fn read(&self, reader: Reader<'_>, message: ExplainReply) -> Result<CallExplanation, Failure> {
        let text = message.cost.map(|cost| match cost {
            Value::String(text) => text,
            other => other.to_string(),
        });
        Ok(CallExplanation {
            allowed: message.allowed,
            error: message.error,
            rules: message.rules.into_iter().map(|rule| (rule.name, rule.matched)).collect(),
            limits: message.limits,
            cost: cost(reader, text.as_deref())?,
        })
    }

    http_only!();
}

impl Request for WhoAmI<'_> {
    type Message = Identity;
    type Answer = Identity;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::GET, "/v1/whoami").for_client(self.0.cloned()))
    }

    fn read(&self, _: Reader<'_>, message: Identity) -> Result<Identity, Failure> {
        Ok(message)
    }

    http_only!();
}
