//! `GET /v1/whoami`: the caller, as its credentials say.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::keys::{labels, labels_schema, may_set_schema};
use super::reply::{Handled, Reply};
use super::schema::exactly;
use super::serve::Call;
use crate::app::App;
use crate::execute;

pub(super) async fn get(app: &App, call: Call) -> Handled {
    execute::check_key(app, &call.context).await?;
    let caller = &call.context.caller;
    Ok(Reply::ok(&Whoami {
        actor: caller.actor.as_str(),
        namespace: caller.namespace.as_str(),
        role: caller.role.as_str(),
        labels: labels(&caller.labels),
        may_set: caller.may_set.iter().collect(),
    }))
}

#[derive(Serialize)]
struct Whoami<'a> {
    actor: &'a str,
    namespace: &'a str,
    role: &'static str,
    labels: BTreeMap<&'a str, &'a str>,
    may_set: Vec<&'a str>,
}

/// The named schema of the response.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let properties = json!({
        "actor": {"type": "string", "description": "The name in transactions and logs."},
        "namespace": {"type": "string"},
        "role": {"enum": earmark_core::Role::ALL.map(earmark_core::Role::as_str)},
        "labels": labels_schema(),
        "may_set": may_set_schema(),
    });
    [("Whoami", exactly(properties, &[]))]
}
