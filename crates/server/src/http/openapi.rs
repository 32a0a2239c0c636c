//! Generates `/openapi.json` from the table of routes.

use serde_json::{Map, Value, json};

use super::request_id::REQUEST_ID_BYTES_MAX;
use super::route::{Documented, GUARDED, ROUTES, Route, WITH_BODY};
use super::schema::schemas;
use super::shape::{ACCOUNT, CLIENT, KEY_ID, LIMIT_KEY, NODE_ID, Shape, VAULT};
use crate::auth::CLIENT_KEY;
use crate::body::BODY_BYTES_MAX;
use crate::caller::Access;

/// The OpenAPI 3.1 document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.name()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Earmark",
            "version": env!("CARGO_PKG_VERSION"),
            "description": about(),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key or a session token. A server on a loopback address without keys needs none.",
            }},
        },
    })
}

fn about() -> String {
    format!(
        "Admission control for LLM traffic: reserve the most a call may need, then complete with its actual usage. \
         Unknown fields and bodies of more than {BODY_BYTES_MAX} bytes are rejected. A denial has status 200. Unknown \
         paths get 404, unknown methods 405. A large response may be replaced by 503 `overloaded` while too many \
         large responses wait for slow clients."
    )
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.operation,
        "summary": route.about,
        "responses": responses(route),
    });
    let mut parameters = vec![json!({
        "name": "x-request-id",
        "in": "header",
        "required": false,
        "description": format!(
            "Request id for the logs; the response repeats it. An id other than 1 to {REQUEST_ID_BYTES_MAX} visible \
             ASCII characters is replaced."
        ),
        "schema": {"type": "string"},
    })];
    for name in route.parameters() {
        let schema = match name {
            "lease_id" => Shape::Lease,
            "client_id" => Shape::Name(&CLIENT),
            "vault" => Shape::Name(&VAULT),
            "account" => Shape::Name(&ACCOUNT),
            "node_id" => NODE_ID,
            "key_id" => Shape::Name(&KEY_ID),
            _ => Shape::Name(&LIMIT_KEY),
        };
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema.schema()}));
    }
    if matches!(route.access, Access::Call | Access::Settle | Access::Explain | Access::Identify) {
        parameters.push(json!({
            "name": CLIENT_KEY.as_str(),
            "in": "header",
            "required": false,
            "description": "From a gateway only: the API key or session token of the client for which it asks.",
            "schema": {"type": "string"},
        }));
    }
    if route.takes_idempotency_key() {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": "The idempotency_key of the body, as a structured-field string or bare.",
            "schema": {"type": "string"},
        }));
    }
    for field in route.query {
        parameters.push(json!({
            "name": field.name,
            "in": "query",
            "required": field.is_required,
            "description": field.about,
            "schema": field.shape.schema(),
        }));
    }
    operation["parameters"] = json!(parameters);
    operation["description"] = match route.access {
        Access::Public => json!("Needs no credentials."),
        access => json!(format!("Needs role {}.", access.roles())),
    };
    if route.access != Access::Public {
        operation["security"] = json!([{"bearer": []}]);
    }
    if let Some(shape) = route.body {
        let content = json!({"application/json": {"schema": shape.schema()}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}

fn responses(route: &Route) -> Value {
    let shared = if route.body.is_some() { WITH_BODY.as_slice() } else { &[] };
    let guarded = if route.access == Access::Public { &[] } else { GUARDED.as_slice() };
    // The route's own responses come last and override the shared ones.
    let all = guarded.iter().chain(shared).chain(route.answers);
    Value::Object(all.map(|answer| (answer.status.to_string(), response(answer))).collect())
}

fn response(answer: &Documented) -> Value {
    let reference = |name: &&str| json!({"$ref": format!("#/components/schemas/{name}")});
    let schema = match answer.schemas {
        [] => None,
        [name] => Some(reference(name)),
        names => Some(json!({"anyOf": names.iter().map(reference).collect::<Vec<Value>>()})),
    };
    let json = schema.map(|schema| ("application/json".to_owned(), json!({"schema": schema})));
    let text = answer.text_type.map(|media| (media.to_owned(), json!({"schema": {"type": "string"}})));
    let content: Map<String, Value> = json.into_iter().chain(text).collect();
    json!({
        "description": answer.about,
        "headers": {"x-request-id": {"description": "The request id.", "schema": {"type": "string"}}},
        "content": content,
    })
}
