//! The table of routes. It drives both the router and `/openapi.json`.

mod documented;

pub(super) use documented::*;

use std::future::{Future, ready};
use std::pin::Pin;

use axum::routing::MethodFilter;
use earmark_admission::{LimitDocument, TemplateDocument};

use super::calls::routes;
use super::cluster::{BackupBody, InvitationBody, MemberBody};
use super::keys::KeyBody;
use super::operation::{WriteBatchBody, WriteBody};
use super::parse::{BatchBody, CompleteBody, ExtendBody, ReserveBody};
use super::policies::PolicyBody;
use super::quotas::QuotasBody;
use super::reply::Handled;
use super::serve::Call;
use super::shape::{self, Described as _, Field, Shape};
use super::{
    archive, audit, charts, cluster, decisions, events, health, keys, lease_requests, leases, limits, policies, quotas,
    statement, templates, top, usage, vaults, whoami, write,
};
use crate::app::App;
use crate::caller::{Access, QueueCost};

/// A handler.
type Handler = for<'a> fn(&'a App, Call) -> Pin<Box<dyn Future<Output = Handled> + Send + 'a>>;

/// The served HTTP methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub(super) fn filter(self) -> MethodFilter {
        match self {
            Verb::Get => MethodFilter::GET,
            Verb::Post => MethodFilter::POST,
            Verb::Put => MethodFilter::PUT,
            Verb::Delete => MethodFilter::DELETE,
        }
    }

    /// The name in OpenAPI.
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Delete => "delete",
        }
    }
}

/// A route and its description.
pub(crate) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    pub(super) handler: Handler,
    /// The shape of the body, if the route takes one.
    pub(super) body: Option<&'static Shape>,
    /// The query parameters.
    pub(super) query: &'static [Field],
    pub(super) access: Access,
    pub(super) queue_cost: QueueCost,
    /// The operation id for generated clients, and the label in metrics.
    pub(super) operation: &'static str,
    pub(super) about: &'static str,
    /// Responses besides the shared ones.
    pub(super) answers: &'static [Documented],
}

impl Route {
    /// The label in metrics.
    pub(crate) fn label(&self) -> &'static str {
        self.operation
    }

    /// Whether the header Idempotency-Key counts.
    pub(super) fn takes_idempotency_key(&self) -> bool {
        matches!(self.operation, "write" | "write_batch")
    }

    /// The path parameters, in order.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
    }
}

/// The route index of requests without a route.
pub(crate) const UNMATCHED: usize = ROUTES.len();
/// The route index of the console's files.
pub(crate) const CONSOLE: usize = UNMATCHED + 1;

/// A route without body and query parameters that takes one permit.
const fn route(verb: Verb, path: &'static str, access: Access, handler: Handler) -> Route {
    let (operation, about, answers): (_, _, &[Documented]) = ("", "", &[]);
    let (body, query, queue_cost): (_, &[Field], _) = (None, &[], QueueCost::One);
    Route { verb, path, handler, body, query, access, queue_cost, operation, about, answers }
}

pub(super) const fn get(path: &'static str, access: Access, handler: Handler) -> Route {
    route(Verb::Get, path, access, handler)
}

pub(super) const fn post(path: &'static str, access: Access, handler: Handler) -> Route {
    route(Verb::Post, path, access, handler)
}

const fn put(path: &'static str, access: Access, handler: Handler) -> Route {
    route(Verb::Put, path, access, handler)
}

const fn delete(path: &'static str, access: Access, handler: Handler) -> Route {
    route(Verb::Delete, path, access, handler)
}

