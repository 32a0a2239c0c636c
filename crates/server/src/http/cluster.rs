//! `/v1/admin/cluster`: cluster administration.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use earmark_admission::{
    BackendError, BackupMade, BackupName, Cluster, ClusterError, ClusterStatus, INVITATION_SECONDS_MAX,
    INVITATION_USES_MAX, InvitationId, InvitationInfo, MemberStatus, NewInvitation, SigningKeyInfo,
};
use earmark_core::{Setting, UnixMs};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::limits;
use super::parse::{Count, ShortText, Text};
use super::reply::{CONFLICT, Handled, Reply, UNAVAILABLE};
use super::schema::exactly;
use super::serve::Call;
use super::shape::{Described, NODE_ID, Shape, body};
use crate::app::App;
use crate::execute;

pub(super) async fn status(app: &App, call: Call) -> Handled {
    if execute::is_revoked(app, &call.context).await {
        return Err(Reply::unauthenticated());
    }
    let cluster = cluster(app)?;
    Ok(Reply::ok(&StatusWire::of(&cluster.status())))
}

pub(super) async fn add(app: &App, call: Call) -> Handled {
    let member = call.parse::<MemberBody>()?;
    let cluster = cluster(app)?;
    let (node, address) = (member.node_id.0, member.address.0);
    let what = format!("add node {node} at {address}");
    changed(app, &call, what, async move { cluster.add(node, address).await }).await
}

pub(super) async fn remove(app: &App, call: Call) -> Handled {
    let Some(node) = call.name().parse().ok().filter(|node| *node > 0) else {
        let (found, max) = (call.name(), u64::MAX);
        return Err(Reply::invalid(&format!("node_id: found {found:?}, allowed are integers from 1 to {max}")));
    };
    let cluster = cluster(app)?;
    changed(app, &call, format!("remove node {node}"), async move { cluster.remove(node).await }).await
}

pub(super) fn cluster(app: &App) -> Result<Arc<dyn Cluster>, Reply> {
    let none = || Reply::not_found("this server runs in memory and has no cluster");
    app.cluster.get().map(Arc::clone).ok_or_else(none)
}

pub(super) async fn backup(app: &App, call: Call) -> Handled {
    let wanted = call.parse::<BackupBody>()?;
    let cluster = cluster(app)?;
    let name = wanted.name.map(|name| name.0);
    let what = match &name {
        Some(name) => format!("back up as {}", name.as_str()),
        None => "back up".to_owned(),
    };
    permitted(app, &call, &what).await?;
    let on_timeout = "the backup is still being written; it is complete once its folder has a file named identity";
    let made = finish(app, &call, (&what, on_timeout), async move { cluster.backup(name).await }).await?;
    Ok(Reply::ok(&BackupWire::of(&made)))
}

pub(super) async fn invite(app: &App, call: Call) -> Handled {
    let body = call.parse::<InvitationBody>()?;
    let cluster = cluster(app)?;
    let (uses, expires_seconds) = (body.uses.map(|uses| uses.0), body.expires_seconds.map(|seconds| seconds.0));
    let wanted = NewInvitation::new(uses, expires_seconds).map_err(|message| Reply::invalid(&message))?;
    let what = wanted.to_string();
    permitted(app, &call, &what).await?;
    let by = call.context.caller.actor.clone();
    let invitation = finish(app, &call, (&what, "retry"), async move { cluster.invite(by, wanted).await }).await?;
    Ok(Reply::ok(&InvitationWire { invitation }))
}

pub(super) async fn invitations(app: &App, call: Call) -> Handled {
    let cluster = cluster(app)?;
    execute::check_key(app, &call.context).await?;
    match app.by(call.context.deadline, cluster.invitations()).await {
        Ok(Ok(open)) => Ok(Reply::ok(&json!({"invitations": open.iter().map(invitation).collect::<Vec<_>>()}))),
        Ok(Err(error)) => Err(unavailable(&format!("{error}; retry"))),
        Err(error) => Err(unavailable(&format!("{error}; retry"))),
    }
}

pub(super) async fn signing_keys(app: &App, call: Call) -> Handled {
    let cluster = cluster(app)?;
    execute::check_key(app, &call.context).await?;
    match app.by(call.context.deadline, cluster.signing_keys()).await {
        Ok(Ok(keys)) => Ok(Reply::ok(&json!({"keys": keys.iter().map(signing_key).collect::<Vec<_>>()}))),
        Ok(Err(error)) => Err(unavailable(&format!("{error}; retry"))),
        Err(error) => Err(unavailable(&format!("{error}; retry"))),
    }
}

fn signing_key(info: &SigningKeyInfo) -> Value {
    json!({
        "public_key": info.public_key,
        "cluster_id": format!("{:032x}", info.cluster),
        "node_id": info.node,
        "published_at_unix_ms": info.published_at.get(),
        "is_member": info.is_member,
    })
}

