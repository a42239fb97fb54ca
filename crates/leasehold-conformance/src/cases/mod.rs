//! The cases, one file per guarantee. Each is a `pub async fn name(context: &TestContext)` and is
//! listed below, which defines both [`CASES`] and [`suite!`](crate::suite).

use futures_util::future::BoxFuture;
use leasehold::engine::Capabilities;

use crate::requirement::{
    DEATH_DETECTION, DURABLE, FIFO, FORCE_RELEASE, INSPECTION, MULTI_PROCESS, PERMITS, RECORDS, REENTRY, Requirement,
    SHARED,
};
use crate::test_context::TestContext;

/// A behaviour that an engine must show.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The module and the function of the case, such as `fifo::no_claim_bypasses_the_queue`.
    pub name: &'static str,
    /// The capabilities that the engine needs.
    pub requirements: &'static [Requirement],
    /// Runs the case; panics if the engine behaves otherwise.
    pub run: for<'a> fn(&'a TestContext) -> BoxFuture<'a, ()>,
}

impl Case {
    /// Those of the case's requirements that an engine with these capabilities does not meet.
    pub fn missing_requirements(&self, capabilities: &Capabilities) -> Vec<Requirement> {
        self.requirements.iter().filter(|need| !(need.is_met)(capabilities)).copied().collect()
    }
}

/// Defines the modules, the list and the macro `suite!` from the names of the cases. `$d` is a
/// dollar sign.
macro_rules! cases {
    ($d:tt $($module:ident { $($name:ident [$($need:ident)*])* })*) => {
        $(pub mod $module;)*

        /// All cases.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            requirements: &[$($need),*],
            run: |test_context| Box::pin($module::$name(test_context)),
        }),*),*];

        /// Defines a module of tests, one per case, for the engine that the
        /// [`Subject`](crate::Subject) opens.
        #[macro_export]
        macro_rules! suite {
            ($d suite:ident, $d subject:expr) => {
                mod $d suite {
                    use super::*;
                    $(mod $module {
                        use super::*;
                        $(
                            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                            async fn $name() {
                                let case = concat!(stringify!($module), "::", stringify!($name));
                                $crate::run(case, &$d subject, env!("CARGO_BIN_EXE_leasehold-actor")).await;
                            }
                        )*
                    })*
                }
            };
        }
    };
}

/// Defines a module of tests with the essential cases only, for an engine whose whole suite runs
/// nightly.
#[macro_export]
macro_rules! essentials {
    ($suite:ident, $subject:expr) => {
        $crate::essentials! { $suite, $subject,
            exclusion::tasks_never_overlap
            exclusion::processes_never_overlap
            reentry::the_same_owner_re_enters_with_the_same_token
            read_write::a_writer_and_a_reader_exclude_each_other
            permits::never_more_than_the_limit
            tokens::rise_with_every_grant
            expiry::the_holder_stops_before_another_is_granted
            crash::a_killed_holder_is_replaced_at_once
            cancel::on_a_held_lock
            release::a_second_release_finds_nothing
            lost_replies::a_lost_reply_to_an_attempt_is_one_grant
            lost_replies::a_lost_reply_to_a_release_is_a_release
            wait_limits::a_try_returns_without_waiting
            wait_limits::a_bounded_wait_ends_in_a_timeout
            multi_lock::all_or_none_are_acquired
        }
    };
    ($suite:ident, $subject:expr, $($module:ident::$name:ident)*) => {
        mod $suite {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let case = concat!(stringify!($module), "::", stringify!($name));
                    $crate::run(case, &$subject, env!("CARGO_BIN_EXE_leasehold-actor")).await;
                }
            )*
        }
    };
}

