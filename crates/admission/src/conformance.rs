//! The conformance suite: the test cases that every [`Backend`] must pass.
//!
//! A case is a public async function of a submodule. The macros below list the cases; a case that no list names does
//! not run. A backend's test file has a [`Harness`] and one line: `earmark_admission::conformance!(harness)`. Each case
//! gets a fresh backend. Windows are whole seconds, so that a backend without a manual clock can sleep through them.

mod calls;
mod capacity;
mod complete;
mod credit;
mod credit_driver;
mod driver;
mod extend;
mod extend_credit;
mod grants;
mod history;
mod keys;
mod lists;
mod pauses;
mod periods;
mod plans;
mod quotas;
mod reserve;
mod shared;
mod statement;
mod templates;
mod timeouts;
mod write;
mod write_keys;

pub use calls::*;
pub use capacity::*;
pub use complete::*;
pub use credit::*;
pub use extend::*;
pub use extend_credit::*;
pub use grants::*;
pub use history::*;
pub use keys::*;
pub use lists::*;
pub use pauses::*;
pub use periods::*;
pub use plans::*;
pub use quotas::*;
pub use reserve::*;
pub use shared::*;
pub use statement::*;
pub use templates::*;
pub use timeouts::*;
pub use write::*;
pub use write_keys::*;

use crate::backend::{Answer, Backend};

/// A backend under test and its clock.
pub trait Harness: Send + Sync {
    /// The backend.
    fn backend(&self) -> &dyn Backend;

    /// The backend's wall time in milliseconds, from which the cases make lease ids.
    fn now_ms(&self) -> u64;

    /// Advances the backend's clock, or sleeps if the backend uses real time.
    fn advance_ms(&self, ms: u64) -> Answer<'_, ()>;

    /// Whether the backend keeps the results of all writes for retries. Otherwise a retry of an old write is answered
    /// `ALREADY_COMMITTED`.
    fn keeps_results(&self) -> bool {
        false
    }

    /// Whether credit is judged by the quotas of the backend. A second Book has quotas of its own.
    fn enforces_credit_quotas(&self) -> bool {
        true
    }

    /// Called after a case, to check the storage behind the backend.
    fn finish(&self) -> Answer<'_, ()> {
        Box::pin(async {})
    }
}

/// Generates a test for every case. `$harness` is an async function that returns a fresh [`Harness`].
///
/// `conformance!(harness: case_a, case_b)` generates tests for the named cases only. A backend of limits or of credit
/// alone uses [`conformance_of_limits!`](crate::conformance_of_limits) or
/// [`conformance_of_credit!`](crate::conformance_of_credit).
#[macro_export]
macro_rules! conformance {
    ($harness:path) => {
        $crate::conformance_of_limits!($harness);
        $crate::conformance_of_extensions!($harness);
        $crate::conformance_of_templates!($harness);
        $crate::conformance_of_credit!($harness);
    };
    ($harness:path: $($case:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let harness = $harness().await;
            $crate::conformance::$case(&harness).await;
            $crate::conformance::Harness::finish(&harness).await;
        }
    )*};
}

