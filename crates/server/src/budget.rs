//! Memory budgets that all requests share, with a share for each connection, client network and caller.
//!
//! A budget is a few atomic counters. Small bodies and answers are not charged, so most requests touch none of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;

use crate::caller::CallerShares;
use crate::places::ConnectionState;

/// Smallest body or answer that is charged, in bytes. A single reserve or complete stays below it; the bounds on
/// connections and streams bound those.
pub(crate) const LARGE_BYTES: usize = 4 << 10;

/// Parts of a budget that one connection, one client network and one caller may use. A holder that uses nothing may take
/// more than its share, so that one large answer can always be sent.
const CONNECTION_PART: usize = 32;
const NETWORK_PART: usize = 4;
const CALLER_PART: usize = 8;

/// The use of a budget. The value is the index of its counter in [`BytesUsed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Request bodies that arrive in pieces.
    Bodies = 0,
    /// Large answers that clients have not read yet.
    Answers = 1,
}

/// Bytes that one holder uses of each budget.
#[derive(Debug, Default)]
pub(crate) struct BytesUsed([AtomicUsize; 2]);

impl BytesUsed {
    fn of(&self, purpose: Purpose) -> &AtomicUsize {
        &self.0[purpose as usize]
    }
}

/// Why a budget has no room: who has used up its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Connection,
    Network,
    Caller,
    Server,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoRoom::Connection => "this connection",
            NoRoom::Network => "this address",
            NoRoom::Caller => "this caller",
            NoRoom::Server => "the server",
        })
    }
}

/// The holders that a request is charged to, besides the whole budget.
#[derive(Clone, Copy, Default)]
pub(crate) struct Holders<'a> {
    pub(crate) connection: Option<&'a Arc<ConnectionState>>,
    pub(crate) caller: Option<&'a Arc<CallerShares>>,
}

/// A number of bytes that may be in use at once.
#[derive(Debug)]
pub(crate) struct Budget {
    purpose: Purpose,
    max: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(purpose: Purpose, max: usize) -> Arc<Budget> {
        Arc::new(Budget { purpose, max, used: AtomicUsize::new(0) })
    }

    pub(crate) fn empty_share(self: &Arc<Budget>, holders: Holders<'_>) -> BudgetShare {
        BudgetShare {
            budget: Arc::clone(self),
            connection: holders.connection.cloned(),
            caller: holders.caller.cloned(),
            bytes: 0,
        }
    }
}

/// A part of a budget that is in use, returned on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    connection: Option<Arc<ConnectionState>>,
    caller: Option<Arc<CallerShares>>,
    bytes: usize,
}

impl BudgetShare {
    /// The counters that it is charged to, with the most that each may reach.
    fn counters(&self) -> impl Iterator<Item = (NoRoom, &AtomicUsize, usize)> {
        let Budget { purpose, max, used } = &*self.budget;
        let connection = self.connection.as_deref();
        let holders = [
            (NoRoom::Connection, connection.map(|state| &state.used), CONNECTION_PART),
            (NoRoom::Network, connection.map(|state| &state.network.used), NETWORK_PART),
            (NoRoom::Caller, self.caller.as_deref().map(|shares| &shares.bytes), CALLER_PART),
        ];
        let holders =
            holders.into_iter().filter_map(move |(who, used, part)| Some((who, used?.of(*purpose), max / part)));
        holders.chain([(NoRoom::Server, used, *max)])
    }