fn invitation(info: &InvitationInfo) -> Value {
    json!({
        "id": info.id.to_string(),
        "uses_left": info.uses_left,
        "expires_at_unix_ms": info.expires_at.map(UnixMs::get),
        "invited_by": info.invited_by.as_str(),
        "nodes": info.nodes,
    })
}

pub(super) async fn revoke_invitation(app: &App, call: Call) -> Handled {
    let wrong = |allowed| Reply::invalid(&format!("invitation_id: found {:?}, {allowed}", call.name()));
    let id: InvitationId = call.name().parse().map_err(wrong)?;
    let cluster = cluster(app)?;
    changed(app, &call, format!("revoke invitation {id}"), async move { cluster.revoke_invitation(id).await }).await
}

/// Checks the caller's key again, because the cluster does not: it executes any change it is given.
pub(super) async fn permitted(app: &App, call: &Call, what: &str) -> Result<(), Reply> {
    execute::check_key(app, &call.context).await.map_err(|error| match error {
        // Nothing has begun. Operators call this just when there is no quorum.
        BackendError::Failed(why) => unavailable(&format!("{why}; retry")),
        error => limits::failed(&error),
    })?;
    tracing::info!(request_id = call.context.id(), actor = %call.context.caller.actor, what, "cluster change begins");
    Ok(())
}

async fn changed(
    app: &App,
    call: &Call,
    what: String,
    change: impl Future<Output = Result<(), ClusterError>> + Send + 'static,
) -> Handled {
    permitted(app, call, &what).await?;
    finish(app, call, (&what, "retry"), change).await?;
    Ok(Reply::ok(&Changed { ok: true }))
}

/// Waits for a cluster change, and logs its result. After the deadline it goes on in its task; the response then ends
/// with `on_timeout`.
async fn finish<T: Send + 'static>(
    app: &App,
    call: &Call,
    (what, on_timeout): (&str, &str),
    doing: impl Future<Output = Result<T, ClusterError>> + Send + 'static,
) -> Result<T, Reply> {
    let done = app.by(call.context.deadline, earmark_admission::spawn(doing)).await;
    let result = match &done {
        Ok(Ok(Ok(_))) => "done".to_owned(),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let actor = &call.context.caller.actor;
    tracing::info!(request_id = call.context.id(), %actor, what, result, "cluster change ended");
    match done {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(ClusterError::Refused(why)))) => Err(Reply::problem(StatusCode::CONFLICT, CONFLICT, &why)),
        Ok(Ok(Err(error))) => Err(unavailable(&format!("{error}; retry"))),
        Ok(Err(error)) => Err(unavailable(&format!("{error}; retry"))),
        Err(error) => Err(unavailable(&format!("{error}; {on_timeout}"))),
    }
}

pub(super) fn unavailable(message: &str) -> Reply {
    Reply::problem(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, message)
}

body! {
    pub(super) struct BackupBody {
        /// The name of the backup and its folder; by default the time in UTC.
        name: Option<Text<BackupName>>,
    }
}

