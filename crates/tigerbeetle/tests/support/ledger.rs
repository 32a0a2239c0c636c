//! The ledgers that a test runs on.

use earmark_tigerbeetle::{LedgerClient, TigerBeetleOptions};

use super::server::Server;
use super::stand_in::StandIn;
use super::wall_ms;

pub enum Ledger {
    StandIn(StandIn),
    Server(Server),
}

impl Ledger {
    /// A real server, if there is a binary.
    pub fn server() -> Option<Ledger> {
        Server::start().map(Ledger::Server)
    }

    /// A real server that takes batches of 8,189 events, if there is a binary.
    pub fn server_for_production() -> Option<Ledger> {
        Server::start_for_production().map(Ledger::Server)
    }

    pub fn stand_in() -> Option<Ledger> {
        Some(Ledger::StandIn(StandIn::start()))
    }

    pub fn options(&self) -> TigerBeetleOptions {
        match self {
            Ledger::StandIn(stand_in) => stand_in.options(),
            Ledger::Server(server) => server.options(),
        }
    }

    /// Puts the clock of a stand-in ahead, so that a minute of its time ends in `left_ms` and no test waits for a longer
    /// one. Returns by how many milliseconds; 0 for a server, which has the time of the wall.
    pub fn end_a_minute_in(&self, left_ms: u64) -> u64 {
        let Ledger::StandIn(stand_in) = self else { return 0 };
        let ahead_ms = 60_000 - (wall_ms() + left_ms) % 60_000;
        stand_in.put_ahead(ahead_ms);
        ahead_ms
    }

    pub fn client(&self) -> Box<dyn LedgerClient> {
        let options = self.options();
        options.connect.connect(&options.url).unwrap()
    }
}

/// Runs each test on the stand-in, and on a real server where there is a binary.
#[macro_export]
macro_rules! on_ledgers {
    ($($test:ident),+ $(,)?) => {
        mod stand_in {
            use $crate::support::ledger::Ledger;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(Ledger::stand_in().unwrap()).await;
            })+
        }

        mod real_server {
            use $crate::support::ledger::Ledger;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                if let Some(ledger) = Ledger::server() {
                    super::$test(ledger).await;
                }
            })+
        }
    };
}
