//! `earmark complete`: report the actual usage of a lease.

use clap::Args;
use earmark_core::{JobId, LeaseId, SettleLabels};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::amount::{self, KeyAmount};
use crate::client::ClientArgs;
use crate::explain;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
The unused part of the reservation is released at once. A key without --actual counts as fully used: a rolling limit
keeps the reserved amount, and a credit limit charges the whole hold. Concurrency is always released. Completing a
lease twice changes nothing.

Exit codes:
  0  completed, now or before
  1  failure, such as no answer
  2  wrong command line
  4  the server does not know the lease, so nothing was settled: it was never reserved, or ended long ago

Examples:
  earmark complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --actual gpt-4o:tpm=1234
  earmark complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --actual acme:usd=52 --label model=gpt-4o --label user=u1
  earmark complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --json";

#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// Id of the lease, as printed by reserve
    #[arg(long, value_name = "ULID")]
    lease: LeaseId,
    /// A limit and the amount that the call used, which may be 0; may be repeated
    #[arg(long = "actual", value_name = "KEY=AMOUNT", value_parser = amount::actual)]
    actuals: Vec<KeyAmount>,
    /// A label of the settlement, which statements group by; up to 8
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = explain::attribute)]
    labels: Vec<(String, String)>,
    /// Your own id for the work behind the call, for logs
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    error: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default)]
    reconciled: bool,
}

pub(crate) fn run(args: &CompleteArgs) -> Result<Done, Failure> {
    amount::check_keys("--actual", args.actuals.iter().map(|actual| &actual.key))?;
    let actuals: Value = args.actuals.iter().map(|actual| actual.json("actual_amount")).collect();
    let mut body = json!({"actuals": actuals});
    if !args.labels.is_empty() {
        let labels = SettleLabels::new(args.labels.iter().map(|(name, value)| (name, value)));
        let labels = labels.map_err(|error| Failure::Usage(format!("--label: {error}")))?;
        body["labels"] = labels.iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    }
    let lease = (args.lease, args.job.as_ref());
    let answer: Answer = request::post_lease(&args.client, "/v1/complete", lease, body)?;
    if args.client.json {
        request::print_lease_json(args.lease, &answer)?;
    } else if answer.done() == Done::Ok {
        output::print(&format!("completed, lease {}\n", args.lease))?;
    } else {
        output::complain(&format!("earmark: {}", answer.failure(args.lease)));
    }
    Ok(answer.done())
}

impl Answer {
    fn done(&self) -> Done {
        match (self.ok, self.reconciled) {
            (true, true) => Done::Ok,
            (true, false) => Done::UnknownLease,
            (false, _) => Done::Failed,
        }
    }

    fn failure(&self, lease: LeaseId) -> String {
        let message = output::visible(self.message.as_deref().unwrap_or("no reason given"));
        match self.done() {
            Done::UnknownLease => format!("nothing was settled, lease {lease} is unknown: {message}"),
            _ => format!("the server refused ({}): {message}", output::visible(&self.error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_lease_is_neither_a_success_nor_a_refusal() {
        let settled = Answer { ok: true, reconciled: true, ..Answer::default() };
        assert_eq!(settled.done(), Done::Ok);
        let unknown = Answer { ok: true, message: Some("no such lease".into()), ..Answer::default() };
        assert_eq!(unknown.done(), Done::UnknownLease);
        assert_eq!(
            unknown.failure(LeaseId::from_u128(1)),
            "nothing was settled, lease 00000000000000000000000001 is unknown: no such lease"
        );
        assert_eq!(Answer::default().done(), Done::Failed);
    }
}
