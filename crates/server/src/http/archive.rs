//! Files that are streamed to the caller while they are made: `GET /v1/admin/cluster/backup` and
//! `GET /v1/admin/audit/export`.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode};
use earmark_admission::{ClusterError, FileStream};
use earmark_core::Actor;
use futures_util::stream;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::cluster::{self, cluster, permitted, unavailable};
use super::reply::{CONFLICT, Handled, Reply};
use super::route::{BAD_QUERY, MEMBERS_LATER, NO_CLUSTER, PROBLEM, Route, answer, binary, get};
use super::serve::Call;
use crate::app::App;
use crate::caller::Access;

const TAR: HeaderValue = HeaderValue::from_static("application/x-tar");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// How long the response waits for the file, so that a failure has a status and a message. A larger backup is awaited
/// by the stream, which ends early on a failure.
const GRACE: Duration = Duration::from_secs(10);

pub(super) const BACKUP: Route = Route {
    operation: "download_backup",
    about: "Streams a backup of everything acknowledged so far, as a tar file whose last member SHA256SUMS has the \
            checksums of the others. `earmark restore` starts a new cluster from it.",
    answers: &[
        binary(200, "The archive. Without its last member it is incomplete.", "application/x-tar"),
        BAD_QUERY,
        NO_CLUSTER,
        answer(409, PROBLEM, "`conflict`: this node has no backup folder."),
        MEMBERS_LATER,
    ],
    ..get("/v1/admin/cluster/backup", Access::Operate, |app, call| Box::pin(archive(app, call)))
};

pub(super) const AUDIT: Route = Route {
    operation: "export_audit",
    about: "Streams the whole journal as a hash chain with the balances at its end, signed by this node. `earmark audit \
            verify` checks it without a server.",
    answers: &[
        binary(200, "The export. Without its end it is incomplete.", "application/octet-stream"),
        BAD_QUERY,
        answer(404, PROBLEM, "This server runs in memory and keeps no journal."),
        answer(409, PROBLEM, "`conflict`: the credit is kept in a database, not in the journal."),
        MEMBERS_LATER,
    ],
    ..get("/v1/admin/audit/export", Access::Operate, |app, call| Box::pin(export(app, call)))
};

pub(super) const SIGNING_KEYS: Route = Route {
    operation: "list_signing_keys",
    about: "Lists the public keys with which nodes sign exports. A node publishes its key before its first export; keys of \
            removed nodes stay.",
    answers: &[answer(200, &["SigningKeys"], "The keys, oldest first."), BAD_QUERY, NO_CLUSTER, MEMBERS_LATER],
    ..get("/v1/admin/audit/keys", Access::Operate, |app, call| Box::pin(cluster::signing_keys(app, call)))
};

type Made = Result<Box<dyn FileStream>, ClusterError>;

async fn archive(app: &App, call: Call) -> Handled {
    let cluster = cluster(app)?;
    permitted(app, &call, "send a backup").await?;
    let making = earmark_admission::spawn(async move { cluster.archive().await });
    send(call, (TAR, "send a backup"), making).await
}

async fn export(app: &App, call: Call) -> Handled {
    let none = |_| Reply::not_found("this server runs in memory and keeps no journal; start it with --data");
    let cluster = cluster(app).map_err(none)?;
    permitted(app, &call, "export the journal").await?;
    let making = earmark_admission::spawn(async move { cluster.export_audit().await });
    send(call, (OCTETS, "export the journal"), making).await
}

async fn send(call: Call, (content_type, what): (HeaderValue, &'static str), mut making: JoinHandle<Made>) -> Handled {
    let sending = match timeout(GRACE, &mut making).await {
        Err(_) => Sending::Making(making),
        Ok(Ok(Ok(archive))) => Sending::Archive(archive),
        Ok(Ok(Err(ClusterError::Refused(why)))) => return Err(Reply::problem(StatusCode::CONFLICT, CONFLICT, &why)),
        Ok(Ok(Err(error))) => return Err(unavailable(&format!("{error}; retry"))),
        Ok(Err(error)) => return Err(unavailable(&format!("{error}; retry"))),
    };
    let (id, actor) = (call.context.id().to_owned(), call.context.caller.actor.clone());
    Ok(Reply::archive(content_type, Archive { sending, what, id, actor }))
}

/// The body of a response with a file.
pub(crate) struct Archive {
    sending: Sending,
    /// The request, for the log.
    what: &'static str,
    /// The id of the request.
    id: String,
    actor: Actor,
}

impl Archive {
    pub(super) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(Some(self), |archive| async move {
            let Archive { sending, what, id, actor } = archive?;
            let next = sending.next().await;
            let result = match &next {
                Ok(Some(_)) => None,
                Ok(None) => Some("done".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(result) = result {
                tracing::info!(request_id = id, %actor, what, result, "cluster change ended");
            }
            match next {
                Ok(Some((piece, sending))) => Some((Ok(piece), Some(Archive { sending, what, id, actor }))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        }))
    }
}

/// A file on its way.
enum Sending {
    Making(JoinHandle<Made>),
    Archive(Box<dyn FileStream>),
}

impl Sending {
    /// The next piece and the rest. An error aborts the connection, so that the caller notices.
    async fn next(self) -> io::Result<Option<(Bytes, Sending)>> {
        let mut archive = match self {
            Sending::Archive(archive) => archive,
            Sending::Making(making) => making.await?.map_err(io::Error::other)?,
        };
        let (piece, archive) = spawn_blocking(move || archive.next().map(|piece| (piece, archive))).await??;
        Ok(piece.map(|piece| (Bytes::from(piece), Sending::Archive(archive))))
    }
}
