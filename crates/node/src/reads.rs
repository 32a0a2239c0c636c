//! Linearizable reads: a read sees everything that was acknowledged before it began.

use std::time::Duration;

use earmark_core::UnixMs;
use openraft::error::{CheckIsLeaderError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::proposer::Proposer;
use crate::types::Vote;

const RETRY: Duration = Duration::from_millis(20);

/// Log index that a read has to wait for, and the log time to read at.
type Confirmed = Result<(Option<u64>, UnixMs), String>;

/// Leadership that this node held when it stopped. A leader that restarts within its term leads at once but has lost
/// its commit index, so every entry of its log may have been acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastLeadership {
    pub(crate) vote: Vote,
    pub(crate) last: u64,
}

/// Confirms leadership with the other nodes, once for all waiting reads.
#[derive(Clone)]
pub(crate) struct Reads {
    proposer: Proposer,
    waiting: mpsc::UnboundedSender<oneshot::Sender<Confirmed>>,
}

impl Reads {
    pub(crate) fn start(proposer: Proposer, last_leadership: Option<LastLeadership>) -> Reads {
        let (waiting, mut receiver) = mpsc::unbounded_channel::<oneshot::Sender<Confirmed>>();
        let asked = proposer.clone();
        earmark_admission::spawn(async move {
            while let Some(first) = receiver.recv().await {
                // A read that arrives during the confirmation waits for the next one. It may have to see an entry
                // newer than this confirmation.
                let mut all = vec![first];
                while let Ok(next) = receiver.try_recv() {
                    all.push(next);
                }
                let confirmed = confirm(&asked, last_leadership).await;
                for one in all {
                    _ = one.send(confirmed.clone());
                }
            }
        });
        Reads { proposer, waiting }
    }

    /// Leader: confirms leadership, and returns the index to wait for.
    pub(crate) async fn confirm(&self) -> Confirmed {
        let (sender, receiver) = oneshot::channel();
        let stopped = || "this node is stopping".to_owned();
        self.waiting.send(sender).map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }

    /// Waits until this node has applied everything acknowledged, and returns the log time to read at.
    pub(crate) async fn barrier(&self) -> Result<UnixMs, String> {
        let node = &self.proposer;
        let deadline = Instant::now() + node.deadline;
        loop {
            let asked = async {
                match node.leader() {
                    Some(leader) if leader.id == node.id => self.confirm().await,
                    Some(leader) => tokio::select! {
                        read = node.peers.read_index(&leader) => read,
                        () = node.leader_changed(leader.id) => Err("the leader changed".into()),
                    },
                    None => Err("no leader is known".into()),
                }
            };
            // The wait includes the confirmation that is already under way for earlier reads.
            let late = |_| Err("no majority of the nodes answered in time".into());
            let asked = timeout_at(deadline, asked).await.unwrap_or_else(late);
            match asked {
                Ok((index, now)) => {
                    let applied = async {
                        if let Some(index) = index {
                            node.applied_state.applied(index).await;
                        }
                    };
                    return match timeout_at(deadline, applied).await {
                        Ok(()) => Ok(now),
                        Err(_) => Err("this node lags too far behind the leader".into()),
                    };
                }
                Err(why) if Instant::now() + RETRY >= deadline || node.has_stopped() => return Err(why),
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn confirm(node: &Proposer, last_leadership: Option<LastLeadership>) -> Confirmed {
    let vote = node.raft.metrics().borrow().vote;
    let last_leadership = last_leadership
        .filter(|last_leadership| last_leadership.vote == vote)
        .map(|last_leadership| last_leadership.last);
    match timeout(node.deadline, node.raft.get_read_log_id()).await {
        Ok(Ok((read, _))) => {
            let index = read.map(|id| id.index).max(last_leadership);
            if let Some(index) = index {
                let applied = timeout(node.deadline, node.applied_state.applied(index)).await;
                applied.map_err(|_| "committed entries were not applied in time".to_owned())?;
            }
            node.now().map(|now| (index, now.log)).map_err(|error| error.to_string())
        }
        Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))) => {
            Err("no majority of the nodes answers, so this node cannot confirm that it leads".into())
        }
        Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)))) => {
            Err("this node is not the leader".into())
        }
        Ok(Err(RaftError::Fatal(error))) => Err(format!("this node has stopped: {error}")),
        Err(_) => Err("no majority of the nodes answered in time".into()),
    }
}
