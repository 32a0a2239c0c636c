//! The tests that every store must pass.
//!
//! A store's test file has a function that returns a [`FreshStore`] and the line
//! `earmark_credits::conformance!(fresh)`.

mod accounts;
mod backend;
mod commit;
mod concurrent;
mod driver;
mod gate;
mod postings;
mod reads;
mod renewals;
mod saga;
mod sample;
pub mod server;
mod strict;
mod transactions;
mod usage;
mod whole_plans;

pub use accounts::*;
pub use backend::CreditsHarness;
pub use commit::*;
pub use concurrent::*;
pub use gate::*;
pub use postings::*;
pub use reads::*;
pub use renewals::*;
pub use saga::*;
pub use strict::*;
pub use transactions::*;
pub use usage::*;
pub use whole_plans::*;

use std::any::Any;
use std::sync::Arc;

use crate::model::Plan;
use crate::store::Store;

/// A plan with every field set, as the cases write it and read it back.
#[must_use]
pub fn sample_plan() -> Plan {
    sample::full_plan(driver::token())
}

/// An empty store.
pub struct FreshStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same rows through a second store with its own connections, as another process has.
    pub other: Arc<dyn Store>,
    /// The folder or database that must live as long as the store.
    pub keep_alive: Box<dyn Any + Send + Sync>,
    /// The saga tests inject a fault at one of this many calls.
    pub fault_stride: usize,
}

/// Fault stride of stores on a disk: the sagas are the same everywhere, and the store in memory tries every call. `cargo
/// xtask soak` sets `EARMARK_FAULT_STRIDE=1`.
const FAULT_STRIDE: usize = 7;

impl FreshStore {
    /// A store without a second access path.
    pub fn new(store: impl Store) -> FreshStore {
        let store: Arc<dyn Store> = Arc::new(store);
        FreshStore { other: Arc::clone(&store), store, keep_alive: Box::new(()), fault_stride: 1 }
    }

    /// Two stores on the same rows, and what they need to live.
    pub fn on<S: Store>([store, other]: [S; 2], keep_alive: impl Any + Send + Sync) -> FreshStore {
        let stride = std::env::var("EARMARK_FAULT_STRIDE").ok().and_then(|stride| stride.parse().ok());
        FreshStore {
            store: Arc::new(store),
            other: Arc::new(other),
            keep_alive: Box::new(keep_alive),
            fault_stride: stride.unwrap_or(FAULT_STRIDE),
        }
    }

    /// Closes both stores.
    pub async fn close(&self) {
        self.other.close().await;
        self.store.close().await;
    }
}

/// Generates a test per case. `$fresh` is an async function that returns a
/// [`FreshStore`](crate::conformance::FreshStore).
#[macro_export]
macro_rules! conformance {
    ($fresh:path) => {
        $crate::conformance!($fresh:
            a_vault_is_opened_once_with_its_revenue,
            a_gate_lets_one_saga_in_at_a_time,
            a_client_has_one_saga_at_a_time,
            a_record_is_read_back_as_it_was_written,
            records_are_listed_by_who_drives_them_and_what_they_touch,
            a_list_of_records_comes_in_pages,
            only_a_silent_owner_is_taken_over,
            a_late_step_of_an_owner_that_was_taken_over_changes_nothing,
            an_owner_that_left_is_silent,
            processes_that_are_gone_are_listed,
            all_some_or_none_of_the_inputs_are_reserved,
            reserving_needs_its_record,
            a_release_gives_back_what_that_attempt_took_and_nothing_else,
            nothing_is_released_while_its_saga_may_still_happen,
            reserved_rows_without_a_record_are_orphans,
            an_account_is_claimed_by_one_saga,
            an_account_that_is_not_opened_after_all_was_never_there,
            a_claim_that_is_given_up_leaves_the_account_as_it_was,
            a_claimed_account_stands_where_the_plan_says,
            deciding_happens_once_and_never_after_giving_up,
            deciding_needs_the_accounts_as_the_plan_does,
            deciding_needs_the_next_sequence_of_the_client,
            what_happened_is_not_decided_again,
            nothing_is_finished_that_was_not_decided,
            finishing_again_changes_only_what_is_not_yet_changed,
            deciding_needs_all_that_the_plan_takes,
            a_list_may_be_cut_anywhere,
            finishing_consumes_only_what_that_attempt_reserved,
            a_record_goes_when_its_saga_is_over_and_not_before,
            entries_are_numbered_in_their_vault,
            totals_and_sequences_change_with_the_entry,
            entries_are_read_back_as_they_were_written,
            changes_of_a_list_are_made_in_order,
            a_survey_shows_debts_and_the_ends_of_the_rest,
            amounts_are_ordered_as_numbers_up_to_the_bounds_of_128_bits,
            funds_are_sums_by_what_becomes_of_the_postings,
            holds_that_ended_are_due_in_order,
            grants_are_listed_in_spending_order_and_expire_in_time,
            the_holds_of_a_lease_are_found,
            holds_are_renewed_together_or_not_at_all,
            a_renewed_hold_is_consumed_only_as_it_was_read,
            what_a_timeout_will_charge_stays_held,
            of_many_renewals_at_once_one_happens,
            an_overdraft_is_marked_once,
            a_plan_is_marked_once,
            the_accounts_of_a_vault_come_in_pages,
            the_history_of_an_account_comes_in_pages,
            the_assets_that_an_account_has_had_are_listed,
            transactions_of_all_vaults_come_latest_commit_first,
            transactions_that_commit_together_are_listed_once_each,
            a_vault_is_counted,
            a_vault_that_does_not_add_up_is_found_out,
            what_nobody_has_issued_is_found_out,
            of_many_at_once_one_passes_the_gate,
            of_many_at_once_one_reserves_a_posting,
            many_entries_at_once_have_numbers_without_gaps,
            a_thousand_rows_are_changed_by_one_step,
            a_list_that_is_made_again_changes_nothing_more,
            any_text_is_kept_as_it_is,
            of_many_at_once_one_claims_an_account,
            of_many_at_once_one_makes_each_step,
            of_deciding_and_giving_up_at_once_one_happens,
            of_many_attempts_at_once_one_entry_comes,
            a_whole_plan_is_written_as_by_steps,
            a_whole_plan_commits_only_as_by_steps,
            of_many_whole_plans_at_once_each_commits_or_not,
            rows_are_counted_with_the_decision,
            a_plan_beyond_a_maximum_is_not_decided,
            of_many_at_once_as_many_grow_as_there_is_room,
        );
    };
    ($fresh:path: $($case:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let fresh = $fresh().await;
            $crate::conformance::$case(&*fresh.store).await;
            fresh.close().await;
        }
    )*};
}
