//! Feeds the decision log and the heaviest limits with the answers about leases.

use earmark_admission::{Amount, LimitOverage};
use earmark_core::{JobId, LeaseId, LimitKey, NamespaceName};

use crate::answer::Code;
use crate::app::App;
use crate::calls::CallAttributes;
use crate::charts::Decided;
use crate::decisions::{Decision, Outcome};
use crate::execute::RequestContext;
use crate::top::Measure;

/// The parts of a request about a lease that are logged and counted with its answer.
pub(crate) struct Subject {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    pub(crate) job: Option<JobId>,
    /// The amounts that it asks for.
    pub(crate) asked: Vec<Amount>,
}

/// The request with its context, and the attributes of the call behind it.
pub(crate) type Asked<'a> = (&'a RequestContext, &'a Subject, Option<CallAttributes<'a>>);

impl Subject {
    fn record(&self, app: &App, (context, _, attributes): Asked<'_>, outcome: Outcome, limits: &[(&LimitKey, u64)]) {
        let attributes = attributes.map(CallAttributes::all);
        app.decisions.record(&Decision {
            outcome,
            namespace: &self.namespace,
            actor: &context.caller.actor,
            lease: self.lease,
            job: self.job.as_ref(),
            attributes: attributes.as_deref(),
            limits,
        });
    }
}

/// Remembers the answer to a reserve or an extension: whether it was allowed, its error and the limits in the way.
pub(crate) fn taken(app: &App, asked: Asked<'_>, (is_allowed, error, limited_by): (bool, Code<'_>, &[LimitKey])) {
    let subject = asked.1;
    if is_allowed {
        let amounts = subject.asked.iter().map(|amount| (&amount.key, amount.amount));
        return app.top.count(Measure::Taken, &subject.namespace, amounts);
    }
    let Some(outcome) = error.decision(is_allowed) else { return };
    if outcome == Outcome::Denied {
        app.top.count(Measure::Denied, &subject.namespace, limited_by.iter().map(|key| (key, 1)));
    }
    let amount =
        |key: &LimitKey| subject.asked.iter().find(|amount| amount.key == *key).map_or(0, |found| found.amount);
    let limits: Vec<(&LimitKey, u64)> = limited_by.iter().map(|key| (key, amount(key))).collect();
    subject.record(app, asked, outcome, &limits);
}

/// Counts a reserve in the charts.
pub(crate) fn reserved(
    app: &App,
    context: &RequestContext,
    namespace: &NamespaceName,
    is_allowed: bool,
    error: Code<'_>,
) {
    let decided = match error.decision(is_allowed) {
        _ if is_allowed => Decided::Allowed,
        Some(Outcome::Denied) => Decided::Denied,
        Some(_) => Decided::Refused,
        None => Decided::Failed,
    };
    app.charts.count(namespace, decided, app.time_taken(context.deadline));
}

/// Remembers that a policy refused a call.
pub(crate) fn refused(app: &App, asked: Asked<'_>) {
    let (context, subject, _) = asked;
    app.charts.count(&subject.namespace, Decided::Refused, app.time_taken(context.deadline));
    asked.1.record(app, asked, Outcome::Refused, &[]);
}

/// Remembers the usage of a settled lease beyond its reservations.
pub(crate) fn settled(app: &App, asked: Asked<'_>, overages: &[LimitOverage]) {
    if overages.is_empty() {
        return;
    }
    let subject = asked.1;
    let debts = overages.iter().filter(|overage| overage.is_debt).map(|overage| (&overage.key, overage.amount));
    app.top.count(Measure::Debt, &subject.namespace, debts);
    let limits: Vec<(&LimitKey, u64)> = overages.iter().map(|overage| (&overage.key, overage.amount)).collect();
    subject.record(app, asked, Outcome::Overage, &limits);
}
