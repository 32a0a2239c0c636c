//! A pool of workers that call a model within the limits of its provider.
//!
//! ```sh
//! cargo run -p earmark-client --example worker_pool
//! ```
//!
//! The provider is a fake that counts the calls a real one would refuse. The limits are in a Book in this process; with
//! [`Client::new`] they are on a server, and nothing else changes.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_client::core::{Definition, Kind, LimitKey};
use earmark_client::llm::{Bytes, Model, Usage};
use earmark_client::{
    Client, Deadline, Guard, Limiter, LimiterOptions, LocalOptions, Priority, Scheduler, SchedulerOptions, Task,
};
use serde_json::{Value, json};

const CALLS_AT_ONCE: u64 = 5;
const JOBS: u64 = 200;

/// A provider that allows 5 concurrent calls, and responds with a usage block.
#[derive(Default)]
struct Provider {
    calls: AtomicU64,
    most_at_once: AtomicU64,
    refused: AtomicU64,
}

impl Provider {
    async fn complete(&self, prompt: &str) -> Value {
        let at_once = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        if at_once > CALLS_AT_ONCE {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
        self.calls.fetch_sub(1, Ordering::SeqCst);
        let tokens = prompt.len() / 4;
        json!({"text": "ok", "usage": {"prompt_tokens": tokens, "completion_tokens": 2, "total_tokens": tokens + 2}})
    }
}

fn limit(key: &LimitKey, kind: Kind, capacity: u64) -> Definition {
    Definition::new(key.clone(), kind, capacity)
}

/// The result of the example.
pub struct Report {
    /// The number of calls.
    pub done: u64,
    /// The number of calls that the provider would have refused.
    pub refused: u64,
    /// The most concurrent calls.
    pub most_at_once: u64,
    /// The tokens that count against the limit at the end.
    pub tokens: u64,
}

/// Runs the pool.
pub async fn run() -> Result<Report, Box<dyn Error + Send + Sync>> {
    let soon = || Deadline::after(Duration::from_secs(60));
    let client = Client::local(LocalOptions::default())?;
    let model = Model::new("fake", "model-1")?;
    for definition in [
        limit(model.rpm(), Kind::Rolling { window_seconds: 60 }, 10_000),
        limit(model.tpm(), Kind::Rolling { window_seconds: 60 }, 1_000_000),
        limit(model.concurrency(), Kind::Concurrency { timeout_seconds: 600 }, CALLS_AT_ONCE),
    ] {
        client.put_limit(&definition, soon()).await?;
    }
    let limiter = Limiter::new(&client, LimiterOptions::default())?;
    let provider = Arc::new(Provider::default());
    let (called, of_work) = (Arc::clone(&provider), model.clone());
    let scheduler = Scheduler::start(&limiter, SchedulerOptions::default(), move |prompt: String, guard: Guard| {
        let (provider, model) = (Arc::clone(&called), of_work.clone());
        async move {
            let answer = provider.complete(&prompt).await;
            let actuals = model.call(&Bytes, &prompt, 16).actuals(Usage::in_answer(&answer));
            guard.complete(actuals).await.map(|completed| completed.reconciled)
        }
    })?;
    let mut handles = Vec::new();
    for number in 0..JOBS {
        let prompt = format!("Question number {number}: what is the answer?");
        handles.push(scheduler.submit(Task {
            lane: model.lane().clone(),
            priority: if number % 10 == 0 { Priority::High } else { Priority::Normal },
            job: model.call(&Bytes, &prompt, 16).job()?,
            payload: prompt,
            deadline: soon(),
        })?);
    }
    let mut done = 0;
    for handle in handles {
        done += u64::from(handle.outcome().await??);
    }
    scheduler.drain(soon()).await;
    Ok(Report {
        done,
        refused: provider.refused.load(Ordering::SeqCst),
        most_at_once: provider.most_at_once.load(Ordering::SeqCst),
        tokens: client.usage(model.tpm(), soon()).await?.reserved,
    })
}

#[allow(dead_code, reason = "a test runs the example without `main`")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let Report { done, refused, most_at_once, tokens } = run().await?;
    println!("{done} calls, at most {most_at_once} at once, {refused} refused by the provider, {tokens} tokens");
    Ok(())
}