/// Generates a test for every case about rolling and concurrency limits and their leases.
#[macro_export]
macro_rules! conformance_of_limits {
    ($harness:path) => {
        $crate::conformance!($harness:
            everything_is_taken_together,
            a_denied_reserve_burns_nothing,
            a_denial_says_when_to_come_back_and_which_limit_was_hit,
            a_denied_lease_stays_denied_even_when_it_would_fit,
            more_than_there_is_never_fits,
            a_retry_gets_the_first_answer_and_takes_nothing_more,
            a_retry_in_another_order_is_the_same_retry,
            a_retry_with_another_body_is_refused,
            a_window_gives_back_what_it_took,
            a_slot_of_a_crashed_caller_comes_back_after_its_timeout,
            an_unknown_limit_is_refused_by_name_and_leaves_no_trace,
            a_lease_from_the_past_or_the_future_is_refused,
            the_items_of_a_batch_are_answered_each_on_its_own,
            a_lease_can_be_read,
            a_lease_keeps_the_job_of_its_first_reserve,
            concurrent_requests_cannot_slip_past_a_token_limit,
            less_than_reserved_comes_back_at_once,
            more_than_reserved_is_held_where_it_fits,
            more_than_reserved_is_debt_where_it_does_not_fit,
            more_than_reserved_is_no_debt_where_none_is_kept,
            a_key_that_was_not_reserved_is_ignored_with_a_message,
            nothing_changes_after_the_first_complete,
            a_completed_lease_is_spent,
            a_late_reserve_after_complete_takes_no_slot,
            completing_a_denied_lease_changes_nothing,
            an_empty_complete_frees_slots_and_keeps_the_rest,
            limits_can_be_listed_read_and_deleted,
            usage_is_listed_by_key_and_by_what_is_used,
            more_capacity_counts_at_once,
            less_capacity_waits_until_it_is_free,
            a_limit_in_use_is_deleted_when_it_is_free,
            a_limit_keeps_its_kind,
            a_namespace_gets_no_limits_beyond_its_quota,
            a_change_for_another_revision_is_refused,
            usage_of_a_calendar_limit_ends_with_its_period,
            a_limit_that_is_not_enforced_counts_and_never_denies,
            a_shared_limit_is_reserved_from_other_namespaces,
            a_retried_call_with_a_newer_policy_gets_its_first_answer,
        );
    };
}

/// Generates a test for every case about extensions.
#[macro_export]
macro_rules! conformance_of_extensions {
    ($harness:path) => {
        $crate::conformance!($harness:
            an_extension_takes_more_and_its_copy_gets_the_same_answer,
            extensions_are_numbered_without_gaps,
            the_extensions_of_a_lease_in_one_batch_follow_each_other,
            a_denied_extension_stays_denied_even_when_it_would_fit,
            a_renewed_slot_is_held_until_its_last_timeout,
            only_the_newest_part_of_an_extended_limit_shrinks,
            reported_usage_is_a_floor_at_complete,
            only_a_live_lease_is_extended,
            a_refusal_by_name_leaves_the_number_of_an_extension_free,
            a_lease_is_not_extended_beyond_its_limits,
            an_extended_lease_can_be_read,
            concurrent_copies_of_an_extension_take_once,
            a_claim_for_another_call_changes_nothing,
            the_lease_of_a_gateway_is_refused_to_others,
        );
    };
}

/// Generates a test for every case about templates and pauses. A store of limits has to read both from the Book.
#[macro_export]
macro_rules! conformance_of_templates {
    ($harness:path) => {
        $crate::conformance!($harness:
            every_key_of_a_template_is_a_limit_of_its_own,
            a_changed_template_counts_from_the_next_decision,
            a_definition_overrides_its_template_and_keeps_what_is_reserved,
            a_definition_of_another_kind_waits_for_the_derived_limit,
            the_keys_of_a_deleted_template_are_unknown_at_once,
            of_two_templates_the_leftmost_literal_wins,
            a_credit_template_pays_from_the_account_of_its_key,
            a_paused_limit_refuses_until_it_is_resumed,
        );
    };
}

/// Generates a test for every case about grants and plans.
#[macro_export]
macro_rules! conformance_of_grants {
    ($harness:path) => {
        $crate::conformance!($harness:
            grants_are_spent_by_priority_then_by_expiry,
            an_expired_grant_is_not_spendable_and_has_an_entry,
            a_hold_returns_to_the_grants_it_took_from,
            held_credit_survives_expiry_and_expires_when_it_returns,
            a_transfer_carries_expiry_and_priority,
            a_grant_covers_debt_first,
            returning_grants_cover_debt_but_only_real_debt,
            grants_cover_the_debt_that_a_hold_leaves,
            an_extension_takes_from_grants_in_spending_order,
            bad_grants_are_refused_by_name,
            the_sums_of_grants_add_up,
            a_plan_issues_once_per_period,
            a_plan_carries_unused_credit_over_up_to_its_cap,
            held_credit_of_a_plan_expires_when_it_returns,
            new_terms_of_a_plan_hold_from_the_next_period,
            bad_plans_are_refused_by_name,
        );
    };
}

