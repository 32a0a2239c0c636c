//! `/v1/admin/keys`: API keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use earmark_admission::{KeyError, Keys, Token};
use earmark_core::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTES_MAX, ClientId, CreateKey, KEY_SECONDS_MAX, KeyId, KeyInfo, KeyName,
    LabelError, Labels, MaySet, NamespaceName, RevokeKey, Role, UnixMs,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::calls::AttributeList;
use super::limits;
use super::parse::Text;
use super::reply::{CONFLICT, Handled, NOT_FOUND, Reply};
use super::schema::exactly;
use super::serve::{Call, off_runtime};
use super::shape::{self, Described, KEY_ID, Shape, body};
use crate::answer::{BACKEND_ERROR, INVALID_REQUEST};
use crate::app::App;
use crate::execute;

body! {
    pub(super) struct KeyBody {
        /// A name for people.
        name: Text<KeyName>,
        /// The role.
        role: Text<Role>,
        /// The namespace; by default the caller's.
        namespace: Option<Text<NamespaceName>>,
        /// The only client id it may write as; by default any.
        client_id: Option<Text<ClientId>>,
        /// Attributes of each of its calls.
        labels: Option<AttributeList>,
        /// Attributes that its calls may set, besides `model` and `provider`.
        may_set: Option<NameList>,
        /// Seconds until it expires; by default it never does.
        expires_in_seconds: Option<ExpirySeconds>,
    }
}

/// Names of attributes in a body.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct NameList(Vec<String>);

impl Described for NameList {
    const SHAPE: Shape =
        Shape::List { item: &Shape::Text { bytes_max: ATTRIBUTE_NAME_BYTES_MAX }, min: 0, max: ATTRIBUTES_MAX };
}

/// The lifetime of a key.
#[derive(Deserialize)]
#[serde(try_from = "u32")]
pub(super) struct ExpirySeconds(u32);

impl TryFrom<u32> for ExpirySeconds {
    type Error = &'static str;

    fn try_from(seconds: u32) -> Result<ExpirySeconds, &'static str> {
        if (1..=KEY_SECONDS_MAX).contains(&seconds) { Ok(ExpirySeconds(seconds)) } else { Err("out of range") }
    }
}

impl Described for ExpirySeconds {
    const SHAPE: Shape = Shape::Integer { min: 1, max: KEY_SECONDS_MAX as u64 };
}

pub(super) async fn create(app: &App, call: Call) -> Handled {
    let body: KeyBody = call.parse()?;
    let caller = &call.context.caller;
    let namespace = body.namespace.map_or_else(|| call.namespace(), |namespace| namespace.0);
    if !caller.is_server_admin() {
        caller.check_namespace(&namespace)?;
    }
    let wrong = |field: &str, error: LabelError| Reply::invalid(&format!("{field}: {error}"));
    let labels = Labels::new(body.labels.map_or_else(Vec::new, |labels| labels.0));
    let labels = labels.map_err(|error| wrong("labels", error))?;
    let may_set = MaySet::new(body.may_set.unwrap_or_default().0).map_err(|error| wrong("may_set", error))?;
    let keys = keys(app)?;
    let token = Token::random()
        .map_err(|error| Reply::problem(StatusCode::INTERNAL_SERVER_ERROR, BACKEND_ERROR, &error.to_string()))?;
    let command = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: body.name.0,
        role: body.role.0,
        namespace,
        client: body.client_id.map(|client| client.0),
        labels,
        may_set,
        valid_seconds: body.expires_in_seconds.map(|seconds| seconds.0),
        is_first: false,
        actor: caller.actor.clone(),
    };
    tracing::info!(request_id = call.context.id(), actor = %caller.actor, key_id = %command.id, "create key");
    let created = app.by(call.context.deadline, keys.create(caller.by.clone(), command)).await?;
    let info = created.map_err(|error| failed(&error))?;
    Ok(Reply::ok(&Created { key: token.reveal(), info: KeyWire::of(&info) }).secret())
}

pub(super) async fn list(app: &App, call: Call) -> Handled {
    let keys = keys(app)?;
    let namespace = (!call.context.caller.is_server_admin()).then(|| call.namespace());
    let all = execute::read(app, &call.context, keys.list(namespace)).await?;
    // The read shares the keys. The work is their text, so it is charged, and not done on a thread of the runtime.
    app.auth.charge_batch(&call.context.caller, all.len())?;
    let build = move || Reply::ok(&Listed { keys: all.iter().map(KeyWire::of).collect() });
    Ok(off_runtime(build).await)
}

