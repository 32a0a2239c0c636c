//! The ledgers that a test runs on.

use earmark_tigerbeetle::{LedgerClient, TigerBeetleOptions};

use super::server::Server;
use super::stand_in::StandIn;

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
