//! Client sequences: each transaction is applied exactly once.
//!
//! A client numbers its transactions in each scope from 1, without gaps. The last committed sequence is kept for
//! ever, so a repeated transaction is never applied again. The last result of every client is kept for ever and other
//! results for a while, so that a retry gets the original answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::book::{NamespaceId, VaultId};
use crate::id::{ClientId, LeaseId};
use crate::keys::ClientOwner;
use crate::limits::index::{Found, Hash, Index, Reference};
use crate::limits::slab::{NONE, Record, Slab};
use crate::quota::RETIRED_PER_CLIENT;
use crate::time::UnixMs;

/// Results kept for retries, besides the last one of every client. 10,000 cover five minutes at 33 writes a second.
pub const RESULTS_MAX: usize = 10_000;
/// How long a result is kept for retries: 5 minutes of log time, in milliseconds.
pub const RESULTS_MS: u64 = 5 * 60 * 1_000;
/// Results deleted per command. One command adds at most one, so the queue shrinks.
const FORGET_STEPS: usize = 4;

/// A hash of the operations of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentHash(pub(crate) [u8; 16]);

/// The scope in which a client counts: a namespace, or a vault of it.
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

/// The result committed under one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept<R> {
    pub(crate) content: ContentHash,
    pub(crate) at: UnixMs,
    pub(crate) result: R,
}

/// A hash of a client id and the names of its scope: half of a SHA-256 digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientHash(pub(crate) [u8; 16]);

/// A client id that was retired and is refused for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetiredClient {
    pub(crate) namespace: NamespaceId,
    pub(crate) hash: ClientHash,
}

/// Retired clients are never removed, so they need no link.
impl Record for RetiredClient {
    fn link(&self) -> u32 {
        NONE
    }
    fn set_link(&mut self, _: u32) {}
}

/// The decision about a sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a, R> {
    /// 0 or `u64::MAX`, which can never be committed.
    Invalid,
    /// Already committed, with this result.
    Committed(&'a R),
    /// Already committed with other content.
    Reused { last: u64 },
    /// Already committed, and the result is no longer kept.
    Forgotten { last: u64 },
    /// Earlier sequences are missing.
    Gap { last: u64 },
    /// The client is new and the maximum number of clients is reached.
    TooManyClients,
    /// The next sequence: apply the transaction, then call [`Sequences::commit`].
    Next(SequenceClaim),
}

/// Permission to commit the next sequence of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceClaim {
    hash: Hash,
    stream: Option<u32>,
}

/// The hash follows from the question and is not compared.
impl PartialEq for SequenceClaim {
    fn eq(&self, other: &SequenceClaim) -> bool {
        self.stream == other.stream
    }
}
impl Eq for SequenceClaim {}

/// A client in one scope.
#[derive(Clone, Debug)]
pub(crate) struct Stream<R> {
    pub(crate) scope: Scope,
    pub(crate) client: Option<ClientId>,
    pub(crate) last: u64,
    /// The owner, if one has claimed the client id.
    pub(crate) owner: Option<ClientOwner>,
    pub(crate) kept: Kept<R>,
    pub(crate) link: u32,
}

