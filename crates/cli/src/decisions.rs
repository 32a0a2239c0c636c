//! `earmark decisions`: recent denials, refusals, timeouts and overages.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use earmark_admission::utc;
use earmark_client::http::{Method, encoded};
use earmark_core::{Actor, JobId, NamespaceName, UnixMs};
use serde::{Deserialize, Serialize};

use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output::{self, Colour, fitted, thousands};
use crate::quantity;
use crate::watch;

pub(crate) const HELP: &str = "\
Each node has a log of its own: denials, refusals and overages of the requests that it served, and all timeouts.

Examples:
  earmark decisions
  earmark decisions --key gpt-4o: --outcome denied --since 1h
  earmark decisions --job job-7 --count 10
  earmark decisions --follow
  earmark decisions --json | jq -r '.decisions[].limits[0].key' | sort | uniq -c";

/// Decisions that are shown by default: some screens.
const COUNT_DEFAULT: u32 = 100;
const COUNT_MAX: i64 = 1_000_000;
/// Decisions per page: the server's largest page.
const PAGE_MAX: u32 = earmark_admission::PAGE_MAX as u32;
/// The longest `--since` and `--until`: the longest age of a log.
const AGO_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// Time between two reads of `--follow`.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct DecisionsArgs {
    /// Only decisions about a limit whose key begins like this, such as gpt-4o:
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// Only decisions about requests of this actor, such as client:billing
    #[arg(long)]
    actor: Option<Actor>,
    /// Only decisions about this job
    #[arg(long)]
    job: Option<JobId>,
    /// Only decisions with this outcome
    #[arg(long, value_enum)]
    outcome: Option<Outcome>,
    /// Only decisions of the last time, such as 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(AGO_SECONDS_MAX))]
    since: Option<u32>,
    /// Only decisions before this time, counted back from now, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(AGO_SECONDS_MAX), conflicts_with = "follow")]
    until: Option<u32>,
    /// Decisions to show, the newest
    #[arg(long, value_name = "N", default_value_t = COUNT_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
    count: u32,
    /// Show new decisions as they are made, until interrupted; with --json one object per line
    #[arg(long)]
    follow: bool,
    /// Namespace of the decisions; an admin of `default` may name any [default: that of the key]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Outcome {
    Denied,
    Refused,
    Timeout,
    Overage,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Denied => "denied",
            Outcome::Refused => "refused",
            Outcome::Timeout => "timeout",
            Outcome::Overage => "overage",
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Decision {
    at_unix_ms: u64,
    outcome: String,
    lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
    actor: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    limits: Vec<Limit>,
    repeated: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Limit {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    available: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
}

#[derive(Deserialize)]
struct Page {
    decisions: Vec<Decision>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Document {
    decisions: Vec<Decision>,
}

pub(crate) fn run(args: &DecisionsArgs) -> Result<Done, Failure> {
    let since = args.since.map(ago);
    let mut decisions = client::block_on(args.read(since, args.count))?;
    if !args.follow {
        if args.client.json {
            output::print_json(&Document { decisions })?;
        } else {
            output::print_painted(&text(&decisions, true, output::width()), &colours(&decisions, true))?;
        }
        return Ok(Done::Ok);
    }
    let mut follower = Follower { since, seen: HashSet::new() };
    let (mut has_header, mut has_complained) = (true, false);
    loop {
        let mut new = follower.unseen(decisions);
        new.reverse();
        if args.client.json {
            for decision in &new {
                output::print_json(decision)?;
            }
        } else if !new.is_empty() {
            output::print_painted(&text(&new, has_header, output::width()), &colours(&new, has_header))?;
            has_header = false;
        }
        std::thread::sleep(FOLLOW_PAUSE);
        decisions = match client::block_on(args.read(follower.since, u32::MAX)) {
            Ok(decisions) => {
                has_complained = false;
                decisions
            }
            Err(failure) if watch::may_pass(&failure) => {
                if !std::mem::replace(&mut has_complained, true) {
                    output::complain(&format!("{failure}; trying again"));
                }
                Vec::new()
            }
            Err(failure) => return Err(failure),
        };
    }
}

/// The decisions that `--follow` has shown.
struct Follower {
    /// The time of the newest one that was shown.
    since: Option<u64>,
    /// Those of that time, which the next read finds again.
    seen: HashSet<(String, String)>,
}

impl Follower {
    /// The decisions that were not shown yet, the newest first.
    fn unseen(&mut self, decisions: Vec<Decision>) -> Vec<Decision> {
        let identity = |one: &Decision| (one.lease_id.clone(), one.outcome.clone());
        let newest = decisions.first().map_or(self.since, |one| Some(one.at_unix_ms));
        let is_known = |one: &Decision| Some(one.at_unix_ms) == self.since && self.seen.contains(&identity(one));
        let new: Vec<Decision> = decisions.into_iter().filter(|one| !is_known(one)).collect();
        if newest != self.since {
            self.seen.clear();
        }
        self.seen.extend(new.iter().filter(|one| Some(one.at_unix_ms) == newest).map(identity));
        self.since = newest;
        new
    }
}

/// A time in the past, in milliseconds of Unix time.
fn ago(seconds: u32) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(Duration::from_secs(seconds.into())).as_millis()).unwrap_or(u64::MAX)
}

