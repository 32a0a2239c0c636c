//! The table of routes. The router and `/openapi.json` are both made from it, so that there is no route
//! without a description and no description without a route.

use std::future::{Future, ready};
use std::pin::Pin;

use axum::routing::MethodFilter;

use super::reply::Reply;
use super::serve::Call;
use super::shape::{self, Field, Shape};
use super::{audit, cluster, complete, health, keys, leases, limits, reserve, vaults, write};
use crate::app::App;
use crate::caller::{Access, Takes};

/// What an answer that is on its way looks like.
type Handled<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// The methods that are served.
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

    /// As an OpenAPI document writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Delete => "delete",
        }
    }
}

/// One route: what it does, and what is said of it.
pub(crate) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    pub(super) handler: for<'a> fn(&'a App, Call) -> Handled<'a>,
    /// What its body must look like, if it has one.
    pub(super) body: Option<&'static Shape>,
    /// What may stand behind the path.
    pub(super) query: &'static [Field],
    /// What it asks of whoever calls it.
    pub(super) access: Access,
    /// How many places it takes while it is worked on.
    pub(super) takes: Takes,
    /// A name for it, for generated clients.
    pub(super) operation: &'static str,
    pub(super) about: &'static str,
    /// What it answers besides what every route of its kind does.
    pub(super) answers: &'static [Documented],
}

impl Route {
    /// As it is named in metrics.
    pub(crate) fn label(&self) -> &'static str {
        self.operation
    }

    /// The parameters in the path, in their order.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
    }
}

/// An answer, as it is described.
pub(super) struct Documented {
    pub(super) status: u16,
    pub(super) about: &'static str,
    /// Names of schemas, one of which fits; none if it is text.
    pub(super) schemas: &'static [&'static str],
}

const fn answer(status: u16, schema: &'static [&'static str], about: &'static str) -> Documented {
    Documented { status, about, schemas: schema }
}

const PROBLEM: &[&str] = &["Problem"];
const RESERVE_ANSWER: &[&str] = &["ReserveAnswer"];
const COMPLETE_ANSWER: &[&str] = &["CompleteAnswer"];

const WRITE_ANSWER: &[&str] = &["WriteRefused"];
const WRITE_ANSWERS: &[Documented] = &[
    answer(200, &["WriteCommitted"], "It is committed, now or by an earlier copy of the same write."),
    answer(400, &["Problem", "WriteRefused"], "It is not what it must be, or not of its scope."),
    answer(402, WRITE_ANSWER, "`INSUFFICIENT_CREDIT`: an account has too little."),
    answer(404, WRITE_ANSWER, "`ACCOUNT_NOT_FOUND` or `VAULT_NOT_FOUND`."),
    answer(409, WRITE_ANSWER, "The sequence, a condition or the state of an account stands in the way."),
    answer(
        503,
        &["WriteRefused", "Problem"],
        "`UNAVAILABLE`: the outcome is unknown. Retry the same write. `overloaded`: nothing happened.",
    ),
];
const BAD_NAME: Documented = answer(400, PROBLEM, "A name in the path or the query is none.");
const NO_VAULT: Documented = answer(404, PROBLEM, "No such vault or account.");

const BAD_QUERY: Documented = answer(400, PROBLEM, "There is a parameter that this path does not have.");
const BAD_KEY: Documented = answer(400, PROBLEM, "The key in the path is none.");
const NO_LIMIT: Documented = answer(404, PROBLEM, "No limit has this key.");
const NO_CLUSTER: Documented =
    answer(404, PROBLEM, "This server keeps everything in memory and has no cluster.");
const MEMBERS_STAY: Documented =
    answer(409, PROBLEM, "`conflict`: the members stay as they are, and the message says why.");
const MEMBERS_LATER: Documented =
    answer(503, PROBLEM, "`unavailable`: not now, or not yet. Ask the same again.");

const NO_KEYS: Documented = answer(404, PROBLEM, "No such key, or this server keeps none.");

const FAILED: Documented =
    answer(500, PROBLEM, "`backend_error`: the outcome is unknown, or nothing happened. Retry.");
const OVERLOADED: Documented =
    answer(503, PROBLEM, "`overloaded`: too much is waiting, and nothing happened. Retry later.");

/// The place of requests that match no route, in tables that have one for every route.
pub(crate) const UNMATCHED: usize = ROUTES.len();

