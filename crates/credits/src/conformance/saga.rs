//! The tests that tasks and sagas must pass on every store.
//!
//! A store's test file also has the line `earmark_credits::saga_conformance!(fresh)`.

mod behavior;
mod crash;
mod extend;
mod faulty;
mod many;
mod plans;
mod process;
mod quotas;
mod scenario;
mod storm;
mod streams;

pub use behavior::*;
pub use crash::*;
pub use extend::*;
pub use faulty::{Faulty, Mode, When};
pub use many::*;
pub use plans::*;
pub use quotas::*;
pub use storm::*;
pub use streams::*;

/// Generates a test per case. `$fresh` is an async function that returns a
/// [`FreshStore`](crate::conformance::FreshStore).
#[macro_export]
macro_rules! saga_conformance {
    ($fresh:path) => {
        $crate::saga_conformance!($fresh:
            the_same_write_a_day_later_has_the_same_receipt,
            another_content_under_a_number_is_refused,
            a_refused_hold_stays_refused,
            a_hold_of_several_vaults_is_all_or_nothing,
            a_hold_that_ran_out_against_its_settlement,
            a_lease_that_was_settled_first_holds_nothing,
            a_lease_that_is_looked_at_while_it_is_held_has_not_ended,
            a_hold_grows_once_with_each_number,
            a_growth_is_all_or_nothing,
            a_growth_that_is_returned_can_be_held_again,
            an_end_moves_with_each_number_and_not_beyond_a_day,
            reported_usage_is_the_least_that_a_complete_costs,
            a_hold_that_times_out_pays_what_was_used,
            a_limit_may_charge_the_whole_hold_at_its_timeout,
            usage_above_the_hold_follows_the_rule_of_the_limit,
            many_timeouts_against_a_transfer_leave_no_debt,
            a_sweep_does_not_end_a_hold_that_was_renewed,
            an_extension_against_a_complete_leaves_nothing_held,
            an_account_with_usage_to_settle_does_not_close,
            a_deposit_is_split_and_change_is_one_posting,
            small_postings_do_not_pile_up,
            small_postings_do_not_pile_up_where_many_come_at_once,
            thousands_of_small_postings_are_spent,
            what_is_held_is_not_counted_for_who_is_refused_or_pays_more,
            an_account_is_frozen_in_the_middle_of_a_saga,
            an_account_closes_against_a_saga_that_names_it,
            an_account_that_is_paid_while_it_closes_does_not_close,
            the_state_of_a_client_waits_for_what_is_under_way,
            a_process_that_wakes_up_too_late_changes_nothing,
            orphans_are_given_back,
            an_account_that_is_busy_keeps_no_hold_of_others,
            holds_that_ended_are_given_back_side_by_side,
            sagas_of_the_dead_are_finished_side_by_side,
            all_orphans_are_given_back_at_once,
            those_who_read_leave_connections_to_those_who_pay,
            a_refusal_by_a_quota_leaves_no_trace,
            new_clients_beyond_the_maximum_are_refused,
            a_vault_gets_no_more_assets_than_in_a_book,
            processes_that_are_gone_are_forgotten,
            nobody_waits_beyond_the_deadline_for_a_call_about_the_same,
            a_store_that_was_gone_is_used_again_without_a_restart,
            one_deposit_and_many_callers_at_once,
            one_posting_and_many_callers_at_once,
            an_account_that_may_owe_is_never_short,
            a_plan_without_room_waits_and_keeps_what_it_carries_over;
            every_saga_stopped_at_every_call_ends_in_one_of_two_ways,
            every_saga_failed_at_every_call_ends_in_one_of_two_ways,
            every_saga_stopped_at_every_call_is_finished_by_another_process;
            many_spend_from_few_accounts_and_nothing_is_lost,
            copies_of_one_entry_at_two_processes_are_one_entry,
            two_processes_cannot_both_use_up_a_cap,
            two_processes_use_up_a_quota_and_no_more,
            two_processes_issue_and_expire_each_period_once,
            streams_that_die_pay_what_they_used,
        );
    };
    ($fresh:path: $($case:ident),*; $($faulty:ident),*; $($shared:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let fresh = $fresh().await;
            $crate::conformance::$case(std::sync::Arc::clone(&fresh.store)).await;
            fresh.close().await;
        }
    )*
    $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $faulty() {
            let fresh = $fresh().await;
            $crate::conformance::$faulty(std::sync::Arc::clone(&fresh.store), fresh.fault_stride).await;
            fresh.close().await;
        }
    )*
    $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $shared() {
            let fresh = $fresh().await;
            let stores = [&fresh.store, &fresh.other].map(std::sync::Arc::clone);
            $crate::conformance::$shared(stores).await;
            fresh.close().await;
        }
    )*};
}
