//! `envoy.service.ratelimit.v3.RateLimitService`: a stock Envoy reserves and settles by the policy of its namespace.
//!
//! The domain is the namespace, the entries of a descriptor are attributes, and all descriptors of a request are one
//! reserve. It is settled at once, unless an entry says that Envoy calls again at the end of its stream.
//!
//! Envoy lets a request pass when this service fails, unless `failure_mode_deny` is set. So only mistakes of a
//! configuration fail; what a client can cause is a denial.

mod answer;
mod descriptors;
mod lease;

use std::sync::Arc;

use axum::body::Bytes;
use earmark_admission::{BackendError, Refusal as LimitRefusal, ReserveAnswer};
use earmark_core::{LeaseId, NamespaceName, UnixMs, redact_api_keys};
use earmark_proto::convert;
use earmark_proto::envoy::service::ratelimit::v3 as rls;
use tonic::Status;

use super::frame;
use super::status::failed;
use crate::answer::CompleteWire;
use crate::app::App;
use crate::calls::{self, Asked, CallRequest, Called, Decision, Descriptor, SettleHits};
use crate::decisions::now as wall_time;
use crate::execute::{self, RequestContext};
use crate::metrics::{Completed, Reserved};
use answer::Group;
use descriptors::{Mistake, Parsed, Settlement};
use lease::{HeldLease, LeaseIds, RequestUuid};

pub(super) struct RateLimits {
    app: Arc<App>,
    lease_ids: LeaseIds,
}

impl RateLimits {
    pub(super) fn new(app: &Arc<App>) -> RateLimits {
        RateLimits { app: Arc::clone(app), lease_ids: LeaseIds::new() }
    }

    /// Answers the frame of a request with the frame of a response.
    pub(super) async fn serve(&self, context: &RequestContext, request: &Bytes) -> Result<Bytes, Status> {
        let request: rls::RateLimitRequest = frame::decode(request)?;
        let namespace = namespace(context, &request.domain).inspect_err(|_| self.count_invalid())?;
        let count = request.descriptors.len();
        let answer = match descriptors::parse(&context.caller, request) {
            Ok(parsed) => self.decide(context, namespace, parsed).await?,
            Err(Mistake::Configuration(message)) => {
                self.count_invalid();
                return Err(Status::invalid_argument(redact_api_keys(&message)));
            }
            Err(Mistake::Value(message)) => {
                self.count_invalid();
                let message = redact_api_keys(&message).into_owned();
                let called = Called::of(Ok(ReserveAnswer::Refused(LimitRefusal::InvalidRequest { message })));
                answer::of(count, &[Group::refused(count, called)], None)
            }
        };
        frame::encode(&answer)
    }

    fn count_invalid(&self) {
        self.app.metrics.reserved(Reserved::InvalidRequest);
    }

    /// Settles the leases that ended, checks, and reserves.
    async fn decide(
        &self,
        context: &RequestContext,
        namespace: NamespaceName,
        parsed: Parsed,
    ) -> Result<rls::RateLimitResponse, Status> {
        let Parsed { count, settlements, checks, takes, holds, request_id } = parsed;
        for settlement in settlements {
            Box::pin(self.settle(context, &namespace, settlement)).await?;
        }
        let now = wall_time();
        let mut groups = Vec::new();
        let [(check_places, checks), (take_places, takes)] = judged_together(checks, takes);
        if !check_places.is_empty() {
            let (places, request) = (check_places, request(&namespace, self.lease_ids.random(now), checks));
            let called = Box::pin(calls::check(&self.app, context, &request, now)).await;
            groups.push(self.group(&request, called, places).await?);
        }
        let mut held = None;
        if !take_places.is_empty() && groups.iter().all(Group::is_allowed) {
            let lease = match &request_id {
                Some(id) => Box::pin(self.lease_of(context, &namespace, id, now)).await?,
                None => self.lease_ids.random(now),
            };
            let (places, request) = (take_places, request(&namespace, lease, takes));
            let mut called = calls::call(&self.app, context, &request).await;
            if holds {
                held = HeldLease::of(&request, &called);
            } else {
                called = self.count(context, &request, called, request_id.is_some()).await;
            }
            groups.push(self.group(&request, called, places).await?);
        }
        Ok(answer::of(count, &groups, held.as_ref()))
    }

