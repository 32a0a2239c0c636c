//! Reads that see everything that was acknowledged before they were asked for.

use std::time::Duration;

use earmark_core::UnixMs;
use openraft::error::{CheckIsLeaderError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ledger::Proposer;
use crate::types::Vote;

const RETRY: Duration = Duration::from_millis(20);

/// What a read needs: how far to have come, and as of when to read.
type Confirmed = Result<(Option<u64>, UnixMs), String>;

/// What this node led when it last stopped. A leader that starts again in its own term leads on at once, and knows no
/// longer how far it had committed: anything that its log had then may have been acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Led {
    pub(crate) vote: Vote,
    /// The last entry of its log.
    pub(crate) last: u64,
}

/// Asks the other nodes whether this one still leads, once for all reads that wait.
#[derive(Clone)]
pub(crate) struct Reads {
    proposer: Proposer,
    waiting: mpsc::UnboundedSender<oneshot::Sender<Confirmed>>,
}

impl Reads {
    pub(crate) fn start(proposer: Proposer, led: Option<Led>) -> Reads {
        let (waiting, mut receiver) = mpsc::unbounded_channel::<oneshot::Sender<Confirmed>>();
        let asked = proposer.clone();
        tokio::spawn(async move {
            while let Some(first) = receiver.recv().await {
                // Whoever comes while the others are asked must wait for the next time: it may have been told of
                // something that is newer than what they answer.
                let mut all = vec![first];
                while let Ok(next) = receiver.try_recv() {
                    all.push(next);
                }
                let confirmed = confirm(&asked, led).await;
                for one in all {
                    _ = one.send(confirmed.clone());
                }
            }
        });
        Reads { proposer, waiting }
    }

    /// As the leader: makes sure that this node still leads, and says how far to come before reading.
    pub(crate) async fn confirm(&self) -> Confirmed {
        let (sender, receiver) = oneshot::channel();
        let stopped = || "this node is stopping".to_owned();
        self.waiting.send(sender).map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }

    /// Waits until this node has everything that was acknowledged, and says as of when to read.
    pub(crate) async fn fresh(&self) -> Result<UnixMs, String> {
        let node = &self.proposer;
        let deadline = Instant::now() + node.deadline;
        loop {
            let asked = async {
                match node.leader() {
                    Some(leader) if leader.id == node.id => self.confirm().await,
                    Some(leader) => tokio::select! {
                        read = node.peers.read_index(&leader) => read,
                        () = node.led_by_another(leader.id) => Err("another node leads now".into()),
                    },
                    None => Err("no node leads now".into()),
                }
            };
            // Whoever comes while others are waiting for a majority waits for them first.
            let late = |_| Err("no majority of the nodes answered in time".into());
            let asked = timeout_at(deadline, asked).await.unwrap_or_else(late);
            match asked {
                Ok((index, now)) => {
                    let applied = async {
                        if let Some(index) = index {
                            node.shelf.applied(index).await;
                        }
                    };
                    return match timeout_at(deadline, applied).await {
                        Ok(()) => Ok(now),
                        Err(_) => Err("this node is too far behind the leader".into()),
                    };
                }
                Err(why) if Instant::now() + RETRY >= deadline || node.has_stopped() => return Err(why),
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn confirm(node: &Proposer, led: Option<Led>) -> Confirmed {
    let vote = node.raft.metrics().borrow().vote;
    let led = led.filter(|led| led.vote == vote).map(|led| led.last);
    match timeout(node.deadline, node.raft.get_read_log_id()).await {
        Ok(Ok((read, _))) => {
            let index = read.map(|id| id.index).max(led);
            if let Some(index) = index {
                let applied = timeout(node.deadline, node.shelf.applied(index)).await;
                applied.map_err(|_| "what was committed is not applied in time".to_owned())?;
            }
            node.now().map(|now| (index, now.log)).map_err(|error| error.to_string())
        }
        Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))) => {
            Err("no majority of the nodes answers, so that this node cannot tell whether it still leads"
                .into())
        }
        Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)))) => {
            Err("this node does not lead".into())
        }
        Ok(Err(RaftError::Fatal(error))) => Err(format!("this node has stopped: {error}")),
        Err(_) => Err("no majority of the nodes answered in time".into()),
    }
}
