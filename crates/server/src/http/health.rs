//! Health checks, metrics and the OpenAPI document.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Serialize;

use super::reply::{JSON, PROMETHEUS, Reply};
use super::serve::{Call, off_runtime};
use crate::app::App;
use crate::execute;

#[derive(Serialize)]
struct Health {
    status: &'static str,
    /// A warning for the operator while the server is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

pub(super) fn healthz() -> Reply {
    Reply::ok(&Health { status: "ok", message: None })
}

pub(super) fn readyz(app: &App) -> Reply {
    match app.ready() {
        Ok(()) => Reply::ok(&Health { status: "ready", message: app.backend.warning() }),
        Err(why) => Reply::not_ready(&why),
    }
}

/// Only an admin of `default` sees the totals of the server and all namespaces; others see their namespace.
pub(super) async fn metrics(app: &App, call: &Call) -> Reply {
    if execute::is_revoked(app, &call.context).await {
        return Reply::unauthenticated();
    }
    let (quotas, caller) = (app.backend.quota_gauges(), &call.context.caller);
    let metrics = Arc::clone(&app.metrics);
    let reply = |text: String| Reply::of(StatusCode::OK, PROMETHEUS, Bytes::from(text));
    if !caller.is_server_admin() {
        return reply(metrics.render_for(&quotas, &caller.namespace));
    }
    let (cluster, stats) = (app.cluster.get().map(|cluster| cluster.status()), app.backend.stats());
    off_runtime(move || reply(metrics.render(&stats, &quotas, cluster.as_ref()))).await
}

pub(super) fn openapi(app: &App) -> Reply {
    Reply { is_shared: true, ..Reply::of(StatusCode::OK, JSON, app.openapi.clone()) }
}