/// All routes.
pub(crate) static ROUTES: [Route; 28] = [
    Route {
        verb: Verb::Post,
        path: "/v1/reserve",
        handler: |app, call| Box::pin(reserve::one(app, call)),
        body: Some(&shape::RESERVE),
        query: &[],
        access: Access::Call,
        takes: Takes::One,
        operation: "reserve",
        about: "Takes all requirements at once, or none of them.",
        answers: &[
            answer(200, RESERVE_ANSWER, "Allowed, denied, or refused by name, lease, age or credit."),
            answer(
                500,
                RESERVE_ANSWER,
                "`backend_error`: the outcome is unknown. Retry with the same lease.",
            ),
            answer(
                503,
                &["ReserveAnswer", "Problem"],
                "`overloaded`: nothing happened. Retry with the same lease.",
            ),
        ],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/complete",
        handler: |app, call| Box::pin(complete::one(app, call)),
        body: Some(&shape::COMPLETE),
        query: &[],
        access: Access::Call,
        takes: Takes::One,
        operation: "complete",
        about: "Says what a lease really used; the rest is free again at once.",
        answers: &[
            answer(200, COMPLETE_ANSWER, "Done, now or before; or the lease is not known."),
            answer(400, &["Problem", "CompleteAnswer"], "It is not what it must be; nothing was done."),
            answer(500, COMPLETE_ANSWER, "`backend_error`: the outcome is unknown. Complete again."),
            answer(503, &["CompleteAnswer", "Problem"], "`overloaded`: nothing happened. Complete again."),
        ],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/reserve/batch",
        handler: |app, call| Box::pin(reserve::batch(app, call)),
        body: Some(&shape::RESERVE_BATCH),
        query: &[],
        access: Access::Call,
        takes: Takes::Items,
        operation: "reserve_batch",
        about: "Reserves, each on its own, with the results in the same order.",
        answers: &[answer(200, &["ReserveResults"], "A result for each, failures included.")],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/complete/batch",
        handler: |app, call| Box::pin(complete::batch(app, call)),
        body: Some(&shape::COMPLETE_BATCH),
        query: &[],
        access: Access::Call,
        takes: Takes::Items,
        operation: "complete_batch",
        about: "Completes, each on its own, with the results in the same order.",
        answers: &[answer(200, &["CompleteResults"], "A result for each, failures included.")],
    },
    Route {
        verb: Verb::Put,
        path: "/v1/admin/limits",
        handler: |app, call| Box::pin(limits::put(app, call)),
        body: Some(&shape::DEFINITION),
        query: &[],
        access: Access::Write,
        takes: Takes::One,
        operation: "put_limit",
        about: "Creates a limit or changes its definition. An existing limit keeps its kind.",
        answers: &[
            answer(200, &["LimitChanged"], "In force, or waiting until the capacity can go down."),
            FAILED,
            OVERLOADED,
        ],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/admin/limits",
        handler: |app, call| Box::pin(limits::list(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "list_limits",
        about: "All limits, in order of their keys.",
        answers: &[answer(200, &["Limits"], "The limits."), BAD_QUERY, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/admin/limits/{key}",
        handler: |app, call| Box::pin(limits::get(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "get_limit",
        about: "One limit.",
        answers: &[answer(200, &["Limit"], "The limit."), BAD_KEY, NO_LIMIT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Delete,
        path: "/v1/admin/limits/{key}",
        handler: |app, call| Box::pin(limits::delete(app, call)),
        body: None,
        query: &[],
        access: Access::Write,
        takes: Takes::One,
        operation: "delete_limit",
        about: "Lets a limit run empty and then forgets it.",
        answers: &[
            answer(
                200,
                &["LimitChanged"],
                "`decreasing` while something is held, else `deleted`. A credit limit goes at once: what it holds \
                 is the account's, and is settled as it was taken.",
            ),
            BAD_KEY,
            NO_LIMIT,
            FAILED,
            OVERLOADED,
        ],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/admin/limits/{key}/usage",
        handler: |app, call| Box::pin(limits::usage(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "get_usage",
        about: "What a limit holds now.",
        answers: &[answer(200, &["Usage"], "The usage."), BAD_KEY, NO_LIMIT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/leases/{lease_id}",
        handler: |app, call| Box::pin(leases::get(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "get_lease",
        about: "What is known of a lease.",
        answers: &[
            answer(200, &["Lease"], "The lease."),
            answer(400, PROBLEM, "The lease id in the path is no ULID."),
            answer(404, PROBLEM, "No such lease is remembered."),
            FAILED,
            OVERLOADED,
        ],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/write",
        handler: |app, call| Box::pin(write::one(app, call)),
        body: Some(&shape::WRITE),
        query: &[],
        access: Access::Write,
        takes: Takes::One,
        operation: "write",
        about: "Applies a transaction exactly once: all its operations, or none of them.",
        answers: WRITE_ANSWERS,
    },
    Route {
        verb: Verb::Post,
        path: "/v1/write/batch",
        handler: |app, call| Box::pin(write::batch(app, call)),
        body: Some(&shape::WRITE_BATCH),
        query: &[],
        access: Access::Write,
        takes: Takes::One,
        operation: "write_batch",
        about: "Applies several lists of operations as one transaction, with one number.",
        answers: WRITE_ANSWERS,
    },
    Route {
        verb: Verb::Get,
        path: "/v1/clients/{client_id}",
        handler: |app, call| Box::pin(write::client(app, call)),
        body: None,
        query: shape::CLIENT_QUERY,
        access: Access::Read,
        takes: Takes::One,
        operation: "get_client_state",
        about: "The last number that a client committed in a scope; 0 before the first.",
        answers: &[answer(200, &["ClientState"], "The number."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/vaults/{vault}/accounts/{account}/balances",
        handler: |app, call| Box::pin(vaults::balances(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "get_balances",
        about: "What an account has, in order of asset.",
        answers: &[answer(200, &["Balances"], "The balances."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/vaults/{vault}/accounts/{account}/entries",
        handler: |app, call| Box::pin(vaults::entries(app, call)),
        body: None,
        query: shape::ENTRIES_QUERY,
        access: Access::Read,
        takes: Takes::One,
        operation: "list_entries",
        about: "The latest history of an account, oldest first, a page at a time.",
        answers: &[answer(200, &["Entries"], "A page."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/vaults/{vault}/audit",
        handler: |app, call| Box::pin(vaults::audit(app, call)),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "audit_vault",
        about: "Counts a vault anew and compares it with its history.",
        answers: &[answer(200, &["Audit"], "What was found."), BAD_NAME, NO_VAULT, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/admin/cluster",
        handler: |app, call| Box::pin(cluster::status(app, call)),
        body: None,
        query: &[],
        access: Access::Operate,
        takes: Takes::One,
        operation: "get_cluster",
        about: "The nodes, who leads, and who is behind, as this node sees it.",
        answers: &[answer(200, &["Cluster"], "The cluster."), BAD_QUERY, NO_CLUSTER],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/admin/cluster/members",
        handler: |app, call| Box::pin(cluster::add(app, call)),
        body: Some(&shape::MEMBER),
        query: &[],
        access: Access::Operate,
        takes: Takes::One,
        operation: "add_member",
        about: "Makes a node that runs a member: a learner until it has caught up, then a voter.",
        answers: &[
            answer(200, &["Done"], "It is a voter, now or before."),
            NO_CLUSTER,
            MEMBERS_STAY,
            MEMBERS_LATER,
        ],
    },
    Route {
        verb: Verb::Delete,
        path: "/v1/admin/cluster/members/{node_id}",
        handler: |app, call| Box::pin(cluster::remove(app, call)),
        body: None,
        query: &[],
        access: Access::Operate,
        takes: Takes::One,
        operation: "remove_member",
        about: "Takes a node out of the cluster. Its id is never used again.",
        answers: &[
            answer(200, &["Done"], "It is no member any more."),
            answer(400, PROBLEM, "The id in the path is none."),
            NO_CLUSTER,
            MEMBERS_STAY,
            MEMBERS_LATER,
        ],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/admin/cluster/backup",
        handler: |app, call| Box::pin(cluster::backup(app, call)),
        body: Some(&shape::BACKUP),
        query: &[],
        access: Access::Operate,
        takes: Takes::One,
        operation: "make_backup",
        about: "Writes all that was acknowledged so far into a folder of its own, on the machine of this node, from \
                which a new cluster can begin.",
        answers: &[
            answer(200, &["Backup"], "It is whole, and on disk."),
            NO_CLUSTER,
            answer(409, PROBLEM, "`conflict`: there is a backup of this name, or this node keeps none."),
            answer(
                503,
                PROBLEM,
                "`unavailable`: not now, or not within the time of a request; the message says which.",
            ),
        ],
    },
    Route {
        verb: Verb::Post,
        path: "/v1/admin/keys",
        handler: |app, call| Box::pin(keys::create(app, call)),
        body: Some(&shape::KEY),
        query: &[],
        access: Access::Manage,
        takes: Takes::One,
        operation: "create_key",
        about: "Makes a key. It is shown once, in this answer. The first key closes a server that was open to all.",
        answers: &[
            answer(200, &["KeyCreated"], "The key."),
            NO_KEYS,
            answer(409, PROBLEM, "`conflict`: there are as many keys as there may be."),
            FAILED,
        ],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/admin/keys",
        handler: |app, call| Box::pin(keys::list(app, call)),
        body: None,
        query: &[],
        access: Access::Manage,
        takes: Takes::One,
        operation: "list_keys",
        about: "The keys, without their secrets: of all namespaces for an admin of `default`, else of one's own.",
        answers: &[answer(200, &["Keys"], "The keys."), BAD_QUERY, NO_KEYS, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Delete,
        path: "/v1/admin/keys/{key_id}",
        handler: |app, call| Box::pin(keys::revoke(app, call)),
        body: None,
        query: &[],
        access: Access::Manage,
        takes: Takes::One,
        operation: "revoke_key",
        about: "Ends a key for good. Once this is answered, no node takes it.",
        answers: &[
            answer(200, &["KeyRevoked"], "It is revoked, now or before."),
            answer(400, PROBLEM, "The id in the path is none."),
            NO_KEYS,
            answer(409, PROBLEM, "`conflict`: it is the last that can look after the server."),
            FAILED,
            OVERLOADED,
        ],
    },
    Route {
        verb: Verb::Get,
        path: "/v1/audit",
        handler: |app, call| Box::pin(audit::get(app, call)),
        body: None,
        query: shape::CHANGES_QUERY,
        access: Access::Manage,
        takes: Takes::One,
        operation: "list_changes",
        about: "Transactions and changes of limits and keys with who made them, oldest first, a page at a time.",
        answers: &[answer(200, &["AuditLog"], "A page."), BAD_QUERY, NO_KEYS, FAILED, OVERLOADED],
    },
    Route {
        verb: Verb::Get,
        path: "/healthz",
        handler: |_, _| Box::pin(ready(health::healthz())),
        body: None,
        query: &[],
        access: Access::Public,
        takes: Takes::One,
        operation: "healthz",
        about: "Whether the process lives.",
        answers: &[answer(200, &["Health"], "It does.")],
    },
    Route {
        verb: Verb::Get,
        path: "/readyz",
        handler: |app, _| Box::pin(ready(health::readyz(app))),
        body: None,
        query: &[],
        access: Access::Public,
        takes: Takes::One,
        operation: "readyz",
        about: "Whether it can serve.",
        answers: &[
            answer(200, &["Health"], "It can."),
            answer(503, PROBLEM, "It cannot, or no longer; the message says why."),
        ],
    },
    Route {
        verb: Verb::Get,
        path: "/metrics",
        handler: |app, call| Box::pin(async move { health::metrics(app, &call).await }),
        body: None,
        query: &[],
        access: Access::Read,
        takes: Takes::One,
        operation: "metrics",
        about: "Metrics in the text format of Prometheus.",
        answers: &[answer(200, &[], "The metrics.")],
    },
    Route {
        verb: Verb::Get,
        path: "/openapi.json",
        handler: |app, _| Box::pin(ready(health::openapi(app))),
        body: None,
        query: &[],
        access: Access::Public,
        takes: Takes::One,
        operation: "openapi",
        about: "This document.",
        answers: &[answer(200, &["OpenApi"], "The document.")],
    },
];

/// What every route with a body answers besides.
pub(super) static WITH_BODY: [Documented; 4] = [
    answer(400, PROBLEM, "The body is not what it must be: which field, what was found, what is allowed."),
    answer(408, PROBLEM, "The body did not come in time."),
    answer(413, PROBLEM, "The body is too large."),
    OVERLOADED,
];

/// What every route answers that is not open to all.
pub(super) static GUARDED: [Documented; 3] = [
    answer(401, PROBLEM, "`unauthenticated`: the credentials are missing or not valid."),
    answer(403, PROBLEM, "`forbidden`: the credentials do not allow this."),
    answer(
        429,
        PROBLEM,
        "`rate_limited`: too many requests; the header `retry-after` says when to come back.",
    ),
];
