//! Packs chains into requests and maps results back.

use std::ops::Range;

use tigerbeetle::Transfer;

/// Maximum events in one request, for any server configuration.
pub(crate) const BATCH_EVENTS_MAX: usize = 8_189;

/// Chains of transfers from one caller. A chain is never split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    pub(crate) transfers: Vec<Transfer>,
    /// Length of each chain, in order.
    pub(crate) lens: Vec<usize>,
}

impl Chains {
    pub(crate) fn one(chain: Vec<Transfer>) -> Chains {
        Chains { lens: vec![chain.len()], transfers: chain }
    }

    pub(crate) fn push(&mut self, chain: &[Transfer]) {
        self.transfers.extend_from_slice(chain);
        self.lens.push(chain.len());
    }
}

/// Finds the maximum request size of the server by bisection. The server does not tell its limit; the client refuses a
/// request that is too large without sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestSize {
    /// The largest request accepted so far, in events.
    fits: usize,
    /// The smallest request refused so far, in events.
    exceeds: usize,
}

impl RequestSize {
    pub(crate) const fn new() -> RequestSize {
        RequestSize { fits: 1, exceeds: BATCH_EVENTS_MAX.saturating_add(1) }
    }

    /// The request size to try next, in events. It starts at the maximum.
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

/// The next request: as many whole chains from `from` as fit into `events`, at least one.
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

    /// Sends chains to a server that accepts `takes` events; returns the request sizes.
    fn send(size: &mut RequestSize, lens: &[usize], takes: usize) -> Vec<usize> {
        let (mut sent, mut from, mut tries) = (Vec::new(), 0, 0);
        while from < lens.len() {
            tries += 1;
            assert!(tries < 1_000, "stuck at {from} with {size:?}");
            let chains = next_request(lens, from, size.events());
            let events: usize = lens[chains.clone()].iter().sum();
            if events > takes {
                size.refused(events);
            } else {
                size.taken(events);
                sent.push(events);
                from = chains.end;
            }
        }
        sent
    }

    #[test]
    fn a_batch_that_fits_is_one_request() {
        assert_eq!(send(&mut RequestSize::new(), &[5; 1_637], BATCH_EVENTS_MAX), [8_185]);
        assert_eq!(send(&mut RequestSize::new(), &[1], 253), [1]);
    }

    #[test]
    fn a_smaller_server_is_sent_less_and_that_is_remembered() {
        let mut size = RequestSize::new();
        let sent = send(&mut size, &[5; 1_000], 253);
        assert_eq!(sent.iter().sum::<usize>(), 5_000);
        // Once the size is known, every request is as full as whole chains allow.
        let sent = send(&mut size, &[1; 5_000], 253);
        let sent_again = send(&mut size, &[1; 2_530], 253);
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
            for events in send(&mut RequestSize::new(), &lens, takes) {
                sum += events;
                assert!(ends.any(|end| end == sum), "{takes}");
            }
        }
    }
}
