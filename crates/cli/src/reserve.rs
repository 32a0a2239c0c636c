//! `earmark reserve`: reserve from all named limits or from none.

use std::time::Duration;

use clap::Args;
use earmark_core::{JobId, LeaseId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::amount::{self, KeyAmount};
use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
Exit codes:
  0  allowed
  1  failure, such as no answer or an unknown key
  2  wrong command line
  3  denied: try again later, with a new lease

Examples:
  earmark reserve --key gpt-4o:rpm=1 --key gpt-4o:tpm=4000 --key gpt-4o:concurrency=1
  LEASE=$(earmark reserve --key gpt-4o:tpm=4000 --json | jq -r .lease_id)
  earmark reserve --key own:rpm=1 --key '!default:gpt-4o:rpm=1'      # a shared limit of another namespace";

#[derive(Args, Debug)]
pub(crate) struct ReserveArgs {
    /// A limit and the amount to reserve; may be repeated for up to 32 limits
    #[arg(long = "key", value_name = "KEY=AMOUNT", required = true, value_parser = amount::requirement)]
    keys: Vec<KeyAmount>,
    /// Id of the lease; give it to repeat a reserve whose answer was lost [default: a new id]
    #[arg(long, value_name = "ULID")]
    lease: Option<LeaseId>,
    /// Your own id for the work behind the call, for logs and kept with the lease
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Answer {
    allowed: bool,
    #[serde(default)]
    retry_after_ms: Option<u64>,
    #[serde(default)]
    reserved_at_unix_ms: Option<u64>,
    #[serde(default)]
    error: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limited_by: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    never: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<String>,
}

pub(crate) fn run(args: &ReserveArgs) -> Result<Done, Failure> {
    amount::check_keys("--key", args.keys.iter().map(|requirement| &requirement.key))?;
    let lease = args.lease.unwrap_or_else(|| LeaseId::from_u128(ulid::Ulid::generate().0));
    let keys: Value = args.keys.iter().map(|requirement| requirement.json("amount")).collect();
    let body = json!({"requirements": keys});
    let answer: Answer = request::post_lease(&args.client, "/v1/reserve", (lease, args.job.as_ref()), body)?;
    let done = answer.done();
    if args.client.json {
        request::print_lease_json(lease, &answer)?;
    } else if done == Done::Failed {
        let (error, why) = (output::visible(&answer.error), output::visible(answer.explanation()));
        output::complain(&format!("earmark: the server refused ({error}): {why}"));
    } else {
        output::print(&answer.text(lease, &args.keys))?;
    }
    Ok(done)
}

/// An explanation of an error code, for a server that gives none.
pub(crate) fn explain(error: &str) -> &'static str {
    match error.split(':').next().unwrap_or_default() {
        "unknown_limit_key" => "no limit has this key; list them with: earmark limits list",
        "limit_decreasing" => "the capacity of this limit is being decreased, and open reservations still exceed it",
        "limit_paused" => "this limit is paused",
        "insufficient_credit" => "the account has too little credit",
        "account_not_found" => "the account or its vault does not exist; open it with: earmark write",
        "exceeds_capacity" => "the amount exceeds the capacity of the limit",
        "lease_expired" => "this lease was completed or has expired; use a new one",
        _ => "no reason given",
    }
}

impl Answer {
    fn done(&self) -> Done {
        let word = self.error.split(':').next().unwrap_or_default();
        match word {
            _ if self.allowed => Done::Ok,
            "" | "lease_expired" | "limit_decreasing" | "limit_paused" | "insufficient_credit" | "exceeds_capacity" => {
                Done::Denied
            }
            _ => Done::Failed,
        }
    }

    /// The server's message, or an explanation of the error code.
    fn explanation(&self) -> &str {
        self.message.as_deref().unwrap_or(explain(&self.error))
    }

    fn text(&self, lease: LeaseId, keys: &[KeyAmount]) -> String {
        if self.allowed {
            let actuals: String = keys
                .iter()
                .map(|part| format!(" --actual {}", output::shell_word(&format!("{}=AMOUNT", part.key))))
                .collect();
            let mut text = format!("allowed, lease {lease}\n");
            if !self.would_deny.is_empty() {
                let keys = output::visible(&self.would_deny.join(", ")).to_string();
                text += &format!("if they were enforced, these limits would deny it: {keys}\n");
            }
            return text + &format!("when done: earmark complete --lease {lease}{actuals}\n");
        }
        let mut text = format!("denied, lease {lease}\n");
        if !self.error.is_empty() {
            let (error, why) = (output::visible(&self.error), output::visible(self.explanation()));
            text += &format!("because:    {why} ({error})\n");
        }
        if let Some(limited_by) = self.limited_by.as_deref().filter(|keys| !keys.is_empty()) {
            text += &format!("limited by: {}\n", output::visible(&limited_by.join(", ")));
        }
        if self.never == Some(true) {
            text += "try again:  never with this amount; it exceeds the capacity\n";
        } else if let Some(ms) = self.retry_after_ms.filter(|ms| *ms > 0) {
            // These refusals are not remembered, so the same lease may try again.
            let word = self.error.split(':').next().unwrap_or_default();
            let lease = match word {
                "limit_paused" | "limit_decreasing" => "the same",
                _ => "a new",
            };
            text += &format!("try again:  in {}, with {lease} lease\n", output::time(Duration::from_millis(ms)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(error: &str) -> Answer {
        Answer { error: error.into(), ..Answer::default() }
    }

    #[test]
    fn a_denial_is_not_a_failure_and_a_wrong_request_is() {
        assert_eq!(Answer { allowed: true, ..Answer::default() }.done(), Done::Ok);
        for error in ["", "lease_expired", "limit_decreasing:a:b", "insufficient_credit:a", "exceeds_capacity:a"] {
            assert_eq!(denied(error).done(), Done::Denied, "{error}");
        }
        for error in ["invalid_request", "unknown_limit_key:a", "overloaded", "backend_error", "other"] {
            assert_eq!(denied(error).done(), Done::Failed, "{error}");
        }
    }

    #[test]
    fn a_denial_names_the_limits_and_when_to_try_again() {
        let lease = LeaseId::from_u128(1);
        let answer =
            Answer { retry_after_ms: Some(1_500), limited_by: Some(vec!["tpm".into(), "rpm".into()]), ..denied("") };
        assert_eq!(
            answer.text(lease, &[]),
            "denied, lease 00000000000000000000000001\n\
             limited by: tpm, rpm\n\
             try again:  in 1.5 s, with a new lease\n"
        );
        for error in ["limit_paused:rpm", "limit_decreasing:rpm"] {
            let text = Answer { retry_after_ms: Some(500), ..denied(error) }.text(lease, &[]);
            assert!(text.ends_with("try again:  in 500 ms, with the same lease\n"), "{text}");
        }
        let never = Answer { never: Some(true), ..denied("") };
        assert!(never.text(lease, &[]).ends_with("never with this amount; it exceeds the capacity\n"));
    }

    #[test]
    fn an_allowed_reserve_shows_how_to_complete_it() {
        let keys = [amount::requirement("rpm=1").unwrap()];
        let answer = Answer { allowed: true, ..Answer::default() };
        assert_eq!(
            answer.text(LeaseId::from_u128(1), &keys),
            "allowed, lease 00000000000000000000000001\n\
             when done: earmark complete --lease 00000000000000000000000001 --actual rpm=AMOUNT\n"
        );
        let shadow = Answer { would_deny: vec!["rpm".into(), "tpm".into()], ..answer };
        assert_eq!(
            shadow.text(LeaseId::from_u128(1), &[]),
            "allowed, lease 00000000000000000000000001\n\
             if they were enforced, these limits would deny it: rpm, tpm\n\
             when done: earmark complete --lease 00000000000000000000000001\n"
        );
    }
}
