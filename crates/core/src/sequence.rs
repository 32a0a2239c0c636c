//! Exactly once: what every client has committed so far.
//!
//! A client counts its transactions in each scope, from 1, without gaps. The last number that was committed is
//! kept for ever, so no copy of a transaction is ever applied again. Results are kept for a while, the last
//! one of every client for ever, so that a retry is told what the first attempt was told.

use std::collections::{BTreeMap, VecDeque};

use crate::book::{NamespaceId, VaultId};
use crate::id::ClientId;
use crate::limits::index::{Found, Hash, Index, Reference};
use crate::limits::slab::{NONE, Record, Slab};
use crate::time::UnixMs;

/// So many results are kept besides the last one of every client,
pub const RESULTS_MAX: usize = 10_000;
/// for so long.
pub const RESULTS_MS: u64 = 5 * 60 * 1_000;
/// So many results are let go of with one command. One command adds one.
const FORGET_STEPS: usize = 4;

/// Tells the contents of two transactions apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentHash(pub(crate) [u8; 16]);

/// Where a client counts: in a namespace, or in a vault of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) namespace: NamespaceId,
    pub(crate) vault: Option<VaultId>,
}

impl Scope {
    fn bits(self) -> u64 {
        let vault = self.vault.map_or(0, |vault| u64::from(vault.0).saturating_add(1));
        (vault << 16) | u64::from(self.namespace.0)
    }
}

/// What was committed under one number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept<R> {
    pub(crate) content: ContentHash,
    pub(crate) at: UnixMs,
    pub(crate) result: R,
}

/// What to do with a number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a, R> {
    /// It is 0, or so high that nothing could follow.
    Invalid,
    /// It was committed, with this result.
    Committed(&'a R),
    /// It was committed with other content.
    Reused { last: u64 },
    /// It was committed, and nobody remembers with what.
    Forgotten { last: u64 },
    /// Numbers before it are missing.
    Gap { last: u64 },
    /// The client is new, and there are as many as there may be.
    TooManyClients,
    /// It is the next one: apply, and [`Sequences::commit`] if that succeeds.
    Next(Turn),
}

/// The right to commit the next number of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    hash: Hash,
    stream: Option<u32>,
}

/// Two turns are alike: they come after the same question.
impl PartialEq for Turn {
    fn eq(&self, other: &Turn) -> bool {
        self.stream == other.stream
    }
}
impl Eq for Turn {}

/// A client in one scope.
#[derive(Clone, Debug)]
pub(crate) struct Stream<R> {
    pub(crate) scope: Scope,
    pub(crate) client: Option<ClientId>,
    pub(crate) last: u64,
    pub(crate) kept: Kept<R>,
    pub(crate) link: u32,
}

impl<R: Default> Default for Stream<R> {
    fn default() -> Stream<R> {
        Stream { scope: Scope::default(), client: None, last: 0, kept: Kept::default(), link: NONE }
    }
}

impl<R: Clone + Default> Record for Stream<R> {
    fn link(&self) -> u32 {
        self.link
    }
    fn set_link(&mut self, link: u32) {
        self.link = link;
    }
}

/// A result that is kept for a while, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Recent<R> {
    pub(crate) stream: u32,
    pub(crate) sequence: u64,
    pub(crate) kept: Kept<R>,
}

impl<R> Recent<R> {
    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.kept.at.plus_ms(RESULTS_MS) <= now
    }
}

/// What is replicated, in tables that a snapshot can share.
pub(crate) struct Streams<R> {
    /// In the order in which the clients came; none ever goes.
    streams: Slab<Stream<R>>,
    /// The latest results of all, oldest first.
    pub(crate) recent: VecDeque<Recent<R>>,
}

impl<R: Clone + Default> Streams<R> {
    pub(crate) fn len(&self) -> u32 {
        self.streams.used()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Stream<R>> {
        (number < self.len()).then(|| self.streams.get(number))
    }
}

/// All clients, and the tables that find them and their results.
pub(crate) struct Sequences<R> {
    pub(crate) state: Streams<R>,
    index: Index,
    /// The number of each recent result. The first in the queue has the number `base`.
    numbers: BTreeMap<(u32, u64), u64>,
    base: u64,
    clients_max: u32,
}

impl<R: Clone + Default> Sequences<R> {
    pub(crate) fn new(clients_max: u32, table_seed: u64) -> Sequences<R> {
        Sequences {
            state: Streams { streams: Slab::default(), recent: VecDeque::new() },
            index: Index::new(table_seed),
            numbers: BTreeMap::new(),
            base: 0,
            clients_max,
        }
    }

    /// The streams as they are now, for a snapshot.
    pub(crate) fn share(&mut self) -> Streams<R> {
        Streams { streams: self.state.streams.share(), recent: self.state.recent.clone() }
    }

    fn find(&self, hash: Hash, scope: Scope, client: &ClientId) -> Option<u32> {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(number) => {
                let stream = self.state.streams.get(number);
                stream.scope == scope && stream.client.as_ref() == Some(client)
            }
            Found::Tombstone(_) => false,
        };
        match self.index.find(hash, is_meant)?.1.found() {
            Found::Record(number) => Some(number),
            Found::Tombstone(_) => None,
        }
    }

