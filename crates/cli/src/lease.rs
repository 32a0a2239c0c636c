//! `earmark lease`: show a lease.

use clap::Args;
use earmark_core::LeaseId;
use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
A lease is shown while it is remembered: until it has ended, and for the retention after that. Limits on TigerBeetle do
not store the job: only the server that took the reserve knows it, until it restarts.

Examples:
  earmark lease 01ARZ3NDEKTSV4RRFFQ69G5FAV
  earmark lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --json";

#[derive(Args, Debug)]
pub(crate) struct LeaseArgs {
    /// Id of the lease, as printed by reserve
    #[arg(value_name = "ULID")]
    lease: LeaseId,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Deserialize, Serialize)]
struct Answer {
    lease: Lease,
}

#[derive(Debug, Deserialize, Serialize)]
struct Lease {
    lease_id: String,
    reserved_at_unix_ms: u64,
    requirements: Vec<Requirement>,
    state: String,
    job_id: Option<String>,
    extensions: u32,
    used: Vec<Used>,
    ends_at_unix_ms: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Used {
    key: String,
    actual_amount: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Requirement {
    key: String,
    amount: u64,
}

pub(crate) fn run(args: &LeaseArgs) -> Result<Done, Failure> {
    let answer: Answer = request::get(&args.client, &format!("/v1/leases/{}", args.lease))?;
    output::show(args.client.json, &answer.lease, Lease::text)?;
    Ok(Done::Ok)
}

impl Lease {
    fn text(&self) -> String {
        let job = self.job_id.as_deref().map(|job| format!(", job {}", output::visible(job))).unwrap_or_default();
        let reserved = match self.reserved_at_unix_ms {
            0 => String::new(),
            at => format!(", reserved at {}", output::date(at)),
        };
        let mut end = match self.ends_at_unix_ms {
            0 => String::new(),
            at => format!(", runs out at {}", output::date(at)),
        };
        match self.extensions {
            0 => {}
            1 => end += ", extended once",
            count => end += &format!(", extended {} times", output::thousands(count.into())),
        }
        let mut text =
            format!("{} is {}{reserved}{end}{job}\n", output::visible(&self.lease_id), output::visible(&self.state));
        for Requirement { key, amount } in &self.requirements {
            text.push_str(&format!("  {} of {}\n", output::thousands((*amount).into()), output::visible(key)));
        }
        for Used { key, actual_amount } in &self.used {
            let amount = output::thousands((*actual_amount).into());
            text.push_str(&format!("  {amount} of {} used so far\n", output::visible(key)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_shown_with_its_job_and_reservations() {
        let requirement = Requirement { key: "tpm".into(), amount: 1_500 };
        let mut lease = Lease {
            lease_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
            reserved_at_unix_ms: 0,
            requirements: vec![requirement],
            state: "live".into(),
            job_id: Some("nightly".into()),
            extensions: 0,
            used: Vec::new(),
            ends_at_unix_ms: 0,
        };
        assert_eq!(lease.text(), "01ARZ3NDEKTSV4RRFFQ69G5FAV is live, job nightly\n  1,500 of tpm\n");
        lease.job_id = None;
        lease.reserved_at_unix_ms = 1_700_000_000_000;
        assert!(lease.text().contains("is live, reserved at 2023-11-14"), "{}", lease.text());
        (lease.extensions, lease.ends_at_unix_ms) = (2, 1_700_000_060_000);
        lease.used = vec![Used { key: "tpm".into(), actual_amount: 1_200 }];
        let text = lease.text();
        assert!(text.contains(", runs out at 2023-11-14"), "{text}");
        assert!(text.contains(", extended 2 times\n"), "{text}");
        assert!(text.ends_with("  1,500 of tpm\n  1,200 of tpm used so far\n"), "{text}");
    }
}
