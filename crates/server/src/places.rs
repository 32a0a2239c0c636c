//! The places for connections: a bound for the server and one for each client network.
//!
//! When places run short, connections that never sent valid credentials make room, the oldest first. So a client that
//! opens connections and stays silent locks nobody out. Each caller, and each namespace, has a number of connections that
//! keep their place. Further ones are served, and make room like those without credentials. So no key locks out others.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

use crate::budget::BytesUsed;
use crate::caller::CallerShares;
use crate::client_network::ClientNetwork;
use crate::shared_map::SharedMap;

/// Fewest entries of a list of strangers at which closed connections are swept from it.
const SWEEP_MIN: usize = 1_024;

/// Parts of all places that the connections of one caller, and of one namespace, may keep.
const CALLER_PART: usize = 8;
const NAMESPACE_PART: usize = 2;

/// The state of one client network.
#[derive(Debug, Default)]
pub(crate) struct NetworkState {
    pub(crate) used: BytesUsed,
    connections: AtomicUsize,
    strangers: Strangers,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) used: BytesUsed,
    pub(crate) network: Arc<NetworkState>,
    /// Set if the connection keeps its place: the caller whose credentials were first valid on it, or none on a server
    /// without keys.
    caller: OnceLock<Option<Arc<CallerShares>>>,
    /// Places of the server.
    places_max: usize,
    is_evicted: AtomicBool,
    evicted: Notify,
}

impl ConnectionState {
    pub(crate) fn new(network: Arc<NetworkState>, places_max: usize) -> ConnectionState {
        ConnectionState {
            used: BytesUsed::default(),
            network,
            caller: OnceLock::new(),
            places_max,
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        }
    }

    /// Records that a request had valid credentials: the connection keeps its place from now on, unless its caller or
    /// that caller's namespace has enough of them.
    pub(crate) fn set_known(&self, caller: Option<&Arc<CallerShares>>) {
        // Nearly every request finds it set. A load leaves the cache line shared.
        if self.caller.get().is_some() {
            return;
        }
        let Some(caller) = caller else {
            _ = self.caller.set(None);
            return;
        };
        let counters = [(&caller.connections, CALLER_PART), (&caller.namespace.connections, NAMESPACE_PART)];
        let bounds = counters.map(|(counter, part)| (counter, (self.places_max / part).max(1)));
        if take_both(bounds) && self.caller.set(Some(Arc::clone(caller))).is_err() {
            give_back(caller);
        }
    }

    /// Completes when the connection has to make room.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn evict(&self) -> bool {
        if self.caller.get().is_some() || self.is_evicted.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.evicted.notify_one();
        true
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.caller.get().into_iter().flatten().for_each(give_back);
    }
}

/// Adds one to both counters, or to none if one is at its maximum.
fn take_both([first, second]: [(&AtomicUsize, usize); 2]) -> bool {
    let take = |(counter, max): (&AtomicUsize, usize)| {
        let more = |count: usize| (count < max).then_some(count.saturating_add(1));
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    };
    if !take(first) {
        return false;
    }
    let is_taken = take(second);
    if !is_taken {
        first.0.fetch_sub(1, Ordering::Relaxed);
    }
    is_taken
}

fn give_back(caller: &Arc<CallerShares>) {
    caller.connections.fetch_sub(1, Ordering::Relaxed);
    caller.namespace.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Connections without valid credentials so far, the oldest first. Known and closed ones leave when they are found.
#[derive(Debug, Default)]
struct Strangers(Mutex<VecDeque<Weak<Place>>>);

impl Strangers {
    fn push(&self, place: &Arc<Place>, open: usize) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= SWEEP_MIN.max(open.saturating_mul(2)) {
            queue.retain(|place| place.strong_count() > 0);
        }
        queue.push_back(Arc::downgrade(place));
    }

    /// Evicts the oldest. Each entry is looked at once, so the work is that of the connections that were accepted.
    fn evict_oldest(&self) -> bool {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(place) = queue.pop_front() {
            if place.upgrade().is_some_and(|place| place.evict()) {
                return true;
            }
        }
        false
    }
}

/// The place of one connection, returned on drop.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) connection: Arc<ConnectionState>,
    open: Arc<AtomicUsize>,
    is_returned: AtomicBool,
}

impl Place {
    /// Makes the connection close, and returns its place at once.
    fn evict(&self) -> bool {
        let is_evicted = self.connection.evict();
        if is_evicted {
            self.give_back();
        }
        is_evicted
    }

