//! `earmark cluster`: status, membership and backups.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use earmark_admission::{INVITATION_SECONDS_MAX, INVITATION_USES_MAX, InvitationId};
use earmark_client::http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, seconds, table, thousands};
use crate::quantity;
use crate::request;
use crate::serve::PeerAddress;

pub(crate) const HELP: &str = "\
Any node of the cluster can serve these commands.

Examples:
  earmark cluster status
  earmark cluster add --node-id 4 --address 127.0.0.1:7104
  earmark cluster invite
  earmark cluster invitations
  earmark cluster remove --node-id 2
  earmark cluster backup";

const STATUS_HELP: &str = "\
Only the leader knows how far the other nodes lag behind. Point --server at the leader to see LAG.

Examples:
  earmark cluster status
  earmark cluster status --server http://127.0.0.1:7879 --json | jq .leader_id";

const ADD_HELP: &str = "\
The node must already run with --join: earmark serve --node-id 4 --peer-listen 127.0.0.1:7104 --join ...
A node with an invitation, or without certificates, joins by itself. For any other node this command is the permission.

Examples:
  earmark cluster add --node-id 4 --address 127.0.0.1:7104
  earmark cluster add --node-id 4 --address 127.0.0.1:7104 --json";

const INVITE_HELP: &str = "\
Between nodes with certificates a new node needs an invitation to join. Write it to a file that only the new node can
read, and start the node with --invitation-file, or pass it in the variable EARMARK_INVITATION. It is shown only once.

Examples:
  earmark cluster invite >invitation
  earmark cluster invite --uses 3 --expires 1d --json | jq -r .invitation
  earmark cluster invite --expires never";

const REMOVE_HELP: &str = "\
Removes a lost or unwanted node. Its id cannot be used again: start a replacement with a new id.

Examples:
  earmark cluster remove --node-id 2
  earmark cluster remove --node-id 2 --server http://127.0.0.1:7879 --json";

const INVITATIONS_HELP: &str = "\
Lists the invitations that have not expired, without their secrets. A revoked invitation admits no node any more; nodes
that have joined with it stay.

Examples:
  earmark cluster invitations
  earmark cluster invitations --revoke 0123456789abcdef
  earmark cluster invitations --json | jq -r '.invitations[].id'";

const BACKUP_HELP: &str = "\
The node writes the backup to backups/NAME in its data folder and keeps serving. The backup contains every write that
was acknowledged before the command. To restore it: earmark recover --from DIR/backups/NAME --to NEW.

Examples:
  earmark cluster backup
  earmark cluster backup before-upgrade --server http://127.0.0.1:7879 --json | jq -r .path";

const PATH: &str = "/v1/admin/cluster";

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the nodes, the leader, and the replication lag of each follower
    #[command(after_help = STATUS_HELP)]
    Status(ClientArgs),
    /// Add a node: it is a learner until it has caught up, then a voter
    #[command(after_help = ADD_HELP)]
    Add(AddArgs),
    /// Make an invitation, with which new nodes may join
    #[command(after_help = INVITE_HELP)]
    Invite(InviteArgs),
    /// List the invitations, or revoke one
    #[command(after_help = INVITATIONS_HELP)]
    Invitations(InvitationsArgs),
    /// Remove a node from the cluster
    #[command(after_help = REMOVE_HELP)]
    Remove(RemoveArgs),
    /// Write a backup while the node serves
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupArgs),
}

