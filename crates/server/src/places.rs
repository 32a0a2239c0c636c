//! The places for connections: a bound for the server and one for each client network.
//!
//! When places run short, connections that never sent valid credentials make room, the oldest first. So a client that
//! opens connections and stays silent locks nobody out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::budget::BytesUsed;
use crate::client_network::ClientNetwork;
use crate::shared_map::SharedMap;

/// Fewest entries of a list of strangers at which closed connections are swept from it.
const SWEEP_MIN: usize = 1_024;

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
    /// A request on it had valid credentials.
    is_known: AtomicBool,
    is_evicted: AtomicBool,
    evicted: Notify,
}

impl ConnectionState {
    pub(crate) fn new(network: Arc<NetworkState>) -> ConnectionState {
        ConnectionState {
            used: BytesUsed::default(),
            network,
            is_known: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        }
    }

    /// Records that a request had valid credentials: the connection keeps its place from now on.
    pub(crate) fn set_known(&self) {
        // Nearly every request finds it set. A load leaves the cache line shared.
        if !self.is_known.load(Ordering::Relaxed) {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// Completes when the connection has to make room.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn evict(&self) -> bool {
        if self.is_known.load(Ordering::Relaxed) || self.is_evicted.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.evicted.notify_one();
        true
    }
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
        if network.connections.load(Ordering::Relaxed) >= self.per_network_max {
            if !network.strangers.evict_oldest() {
                return Claimed::NetworkFull;
            }
            evicted += 1;
        }
        if self.open.load(Ordering::Relaxed) >= self.max {
            if !self.strangers.evict_oldest() {
                return Claimed::ServerFull;
            }
            evicted += 1;
        }
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        let of_network = network.connections.fetch_add(1, Ordering::Relaxed);
        let place = Arc::new(Place {
            connection: Arc::new(ConnectionState::new(network)),
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

    fn is_evicted(place: &Place) -> bool {
        place.connection.is_evicted.load(Ordering::Relaxed)
    }

    /// One address could take all places.
    #[test]
    fn a_network_has_its_own_bound_and_its_oldest_stranger_makes_room() {
        let places = Places::new(10, 3);
        let own: Vec<_> = (0..3).map(|_| claim(&places, 1).unwrap().0).collect();
        own[0].connection.set_known();
        let (newest, evicted) = claim(&places, 1).unwrap();
        assert_eq!(evicted, 1);
        assert_eq!(own.iter().map(|place| is_evicted(place)).collect::<Vec<_>>(), [false, true, false]);
        // Once all are known, the network has to wait for one to close.
        [&own[2], &newest].iter().for_each(|place| place.connection.set_known());
        assert!(matches!(places.claim(address(1)), Claimed::NetworkFull));
        assert_eq!(claim(&places, 2).unwrap().1, 0);
        drop(own);
        assert_eq!(claim(&places, 1).unwrap().1, 0);
    }

    #[test]
    fn a_full_server_evicts_the_oldest_stranger_of_any_network_and_no_known_connection() {
        let places = Places::new(4, 4);
        let all: Vec<_> = (0..4).map(|network| claim(&places, network).unwrap().0).collect();
        all[0].connection.set_known();
        let (fifth, evicted) = claim(&places, 9).unwrap();
        assert_eq!(evicted, 1);
        assert_eq!(all.iter().map(|place| is_evicted(place)).collect::<Vec<_>>(), [false, true, false, false]);
        for place in all.iter().chain([&fifth]) {
            place.connection.set_known();
        }
        assert!(matches!(places.claim(address(7)), Claimed::ServerFull));
        drop(all);
        assert_eq!(places.open.load(Ordering::Relaxed), 1, "an evicted place is not returned twice");
    }

    #[test]
    fn the_lists_of_strangers_stay_small() {
        let places = Places::new(10, 10);
        (0..10 * SWEEP_MIN).for_each(|_| drop(claim(&places, 1)));
        assert!(places.strangers.0.lock().unwrap().len() <= SWEEP_MIN);
    }
}
