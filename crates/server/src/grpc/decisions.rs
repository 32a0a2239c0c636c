//! The decision log and the heaviest limits of `earmark.v1.LimitsService`.

use earmark_admission::PAGE_MAX;
use earmark_core::{LimitKey, NameError, UnixMs};
use earmark_proto::convert::{self, Invalid};
use earmark_proto::v1;
use tonic::Status;

use super::limits::{namespace_of_limits, optional};
use super::status::failed;
use crate::app::App;
use crate::decisions::{DECISIONS_OFF, DecisionQuery, LoggedDecision, LoggedLimit, Outcome};
use crate::execute::{self, PAGE_SIZE_DEFAULT, RequestContext};
use crate::top::{Measure, Within};

pub(super) async fn list(
    app: &App,
    context: &RequestContext,
    request: v1::ListDecisionsRequest,
) -> Result<v1::ListDecisionsResponse, Status> {
    let v1::ListDecisionsRequest { namespace, key, actor, job_id, outcome, since_unix_ms, until_unix_ms, .. } =
        &request;
    let query = DecisionQuery {
        namespace: namespace_of_limits(context, namespace.as_deref())?,
        key: prefix("key", key.as_deref())?,
        actor: optional("actor", actor.as_deref())?,
        job: optional("job", job_id.as_deref())?,
        outcome: choice("outcome", outcome.as_deref(), &Outcome::NAMES, Outcome::from_name)?,
        since: time("since_unix_ms", *since_unix_ms)?.unwrap_or_default(),
        until: time("until_unix_ms", *until_unix_ms)?.unwrap_or(UnixMs::MAX),
        after: position(request.after.as_deref())?,
        page_size: page_size(request.page_size)?,
    };
    let _permit = context.admit(app, query.cost()).await?;
    let page = execute::read(app, context, app.decisions.read(query)).await.map_err(|error| failed(&error))?;
    let page = page.ok_or_else(|| Status::not_found(DECISIONS_OFF))?;
    let next = page.next.map(|position| position.to_string());
    Ok(v1::ListDecisionsResponse { decisions: page.decisions.into_iter().map(message).collect(), next })
}

fn time(field: &str, ms: Option<u64>) -> Result<Option<UnixMs>, Status> {
    Ok(convert::time(field, ms)?)
}

pub(super) async fn top(
    app: &App,
    context: &RequestContext,
    request: v1::GetTopRequest,
) -> Result<v1::GetTopResponse, Status> {
    let namespace = namespace_of_limits(context, request.namespace.as_deref())?;
    let measure = choice("of", request.of.as_deref(), &Measure::NAMES, Measure::from_name)?.unwrap_or_default();
    let within = choice("within", request.within.as_deref(), &Within::NAMES, Within::from_name)?.unwrap_or_default();
    let prefix = prefix("prefix", request.prefix.as_deref())?.unwrap_or_default();
    execute::check_key(app, context).await.map_err(|error| failed(&error))?;
    let top = app.top.top(&namespace, measure, within, &prefix).into_iter().map(|(key, count)| {
        let is_own = !key.is_foreign();
        let shown = |amount: u64| is_own.then_some(amount);
        v1::TopLimit { key: key.to_string(), amount: shown(count.amount), error: shown(count.error) }
    });
    Ok(v1::GetTopResponse { top: top.collect() })
}

/// The beginning of a key, which may name another namespace.
fn prefix(field: &str, text: Option<&str>) -> Result<Option<String>, Status> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let check = |error: NameError| Invalid::name(field, &error);
    match text.strip_prefix('!').unwrap_or(text) {
        "" => {}
        rest => drop(LimitKey::new(rest).map_err(check)?),
    }
    Ok(Some(text.to_owned()))
}

/// One of the texts.
fn choice<T>(
    field: &str,
    text: Option<&str>,
    names: &[&str],
    parse: fn(&str) -> Option<T>,
) -> Result<Option<T>, Status> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || Status::invalid_argument(format!("{field}: found {text:?}, allowed are {}", names.join(", ")));
    parse(text).ok_or_else(wrong).map(Some)
}

fn position(text: Option<&str>) -> Result<u64, Status> {
    let Some(text) = text else { return Ok(u64::MAX) };
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let found = text.parse().ok().filter(|_| is_plain);
    let allowed = u64::MAX;
    let wrong = || Status::invalid_argument(format!("after: found {text:?}, allowed are integers from 0 to {allowed}"));
    found.ok_or_else(wrong)
}

fn page_size(size: Option<u32>) -> Result<usize, Status> {
    let Some(size) = size else { return Ok(PAGE_SIZE_DEFAULT) };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Ok(Invalid::unless_within("page_size", size, &(1..=PAGE_MAX))?)
}

fn message(decision: LoggedDecision) -> v1::Decision {
    let limit = |limit: LoggedLimit| v1::DecisionLimit {
        key: limit.key.to_string(),
        asked: limit.asked,
        available: limit.available,
        capacity: limit.capacity,
    };
    v1::Decision {
        at_unix_ms: decision.at.get(),
        outcome: decision.outcome.name().to_owned(),
        lease_id: decision.lease.to_string(),
        job_id: decision.job.map(|job| job.to_string()),
        actor: decision.actor.to_string(),
        attributes: decision.attributes.into_iter().collect(),
        limits: decision.limits.into_iter().map(limit).collect(),
        repeated: decision.repeated,
    }
}