#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// Id of the node, its --node-id
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    node_id: u64,
    /// Peer address of the node, its --peer-advertise or --peer-listen, HOST:PORT
    #[arg(long, value_name = "ADDR", value_parser = PeerAddress::with_its_port)]
    address: PeerAddress,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InviteArgs {
    /// Nodes that the invitation admits
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=INVITATION_USES_MAX.into()))]
    uses: u32,
    /// Time until it expires, such as 30m or 1d, or never
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = expiry)]
    expires: u32,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InvitationsArgs {
    /// Id of an invitation to revoke
    #[arg(long, value_name = "ID")]
    revoke: Option<InvitationId>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Seconds until an invitation expires; 0 for never.
fn expiry(text: &str) -> Result<u32, String> {
    match text {
        "never" => Ok(0),
        text => quantity::seconds(INVITATION_SECONDS_MAX)(text).map_err(|why| format!("{why}, or never")),
    }
}

#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Id of the node to remove
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    node_id: u64,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// Name of the backup, a folder in backups/ of the data folder [default: the time in UTC]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Deserialize, Serialize)]
struct Invitation {
    invitation: String,
}

#[derive(Deserialize, Serialize)]
struct OpenInvitations {
    invitations: Vec<OpenInvitation>,
}

#[derive(Deserialize, Serialize)]
struct OpenInvitation {
    id: String,
    uses_left: u32,
    expires_at_unix_ms: Option<u64>,
    invited_by: String,
    nodes: Vec<u64>,
}

impl OpenInvitations {
    fn text(&self) -> String {
        if self.invitations.is_empty() {
            return "no invitations\n".to_owned();
        }
        let line = |one: &OpenInvitation| {
            let uses = if one.uses_left == 1 { "use" } else { "uses" };
            let end = match one.expires_at_unix_ms {
                Some(ms) => format!("expires at {}", output::date(ms)),
                None => "does not expire".to_owned(),
            };
            let nodes: Vec<String> = one.nodes.iter().map(|node| format!(", joined by node {node}")).collect();
            let (id, by) = (output::visible(&one.id), output::visible(&one.invited_by));
            format!("{id}  {} {uses} left, {end}, made by {by}{}\n", one.uses_left, nodes.concat())
        };
        self.invitations.iter().map(line).collect()
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Backup {
    name: String,
    path: String,
    bytes: u64,
    last_log_index: Option<u64>,
    journal_records: u64,
    cluster_id: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct Status {
    cluster_id: String,
    node_id: u64,
    leader_id: Option<u64>,
    term: u64,
    last_log_index: Option<u64>,
    applied_index: Option<u64>,
    snapshot_index: Option<u64>,
    quorum_ack_ms: Option<u64>,
    members: Vec<Member>,
    settings: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Member {
    node_id: u64,
    address: String,
    role: String,
    lag: Option<u64>,
}

impl ClusterCommand {
    pub(crate) fn client(&self) -> &ClientArgs {
        match self {
            ClusterCommand::Status(client) => client,
            ClusterCommand::Add(args) => &args.client,
            ClusterCommand::Invite(args) => &args.client,
            ClusterCommand::Invitations(args) => &args.client,
            ClusterCommand::Remove(args) => &args.client,
            ClusterCommand::Backup(args) => &args.client,
        }
    }
}

pub(crate) fn run(command: &ClusterCommand) -> Result<Done, Failure> {
    let args = command.client();
    match command {
        ClusterCommand::Status(_) => {
            let status: Status = request::get(args, PATH)?;
            output::show(args.json, &status, Status::text)
        }
        ClusterCommand::Add(AddArgs { node_id, address, .. }) => {
            let member = json!({ "node_id": node_id, "address": address.to_string() });
            let done: Value = request::send(args, Method::POST, &format!("{PATH}/members"), &member)?;
            output::show(args.json, &done, |_| format!("node {node_id} is a voter\n"))
        }
        ClusterCommand::Invite(InviteArgs { uses, expires, .. }) => {
            let wanted = json!({ "uses": uses, "expires_seconds": expires });
            let made: Invitation = request::send(args, Method::POST, &format!("{PATH}/invitations"), &wanted)?;
            output::show(args.json, &made, |made| format!("{}\n", output::visible(&made.invitation)))
        }
        ClusterCommand::Invitations(InvitationsArgs { revoke: None, .. }) => {
            let open: OpenInvitations = request::get(args, &format!("{PATH}/invitations"))?;
            output::show(args.json, &open, OpenInvitations::text)
        }
        ClusterCommand::Invitations(InvitationsArgs { revoke: Some(id), .. }) => {
            let done: Value = request::delete(args, &format!("{PATH}/invitations/{id}"))?;
            output::show(args.json, &done, |_| format!("invitation {id} is revoked\n"))
        }
        ClusterCommand::Remove(RemoveArgs { node_id, .. }) => {
            let done: Value = request::delete(args, &format!("{PATH}/members/{node_id}"))?;
            output::show(args.json, &done, |_| format!("node {node_id} is removed\n"))
        }
        ClusterCommand::Backup(BackupArgs { name, .. }) => {
            let named = name.as_ref().map_or_else(|| json!({}), |name| json!({ "name": name }));
            let made: Backup = request::send(args, Method::POST, &format!("{PATH}/backup"), &named)?;
            output::show(args.json, &made, Backup::text)
        }
    }?;
    Ok(Done::Ok)
}

impl Backup {
    fn text(&self) -> String {
        format!(
            "{} contains the log up to entry {}: {} bytes, {} journal records\n",
            output::visible(&self.path),
            thousands(self.last_log_index.unwrap_or(0).into()),
            thousands(self.bytes.into()),
            thousands(self.journal_records.into()),
        )
    }
}

impl Status {
    fn text(&self) -> String {
        let leader = match self.leader_id {
            Some(leader) => format!("leader is node {leader}"),
            None => "no leader known".to_owned(),
        };
        let mut rows = vec![["ID", "ADDRESS", "ROLE", "LAG"].map(str::to_owned)];
        rows.extend(self.members.iter().map(|member| {
            let address = if member.address.is_empty() { "-".to_owned() } else { member.address.clone() };
            // The leader reports no lag for itself.
            let lag = if self.leader_id == Some(member.node_id) { Some(0) } else { member.lag };
            let lag = lag.map_or_else(|| "-".to_owned(), |lag| thousands(lag.into()));
            [member.node_id.to_string(), address, member.role.clone(), lag]
        }));
        // The other settings are shown by --json.
        let setting = |name: &str| self.settings.get(name).copied().unwrap_or(0);
        format!(
            "cluster {}, seen from node {}: {leader}, term {}, {} entries applied; retention {}, at most {} leases\n{}",
            output::visible(&self.cluster_id),
            self.node_id,
            self.term,
            thousands(self.applied_index.unwrap_or(0).into()),
            seconds(setting("retention_ms") / 1_000),
            thousands(setting("leases_max").into()),
            table(&rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_table_of_nodes() {
        let member = |node_id, role: &str, lag| Member {
            node_id,
            address: format!("127.0.0.1:710{node_id}"),
            role: role.to_owned(),
            lag,
        };
        let mut status = Status {
            cluster_id: "ab".repeat(16),
            node_id: 1,
            leader_id: Some(1),
            term: 3,
            last_log_index: Some(1_500),
            applied_index: Some(1_500),
            snapshot_index: None,
            quorum_ack_ms: Some(4),
            members: vec![member(1, "leader", None), member(2, "voter", Some(1_200)), member(3, "learner", None)],
            settings: [("leases_max".to_owned(), 7), ("retention_ms".to_owned(), 900_000)].into(),
        };
        assert_eq!(
            status.text(),
            format!(
                "cluster {}, seen from node 1: leader is node 1, term 3, 1,500 entries applied; retention 15 min, \
                 at most 7 leases\n\
                 ID  ADDRESS         ROLE     LAG\n\
                 1   127.0.0.1:7101  leader   0\n\
                 2   127.0.0.1:7102  voter    1,200\n\
                 3   127.0.0.1:7103  learner  -\n",
                status.cluster_id
            )
        );
        status.leader_id = None;
        assert!(status.text().contains("no leader known"), "{}", status.text());
    }
}
