//! `earmark extend`: take more for a live lease, move its end, and report its usage.

use std::time::Duration;

use clap::Args;
use earmark_client::http::Method;
use earmark_core::{EXTENSIONS_MAX, LeaseId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::amount::{self, KeyAmount};
use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
Extensions of a lease are numbered 1, 2, 3 and so on. Repeat a number with the same arguments if its answer was lost: it
takes nothing twice. The lease keeps the amounts that it has when an extension is denied.

Exit codes:
  0  extended
  1  failure, such as no answer, an unknown key or a number out of order
  2  wrong command line
  3  denied; or the lease has ended, so that a new one is needed

Examples:
  earmark extend --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --number 1
  earmark extend --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --number 2 --add gpt-4o:tpm=2000 --used gpt-4o:tpm=3500
  earmark extend --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --number 3 --no-renew --used acme:usd=120 --json";

#[derive(Args, Debug)]
pub(crate) struct ExtendArgs {
    /// Id of the lease, as printed by reserve
    #[arg(long, value_name = "ULID")]
    lease: LeaseId,
    /// Number of the extension: 1 for the first, then one more than the last
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(EXTENSIONS_MAX)))]
    number: u32,
    /// A limit and the amount to take, all or nothing; may be repeated, and may name a new limit
    #[arg(long = "add", value_name = "KEY=AMOUNT", value_parser = amount::requirement)]
    add: Vec<KeyAmount>,
    /// A limit and its usage so far, which is charged even if the lease runs out; may be repeated
    #[arg(long = "used", value_name = "KEY=AMOUNT", value_parser = amount::actual)]
    used: Vec<KeyAmount>,
    /// Leave the end of the lease where it is
    #[arg(long)]
    no_renew: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Answer {
    allowed: bool,
    #[serde(default)]
    retry_after_ms: u64,
    #[serde(default)]
    error: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limited_by: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    never: Option<bool>,
    #[serde(default)]
    ends_at_unix_ms: u64,
}

pub(crate) fn run(args: &ExtendArgs) -> Result<Done, Failure> {
    amount::check_keys("--add", args.add.iter().map(|part| &part.key))?;
    amount::check_keys("--used", args.used.iter().map(|part| &part.key))?;
    let parts = |parts: &[KeyAmount], field| parts.iter().map(|part| part.json(field)).collect::<Value>();
    let body = json!({
        "lease_id": args.lease.to_string(), "extension": args.number, "renew": !args.no_renew,
        "add": parts(&args.add, "amount"), "used": parts(&args.used, "actual_amount"),
    });
    let answer: Result<Answer, Failure> = request::send(&args.client, Method::POST, "/v1/extend", &body);
    let answer = answer.map_err(|failure| failure.of_lease(args.lease))?;
    let done = answer.done();
    if args.client.json {
        request::print_lease_json(args.lease, &answer)?;
    } else if done == Done::Failed {
        let (error, why) = (output::visible(&answer.error), output::visible(answer.explanation()));
        output::complain(&format!("earmark: the server refused ({error}): {why}"));
    } else {
        output::print(&answer.text(args))?;
    }
    Ok(done)
}

impl Answer {
    fn done(&self) -> Done {
        match self.error.split(':').next().unwrap_or_default() {
            _ if self.allowed => Done::Ok,
            "" | "lease_expired" | "limit_decreasing" | "limit_paused" | "insufficient_credit" | "exceeds_capacity" => {
                Done::Denied
            }
            _ => Done::Failed,
        }
    }

    /// Whether the next attempt needs the next number.
    fn uses_number(&self) -> bool {
        let word = self.error.split(':').next().unwrap_or_default();
        self.allowed || matches!(word, "" | "insufficient_credit" | "exceeds_capacity")
    }

    fn explanation(&self) -> &str {
        let known = crate::reserve::explain(&self.error);
        self.message.as_deref().unwrap_or(known)
    }

    fn text(&self, args: &ExtendArgs) -> String {
        let ExtendArgs { lease, number, .. } = args;
        if self.allowed {
            let end = match self.ends_at_unix_ms {
                0 => String::new(),
                at => format!(", runs out at {}", output::date(at)),
            };
            let note = self.message.as_deref().map(|note| format!("note: {}\n", output::visible(note)));
            return format!("extended, lease {lease}, number {number}{end}\n") + &note.unwrap_or_default();
        }
        let mut text = format!("denied, lease {lease}, number {number}\n");
        if !self.error.is_empty() {
            let (error, why) = (output::visible(&self.error), output::visible(self.explanation()));
            text += &format!("because:    {why} ({error})\n");
        }
        if !self.limited_by.is_empty() {
            text += &format!("limited by: {}\n", output::visible(&self.limited_by.join(", ")));
        }
        let next = if self.uses_number() { number.saturating_add(1) } else { *number };
        if self.never == Some(true) {
            text += "try again:  never with this amount; it exceeds the capacity\n";
        } else if self.retry_after_ms > 0 {
            let wait = output::time(Duration::from_millis(self.retry_after_ms));
            text += &format!("try again:  in {wait}, with number {next}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(number: u32) -> ExtendArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ExtendArgs,
        }
        let line = format!("extend --lease 00000000000000000000000001 --number {number}");
        <Line as clap::Parser>::try_parse_from(line.split(' ')).unwrap().args
    }

    #[test]
    fn an_extension_shows_the_new_end_and_the_note() {
        let answer = Answer {
            allowed: true,
            ends_at_unix_ms: 1_700_000_000_000,
            message: Some("ignored".into()),
            ..Answer::default()
        };
        assert_eq!(answer.done(), Done::Ok);
        let text = answer.text(&args(2));
        assert!(
            text.starts_with("extended, lease 00000000000000000000000001, number 2, runs out at 2023-11-14"),
            "{text}"
        );
        assert!(text.ends_with("\nnote: ignored\n"), "{text}");
    }

    #[test]
    fn a_denial_needs_the_next_number_and_a_refusal_the_same_one() {
        let denied = |error: &str| Answer {
            error: error.into(),
            retry_after_ms: 1_500,
            limited_by: vec!["tpm".into()],
            ..Answer::default()
        };
        for (error, next) in [("", 8), ("insufficient_credit:a", 8), ("limit_paused:a", 7), ("limit_decreasing:a", 7)] {
            assert_eq!(denied(error).done(), Done::Denied, "{error}");
            let text = denied(error).text(&args(7));
            assert!(text.ends_with(&format!("limited by: tpm\ntry again:  in 1.5 s, with number {next}\n")), "{text}");
        }
        for error in ["invalid_request", "unknown_limit_key:a", "overloaded", "backend_error"] {
            assert_eq!(denied(error).done(), Done::Failed, "{error}");
        }
        assert_eq!(denied("lease_expired").done(), Done::Denied);
    }
}