    /// The bytes of the share.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows the share to `bytes` in total, or says who has used up its share and changes nothing.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let more = bytes.saturating_sub(self.bytes);
        for (count, (who, used, max)) in self.counters().enumerate() {
            let take = |used: usize| {
                let sum = used.checked_add(more)?;
                (sum <= max || (used == self.bytes && who != NoRoom::Server)).then_some(sum)
            };
            if used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                self.counters().take(count).for_each(|(_, used, _)| _ = used.fetch_sub(more, Ordering::Relaxed));
                return Err(who);
            }
        }
        self.bytes += more;
        Ok(())
    }

    /// Sets the share to `bytes`, even beyond the budget: for the answer to a request that was executed.
    pub(crate) fn set(&mut self, bytes: usize) {
        for (_, used, _) in self.counters() {
            used.fetch_add(bytes, Ordering::Relaxed);
            used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Attaches the share to its bytes; dropping the last of them returns it.
    pub(crate) fn attach(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Owner { bytes, _share: self })
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

struct Owner<T> {
    bytes: T,
    _share: BudgetShare,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Room for an answer, taken before a request is executed.
///
/// The answer to an executed change is always sent. So its room is taken first, and a request without room is refused
/// before it changes anything. A read changes nothing, and takes its room once the answer is known.
pub(crate) struct AnswerRoom {
    is_change: bool,
    share: Option<BudgetShare>,
}

/// Estimated bytes of an answer beside those that repeat the request.
const ANSWER_BYTES: usize = 512;
/// Estimated bytes of an answer for each byte of its request: an answer names keys in two of its fields.
const ANSWER_BYTES_PER_BYTE: usize = 2;

impl AnswerRoom {
    /// Takes the room of a change whose body has `body_bytes`.
    pub(crate) fn of_change(
        budget: &Arc<Budget>,
        holders: Holders<'_>,
        body_bytes: usize,
    ) -> Result<AnswerRoom, NoRoom> {
        let bytes = ANSWER_BYTES + body_bytes.saturating_mul(ANSWER_BYTES_PER_BYTE);
        if bytes < LARGE_BYTES {
            return Ok(AnswerRoom { is_change: true, share: None });
        }
        let mut share = budget.empty_share(holders);
        share.grow_to(bytes)?;
        Ok(AnswerRoom { is_change: true, share: Some(share) })
    }

    /// The room of a read, which is taken later.
    pub(crate) const fn of_read() -> AnswerRoom {
        AnswerRoom { is_change: false, share: None }
    }

    /// Charges the finished answer until its client has read it. Only a read can fail.
    pub(crate) fn charge(self, budget: &Arc<Budget>, holders: Holders<'_>, answer: Bytes) -> Result<Bytes, NoRoom> {
        if answer.len() < LARGE_BYTES {
            return Ok(answer);
        }
        let mut share = self.share.unwrap_or_else(|| budget.empty_share(holders));
        match self.is_change {
            true => share.set(answer.len()),
            false => share.grow_to(answer.len())?,
        }
        Ok(share.attach(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::NetworkState;

    fn connection(network: &Arc<NetworkState>) -> Arc<ConnectionState> {
        Arc::new(ConnectionState::new(Arc::clone(network), 1))
    }

    #[test]
    fn a_share_returns_to_the_budget_with_the_last_of_its_bytes() {
        let budget = Budget::new(Purpose::Bodies, 10);
        let (mut first, mut second) = (budget.empty_share(Holders::default()), budget.empty_share(Holders::default()));
        assert_eq!(first.grow_to(6), Ok(()));
        assert_eq!(first.grow_to(4), Ok(()), "it never shrinks");
        assert_eq!(second.grow_to(5), Err(NoRoom::Server));
        assert_eq!(second.grow_to(4), Ok(()));
        let bytes = first.attach(vec![0; 6]);
        let part = bytes.slice(..1);
        drop(bytes);
        assert_eq!(second.grow_to(5), Err(NoRoom::Server));
        drop(part);
        assert_eq!(second.grow_to(10), Ok(()));
    }

    /// The budget was one number for everyone, so that one client used it up.
    #[test]
    fn connections_networks_and_callers_have_a_share_each_and_one_large_piece_always_fits() {
        const MAX: usize = 3_200;
        let budget = Budget::new(Purpose::Answers, MAX);
        let (here, there) = (Arc::<NetworkState>::default(), Arc::<NetworkState>::default());
        let (first, second, other) = (connection(&here), connection(&here), connection(&there));
        let caller = Arc::<CallerShares>::default();
        let share = |connection, caller| budget.empty_share(Holders { connection: Some(connection), caller });
        let grown = |mut share: BudgetShare, bytes| share.grow_to(bytes).map(|()| share);

        let whole = grown(share(&first, None), MAX / CONNECTION_PART).unwrap();
        assert_eq!(grown(share(&first, None), 1).err(), Some(NoRoom::Connection));
        drop(whole);
        let large = grown(share(&first, None), MAX / NETWORK_PART).unwrap();
        assert_eq!(grown(share(&second, None), 1).err(), Some(NoRoom::Network));
        let paid = grown(share(&other, Some(&caller)), MAX / CALLER_PART).unwrap();
        let unused = connection(&Arc::default());
        assert_eq!(grown(share(&unused, Some(&caller)), 1).err(), Some(NoRoom::Caller));
        assert_eq!(grown(share(&unused, None), MAX).err(), Some(NoRoom::Server));
        drop((large, paid));
        // Nothing is left behind by the refusals.
        for connection in [&first, &second, &other, &unused] {
            drop(grown(share(connection, Some(&caller)), MAX).unwrap());
        }
    }

    /// An executed reserve was answered with `overloaded` when the budget was used up.
    #[test]
    fn a_change_is_refused_before_it_is_executed_and_its_answer_is_sent_after_it() {
        let budget = Budget::new(Purpose::Answers, LARGE_BYTES);
        let none = Holders::default();
        let large = || Bytes::from(vec![b' '; LARGE_BYTES]);
        let unread = AnswerRoom::of_read().charge(&budget, none, large()).unwrap();
        assert_eq!(AnswerRoom::of_change(&budget, none, LARGE_BYTES).err(), Some(NoRoom::Server));
        assert_eq!(AnswerRoom::of_read().charge(&budget, none, large()).err(), Some(NoRoom::Server));
        // A small change needs no room. A large answer to it is still sent.
        let room = AnswerRoom::of_change(&budget, none, 100).unwrap();
        assert_eq!(room.charge(&budget, none, large()).unwrap().len(), LARGE_BYTES);
        drop(unread);
        assert!(AnswerRoom::of_read().charge(&budget, none, large()).is_ok());
    }
}