impl<R: Default> Default for Stream<R> {
    fn default() -> Stream<R> {
        Stream { scope: Scope::default(), client: None, last: 0, owner: None, kept: Kept::default(), link: NONE }
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

/// A result kept for retries, and the stream it belongs to. The results of a retired client stay in the queue without
/// a stream until their time is over.
#[derive(Clone, Debug)]
pub(crate) struct Recent<R> {
    pub(crate) stream: u32,
    pub(crate) sequence: u64,
    pub(crate) kept: Kept<R>,
}

impl<R: Default> Recent<R> {
    /// The place of a result that was dropped.
    pub(crate) fn of_retired(at: UnixMs) -> Recent<R> {
        let kept = Kept { content: ContentHash::default(), at, result: R::default() };
        Recent { stream: NONE, sequence: 0, kept }
    }

    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.kept.at.plus_ms(RESULTS_MS) <= now
    }

    /// Whether its client was retired.
    pub(crate) fn is_of_retired(&self) -> bool {
        self.stream == NONE
    }
}

/// The replicated state, in tables that a snapshot can share.
pub(crate) struct Streams<R> {
    /// In the order in which the clients first wrote. A retired client leaves an empty record, which the next new
    /// client takes.
    streams: Slab<Stream<R>>,
    /// In the order in which they were retired.
    pub(crate) retired: Slab<RetiredClient>,
    /// The results kept for retries, oldest first.
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

/// All clients, with the tables that look up clients and results.
pub(crate) struct Sequences<R> {
    pub(crate) state: Streams<R>,
    index: Index,
    retired_index: Index,
    /// The position of each recent result, counted from `base`, which is the position of the oldest.
    numbers: BTreeMap<(u32, u64), u64>,
    base: u64,
    clients_max: u32,
    /// The number of clients and of retired client ids by namespace.
    counts: Vec<(u32, u32)>,
    /// The number of clients of each vault that has one.
    vault_counts: BTreeMap<VaultId, u32>,
    /// The empty records. The lowest is used first, so that every replica chooses the same.
    free: BTreeSet<u32>,
}

impl<R: Clone + Default> Sequences<R> {
    pub(crate) fn new(clients_max: u32, table_seed: u64) -> Sequences<R> {
        Sequences {
            state: Streams { streams: Slab::default(), retired: Slab::default(), recent: VecDeque::new() },
            index: Index::new(table_seed),
            retired_index: Index::new(table_seed),
            numbers: BTreeMap::new(),
            base: 0,
            clients_max,
            counts: Vec::new(),
            vault_counts: BTreeMap::new(),
            free: BTreeSet::new(),
        }
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Streams<R> {
        Streams {
            streams: self.state.streams.share(),
            retired: self.state.retired.share(),
            recent: self.state.recent.clone(),
        }
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

    /// The number of clients of a namespace, counted once per scope. Retired client ids count a little.
    pub(crate) fn clients_of(&self, namespace: NamespaceId) -> u64 {
        let (live, retired) = self.counts.get(usize::from(namespace.0)).copied().unwrap_or_default();
        u64::from(live).saturating_add(retired.div_ceil(RETIRED_PER_CLIENT).into())
    }

    /// Whether a client has written in the scope of a vault and was not retired.
    pub(crate) fn has_clients(&self, vault: VaultId) -> bool {
        self.vault_counts.contains_key(&vault)
    }

    fn uncount_in_vault(&mut self, scope: Scope) {
        let Some(vault) = scope.vault else { return };
        if let Some(count) = self.vault_counts.get_mut(&vault) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.vault_counts.remove(&vault);
            }
        }
    }

    /// The counters of a namespace.
    fn count_mut(&mut self, namespace: NamespaceId) -> &mut (u32, u32) {
        let namespace = usize::from(namespace.0);
        if self.counts.len() <= namespace {
            self.counts.resize(namespace.saturating_add(1), (0, 0));
        }
        &mut self.counts[namespace]
    }

    /// The number of clients. Retired client ids count a little, so that all of them together are bounded too.
    fn live(&self) -> u32 {
        let live = self.state.len().saturating_sub(u32::try_from(self.free.len()).unwrap_or(u32::MAX));
        live.saturating_add(self.state.retired.used().div_ceil(RETIRED_PER_CLIENT))
    }

    /// The record of a client, if it has written in this scope and was not retired.
    pub(crate) fn number(&self, scope: Scope, client: &ClientId) -> Option<u32> {
        self.find(self.index.hash_name(scope.bits(), client.as_str()), scope, client)
    }

    pub(crate) fn has_retired(&self) -> bool {
        self.state.retired.used() > 0
    }

    pub(crate) fn is_retired(&self, namespace: NamespaceId, hash: ClientHash) -> bool {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(number) => {
                let retired = self.state.retired.get(number);
                retired.namespace == namespace && retired.hash == hash
            }
            Found::Tombstone(_) => false,
        };
        self.retired_index.find(self.retired_hash(namespace, hash), is_meant).is_some()
    }