    /// The last number that the client committed; 0 before the first.
    pub(crate) fn last(&self, scope: Scope, client: &ClientId) -> u64 {
        let hash = self.index.hash_name(scope.bits(), client.as_str());
        self.find(hash, scope, client).map_or(0, |number| self.state.streams.get(number).last)
    }

    /// What to do with a transaction of this number and content.
    pub(crate) fn judge(
        &self,
        now: UnixMs,
        (scope, client): (Scope, &ClientId),
        sequence: u64,
        content: ContentHash,
    ) -> Verdict<'_, R> {
        if sequence == 0 || sequence == u64::MAX {
            return Verdict::Invalid;
        }
        let hash = self.index.hash_name(scope.bits(), client.as_str());
        let stream = self.find(hash, scope, client);
        let last = stream.map_or(0, |number| self.state.streams.get(number).last);
        if sequence > last.saturating_add(1) {
            return Verdict::Gap { last };
        }
        let Some(number) = stream else {
            let is_full = self.state.len() >= self.clients_max;
            return if is_full { Verdict::TooManyClients } else { Verdict::Next(Turn { hash, stream }) };
        };
        if sequence > last {
            return Verdict::Next(Turn { hash, stream });
        }
        match self.kept(now, number, sequence) {
            Some(kept) if kept.content == content => Verdict::Committed(&kept.result),
            Some(_) => Verdict::Reused { last },
            None => Verdict::Forgotten { last },
        }
    }

    /// The result of a number that was committed, if it is still kept at `now`.
    fn kept(&self, now: UnixMs, stream: u32, sequence: u64) -> Option<&Kept<R>> {
        let found = self.state.streams.get(stream);
        if found.last == sequence {
            return Some(&found.kept);
        }
        let place = self.numbers.get(&(stream, sequence))?.wrapping_sub(self.base);
        let recent = self.state.recent.get(usize::try_from(place).ok()?)?;
        (!recent.is_over(now)).then_some(&recent.kept)
    }

    /// Records that the next number of a client was committed.
    pub(crate) fn commit(&mut self, turn: Turn, (scope, client): (Scope, &ClientId), kept: Kept<R>) {
        let stream = turn.stream.unwrap_or_else(|| self.add(turn.hash, scope, client.clone()));
        let record = self.state.streams.get_mut(stream);
        record.last = record.last.saturating_add(1);
        record.kept = kept.clone();
        let (sequence, now) = (record.last, kept.at);
        self.push(Recent { stream, sequence, kept });
        self.forget(now);
    }

    fn add(&mut self, hash: Hash, scope: Scope, client: ClientId) -> u32 {
        let stream = Stream { scope, client: Some(client), ..Stream::default() };
        let number = self.state.streams.insert(stream);
        self.index.insert(hash, Reference::record(number));
        number
    }

    fn push(&mut self, recent: Recent<R>) {
        let number = self.base.wrapping_add(self.state.recent.len() as u64);
        self.numbers.insert((recent.stream, recent.sequence), number);
        self.state.recent.push_back(recent);
    }

    /// Whether a result is kept longer than it has to be.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.state.recent.front().is_some_and(|recent| recent.is_over(now))
    }

    /// Lets go of results that are too many or too old, a bounded number of them.
    pub(crate) fn forget(&mut self, now: UnixMs) {
        for _ in 0..FORGET_STEPS {
            let is_over = self.state.recent.front().is_some_and(|recent| recent.is_over(now));
            if self.state.recent.len() <= RESULTS_MAX && !is_over {
                return;
            }
            let Some(recent) = self.state.recent.pop_front() else { return };
            self.numbers.remove(&(recent.stream, recent.sequence));
            self.base = self.base.wrapping_add(1);
        }
    }

    /// Puts back a client from a snapshot. Says no if it is there already or one too many.
    pub(crate) fn restore(&mut self, stream: Stream<R>) -> bool {
        let Some(client) = stream.client.clone() else { return false };
        let hash = self.index.hash_name(stream.scope.bits(), client.as_str());
        if self.find(hash, stream.scope, &client).is_some() || self.state.len() >= self.clients_max {
            return false;
        }
        let number = self.add(hash, stream.scope, client);
        *self.state.streams.get_mut(number) = stream;
        true
    }

    /// Puts back a recent result from a snapshot: of a known client, in order of time, none twice.
    pub(crate) fn restore_recent(&mut self, recent: Recent<R>) -> bool {
        let newest = self.state.recent.back().map_or(UnixMs::default(), |recent| recent.kept.at);
        let is_known = self.state.get(recent.stream).is_some_and(|stream| recent.sequence <= stream.last);
        let is_new = !self.numbers.contains_key(&(recent.stream, recent.sequence));
        let has_room = self.state.recent.len() < RESULTS_MAX;
        let is_right = is_known && is_new && has_room && newest <= recent.kept.at && recent.sequence > 0;
        if is_right {
            self.push(recent);
        }
        is_right
    }
}

#[cfg(test)]
mod tests;
