//! Chains into requests, and results back to where they belong.

use std::ops::Range;

use tigerbeetle::Transfer;

/// The most events that any server takes in one request.
pub(crate) const BATCH_EVENTS_MAX: usize = 8_189;

/// Transfers that one caller sends together: chains, none of which is ever split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    pub(crate) transfers: Vec<Transfer>,
    /// The length of each chain, in order.
    pub(crate) lens: Vec<usize>,
}

impl Chains {
    /// One chain.
    pub(crate) fn one(chain: Vec<Transfer>) -> Chains {
        Chains { lens: vec![chain.len()], transfers: chain }
    }

    pub(crate) fn push(&mut self, chain: &[Transfer]) {
        self.transfers.extend_from_slice(chain);
        self.lens.push(chain.len());
    }
}

/// How many events the server takes, as far as is known. Servers are set up differently and do not tell; a request
/// that is too large is refused by the client without being sent, so the bound is found by halving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// So many were taken.
    fits: usize,
    /// So many were not.
    exceeds: usize,
}

impl Room {
    pub(crate) const fn new() -> Room {
        Room { fits: 1, exceeds: BATCH_EVENTS_MAX.saturating_add(1) }
    }

    /// The most events to try next. At first all that any server takes.
    pub(crate) fn events(&self) -> usize {
        if self.exceeds > BATCH_EVENTS_MAX {
            return BATCH_EVENTS_MAX;
        }
        let middle = self.fits.saturating_add(self.exceeds) / 2;
        middle.max(self.fits).max(1)
    }

    pub(crate) fn taken(&mut self, events: usize) {
        self.fits = self.fits.max(events);
    }

    pub(crate) fn refused(&mut self, events: usize) {
        self.exceeds = self.exceeds.min(events).max(2);
        self.fits = self.fits.min(self.exceeds.saturating_sub(1));
    }
}

/// The next request: as many whole chains from `from` on as fit into `events`, and at least one.
pub(crate) fn next_request(lens: &[usize], from: usize, events: usize) -> Range<usize> {
    let mut sum = 0_usize;
    let mut to = from;
    for len in lens.iter().skip(from) {
        sum = sum.saturating_add(*len);
        if sum > events && to > from {
            break;
        }
        to = to.saturating_add(1);
    }
    from..to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends chains of these lengths to a server that takes so many events; gives the sizes that arrived.
    fn send(room: &mut Room, lens: &[usize], takes: usize) -> Vec<usize> {
        let (mut sent, mut from, mut tries) = (Vec::new(), 0, 0);
        while from < lens.len() {
            tries += 1;
            assert!(tries < 1_000, "stuck at {from} with {room:?}");
            let chains = next_request(lens, from, room.events());
            let events: usize = lens[chains.clone()].iter().sum();
            if events > takes {
                room.refused(events);
            } else {
                room.taken(events);
                sent.push(events);
                from = chains.end;
            }
        }
        sent
    }

    #[test]
    fn a_batch_that_fits_is_one_request() {
        assert_eq!(send(&mut Room::new(), &[5; 1_637], BATCH_EVENTS_MAX), [8_185]);
        assert_eq!(send(&mut Room::new(), &[1], 253), [1]);
    }

    #[test]
    fn a_smaller_server_is_sent_less_and_that_is_remembered() {
        let mut room = Room::new();
        let sent = send(&mut room, &[5; 1_000], 253);
        assert_eq!(sent.iter().sum::<usize>(), 5_000);
        // Once the bound is known every request is as full as whole chains can make it.
        let sent = send(&mut room, &[1; 5_000], 253);
        let sent_again = send(&mut room, &[1; 2_530], 253);
        assert!(sent.len() <= 24, "{sent:?}");
        assert_eq!(sent_again, [253; 10]);
    }

    #[test]
    fn no_chain_is_split() {
        for takes in [33, 65, 253, 8_189] {
            let lens: Vec<usize> = (1..=33).cycle().take(500).collect();
            let mut ends = lens.iter().scan(0, |sum, len| {
                *sum += len;
                Some(*sum)
            });
            let mut sum = 0;
            for events in send(&mut Room::new(), &lens, takes) {
                sum += events;
                assert!(ends.any(|end| end == sum), "{takes}");
            }
        }
    }
}
