//! Writers, each with its own sequence file and account.

use std::path::PathBuf;
use std::time::Duration;

use earmark_client::core::{GrantTerms, Operation, Overdraft};
use earmark_client::{Client, Deadline, Fate, Scope, WriteCode, Writer, WriterError, WriterOptions};

use crate::random::Random;
use crate::support::soon;

pub fn scope() -> Scope {
    Scope { namespace: "default".parse().unwrap(), vault: Some("main".parse().unwrap()) }
}

pub fn issue(account: &str, memo: &str) -> Vec<Operation> {
    let (account, asset) = (account.parse().unwrap(), "usd".parse().unwrap());
    vec![Operation::Issue { account, asset, amount: 1, memo: memo.to_owned(), terms: GrantTerms::PLAIN }]
}

/// A retirement that exceeds the credit of the account.
fn too_much(account: &str) -> Vec<Operation> {
    let (account, asset) = (account.parse().unwrap(), "usd".parse().unwrap());
    vec![Operation::Retire { account, asset, amount: 1 << 60, memo: "too much".into() }]
}

/// Writes, loses answers, and recovers the outcomes.
pub struct Scribe {
    pub client: Client,
    pub account: String,
    pub path: PathBuf,
    pub random: Random,
    /// Memos of the acknowledged writes.
    pub done: Vec<String>,
}

impl Scribe {
    pub async fn open(&self) -> Writer {
        let options = WriterOptions::new(&self.path, scope(), self.account.parse().unwrap());
        Writer::open(&self.client, options, soon()).await.unwrap()
    }

    pub async fn write(mut self, writes: u64) -> Scribe {
        let mut writer = self.open().await;
        let account = self.account.parse().unwrap();
        let open = vec![Operation::OpenAccount { account, overdraft: Overdraft::Deny, plan: None }];
        writer.write(open, soon()).await.unwrap();
        for count in 0..writes {
            let memo = format!("{}-{count}", self.account);
            if self.random.once_in(5) {
                self.refused(&mut writer).await;
                continue;
            }
            let operations = issue(&self.account, &memo);
            let deadline = match self.random.once_in(3) {
                true => Deadline::after(Duration::from_millis(self.random.below(40))),
                false => soon(),
            };
            let happened = match writer.write(operations.clone(), deadline).await {
                Ok(_) => true,
                Err(WriterError::NotSent(_)) => false,
                Err(WriterError::OutcomeUnknown { .. }) => {
                    if self.random.once_in(2) {
                        // Simulates a restart.
                        drop(writer);
                        writer = self.open().await;
                    }
                    self.find_out(&mut writer, operations).await
                }
                Err(error) => panic!("{error}"),
            };
            if happened {
                self.done.push(memo);
            }
        }
        writer.close().await.unwrap();
        self
    }

    /// A write that must be refused.
    async fn refused(&mut self, writer: &mut Writer) {
        match writer.write(too_much(&self.account), soon()).await {
            Err(WriterError::Refused(refusal)) => assert_eq!(refusal.code, WriteCode::InsufficientCredit),
            other => panic!("{other:?}"),
        }
    }

    async fn find_out(&mut self, writer: &mut Writer, operations: Vec<Operation>) -> bool {
        match self.random.once_in(2) {
            true => writer.settle(soon()).await.unwrap() == Some(Fate::Committed),
            false => match writer.repeat(operations, soon()).await {
                Ok(_) => true,
                Err(WriterError::Fenced { .. }) => false,
                Err(error) => panic!("{error}"),
            },
        }
    }
}
