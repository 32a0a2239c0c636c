//! A tenant that runs out of credit in the middle of its work, and goes on once it has paid.
//!
//! ```sh
//! cargo run -p earmark-client --example out_of_credit
//! ```

use std::error::Error;
use std::time::Duration;

use earmark_client::core::{
    AccountName, CreditTerms, Definition, Kind, Operation, Overage, Overdraft, VaultName,
};
use earmark_client::{
    AcquireError, Actuals, Client, Deadline, Job, Limiter, LimiterOptions, LocalOptions, Scope, Writer,
    WriterOptions,
};

/// What a call may cost at most, and what it does cost.
const HELD: u64 = 300;
const COST: u64 = 250;

/// What came of it.
pub struct Report {
    /// How many calls the first credit paid for.
    pub before: u64,
    /// How many went ahead after the second.
    pub after: u64,
    /// What is left, and what was earned.
    pub left: i128,
    /// What the provider of the service has earned.
    pub earned: i128,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Calls until there is no credit for the next one.
async fn spend(limiter: &Limiter, job: &Job) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let key = job.requirements()[0].0.clone();
    let mut calls = 0;
    loop {
        // Nothing is waited for: credit does not come back by itself.
        match limiter.acquire(job, soon()).await {
            Ok(guard) => {
                guard.complete(Actuals::unknown().used(key.clone(), COST)).await?;
                calls += 1;
            }
            Err(AcquireError::InsufficientCredit { .. }) => return Ok(calls),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the story.
pub async fn run(folder: &std::path::Path) -> Result<Report, Box<dyn Error + Send + Sync>> {
    let client = Client::local(LocalOptions::default())?;
    let (main, acme): (VaultName, AccountName) = ("main".parse()?, "acme".parse()?);
    let scope = Scope { namespace: "default".parse()?, vault: Some(main.clone()) };
    let options = WriterOptions::new(folder.join("billing.sequence"), scope, "billing".parse()?);
    let mut billing = Writer::open(&client, options, soon()).await?;
    let issue = |amount| -> Result<Operation, Box<dyn Error + Send + Sync>> {
        let (account, asset) = (acme.clone(), "usd".parse()?);
        Ok(Operation::Issue { account, asset, amount, memo: "paid by card".into() })
    };
    let open = Operation::OpenAccount { account: acme.clone(), overdraft: Overdraft::Deny };
    billing.write(vec![open, issue(1_000)?], soon()).await?;
    let terms = CreditTerms {
        timeout_seconds: 600,
        vault: main.clone(),
        account: acme.clone(),
        asset: "usd".parse()?,
        revenue: "revenue".parse()?,
    };
    let limit = Definition {
        key: "acme:usd".parse()?,
        kind: Kind::Credit(terms),
        capacity: 0,
        unit: "micro-dollars".into(),
        description: String::new(),
        overage: Overage::Debt,
    };
    client.put_limit(&limit, soon()).await?;
    let limiter = Limiter::new(&client, LimiterOptions::default())?;
    let job = Job::new([(limit.key.clone(), HELD)])?;

    let before = spend(&limiter, &job).await?;
    billing.write(vec![issue(500)?], soon()).await?;
    let after = spend(&limiter, &job).await?;
    billing.close().await?;
    let available =
        |balances: Vec<earmark_client::core::BalanceInfo>| balances.first().map_or(0, |one| one.available);
    let left = available(client.balances(&main, &acme, soon()).await?);
    let earned = available(client.balances(&main, &"revenue".parse()?, soon()).await?);
    Ok(Report { before, after, left, earned })
}

#[allow(dead_code, reason = "the test of the examples calls what is in it")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let Report { before, after, left, earned } = run(folder.path()).await?;
    println!("{before} calls, then no credit; {after} more once it had paid; {left} left, {earned} earned");
    Ok(())
}