body! {
    pub(super) struct InvitationBody {
        /// Nodes that it admits; by default 1.
        uses: Option<Uses>,
        /// Seconds until it expires; 0 for never, by default one hour.
        expires_seconds: Option<ExpirySeconds>,
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Uses(u32);

impl Described for Uses {
    const SHAPE: Shape = Shape::Integer { min: 1, max: INVITATION_USES_MAX as u64 };
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct ExpirySeconds(u32);

impl Described for ExpirySeconds {
    const SHAPE: Shape = Shape::Integer { min: 0, max: INVITATION_SECONDS_MAX as u64 };
}

#[derive(Serialize)]
struct InvitationWire {
    invitation: String,
}

#[derive(Serialize)]
struct BackupWire<'a> {
    name: &'a str,
    path: &'a str,
    bytes: u64,
    last_log_index: Option<u64>,
    journal_records: u64,
    cluster_id: String,
}

impl<'a> BackupWire<'a> {
    fn of(made: &'a BackupMade) -> BackupWire<'a> {
        BackupWire {
            name: made.name.as_str(),
            path: &made.path,
            bytes: made.bytes,
            last_log_index: made.index,
            journal_records: made.journal_records,
            cluster_id: format!("{:032x}", made.cluster),
        }
    }
}

body! {
    pub(super) struct MemberBody {
        /// The node to add. It must run, with `--join`.
        node_id: Count<1>,
        /// Its address for the other nodes, `host:port`.
        address: ShortText<ADDRESS_BYTES_MAX>,
    }
}

/// Longest address of a node: a DNS name of 253 bytes fits, with its port.
const ADDRESS_BYTES_MAX: usize = 256;

#[derive(Serialize)]
struct Changed {
    ok: bool,
}

#[derive(Serialize)]
pub(super) struct StatusWire<'a> {
    cluster_id: String,
    node_id: u64,
    leader_id: Option<u64>,
    term: u64,
    last_log_index: Option<u64>,
    applied_index: Option<u64>,
    snapshot_index: Option<u64>,
    quorum_ack_ms: Option<u64>,
    members: Vec<MemberWire<'a>>,
    settings: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct MemberWire<'a> {
    node_id: u64,
    address: &'a str,
    role: &'static str,
    lag: Option<u64>,
}

impl<'a> StatusWire<'a> {
    pub(super) fn of(status: &'a ClusterStatus) -> StatusWire<'a> {
        let member = |member: &'a MemberStatus| MemberWire {
            node_id: member.node,
            address: &member.address,
            role: match member.is_voter {
                _ if status.leader == Some(member.node) => "leader",
                true => "voter",
                false => "learner",
            },
            lag: member.lag,
        };
        StatusWire {
            cluster_id: format!("{:032x}", status.cluster),
            node_id: status.node,
            leader_id: status.leader,
            term: status.term,
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            quorum_ack_ms: status.quorum_ack_ms,
            members: status.members.iter().map(member).collect(),
            settings: Setting::ALL.into_iter().map(|setting| (setting.name(), status.settings.get(setting))).collect(),
        }
    }
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 6] {
    let count = |about: &str| json!({"type": "integer", "minimum": 0, "description": about});
    let known = |about: &str| json!({"type": ["integer", "null"], "minimum": 0, "description": about});
    let exactly = |properties: Value| exactly(properties, &[]);
    let member = exactly(json!({
        "node_id": NODE_ID.schema(),
        "address": {"type": "string", "description": "Address for the other nodes; empty if it has none."},
        "role": {"enum": ["leader", "voter", "learner"]},
        "lag": known("Entries that it is behind; only the leader knows it."),
    }));
    let settings = Setting::ALL.map(|setting| {
        let (least, most) = setting.allowed().into_inner();
        (setting.name().to_owned(), json!({"type": "integer", "minimum": least, "maximum": most}))
    });
    let settings = exactly(Value::Object(settings.into_iter().collect()));
    let status = exactly(json!({
        "cluster_id": {"type": "string", "description": "32 hexadecimal digits."},
        "node_id": NODE_ID.schema(),
        "leader_id": known("The leader, as far as this node knows."),
        "term": count("Raft term of the latest vote."),
        "last_log_index": known("Index of the last entry in the Raft log of this node."),
        "applied_index": known("Index of the last entry that it has applied."),
        "snapshot_index": known("Index of the last entry in its newest snapshot."),
        "quorum_ack_ms": known("Milliseconds since a quorum last answered; only the leader knows it."),
        "members": {"type": "array", "items": member},
        "settings": settings,
    }));
    let backup = exactly(json!({
        "name": {"type": "string", "description": "Its name."},
        "path": {"type": "string", "description": "Its folder, on the machine of this node."},
        "bytes": count("Total size of its files."),
        "last_log_index": known("Index of the last log entry in it."),
        "journal_records": count("Journal records in it."),
        "cluster_id": {"type": "string", "description": "Id of the cluster that starts from it; 32 hexadecimal digits."},
    }));
    let shown = json!({"type": "string", "description": "The secret of the invitation. It is shown only once."});
    let invitation = exactly(json!({"invitation": shown}));
    let listed = exactly(json!({
        "id": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "Its id; not its secret."},
        "uses_left": count("Nodes that it still admits."),
        "expires_at_unix_ms": known("When it expires, by log time; null for never."),
        "invited_by": {"type": "string", "description": "The admin that made it."},
        "nodes": {"type": "array", "items": NODE_ID.schema(), "description": "The nodes that joined with it."},
    }));
    let invitations = exactly(json!({"invitations": {"type": "array", "items": listed}}));
    let key = exactly(json!({
        "public_key": {"type": "string", "description": "Its Ed25519 public key; 64 hexadecimal digits."},
        "cluster_id": {"type": "string", "description": "The cluster of its node; after a restore also that of the backup."},
        "node_id": NODE_ID.schema(),
        "published_at_unix_ms": count("When it was published, by log time."),
        "is_member": {"type": "boolean", "description": "Whether its node is a member now."},
    }));
    let keys = exactly(json!({"keys": {"type": "array", "items": key}}));
    let done = exactly(json!({"ok": {"const": true}}));
    [
        ("Cluster", status),
        ("Done", done),
        ("Backup", backup),
        ("Invitation", invitation),
        ("Invitations", invitations),
        ("SigningKeys", keys),
    ]
}
