//! A tenant that runs out of credit, and continues once it has paid.
//!
//! ```sh
//! cargo run -p earmark-client --example out_of_credit
//! ```

use std::error::Error;
use std::time::Duration;

use earmark_client::core::{
    AccountName, CreditTerms, Definition, GrantTerms, Kind, Operation, Overage, Overdraft, VaultName,
};
use earmark_client::{
    AcquireError, Actuals, Client, Deadline, Job, Limiter, LimiterOptions, LocalOptions, Scope, Writer, WriterOptions,
};

/// The maximum and the actual cost of a call.
const HELD: u64 = 300;
const COST: u64 = 250;

/// The result of the example.
pub struct Report {
    /// The number of calls that the first credit paid for.
    pub before: u64,
    /// The number of calls after the second payment.
    pub after: u64,
    /// The credit that is left.
    pub left: i128,
    /// The revenue.
    pub earned: i128,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Makes calls until the credit is used up.
async fn spend(limiter: &Limiter, job: &Job) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let key = job.requirements()[0].0.clone();
    let mut calls = 0;
    loop {
        // Missing credit is an error at once, because waiting does not help.
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

/// Runs the example.
pub async fn run(folder: &std::path::Path) -> Result<Report, Box<dyn Error + Send + Sync>> {
    let client = Client::local(LocalOptions::default())?;
    let (main, acme): (VaultName, AccountName) = ("main".parse()?, "acme".parse()?);
    let scope = Scope { namespace: "default".parse()?, vault: Some(main.clone()) };
    let options = WriterOptions::new(folder.join("billing.sequence"), scope, "billing".parse()?);
    let mut billing = Writer::open(&client, options, soon()).await?;
    let issue = |amount| -> Result<Operation, Box<dyn Error + Send + Sync>> {
        let (account, asset) = (acme.clone(), "usd".parse()?);
        Ok(Operation::Issue { account, asset, amount, memo: "paid by card".into(), terms: GrantTerms::PLAIN })
    };
    let open = Operation::OpenAccount { account: acme.clone(), overdraft: Overdraft::Deny, plan: None };
    billing.write(vec![open, issue(1_000)?], soon()).await?;
    let terms = CreditTerms {
        timeout_seconds: 600,
        vault: main.clone(),
        account: acme.clone(),
        asset: "usd".parse()?,
        revenue: "revenue".parse()?,
        on_timeout: Default::default(),
    };
    let limit = Definition {
        key: "acme:usd".parse()?,
        kind: Kind::Credit(terms),
        capacity: 0,
        unit: "micro-dollars".into(),
        description: String::new(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    };
    client.put_limit(&limit, soon()).await?;
    let limiter = Limiter::new(&client, LimiterOptions::default())?;
    let job = Job::new([(limit.key.clone(), HELD)])?;

    let before = spend(&limiter, &job).await?;
    billing.write(vec![issue(500)?], soon()).await?;
    let after = spend(&limiter, &job).await?;
    billing.close().await?;
    let available = |balances: Vec<earmark_client::core::BalanceInfo>| balances.first().map_or(0, |one| one.available);
    let left = available(client.balances(&main, &acme, soon()).await?);
    let earned = available(client.balances(&main, &"revenue".parse()?, soon()).await?);
    Ok(Report { before, after, left, earned })
}

#[allow(dead_code, reason = "a test runs the example without `main`")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let Report { before, after, left, earned } = run(folder.path()).await?;
    println!("{before} calls, then no credit; {after} more once it had paid; {left} left, {earned} earned");
    Ok(())
}
