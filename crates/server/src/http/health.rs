//! What operators and their tools ask: is it alive, is it ready, how is it doing, what does it offer.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Serialize;

use super::reply::{JSON, PROMETHEUS, Reply};
use super::serve::Call;
use crate::app::App;
use crate::caller::Refused;
use crate::carry_out;

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

pub(super) fn healthz() -> Reply {
    Reply::ok(&Health { status: "ok" })
}

pub(super) fn readyz(app: &App) -> Reply {
    match app.ready() {
        Ok(()) => Reply::ok(&Health { status: "ready" }),
        Err(why) => Reply::not_ready(&why),
    }
}

/// Labels of other namespaces are for those who look after the server.
pub(super) async fn metrics(app: &App, call: &Call) -> Reply {
    if carry_out::is_over(app, &call.ticket).await {
        return Reply::refused(Refused::Unauthenticated);
    }
    let (stats, caller) = (app.backend.stats(), &call.ticket.caller);
    let cluster = app.cluster.get().map(|cluster| cluster.status());
    let text = match caller.operates() {
        true => app.metrics.render(&stats, cluster.as_ref()),
        false => app.metrics.render_for(&stats, cluster.as_ref(), &caller.namespace),
    };
    Reply::of(StatusCode::OK, PROMETHEUS, Bytes::from(text))
}

pub(super) fn openapi(app: &App) -> Reply {
    Reply::of(StatusCode::OK, JSON, app.openapi.clone())
}