pub(super) async fn revoke(app: &App, call: Call) -> Handled {
    let Ok(id) = KeyId::new(call.name()) else {
        return Err(Reply::invalid(&KEY_ID.explain(&"key_id", call.name()).unwrap_or_default()));
    };
    let keys = keys(app)?;
    let caller = &call.context.caller;
    let namespace = (!caller.is_server_admin()).then(|| call.namespace());
    tracing::info!(request_id = call.context.id(), actor = %caller.actor, key_id = %id, "revoke key");
    let command = RevokeKey { id, namespace, actor: caller.actor.clone() };
    let revoked = app.by(call.context.deadline, keys.revoke(caller.by.clone(), command)).await?;
    let info = revoked.map_err(|error| failed(&error))?;
    Ok(Reply::ok(&Revoked { key: KeyWire::of(&info) }))
}

fn keys(app: &App) -> Result<&dyn Keys, Reply> {
    app.backend.keys().ok_or_else(|| Reply::not_found("this server has no keys"))
}

fn failed(error: &KeyError) -> Reply {
    let (status, code) = match error {
        KeyError::Backend(error) => return limits::failed(error),
        KeyError::QuotaExceeded(kind) => return limits::quota_exceeded(*kind),
        KeyError::NotFound => (StatusCode::NOT_FOUND, NOT_FOUND),
        KeyError::InvalidExpiry | KeyError::NotAnAdmin | KeyError::ClientIsKey => {
            (StatusCode::BAD_REQUEST, INVALID_REQUEST)
        }
        _ => (StatusCode::CONFLICT, CONFLICT),
    };
    Reply::problem(status, code, &error.to_string())
}

/// The only response that shows a key.
#[derive(Serialize)]
struct Created<'a> {
    key: String,
    info: KeyWire<'a>,
}

#[derive(Serialize)]
struct Listed<'a> {
    keys: Vec<KeyWire<'a>>,
}

#[derive(Serialize)]
struct Revoked<'a> {
    key: KeyWire<'a>,
}

#[derive(Serialize)]
struct KeyWire<'a> {
    key_id: &'a str,
    name: &'a str,
    role: &'static str,
    namespace: &'a str,
    client_id: Option<&'a str>,
    labels: BTreeMap<&'a str, &'a str>,
    may_set: Vec<&'a str>,
    created_at_unix_ms: u64,
    created_by: &'a str,
    expires_at_unix_ms: Option<u64>,
    revoked_at_unix_ms: Option<u64>,
}

impl<'a> KeyWire<'a> {
    fn of(info: &'a Arc<KeyInfo>) -> KeyWire<'a> {
        KeyWire {
            key_id: info.id.as_str(),
            name: info.name.as_str(),
            role: info.role.as_str(),
            namespace: info.namespace.as_str(),
            client_id: info.client.as_ref().map(ClientId::as_str),
            labels: labels(&info.labels),
            may_set: info.may_set.iter().collect(),
            created_at_unix_ms: info.created_at.get(),
            created_by: info.created_by.as_str(),
            expires_at_unix_ms: info.expires_at.map(UnixMs::get),
            revoked_at_unix_ms: info.revoked_at.map(UnixMs::get),
        }
    }
}

/// Labels by name.
pub(super) fn labels(labels: &Labels) -> BTreeMap<&str, &str> {
    labels.iter().collect()
}

pub(super) fn labels_schema() -> Value {
    let mut schema = shape::ATTRIBUTES.schema();
    schema["description"] = json!("Attributes of each of its calls.");
    schema
}

pub(super) fn may_set_schema() -> Value {
    let mut schema = NameList::SHAPE.schema();
    schema["description"] = json!("Attributes that its calls may set, besides `model` and `provider`.");
    schema
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 4] {
    let time = json!({"type": "integer", "minimum": 0});
    let maybe_time = |about: &str| json!({"type": ["integer", "null"], "minimum": 0, "description": about});
    let exactly = |properties: Value| exactly(properties, &[]);
    let info = exactly(json!({
        "key_id": {"type": "string", "description": "The public part of the key."},
        "name": {"type": "string"},
        "role": {"enum": Role::ALL.map(Role::as_str)},
        "namespace": {"type": "string"},
        "client_id": {"type": ["string", "null"], "description": "The only client id it may write as."},
        "labels": labels_schema(),
        "may_set": may_set_schema(),
        "created_at_unix_ms": time,
        "created_by": {"type": "string"},
        "expires_at_unix_ms": maybe_time("When it expires."),
        "revoked_at_unix_ms": maybe_time("When it was revoked."),
    }));
    let reference = json!({"$ref": "#/components/schemas/KeyInfo"});
    let shown = json!({"type": "string", "description": "The key. It is shown only once."});
    [
        ("KeyInfo", info),
        ("KeyCreated", exactly(json!({"key": shown, "info": reference}))),
        ("Keys", exactly(json!({"keys": {"type": "array", "items": reference}}))),
        ("KeyRevoked", exactly(json!({"key": reference}))),
    ]
}