    fn retired_hash(&self, namespace: NamespaceId, hash: ClientHash) -> Hash {
        self.retired_index.hash(namespace, LeaseId::from_u128(u128::from_le_bytes(hash.0)))
    }

    /// Retires clients by their records: their memory is freed, and only a hash of each id stays.
    pub(crate) fn retire(&mut self, gone: &BTreeMap<u32, ClientHash>) {
        for (&number, &hash) in gone {
            let Stream { scope, client, .. } = std::mem::take(self.state.streams.get_mut(number));
            let Some(client) = client else { continue };
            self.drop_results(number);
            let name = self.index.hash_name(scope.bits(), client.as_str());
            if let Some((position, _)) = self.index.find(name, |found| found == Reference::record(number)) {
                self.index.remove(position);
            }
            let (live, _) = self.count_mut(scope.namespace);
            *live = live.saturating_sub(1);
            self.uncount_in_vault(scope);
            self.free.insert(number);
            self.restore_retired(scope.namespace, hash);
        }
    }

    /// Drops the results of a stream. Their places in the queue stay, so that no other result moves.
    fn drop_results(&mut self, stream: u32) {
        let own = self.numbers.range((stream, 0)..=(stream, u64::MAX)).map(|(&key, &number)| (key, number));
        for (key, number) in own.collect::<Vec<_>>() {
            self.numbers.remove(&key);
            let position = usize::try_from(number.wrapping_sub(self.base)).ok();
            if let Some(recent) = position.and_then(|position| self.state.recent.get_mut(position)) {
                let at = recent.kept.at;
                *recent = Recent::of_retired(at);
            }
        }
    }

    /// Adds a retired client id. Returns false if it is there already.
    pub(crate) fn restore_retired(&mut self, namespace: NamespaceId, hash: ClientHash) -> bool {
        if self.is_retired(namespace, hash) {
            return false;
        }
        let number = self.state.retired.insert(RetiredClient { namespace, hash });
        self.retired_index.insert(self.retired_hash(namespace, hash), Reference::record(number));
        let (_, retired) = self.count_mut(namespace);
        *retired = retired.saturating_add(1);
        true
    }

    /// Restores the empty record of a retired client.
    pub(crate) fn restore_empty(&mut self) {
        let number = self.state.streams.insert(Stream::default());
        self.free.insert(number);
    }

    /// The last sequence that the client committed; 0 before the first.
    pub(crate) fn last(&self, scope: Scope, client: &ClientId) -> u64 {
        let hash = self.index.hash_name(scope.bits(), client.as_str());
        self.find(hash, scope, client).map_or(0, |number| self.state.streams.get(number).last)
    }

    /// Decides about a transaction with this sequence and content. `clients_quota` is the number of clients that its
    /// namespace may have.
    pub(crate) fn judge(
        &self,
        now: UnixMs,
        (scope, client): (Scope, &ClientId),
        (sequence, content): (u64, ContentHash),
        clients_quota: u64,
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
            let is_full = self.live() >= self.clients_max || self.clients_of(scope.namespace) >= clients_quota;
            return if is_full { Verdict::TooManyClients } else { Verdict::Next(SequenceClaim { hash, stream }) };
        };
        if sequence > last {
            return Verdict::Next(SequenceClaim { hash, stream });
        }
        match self.kept(now, number, sequence) {
            Some(kept) if kept.content == content => Verdict::Committed(&kept.result),
            Some(_) => Verdict::Reused { last },
            None => Verdict::Forgotten { last },
        }
    }

    /// The result of a committed sequence, if it is still kept at `now`.
    fn kept(&self, now: UnixMs, stream: u32, sequence: u64) -> Option<&Kept<R>> {
        let found = self.state.streams.get(stream);
        if found.last == sequence {
            return Some(&found.kept);
        }
        let position = self.numbers.get(&(stream, sequence))?.wrapping_sub(self.base);
        let recent = self.state.recent.get(usize::try_from(position).ok()?)?;
        (!recent.is_over(now)).then_some(&recent.kept)
    }

