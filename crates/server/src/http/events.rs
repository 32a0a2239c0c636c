//! `GET /v1/events`: live decisions, usage and the state of the cluster, as Server-Sent Events.

mod stream;

use super::reply::{Handled, Reply};
use super::route::{BAD_QUERY, Documented, FAILED, OVERLOADED, PROBLEM, Route, answer, binary, get};
use super::serve::Call;
use super::shape::EVENTS_QUERY;
use crate::app::App;
use crate::caller::Access;
use crate::decisions::DECISIONS_OFF;
use crate::events::Topics;
use crate::execute;

pub(super) use stream::body;

const STREAM: Documented = binary(
    200,
    "A stream without end. Events: `hello` (the namespace and the topics), `decision` (as `/v1/decisions` lists it, with \
     `repeated` 0), `usage` (every two seconds: the fullest limits, and the limits that denied most within one minute), \
     `chart` (a step of `/v1/charts` that is over), `cluster` (`ready`, and for an admin of `default` the cluster), \
     `dropped` (events that this reader was too slow for) and `end` (why the stream closes). Each has one line `data` with \
     a JSON object. Nothing is repeated after a reconnection: read `/v1/decisions` for what was missed.",
    "text/event-stream",
);

pub(super) const GET: Route = Route {
    query: EVENTS_QUERY,
    operation: "stream_events",
    about: "Streams what this node sees of a namespace, until the client closes, the server shuts down or the credentials \
            are revoked. Over HTTP only. A caller may have 16 streams, a namespace 64 and a server 256.",
    answers: &[STREAM, BAD_QUERY, NO_DECISIONS, FAILED, OVERLOADED],
    ..get("/v1/events", Access::Read, |app, call| Box::pin(open(app, call)))
};

const NO_DECISIONS: Documented =
    answer(404, PROBLEM, "The topic `decisions` was asked for, and the decision log is off.");

async fn open(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    let topics = match call.query("topics") {
        Some(list) => Topics::from_list(list),
        None => Topics { decisions: app.decisions.is_on(), usage: true, cluster: true },
    };
    if topics.decisions && !app.decisions.is_on() {
        return Err(Reply::not_found(DECISIONS_OFF));
    }
    execute::check_key(app, &call.context).await?;
    match app.feeds.open(namespace, call.context.caller.shares.clone(), topics) {
        Ok(subscription) => Ok(Reply::events(subscription)),
        Err(why) => Err(Reply::overloaded(&why.message())),
    }
}
