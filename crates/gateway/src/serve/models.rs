//! `GET /v1/models`: the models of the configuration that the policy does not deny the client.

use std::sync::Arc;

use earmark_client::Call;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::Caller;
use crate::api::{Api, Endpoint};
use crate::call::new_lease;
use crate::config::Model;
use crate::gateway::Shared;
use crate::reply::{Reply, ReplyBody};

/// The list of models, in the shape of an API.
pub(super) async fn list(shared: &Shared, api: Api, caller: &Caller) -> Reply {
    let mut shown = Vec::new();
    for (name, model) in &shared.config.models {
        if !is_denied(shared, model, caller).await {
            shown.push((name.as_str(), model.targets.first().map_or("", |target| target.upstream.name.as_str())));
        }
    }
    let body = match api {
        Api::OpenAi => {
            let model =
                |(id, owner): &(&str, &str)| json!({"id": id, "object": "model", "created": 0, "owned_by": owner});
            json!({"object": "list", "data": shown.iter().map(model).collect::<Vec<Value>>()})
        }
        Api::Anthropic => {
            let model = |(id, _): &(&str, &str)| json!({"type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z"});
            let data: Vec<Value> = shown.iter().map(model).collect();
            let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
            json!({"first_id": id(data.first()), "last_id": id(data.last()), "has_more": false, "data": data})
        }
    };
    let mut reply = Response::new(ReplyBody::whole(body.to_string()));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// The beginning of the error of a call that a rule of the policy denies.
const DENIED_BY_RULE: &str = "denied_by_rule:";

/// Whether rules of the policy deny the client every target of a model. Other refusals do not count: a limit may be full or
/// paused now, and an attribute of the body, such as `user`, is missing here. Without an answer the model is shown: the
/// list takes nothing.
async fn is_denied(shared: &Shared, model: &Model, caller: &Caller) -> bool {
    for target in &model.targets {
        let operation = match target.upstream.api {
            Api::OpenAi => Endpoint::Chat,
            Api::Anthropic => Endpoint::Messages,
        };
        let attributes = [
            ("model", target.model.as_str()),
            ("alias", &model.name),
            ("provider", &target.upstream.name),
            ("operation", operation.operation()),
        ];
        let call = Call {
            lease: new_lease(),
            job: None,
            attributes: Arc::new(attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            input_tokens_max: 1,
            output_tokens_max: 1,
        };
        let is_denied = match shared.earmark.explain(&call, caller.key.as_ref()).await {
            Ok(explained) => explained.error.starts_with(DENIED_BY_RULE),
            Err(_) => false,
        };
        if !is_denied {
            return false;
        }
    }
    true
}