/// All routes.
pub(crate) static ROUTES: [Route; 60] = [
    Route {
        body: Some(&ReserveBody::SHAPE),
        operation: "reserve",
        about: "Reserves all requirements, or none.",
        answers: &[
            answer(
                200,
                RESERVE_ANSWER,
                "Allowed, denied, or refused for an unknown limit, a used lease, its age, or missing credit.",
            ),
            answer(500, RESERVE_ANSWER, "`backend_error`: the outcome is unknown. Retry with the same lease."),
            answer(503, &["ReserveAnswer", "Problem"], "`overloaded`: nothing happened. Retry with the same lease."),
        ],
        ..post("/v1/reserve", Access::Call, |app, call| Box::pin(lease_requests::reserve(app, call)))
    },
    Route {
        body: Some(&ExtendBody::SHAPE),
        operation: "extend",
        about: "Changes a live lease, all or nothing: takes more, moves the end of its concurrency and credit reservations, \
                and reports usage.",
        answers: &[
            answer(
                200,
                EXTEND_ANSWER,
                "Extended, denied, or refused for an ended lease, a number out of order, an unknown limit, or missing \
                 credit.",
            ),
            answer(500, EXTEND_ANSWER, "`backend_error`: the outcome is unknown. Retry with the same number."),
            answer(503, &["ExtendAnswer", "Problem"], "`overloaded`: nothing happened. Retry with the same number."),
        ],
        ..post("/v1/extend", Access::Settle, |app, call| Box::pin(lease_requests::extend(app, call)))
    },
    Route {
        body: Some(&BatchBody::<ExtendBody>::SHAPE),
        queue_cost: QueueCost::PerItem,
        operation: "extend_batch",
        about: "Executes up to 256 independent extensions; the results have the same order.",
        answers: &[answer(200, &["ExtendResults"], "A result for each, failures included.")],
        ..post("/v1/extend/batch", Access::Settle, |app, call| Box::pin(lease_requests::extend_batch(app, call)))
    },
    Route {
        body: Some(&CompleteBody::SHAPE),
        operation: "complete",
        about: "Reports the actual usage of a lease; the rest is freed at once.",
        answers: &[
            answer(200, COMPLETE_ANSWER, "Completed, now or before; or the lease is unknown."),
            answer(400, &["Problem", "CompleteAnswer"], "Malformed; nothing was done."),
            answer(500, COMPLETE_ANSWER, "`backend_error`: the outcome is unknown. Complete again."),
            answer(503, &["CompleteAnswer", "Problem"], "`overloaded`: nothing happened. Complete again."),
        ],
        ..post("/v1/complete", Access::Settle, |app, call| Box::pin(lease_requests::complete(app, call)))
    },
    Route {
        body: Some(&BatchBody::<ReserveBody>::SHAPE),
        queue_cost: QueueCost::PerItem,
        operation: "reserve_batch",
        about: "Executes up to 256 independent reserves; the results have the same order.",
        answers: &[answer(200, &["ReserveResults"], "A result for each, failures included.")],
        ..post("/v1/reserve/batch", Access::Call, |app, call| Box::pin(lease_requests::reserve_batch(app, call)))
    },
    Route {
        body: Some(&BatchBody::<CompleteBody>::SHAPE),
        queue_cost: QueueCost::PerItem,
        operation: "complete_batch",
        about: "Executes up to 256 independent completes; the results have the same order.",
        answers: &[answer(200, &["CompleteResults"], "A result for each, failures included.")],
        ..post("/v1/complete/batch", Access::Settle, |app, call| Box::pin(lease_requests::complete_batch(app, call)))
    },
    routes::CALL,
    routes::CALL_BATCH,
    routes::EXTEND,
    routes::COMPLETE,
    routes::COMPLETE_BATCH,
    routes::EXPLAIN,
    Route {
        body: Some(&LimitDocument::SHAPE),
        query: shape::LIMIT_QUERY,
        operation: "put_limit",
        about: "Creates a limit or changes its definition. An existing limit keeps its kind.",
        answers: &[
            answer(200, &["LimitChanged"], "`active`, or `decreasing` until the lower capacity can take effect."),
            QUOTA,
            FAILED,
            OVERLOADED,
        ],
        ..put("/v1/admin/limits", Access::Write, |app, call| Box::pin(limits::put(app, call)))
    },
    Route {
        query: shape::LIMITS_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_limits",
        about: "Lists limits by key, in pages of at most 1,000.",
        answers: &[answer(200, &["Limits"], "A page."), BAD_QUERY, FAILED, OVERLOADED],
        ..get("/v1/admin/limits", Access::ReadLimits, |app, call| Box::pin(limits::list(app, call)))
    },
    Route {
        query: shape::LIMIT_QUERY,
        operation: "get_limit",
        about: "Gets a limit.",
        answers: &[answer(200, &["Limit"], "The limit."), BAD_KEY, NO_LIMIT, FAILED, OVERLOADED],
        ..get("/v1/admin/limits/{key}", Access::Read, |app, call| Box::pin(limits::get(app, call)))
    },
    Route {
        query: shape::LIMIT_QUERY,
        operation: "delete_limit",
        about: "Deletes a limit once nothing is held.",
        answers: &[
            answer(
                200,
                &["LimitChanged"],
                "`decreasing` while leases hold capacity, else `deleted`. A credit limit is deleted at once; its open \
                 leases still settle with the account. A derived limit that holds nothing loses its debt; its key still \
                 follows its template.",
            ),
            BAD_KEY,
            NO_LIMIT,
            FAILED,
            OVERLOADED,
        ],
        ..delete("/v1/admin/limits/{key}", Access::Write, |app, call| Box::pin(limits::delete(app, call)))
    },
    Route {
        body: Some(&limits::PauseBody::SHAPE),
        query: shape::LIMIT_QUERY,
        operation: "pause_limit",
        about: "Refuses new reserves of a limit for up to one hour, or resumes it. A second pause replaces the first.",
        answers: &[
            answer(200, &["LimitPaused"], "Paused, or resumed."),
            BAD_KEY,
            NO_LIMIT,
            NO_PAUSE,
            FAILED,
            OVERLOADED,
        ],
        ..post("/v1/admin/limits/{key}/pause", Access::Pause, |app, call| Box::pin(limits::pause(app, call)))
    },
    Route {
        query: shape::LIMIT_QUERY,
        operation: "get_usage",
        about: "Gets the current usage of a limit.",
        answers: &[answer(200, &["Usage"], "The usage."), BAD_KEY, NO_LIMIT, FAILED, OVERLOADED],
        ..get("/v1/admin/limits/{key}/usage", Access::Read, |app, call| Box::pin(limits::usage(app, call)))
    },
    Route {
        body: Some(&TemplateDocument::SHAPE),
        query: shape::PUT_TEMPLATE_QUERY,
        operation: "put_template",
        about: "Creates a template or changes its definition. Keys that match it are limits of their own.",
        answers: &[answer(200, &["TemplateChanged"], "Changed."), TEMPLATE_DIFFERS, FAILED, OVERLOADED],
        ..put("/v1/admin/templates", Access::Write, |app, call| Box::pin(templates::put(app, call)))
    },
    Route {
        query: shape::TEMPLATES_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_templates",
        about: "Lists all templates by key.",
        answers: &[answer(200, &["Templates"], "The templates."), BAD_QUERY, FAILED, OVERLOADED],
        ..get("/v1/admin/templates", Access::ReadLimits, |app, call| Box::pin(templates::list(app, call)))
    },
    Route {
        query: shape::DELETE_TEMPLATE_QUERY,
        operation: "delete_template",
        about: "Deletes a template. Its keys are unknown at once; reserved amounts settle as usual.",
        answers: &[answer(200, &["Done"], "Deleted."), BAD_QUERY, NO_TEMPLATE, TEMPLATE_DIFFERS, FAILED, OVERLOADED],
        ..delete("/v1/admin/templates", Access::Write, |app, call| Box::pin(templates::delete(app, call)))
    },
    Route {
        query: shape::USAGE_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_usage",
        about: "Lists limits with their usage, by key in pages, or the first ones by fullness or debt.",
        answers: &[answer(200, &["UsageList"], "A page."), BAD_QUERY, FAILED, OVERLOADED],
        ..get("/v1/usage", Access::Read, |app, call| Box::pin(usage::list(app, call)))
    },
    Route {
        operation: "get_lease",
        about: "Gets a lease.",
        answers: &[
            answer(200, &["Lease"], "The lease."),
            answer(400, PROBLEM, "The lease id in the path is not a ULID."),
            answer(404, PROBLEM, "Lease not found, or forgotten since."),
            FAILED,
            OVERLOADED,
        ],
        ..get("/v1/leases/{lease_id}", Access::Read, |app, call| Box::pin(leases::get(app, call)))
    },
    Route {
        body: Some(&WriteBody::SHAPE),
        queue_cost: QueueCost::PerItem,
        operation: "write",
        about: "Executes a transaction exactly once: all its operations, or none.",
        answers: WRITE_ANSWERS,
        ..post("/v1/write", Access::Write, |app, call| Box::pin(write::one(app, call)))
    },
    Route {
        body: Some(&WriteBatchBody::SHAPE),
        queue_cost: QueueCost::PerItem,
        operation: "write_batch",
        about: "Executes several lists of operations as one transaction with one sequence or key.",
        answers: WRITE_ANSWERS,
        ..post("/v1/write/batch", Access::Write, |app, call| Box::pin(write::batch(app, call)))
    },
    Route {
        query: shape::CLIENT_QUERY,
        operation: "get_client_state",
        about: "Gets the last sequence that a client committed in a scope; 0 before the first.",
        answers: &[answer(200, &["ClientState"], "The sequence."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/clients/{client_id}", Access::Read, |app, call| Box::pin(write::client(app, call)))
    },
    Route {
        query: shape::CREDIT_QUERY,
        operation: "get_balances",
        about: "Lists the balances of an account by asset.",
        answers: &[answer(200, &["Balances"], "The balances."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/vaults/{vault}/accounts/{account}/balances", Access::Read, |app, call| {
            Box::pin(vaults::balances(app, call))
        })
    },
    Route {
        query: shape::VAULTS_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_vaults",
        about: "Lists the vaults of a namespace by name, in pages.",
        answers: &[answer(200, &["Vaults"], "A page."), BAD_QUERY, FAILED, OVERLOADED],
        ..get("/v1/vaults", Access::Read, |app, call| Box::pin(vaults::list(app, call)))
    },
    Route {
        query: shape::ACCOUNTS_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_accounts",
        about: "Lists the accounts of a vault by name, with status and balances, in pages.",
        answers: &[answer(200, &["Accounts"], "A page."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/vaults/{vault}/accounts", Access::Read, |app, call| Box::pin(vaults::accounts(app, call)))
    },
    Route {
        query: shape::CREDIT_QUERY,
        operation: "get_grants",
        about: "Lists the grants of an account by asset, in spending order.",
        answers: &[answer(200, &["Grants"], "The grants."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/vaults/{vault}/accounts/{account}/grants", Access::Read, |app, call| {
            Box::pin(vaults::grants(app, call))
        })
    },
    Route {
        query: shape::ENTRIES_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_entries",
        about: "Lists the entries of an account, oldest or newest first, in pages.",
        answers: &[answer(200, &["Entries"], "A page."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/vaults/{vault}/accounts/{account}/entries", Access::Read, |app, call| {
            Box::pin(vaults::entries(app, call))
        })
    },
    statement::GET,
    Route {
        query: shape::CREDIT_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "audit_vault",
        about: "Recomputes a vault and compares it with its history.",
        answers: &[answer(200, &["Audit"], "The audit."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
        ..get("/v1/vaults/{vault}/audit", Access::Read, |app, call| Box::pin(vaults::audit(app, call)))
    },
    Route {
        operation: "get_cluster",
        about: "Gets the members, the leader and the replication lag, as this node sees them.",
        answers: &[answer(200, &["Cluster"], "The cluster."), BAD_QUERY, NO_CLUSTER],
        ..get("/v1/admin/cluster", Access::Operate, |app, call| Box::pin(cluster::status(app, call)))
    },
    Route {
        body: Some(&MemberBody::SHAPE),
        operation: "add_member",
        about: "Adds a running node as a member: a learner until it has caught up, then a voter.",
        answers: &[
            answer(200, &["Done"], "The node is a voter, now or before."),
            NO_CLUSTER,
            MEMBERS_STAY,
            MEMBERS_LATER,
        ],
        ..post("/v1/admin/cluster/members", Access::Operate, |app, call| Box::pin(cluster::add(app, call)))
    },
    Route {
        operation: "remove_member",
        about: "Removes a node. Its id is never used again.",
        answers: &[
            answer(200, &["Done"], "The node is not a member."),
            answer(400, PROBLEM, "The id in the path is malformed."),
            NO_CLUSTER,
            MEMBERS_STAY,
            MEMBERS_LATER,
        ],
        ..delete("/v1/admin/cluster/members/{node_id}", Access::Operate, |app, call| {
            Box::pin(cluster::remove(app, call))
        })
    },
    Route {
        body: Some(&InvitationBody::SHAPE),
        operation: "create_invitation",
        about: "Creates an invitation, with which new nodes may join the cluster. Only this response shows it.",
        answers: &[
            answer(200, &["Invitation"], "The invitation."),
            NO_CLUSTER,
            answer(409, PROBLEM, "`conflict`: too many invitations are open."),
            MEMBERS_LATER,
        ],
        ..post("/v1/admin/cluster/invitations", Access::Operate, |app, call| Box::pin(cluster::invite(app, call)))
    },
    Route {
        operation: "list_invitations",
        about: "Lists the invitations that have not expired, without their secrets.",
        answers: &[answer(200, &["Invitations"], "The invitations."), BAD_QUERY, NO_CLUSTER, MEMBERS_LATER],
        ..get("/v1/admin/cluster/invitations", Access::Operate, |app, call| Box::pin(cluster::invitations(app, call)))
    },
    Route {
        operation: "revoke_invitation",
        about: "Revokes an invitation. Nodes that have joined with it stay.",
        answers: &[
            answer(200, &["Done"], "It admits no node any more."),
            answer(400, PROBLEM, "The id in the path is malformed."),
            NO_CLUSTER,
            answer(409, PROBLEM, "`conflict`: no invitation has this id."),
            MEMBERS_LATER,
        ],
        ..delete("/v1/admin/cluster/invitations/{invitation_id}", Access::Operate, |app, call| {
            Box::pin(cluster::revoke_invitation(app, call))
        })
    },
    Route {
        body: Some(&BackupBody::SHAPE),
        operation: "make_backup",
        about: "Writes a backup of everything acknowledged so far into a new folder on this node's machine. A new \
                cluster can start from it.",
        answers: &[
            answer(200, &["Backup"], "The backup is complete and on disk."),
            NO_CLUSTER,
            answer(409, PROBLEM, "`conflict`: a backup of this name exists, or this node has no backup folder."),
            answer(
                503,
                PROBLEM,
                "`unavailable`: not possible now, or not finished within the request timeout; the message says which.",
            ),
        ],
        ..post("/v1/admin/cluster/backup", Access::Operate, |app, call| Box::pin(cluster::backup(app, call)))
    },
    archive::BACKUP,
    archive::AUDIT,
    archive::SIGNING_KEYS,
    Route {
        body: Some(&KeyBody::SHAPE),
        operation: "create_key",
        about: "Creates a key. Only this response shows it. After the first key every request needs credentials.",
        answers: &[
            answer(200, &["KeyCreated"], "The key."),
            NO_KEYS,
            answer(
                409,
                PROBLEM,
                "`quota_exceeded:keys`: the quota of the namespace is used up. `conflict`: the maximum number of keys is \
                 reached.",
            ),
            FAILED,
        ],
        ..post("/v1/admin/keys", Access::Manage, |app, call| Box::pin(keys::create(app, call)))
    },
    Route {
        operation: "list_keys",
        about: "Lists keys without their secrets: of all namespaces for an admin of `default`, else of the own one.",
        answers: &[answer(200, &["Keys"], "The keys."), BAD_QUERY, NO_KEYS, FAILED, OVERLOADED],
        ..get("/v1/admin/keys", Access::Manage, |app, call| Box::pin(keys::list(app, call)))
    },
    Route {
        operation: "revoke_key",
        about: "Revokes a key for good. Once this has answered, no node accepts the key.",
        answers: &[
            answer(200, &["KeyRevoked"], "Revoked, now or before."),
            answer(400, PROBLEM, "The id in the path is malformed."),
            NO_KEYS,
            answer(409, PROBLEM, "`conflict`: it is the last key of a server admin."),
            FAILED,
            OVERLOADED,
        ],
        ..delete("/v1/admin/keys/{key_id}", Access::Manage, |app, call| Box::pin(keys::revoke(app, call)))
    },
    Route {
        operation: "get_quotas",
        about: "Gets the quotas of a namespace and their use.",
        answers: &[
            answer(200, &["Quotas"], "The quotas."),
            BAD_NAME,
            answer(404, PROBLEM, "No such namespace."),
            FAILED,
            OVERLOADED,
        ],
        ..get("/v1/admin/quotas/{namespace}", Access::Operate, |app, call| Box::pin(quotas::get(app, call)))
    },
    Route {
        body: Some(&QuotasBody::SHAPE),
        operation: "put_quotas",
        about: "Sets quotas of a namespace, which is opened if it does not exist. A quota below the current use refuses \
                new records and removes none.",
        answers: &[answer(200, &["Done"], "Set."), FAILED, OVERLOADED],
        ..put("/v1/admin/quotas/{namespace}", Access::Operate, |app, call| Box::pin(quotas::put(app, call)))
    },
    Route {
        query: shape::POLICY_QUERY,
        operation: "get_policy",
        about: "Gets the policy of a namespace.",
        answers: &[answer(200, &["Policy"], "The policy."), BAD_QUERY, NO_POLICY, FAILED, OVERLOADED],
        ..get("/v1/admin/policy", Access::Operate, |app, call| Box::pin(policies::get(app, call)))
    },
    Route {
        query: shape::POLICY_QUERY,
        body: Some(&PolicyBody::SHAPE),
        operation: "put_policy",
        about: "Replaces the policy of a namespace, which is opened if it does not exist. A mistake in the document is \
                named with its field and line, and nothing changes.",
        answers: &[
            answer(200, &["PolicyChanged"], "The policy has this text, now or before."),
            answer(409, PROBLEM, "`conflict`: another revision. `quota_exceeded:<quota>`: a quota is used up."),
            FAILED,
            OVERLOADED,
        ],
        ..put("/v1/admin/policy", Access::Operate, |app, call| Box::pin(policies::put(app, call)))
    },
    Route {
        operation: "whoami",
        about: "Gets the caller: its name, namespace, role and the attributes of its calls.",
        answers: &[answer(200, &["Whoami"], "The caller."), BAD_QUERY, FAILED, OVERLOADED],
        ..get("/v1/whoami", Access::Identify, |app, call| Box::pin(whoami::get(app, call)))
    },
    Route {
        query: shape::CHANGES_QUERY,
        queue_cost: QueueCost::PerItem,
        operation: "list_changes",
        about: "Lists transactions and changes of limits and keys, newest first, with actors and definitions.",
        answers: &[answer(200, &["AuditLog"], "A page."), BAD_QUERY, NO_KEYS, FAILED, OVERLOADED],
        ..get("/v1/audit", Access::Manage, |app, call| Box::pin(audit::get(app, call)))
    },
    decisions::LIST,
    top::GET,
    charts::GET,
    events::GET,
    Route {
        operation: "healthz",
        about: "Liveness.",
        answers: &[answer(200, &["Health"], "Alive.")],
        ..get("/healthz", Access::Public, |_, _| Box::pin(ready(Ok(health::healthz()))))
    },
    Route {
        operation: "readyz",
        about: "Readiness.",
        answers: &[answer(200, &["Health"], "Ready."), answer(503, PROBLEM, "Not ready; the message says why.")],
        ..get("/readyz", Access::Public, |app, _| Box::pin(ready(Ok(health::readyz(app)))))
    },
    Route {
        operation: "metrics",
        about: "Metrics in the Prometheus text format: all for an admin of `default`, else those of the namespace.",
        answers: &[answer(200, &[], "The metrics.")],
        ..get("/metrics", Access::Read, |app, call| Box::pin(async move { health::metrics(app, &call).await }))
    },
    Route {
        operation: "openapi",
        about: "This document.",
        answers: &[answer(200, &["OpenApi"], "The document.")],
        ..get("/openapi.json", Access::Public, |app, _| Box::pin(ready(Ok(health::openapi(app)))))
    },
];