    fn give_back(&self) {
        if !self.is_returned.swap(true, Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.connection.network.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A place, or the reason for a refusal.
pub(crate) enum Claimed {
    Place {
        place: Arc<Place>,
        /// Connections that had to make room.
        evicted: u64,
    },
    /// The client network has too many connections.
    NetworkFull,
    /// The server has too many connections.
    ServerFull,
}

/// All places. Only the accept loop claims them.
pub(crate) struct Places {
    max: usize,
    per_network_max: usize,
    open: Arc<AtomicUsize>,
    networks: SharedMap<ClientNetwork, NetworkState>,
    strangers: Strangers,
}

impl Places {
    pub(crate) fn new(max: usize, per_network_max: usize) -> Places {
        Places {
            max,
            per_network_max,
            open: Arc::default(),
            networks: SharedMap::default(),
            strangers: Strangers::default(),
        }
    }

    /// Claims a place for a connection from `address`.
    pub(crate) fn claim(&self, address: IpAddr) -> Claimed {
        let network = self.networks.get(&ClientNetwork::of(address), NetworkState::default);
        let mut evicted = 0;
        // The place of an evicted connection is free at once, so one eviction is enough for both bounds.
        if network.connections.load(Ordering::Relaxed) >= self.per_network_max {
            if !network.strangers.evict_oldest() {
                return Claimed::NetworkFull;
            }
            evicted += 1;
        } else if self.open.load(Ordering::Relaxed) >= self.max {
            if !self.strangers.evict_oldest() {
                return Claimed::ServerFull;
            }
            evicted += 1;
        }
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        let of_network = network.connections.fetch_add(1, Ordering::Relaxed);
        let place = Arc::new(Place {
            connection: Arc::new(ConnectionState::new(network, self.max)),
            open: Arc::clone(&self.open),
            is_returned: AtomicBool::new(false),
        });
        place.connection.network.strangers.push(&place, of_network);
        self.strangers.push(&place, open);
        Claimed::Place { place, evicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn claim(places: &Places, last: u8) -> Option<(Arc<Place>, u64)> {
        match places.claim(address(last)) {
            Claimed::Place { place, evicted } => Some((place, evicted)),
            Claimed::NetworkFull | Claimed::ServerFull => None,
        }
    }

    fn caller() -> Arc<CallerShares> {
        Arc::default()
    }

    fn is_evicted(place: &Place) -> bool {
        place.connection.is_evicted.load(Ordering::Relaxed)
    }

    /// One address could take all places.
    #[test]
    fn a_network_has_its_own_bound_and_its_oldest_stranger_makes_room() {
        let places = Places::new(40, 3);
        let own: Vec<_> = (0..3).map(|_| claim(&places, 1).unwrap().0).collect();
        let caller = caller();
        own[0].connection.set_known(Some(&caller));
        let (newest, evicted) = claim(&places, 1).unwrap();
        assert_eq!(evicted, 1);
        assert_eq!(own.iter().map(|place| is_evicted(place)).collect::<Vec<_>>(), [false, true, false]);
        // Once all are known, the network has to wait for one to close.
        [&own[2], &newest].iter().for_each(|place| place.connection.set_known(Some(&caller)));
        assert!(matches!(places.claim(address(1)), Claimed::NetworkFull));
        assert_eq!(claim(&places, 2).unwrap().1, 0);
        drop(own);
        assert_eq!(claim(&places, 1).unwrap().1, 0);
    }

    #[test]
    fn a_full_server_evicts_the_oldest_stranger_of_any_network_and_no_known_connection() {
        let places = Places::new(4, 4);
        let all: Vec<_> = (0..4).map(|network| claim(&places, network).unwrap().0).collect();
        all[0].connection.set_known(Some(&caller()));
        let (fifth, evicted) = claim(&places, 9).unwrap();
        assert_eq!(evicted, 1);
        assert_eq!(all.iter().map(|place| is_evicted(place)).collect::<Vec<_>>(), [false, true, false, false]);
        for place in all.iter().chain([&fifth]) {
            place.connection.set_known(Some(&caller()));
        }
        assert!(matches!(places.claim(address(7)), Claimed::ServerFull));
        drop(all);
        assert_eq!(places.open.load(Ordering::Relaxed), 1, "an evicted place is not returned twice");
    }

    /// Four addresses with one valid key could hold all connections.
    #[test]
    fn one_caller_keeps_an_eighth_of_the_places_and_a_namespace_half() {
        let places = Places::new(80, 20);
        let (caller, quiet) = (caller(), caller());
        let all: Vec<_> = (0..80).map(|number| claim(&places, number / 20).unwrap().0).collect();
        all.iter().for_each(|place| place.connection.set_known(Some(&caller)));
        assert_eq!(caller.connections.load(Ordering::Relaxed), 10);
        // Others come in, and take the places beyond the caller's own.
        let others: Vec<_> = (0..70).map(|number| claim(&places, 100 + number / 20).unwrap()).collect();
        assert!(others.iter().all(|(place, evicted)| *evicted == 1 && !is_evicted(place)));
        assert_eq!(all.iter().filter(|place| !is_evicted(place)).count(), 10);
        others.iter().for_each(|(place, _)| place.connection.set_known(Some(&quiet)));
        drop((all, others));
        assert_eq!((caller.connections.load(Ordering::Relaxed), quiet.connections.load(Ordering::Relaxed)), (0, 0));

        let shared = CallerShares::default().namespace;
        let keys: Vec<_> = (0..80).map(|_| Arc::new(CallerShares::of(Arc::clone(&shared)))).collect();
        let all: Vec<_> = (0..80).map(|number| claim(&places, number / 20).unwrap().0).collect();
        all.iter().zip(&keys).for_each(|(place, caller)| place.connection.set_known(Some(caller)));
        assert_eq!(shared.connections.load(Ordering::Relaxed), 40);
        assert_eq!(keys.iter().filter(|caller| caller.connections.load(Ordering::Relaxed) == 1).count(), 40);
    }

    #[test]
    fn the_lists_of_strangers_stay_small() {
        let places = Places::new(10, 10);
        (0..10 * SWEEP_MIN).for_each(|_| drop(claim(&places, 1)));
        assert!(places.strangers.0.lock().unwrap().len() <= SWEEP_MIN);
    }
}
