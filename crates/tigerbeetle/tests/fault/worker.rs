//! Earmark as a child process: commands on standard input, answers on standard output.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::Answer;
use earmark_core::LeaseId;
use earmark_tigerbeetle::{LedgerUrl, TigerBeetleLimits, TigerBeetleOptions};
use tokio::sync::oneshot;

use crate::load::{self, AnswerKind, RequestTarget};

/// Environment variable with the server address, for the child process.
const ADDRESS: &str = "EARMARK_FAULT_ADDRESS";

/// Answers commands until it is killed. Does nothing outside the child process.
pub async fn work() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let url: LedgerUrl = format!("tigerbeetle://{address}").parse().unwrap();
    let options = TigerBeetleOptions { deadline: Duration::from_secs(2), ..TigerBeetleOptions::new(url) };
    let limits = Arc::new(TigerBeetleLimits::open(options, load::registry()).await.unwrap());
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = lines.recv().await {
        let limits = Arc::clone(&limits);
        tokio::spawn(async move {
            let parts: Vec<&str> = line.split(' ').collect();
            let [what, number, lease, tokens] = parts[..] else { panic!("{line}") };
            let (lease, tokens) = (lease.parse().unwrap(), tokens.parse().unwrap());
            let word = match what {
                "reserve" => load::reserve(&limits, lease, tokens).await,
                "complete" => load::complete(&limits, lease, tokens).await,
                other => panic!("{other}"),
            };
            if let Ok(word) = word {
                println!("answer {number} {word:?}");
            } else {
                println!("answer {number} none");
            }
        });
    }
}

/// The running child process, and the commands without an answer.
pub struct Workers {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    numbers: AtomicU64,
}

#[derive(Default)]
struct State {
    child: Option<std::process::Child>,
    waiting: HashMap<u64, (String, oneshot::Sender<Option<AnswerKind>>)>,
}

impl Workers {
    pub async fn start(address: SocketAddr) -> Workers {
        let workers = Workers { address, state: Arc::default(), numbers: AtomicU64::new(0) };
        workers.spawn();
        workers
    }

    /// Kills the child process and starts another, which gets all unanswered commands.
    pub async fn kill_and_start(&self) {
        let child = self.state.lock().unwrap().child.take();
        if let Some(mut child) = child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.spawn();
    }

    fn spawn(&self) {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_worker_does_as_it_is_told", "--nocapture"])
            .env(ADDRESS, self.address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        let state = Arc::clone(&self.state);
        std::thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split(' ').collect();
                let ["answer", number, word] = words[..] else { continue };
                let waiting = state.lock().unwrap().waiting.remove(&number.parse::<u64>().unwrap());
                if let Some((_, answer)) = waiting {
                    _ = answer.send(read(word));
                }
            }
        });
        let mut state = self.state.lock().unwrap();
        let lines: String = state.waiting.values().map(|(line, _)| line.as_str()).collect();
        _ = child.stdin.as_mut().unwrap().write_all(lines.as_bytes());
        state.child = Some(child);
    }

    fn ask(&self, what: &str, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>> {
        let number = self.numbers.fetch_add(1, Ordering::SeqCst);
        let (sender, answer) = oneshot::channel();
        let line = format!("{what} {number} {lease} {tokens}\n");
        let mut state = self.state.lock().unwrap();
        if let Some(child) = &mut state.child {
            _ = child.stdin.as_mut().unwrap().write_all(line.as_bytes());
        }
        state.waiting.insert(number, (line, sender));
        Box::pin(async { answer.await.unwrap() })
    }
}

fn read(word: &str) -> Option<AnswerKind> {
    let words = [
        AnswerKind::Allowed,
        AnswerKind::Denied,
        AnswerKind::Ended,
        AnswerKind::Reconciled,
        AnswerKind::Unreconciled,
        AnswerKind::Other,
    ];
    words.into_iter().find(|known| format!("{known:?}") == word)
}

impl RequestTarget for Workers {
    fn reserve(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>> {
        self.ask("reserve", lease, tokens)
    }

    fn complete(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>> {
        self.ask("complete", lease, tokens)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(mut child) = self.state.lock().unwrap().child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