/// Generates a test for every case about extensions of credit holds, and about holds that run out.
#[macro_export]
macro_rules! conformance_of_extended_credit {
    ($harness:path) => {
        $crate::conformance!($harness:
            credit_is_not_touched_for_a_claim_that_is_refused,
            an_extension_holds_credit_with_its_limits_or_not_at_all,
            a_renewed_hold_runs_out_and_keeps_what_was_used,
            the_first_credit_of_a_lease_may_come_with_an_extension,
            a_lease_that_runs_out_pays_what_it_reported,
            a_lease_that_runs_out_may_pay_all_of_its_hold,
            what_a_timeout_charges_is_never_spendable,
            usage_above_a_hold_follows_the_rule_of_its_limit,
            growth_from_an_account_that_cannot_pay_is_refused,
        );
    };
}

/// Generates a test for every case about writes, credit, credit holds, keys and the change log.
#[macro_export]
macro_rules! conformance_of_credit {
    ($harness:path) => {
        $crate::conformance_of_grants!($harness);
        $crate::conformance_of_extended_credit!($harness);
        $crate::conformance!($harness:
            a_write_is_applied_once_and_its_retry_gets_the_same_answer,
            copies_of_a_write_at_once_are_one_write,
            a_gap_in_the_numbers_is_refused,
            a_number_with_other_content_is_refused,
            an_old_write_is_never_applied_again,
            a_fence_keeps_a_late_copy_out,
            a_write_with_a_key_is_applied_once,
            copies_of_a_write_with_a_key_at_once_are_one_write,
            a_key_with_other_content_or_another_actor_is_refused,
            a_refused_write_leaves_its_key_free,
            a_namespace_gets_no_accounts_clients_or_keys_beyond_its_quotas,
            of_many_writes_at_once_as_many_commit_as_quotas_allow,
            a_failed_write_leaves_its_number_free,
            a_client_has_a_stream_in_every_scope,
            the_first_limit_or_vault_of_a_write_opens_its_namespace,
            a_write_with_one_bad_operation_changes_nothing,
            a_refused_write_has_its_code_and_its_operation,
            the_history_of_an_account_adds_up,
            vaults_are_listed_in_pages,
            accounts_are_listed_with_status_and_balances,
            entries_are_filtered_by_time_and_come_in_both_orders,
            credit_is_held_with_the_limits_or_not_at_all,
            too_little_credit_is_named_unless_a_limit_is_in_the_way_too,
            a_lease_denied_for_want_of_credit_stays_denied,
            credit_keys_of_one_account_are_planned_together,
            an_account_that_cannot_pay_is_told_apart,
            a_missing_account_is_named_before_a_full_limit,
            an_account_with_an_overdraft_holds_what_it_has_not,
            a_cap_bounds_reserves_and_transfers_and_not_settlements,
            copies_of_a_reserve_at_once_hold_once,
            settling_pays_what_it_cost_and_returns_the_rest,
            what_the_owner_has_not_is_debt_or_paid_by_nobody,
            the_next_deposit_covers_a_debt_first,
            a_hold_that_ran_out_is_back_and_settling_it_still_charges,
            a_settlement_needs_neither_its_limit_nor_an_open_account,
            from_a_closed_account_nothing_is_charged,
            a_hold_is_of_the_vault_that_its_limit_names,
            credit_limits_can_be_read_changed_and_deleted,
            amounts_reach_the_bounds_of_128_bits,
            an_account_that_has_spent_everything_shows_nothing_of_it,
            holds_settlements_and_releases_are_in_the_history,
            the_labels_of_a_complete_are_on_its_settlements_and_stay,
            a_statement_adds_up_and_groups_spending_by_label,
            a_statement_is_what_a_reader_sums_up_from_all_entries,
            what_a_lease_holds_and_pays_names_who_had_it_done,
            a_key_is_accepted_until_it_is_revoked,
            nothing_is_changed_by_a_revoked_key,
            a_client_id_belongs_to_its_first_writer,
            changes_are_logged_with_who_made_them,
        );
    };
}