cases! { $
    exclusion {
        tasks_never_overlap []
        processes_never_overlap [MULTI_PROCESS]
        clients_exclude_each_other []
    }
    fifo {
        claims_are_granted_in_the_order_of_arrival [FIFO]
        tasks_are_granted_in_the_order_of_arrival [FIFO INSPECTION]
        processes_are_granted_in_the_order_of_arrival [FIFO INSPECTION MULTI_PROCESS]
        no_claim_bypasses_the_queue [FIFO]
        an_expired_waiter_is_skipped [FIFO]
        a_wait_longer_than_the_ttl_keeps_its_position [FIFO INSPECTION]
    }
    reentry {
        the_same_owner_re_enters_with_the_same_token [REENTRY]
        another_owner_waits [REENTRY]
        without_an_owner_there_is_no_re_entry []
        the_lock_is_free_after_the_last_release [REENTRY]
        a_nested_reader_passes_a_waiting_writer [REENTRY SHARED FIFO INSPECTION]
        an_upgrade_is_refused [REENTRY SHARED]
        nested_permits_count_once_and_with_the_largest [REENTRY PERMITS]
        two_waiters_of_one_owner_are_granted_together [REENTRY FIFO INSPECTION]
        the_same_owner_re_enters_from_another_process [REENTRY MULTI_PROCESS]
        an_expired_hold_allows_no_re_entry [REENTRY]
    }
    read_write {
        readers_hold_together [SHARED]
        a_writer_and_a_reader_exclude_each_other [SHARED]
        readers_wait_behind_a_waiting_writer [SHARED FIFO INSPECTION]
        readers_and_writers_never_overlap_under_contention [SHARED]
        processes_read_together_and_write_alone [SHARED MULTI_PROCESS]
    }
    permits {
        never_more_than_the_limit [PERMITS]
        a_large_request_is_not_overtaken [PERMITS FIFO INSPECTION]
        another_limit_is_refused [PERMITS]
        zero_and_too_many_permits_are_refused_before_any_call [PERMITS]
        an_exclusive_hold_excludes_all_permits [PERMITS]
        processes_share_the_permits [PERMITS MULTI_PROCESS]
    }
    tokens {
        rise_with_every_grant []
        rise_over_an_expiry []
        rise_over_a_force_release [FORCE_RELEASE INSPECTION]
        rise_over_a_crash [MULTI_PROCESS]
        rise_when_the_engine_is_opened_again [DURABLE MULTI_PROCESS]
        differ_among_readers [SHARED]
        are_known_to_the_inspection [INSPECTION]
    }
    expiry {
        a_renewed_lease_outlives_its_ttl []
        the_holder_stops_before_another_is_granted []
        max_hold_ends_the_hold []
        a_max_hold_shorter_than_a_call_ends_at_once []
        protected_work_is_dropped_at_the_loss []
    }
    crash {
        a_killed_holder_is_replaced_within_its_ttl [MULTI_PROCESS]
        a_killed_holder_is_replaced_at_once [MULTI_PROCESS DEATH_DETECTION]
        a_killed_waiter_does_not_stop_the_queue [MULTI_PROCESS INSPECTION FIFO]
        shared_holds_and_permits_of_a_killed_process_are_freed [MULTI_PROCESS SHARED PERMITS]
        a_killed_process_does_not_affect_the_others [MULTI_PROCESS]
    }
    stopped_process {
        a_holder_stopped_past_its_ttl_learns_of_it_and_is_fenced_off [MULTI_PROCESS]
        a_waiter_stopped_past_its_ttl_requests_again [MULTI_PROCESS FIFO INSPECTION]
    }
    cancel {
        on_a_free_lock []
        on_a_held_lock []
        during_a_hand_off []
        of_several_locks []
        of_a_release []
        by_dropping_everything_at_once []
    }
    release {
        a_second_release_finds_nothing []
        a_release_reports_a_lost_lock []
        a_release_never_affects_another_claim []
        a_waiting_claim_leaves_the_queue [FIFO]
        a_dropped_guard_releases_the_lock []
        a_closed_client_leaves_nothing []
    }
    lost_replies {
        a_lost_reply_to_an_attempt_is_one_grant []
        a_lost_request_is_sent_again []
        a_lost_reply_to_a_try_is_cleaned_up []
        a_lost_reply_before_a_final_error_is_cleaned_up []
        a_lost_reply_while_waiting_keeps_the_position [FIFO]
        a_lost_reply_to_a_release_is_a_release []
        a_lost_request_to_release_is_sent_again []
        lost_replies_to_renewals_lose_nothing []
        a_temporary_refusal_is_retried_within_the_timeout []
        an_unreachable_engine_ends_the_wait_in_time []
        an_engine_that_never_responds_ends_the_wait_in_time []
        an_engine_unreachable_for_a_ttl_is_an_error []
        a_wait_longer_than_the_ttl_covers_an_outage []
    }
    force_release {
        the_holder_is_notified_and_the_next_waiter_granted [FORCE_RELEASE INSPECTION]
        a_force_released_waiter_leaves_the_queue [FORCE_RELEASE FIFO INSPECTION]
        a_force_released_waiter_gets_an_error [FORCE_RELEASE FIFO INSPECTION]
        an_unpolled_grant_ends_with_its_force_release [FORCE_RELEASE FIFO INSPECTION]
        the_fence_token_admits_remaining_holders [FORCE_RELEASE PERMITS FIFO INSPECTION]
        an_unknown_claim_force_releases_none [FORCE_RELEASE]
        force_releasing_one_of_an_owners_claims_keeps_the_other [FORCE_RELEASE REENTRY INSPECTION]
        a_holder_in_another_process_is_notified [FORCE_RELEASE MULTI_PROCESS INSPECTION]
    }
    release_requests {
        the_holder_is_notified_and_keeps_the_lock_until_it_releases [FORCE_RELEASE INSPECTION]
        a_request_may_arrive_during_the_grant [FORCE_RELEASE FIFO INSPECTION]
        an_ignored_request_ends_the_hold_at_its_deadline [FORCE_RELEASE INSPECTION]
        a_holder_with_a_release_request_may_be_force_released [FORCE_RELEASE INSPECTION]
        a_claim_that_is_not_held_gets_no_request [FORCE_RELEASE]
    }
    lock_names {
        confusable_names_do_not_collide []
        random_names_do_not_collide []
        bad_names_are_refused_before_any_call []
    }
    inspection {
        shows_holders_and_waiters [INSPECTION]
        ages_grow [INSPECTION]
        lists_by_prefix [INSPECTION]
        shows_other_processes [INSPECTION MULTI_PROCESS]
        shows_every_holder_of_permits [INSPECTION PERMITS]
        shows_nothing_after_the_release [INSPECTION]
        does_not_change_leases [INSPECTION]
    }
    multi_lock {
        opposite_orders_do_not_deadlock []
        all_or_none_are_acquired []
        one_timeout_covers_all_locks []
        a_name_given_twice_is_acquired_once []
        modes_can_be_mixed [SHARED PERMITS]
        all_are_lost_when_one_is_lost []
    }
    election {
        one_leader_is_visible_to_all [INSPECTION]
        an_observer_sees_every_leader [INSPECTION]
        an_idle_observer_sends_few_requests [INSPECTION]
        a_watch_sees_every_change_since_it_began [INSPECTION]
        a_leader_learns_of_its_loss []
    }
    wait_limits {
        a_try_returns_without_waiting []
        a_bounded_wait_ends_in_a_timeout []
        an_unbounded_wait_ends_with_the_grant []
        a_zero_timeout_still_acquires_a_free_lock []
        a_ttl_out_of_bounds_is_refused_before_any_call []
        a_bad_description_is_refused_before_any_call []
        waiting_sends_few_requests []
    }
    records {
        a_written_record_is_read_back [RECORDS]
        an_absent_record_has_version_zero [RECORDS]
        a_write_over_an_old_version_is_refused [RECORDS]
        versions_are_never_reused [RECORDS]
        one_of_concurrent_writers_succeeds [RECORDS]
        every_update_counts_once [RECORDS]
        names_do_not_collide [RECORDS]
        a_record_and_a_lock_of_one_name_are_independent [RECORDS]
        names_are_listed_by_prefix_in_order [RECORDS]
        the_clock_advances_and_all_clients_agree [RECORDS]
        client_wall_clocks_have_no_effect [RECORDS MULTI_PROCESS]
        records_outlive_their_clients [RECORDS DURABLE]
        any_text_is_stored_unchanged [RECORDS]
        too_long_a_value_is_refused_before_any_call [RECORDS]
        a_bad_name_is_refused_before_any_call [RECORDS]
        an_update_reads_again_after_a_lost_reply [RECORDS]
        an_unreachable_engine_ends_an_update_in_time [RECORDS]
    }
    random_operations {
        operations_match_the_model [FIFO INSPECTION]
    }
}