impl DecisionsArgs {
    /// The newest decisions, page by page.
    async fn read(&self, since: Option<u64>, count: u32) -> Result<Vec<Decision>, Failure> {
        let client = Client::new(&self.client.url())?;
        let (mut all, mut after): (Vec<Decision>, Option<String>) = (Vec::new(), None);
        let until = self.until.map(ago);
        loop {
            let rest = count.saturating_sub(u32::try_from(all.len()).unwrap_or(u32::MAX));
            let path = self.path((since, until), after.as_deref(), rest.min(PAGE_MAX));
            let page: Page = client.call(Method::GET, &path, None).await?;
            all.extend(page.decisions);
            match page.next {
                Some(next) if all.len() < count as usize => after = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }

    fn path(&self, (since, until): (Option<u64>, Option<u64>), after: Option<&str>, page_size: u32) -> String {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let filters = [
            ("key", self.key.clone()),
            ("actor", self.actor.as_ref().map(ToString::to_string)),
            ("job", self.job.as_ref().map(ToString::to_string)),
            ("outcome", self.outcome.map(|outcome| outcome.name().to_owned())),
            ("since", number(since)),
            ("until", number(until)),
            ("namespace", self.namespace.as_ref().map(ToString::to_string)),
            ("after", after.map(str::to_owned)),
        ];
        let filters = filters.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", encoded(&value?))));
        filters.fold(format!("/v1/decisions?page_size={page_size}"), |path, part| path + &part)
    }
}

/// A limit in words: its key, and what was asked and available of its capacity.
fn limit(limit: &Limit) -> String {
    let number = |amount: Option<u64>| amount.map_or_else(|| "?".to_owned(), |amount| thousands(amount.into()));
    match (limit.asked, limit.available, limit.capacity) {
        (None, None, None) => limit.key.clone(),
        (asked, None, None) => format!("{} ({} asked)", limit.key, number(asked)),
        (asked, available, capacity) => {
            format!("{} ({} asked, {} of {} available)", limit.key, number(asked), number(available), number(capacity))
        }
    }
}

/// The colours of the lines of a table of decisions: red for denials, yellow for refusals and timeouts.
fn colours(decisions: &[Decision], has_header: bool) -> Vec<Option<Colour>> {
    let header = has_header.then_some(Some(Colour::Bold));
    let each = decisions.iter().map(|one| match one.outcome.as_str() {
        "denied" => Some(Colour::Red),
        "refused" | "timeout" => Some(Colour::Yellow),
        _ => None,
    });
    header.into_iter().chain(each).collect()
}

/// A time. On a terminal, whose lines are short, it is that of today, or the date with it.
fn at(unix_ms: u64, is_terminal: bool) -> String {
    if !is_terminal {
        return output::date(unix_ms);
    }
    let [at, now] = [unix_ms, ago(0)].map(|time| utc(UnixMs::new(time)));
    match (at.split_once('T'), now.split_once('T')) {
        (Some((day, time)), Some((today, _))) if day == today => time.to_owned(),
        _ => at,
    }
}

/// The limits in the way, and the attributes of the call.
fn why(decision: &Decision) -> String {
    let limits: Vec<String> = decision.limits.iter().map(limit).collect();
    let limits = if limits.is_empty() { "by policy".to_owned() } else { limits.join(", ") };
    let attributes: Vec<String> = decision.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if attributes.is_empty() { limits } else { format!("{limits} for {}", attributes.join(", ")) }
}

/// A table of decisions, for a terminal of this width or for a pipe.
fn text(decisions: &[Decision], has_header: bool, width: Option<usize>) -> String {
    if decisions.is_empty() {
        return if has_header { "no decisions\n".to_owned() } else { String::new() };
    }
    let header = ["AT", "OUTCOME", "ACTOR", "JOB", "LEASE", "MORE", "LIMITS"].map(str::to_owned);
    let rows = decisions.iter().map(|one| {
        [
            at(one.at_unix_ms, width.is_some()),
            one.outcome.clone(),
            one.actor.clone(),
            one.job_id.clone().unwrap_or_else(|| "-".to_owned()),
            one.lease_id.clone(),
            if one.repeated == 0 { "-".to_owned() } else { format!("+{}", thousands(one.repeated.into())) },
            why(one),
        ]
    });
    fitted(&has_header.then_some(header).into_iter().chain(rows).collect::<Vec<_>>(), width)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        decisions: DecisionsArgs,
    }

    fn decision(at_unix_ms: u64, lease: &str) -> Decision {
        let full = Limit { key: "a:rpm".into(), asked: Some(1_500), available: Some(0), capacity: Some(60_000) };
        let foreign = Limit { key: "!default:b".into(), asked: None, available: None, capacity: None };
        Decision {
            at_unix_ms,
            outcome: "denied".into(),
            lease_id: lease.into(),
            job_id: None,
            actor: "client:web".into(),
            attributes: BTreeMap::new(),
            limits: vec![full, foreign],
            repeated: 1_234,
        }
    }

    #[test]
    fn a_decision_is_a_row_with_its_limits() {
        let date = output::date(0);
        let blank = " ".repeat(date.len() - 2);
        assert_eq!(
            text(&[decision(0, "L")], true, None),
            format!(
                "AT{blank}  OUTCOME  ACTOR       JOB  LEASE  MORE    LIMITS\n\
                 {date}  denied   client:web  -    L      +1,234  a:rpm (1,500 asked, 0 of 60,000 available), !default:b\n"
            )
        );
        assert_eq!(text(&[], true, None), "no decisions\n");
        assert_eq!(text(&[], false, None), "");
        let attributes = BTreeMap::from([("tenant".into(), "acme".into()), ("model".into(), "gpt-4o".into())]);
        let call = Decision { attributes, limits: Vec::new(), ..decision(0, "L") };
        let row = text(&[call], false, Some(200));
        assert!(row.starts_with("1970-01-01T00:00:00Z  denied") && !row.contains("ago"), "{row}");
        assert!(row.ends_with("  by policy for model=gpt-4o, tenant=acme\n"), "{row}");
        assert!(!at(ago(0), true).contains('T'), "the time of today");
    }

    #[test]
    fn the_query_has_what_was_asked_for() {
        let words = "decisions --key !default:a --actor client:web --job j --outcome timeout --namespace team";
        let args = Wrapper::try_parse_from(words.split_whitespace()).unwrap().decisions;
        assert_eq!(
            args.path((Some(5), Some(9)), Some("77"), 3),
            "/v1/decisions?page_size=3&key=%21default:a&actor=client:web&job=j&outcome=timeout&since=5&until=9\
             &namespace=team&after=77"
        );
        assert!(Wrapper::try_parse_from(["decisions", "--follow", "--until", "1h"]).is_err());
    }

    #[test]
    fn followed_decisions_are_shown_once() {
        let mut follower = Follower { since: None, seen: HashSet::new() };
        let leases = |decisions: Vec<Decision>| decisions.into_iter().map(|one| one.lease_id).collect::<Vec<_>>();
        assert_eq!(leases(follower.unseen(vec![decision(2, "B"), decision(1, "A")])), ["B", "A"]);
        assert_eq!(leases(follower.unseen(vec![decision(2, "C"), decision(2, "B")])), ["C"]);
        assert_eq!(leases(follower.unseen(vec![decision(2, "C"), decision(2, "B")])), [""; 0]);
        assert_eq!(leases(follower.unseen(vec![decision(3, "D"), decision(2, "C"), decision(2, "B")])), ["D"]);
        assert_eq!(leases(follower.unseen(Vec::new())), [""; 0]);
        assert_eq!(follower.since, Some(3));
    }
}