    /// The owner of a client id.
    pub(crate) fn owner(&self, scope: Scope, client: &ClientId) -> Option<&ClientOwner> {
        let hash = self.index.hash_name(scope.bits(), client.as_str());
        self.state.streams.get(self.find(hash, scope, client)?).owner.as_ref()
    }

    /// Gives a client id that has committed to an owner.
    pub(crate) fn claim(&mut self, scope: Scope, client: &ClientId, owner: ClientOwner) {
        let hash = self.index.hash_name(scope.bits(), client.as_str());
        if let Some(stream) = self.find(hash, scope, client) {
            self.state.streams.get_mut(stream).owner = Some(owner);
        }
    }

    /// Records that the next sequence of a client was committed.
    pub(crate) fn commit(&mut self, claim: SequenceClaim, (scope, client): (Scope, &ClientId), kept: Kept<R>) {
        let stream = claim.stream.unwrap_or_else(|| self.add(claim.hash, scope, client.clone()));
        let record = self.state.streams.get_mut(stream);
        record.last = record.last.saturating_add(1);
        record.kept = kept.clone();
        let (sequence, now) = (record.last, kept.at);
        self.push(Recent { stream, sequence, kept });
        self.forget(now);
    }

    fn add(&mut self, hash: Hash, scope: Scope, client: ClientId) -> u32 {
        let (live, _) = self.count_mut(scope.namespace);
        *live = live.saturating_add(1);
        if let Some(vault) = scope.vault {
            let count = self.vault_counts.entry(vault).or_default();
            *count = count.saturating_add(1);
        }
        let stream = Stream { scope, client: Some(client), ..Stream::default() };
        let number = match self.free.pop_first() {
            Some(number) => {
                *self.state.streams.get_mut(number) = stream;
                number
            }
            None => self.state.streams.insert(stream),
        };
        self.index.insert(hash, Reference::record(number));
        number
    }

    fn push(&mut self, recent: Recent<R>) {
        let number = self.base.wrapping_add(self.state.recent.len() as u64);
        if !recent.is_of_retired() {
            self.numbers.insert((recent.stream, recent.sequence), number);
        }
        self.state.recent.push_back(recent);
    }

    /// Whether an expired result is still stored.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.state.recent.front().is_some_and(|recent| recent.is_over(now))
    }

    /// Deletes expired and surplus results, at most [`FORGET_STEPS`].
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

    /// Restores a client from a snapshot. Returns false if it is a duplicate or one too many.
    pub(crate) fn restore(&mut self, stream: Stream<R>) -> bool {
        let Some(client) = stream.client.clone() else { return false };
        let hash = self.index.hash_name(stream.scope.bits(), client.as_str());
        if self.find(hash, stream.scope, &client).is_some() || self.live() >= self.clients_max {
            return false;
        }
        let free = std::mem::take(&mut self.free);
        let number = self.add(hash, stream.scope, client);
        self.free = free;
        *self.state.streams.get_mut(number) = stream;
        true
    }

    /// Restores a recent result from a snapshot. Returns false if its client is unknown, it is out of order or a
    /// duplicate.
    pub(crate) fn restore_recent(&mut self, recent: Recent<R>) -> bool {
        let newest = self.state.recent.back().map_or(UnixMs::default(), |recent| recent.kept.at);
        let is_of_client = |stream: &Stream<R>| (1..=stream.last).contains(&recent.sequence);
        let is_known = recent.is_of_retired() || self.state.get(recent.stream).is_some_and(is_of_client);
        let is_new = !self.numbers.contains_key(&(recent.stream, recent.sequence));
        let has_room = self.state.recent.len() < RESULTS_MAX;
        let is_right = is_known && is_new && has_room && newest <= recent.kept.at;
        if is_right {
            self.push(recent);
        }
        is_right
    }
}

#[cfg(test)]
mod tests;