    /// The lease of a request that Envoy may send twice.
    async fn lease_of(
        &self,
        context: &RequestContext,
        namespace: &NamespaceName,
        id: &RequestUuid,
        now: UnixMs,
    ) -> Result<LeaseId, Status> {
        if let Some(earlier) = id.earlier_lease(now) {
            let read = execute::read(&self.app, context, self.app.backend.lease(namespace.clone(), earlier));
            if read.await.map_err(|error| failed(&error))?.is_some() {
                return Ok(earlier);
            }
        }
        Ok(id.lease(now))
    }

    /// Settles a reserve at once. The retry of one that was settled is allowed again.
    async fn count(&self, context: &RequestContext, request: &CallRequest, called: Called, has_id: bool) -> Called {
        match &called.decision {
            Decision::Limits(Ok(ReserveAnswer::Allowed { .. })) => {
                if let Err(error) = calls::count(&self.app, context, request, &called.requirements).await {
                    // It was reserved, and runs out by its timeouts.
                    tracing::debug!(request_id = context.id(), lease = %request.lease, %error, "not settled at once");
                }
                called
            }
            Decision::Limits(Ok(ReserveAnswer::Refused(LimitRefusal::LeaseExpired))) if has_id => {
                Called { decision: Decision::Free, ..called }
            }
            Decision::Limits(_) | Decision::Refused(_) | Decision::Free => called,
        }
    }

    /// Settles a lease whose stream has ended.
    async fn settle(
        &self,
        context: &RequestContext,
        namespace: &NamespaceName,
        settlement: Settlement,
    ) -> Result<(), Status> {
        let Settlement { held, used } = settlement;
        let HeldLease { lease, policy_revision, list } = held;
        let asked = Asked::Descriptors(list);
        let request = SettleHits { namespace: namespace.clone(), lease, policy_revision, asked, used };
        let answer = calls::settle_hits(&self.app, context, &request).await;
        if let Err(error) = &answer {
            return Err(failed(error));
        }
        let wire = CompleteWire::of(&answer);
        match wire.outcome() {
            Completed::Reconciled | Completed::Unknown | Completed::QuotaExceeded => Ok(()),
            Completed::InvalidRequest | Completed::Overloaded | Completed::BackendError => {
                Err(Status::invalid_argument(wire.message.map(String::from).unwrap_or_default()))
            }
        }
    }

    /// A decision with what its answer needs.
    async fn group(&self, request: &CallRequest, called: Called, places: Vec<usize>) -> Result<Group, Status> {
        if let Decision::Limits(Err(error)) = &called.decision {
            return Err(failed(error));
        }
        let known = match self.app.reveals_remaining {
            true => Box::pin(calls::known_limits(&self.app, &request.namespace, &called.requirements)).await,
            false => Vec::new(),
        };
        let mut group = Group { places, called, keys: Vec::new(), known };
        if !group.is_allowed() || self.app.reveals_remaining {
            let keys = Box::pin(calls::keys_by_descriptor(&self.app, request)).await;
            group.keys = keys.map_err(|error: BackendError| failed(&error))?;
        }
        Ok(group)
    }
}

/// The places and the descriptors of checks and of takes. Each list ends with the descriptors of the other one, without
/// hits: all descriptors of a request are judged together.
fn judged_together(
    checks: Vec<(usize, Descriptor)>,
    takes: Vec<(usize, Descriptor)>,
) -> [(Vec<usize>, Vec<Descriptor>); 2] {
    let [mut checks, mut takes]: [(Vec<usize>, Vec<Descriptor>); 2] =
        [checks, takes].map(|list| list.into_iter().unzip());
    if !checks.1.is_empty() && !takes.1.is_empty() {
        let without_hits = |list: &[Descriptor]| -> Vec<Descriptor> {
            list.iter().map(|descriptor| Descriptor { hits: 0, ..descriptor.clone() }).collect()
        };
        let (of_checks, of_takes) = (without_hits(&checks.1), without_hits(&takes.1));
        checks.1.extend(of_takes);
        takes.1.extend(of_checks);
    }
    [checks, takes]
}

fn request(namespace: &NamespaceName, lease: LeaseId, list: Vec<Descriptor>) -> CallRequest {
    CallRequest { namespace: namespace.clone(), lease, job: None, asked: Asked::Descriptors(list) }
}

fn namespace(context: &RequestContext, domain: &str) -> Result<NamespaceName, Status> {
    let namespace = convert::name("domain", domain)?;
    context.caller.check_namespace(&namespace)?;
    Ok(namespace)
}
