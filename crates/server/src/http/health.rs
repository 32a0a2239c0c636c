//! Health checks, metrics and the OpenAPI document.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Serialize;

use super::reply::{Handled, JSON, PROMETHEUS, Reply};
use super::serve::{Call, off_runtime};
use crate::app::App;
use crate::execute;
use crate::metrics::BackendGauges;

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
pub(super) async fn metrics(app: &App, call: &Call) -> Handled {
    if execute::is_revoked(app, &call.context).await {
        return Err(Reply::unauthenticated());
    }
    let (caller, quotas) = (&call.context.caller, app.backend.quota_gauges().await);
    let (metrics, backend) = (Arc::clone(&app.metrics), Arc::clone(&app.backend));
    let only = (!caller.is_server_admin()).then(|| caller.namespace.clone());
    let cluster = app.cluster.get().map(|cluster| cluster.status());
    let text = move || match &only {
        Some(namespace) => {
            let gauges = BackendGauges { quotas, fullness: backend.fullness(Some(namespace)) };
            metrics.render_for(&gauges, namespace)
        }
        None => {
            let gauges = BackendGauges { quotas, fullness: backend.fullness(None) };
            metrics.render(&backend.stats(), &gauges, cluster.as_ref())
        }
    };
    Ok(off_runtime(move || Reply::of(StatusCode::OK, PROMETHEUS, Bytes::from(text()))).await)
}

pub(super) fn openapi(app: &App) -> Reply {
    Reply { is_shared: true, ..Reply::of(StatusCode::OK, JSON, app.openapi.clone()) }
}
