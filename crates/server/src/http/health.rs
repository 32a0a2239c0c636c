//! What operators and their tools ask: is it alive, is it ready, how is it doing, what does it offer.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Serialize;

use super::reply::{JSON, PROMETHEUS, Reply};
use crate::app::App;

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

pub(super) fn metrics(app: &App) -> Reply {
    let cluster = app.cluster.get().map(|cluster| cluster.status());
    let text = app.metrics.render(&app.backend.stats(), cluster.as_ref());
    Reply { status: StatusCode::OK, content_type: PROMETHEUS, body: Bytes::from(text), closes: false }
}

pub(super) fn openapi(app: &App) -> Reply {
    Reply { status: StatusCode::OK, content_type: JSON, body: app.openapi.clone(), closes: false }
}
