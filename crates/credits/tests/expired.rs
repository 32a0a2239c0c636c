//! The count of holds that ran out.

use std::sync::Arc;

use earmark_credits::conformance::{
    a_hold_that_ran_out_against_its_settlement, a_hold_that_times_out_pays_what_was_used,
    a_limit_may_charge_the_whole_hold_at_its_timeout,
};
use earmark_credits::{MemoryStore, Store};
use metrics_exporter_prometheus::PrometheusBuilder;

/// Only holds of the Book were counted, so a server with credit in a database showed none.
#[test]
fn holds_that_ran_out_in_a_store_are_counted_by_what_became_of_them() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = || -> Arc<dyn Store> { Arc::new(MemoryStore::new()) };
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            a_hold_that_times_out_pays_what_was_used(store()).await;
            a_limit_may_charge_the_whole_hold_at_its_timeout(store()).await;
            a_hold_that_ran_out_against_its_settlement(store()).await;
        });
    });
    let text = recorder.handle().render();
    let count = |credit: &str| -> u64 {
        let series = format!("earmark_expired_holds_total{{credit=\"{credit}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series)).expect("the series is shown");
        value.parse().expect("a count")
    };
    assert_eq!((count("used"), count("charged")), (2, 2), "{text}");
    // Half of those 12 holds are settled after their timeout; the others race with it.
    assert!((6..=12).contains(&count("returned")), "{text}");
}
