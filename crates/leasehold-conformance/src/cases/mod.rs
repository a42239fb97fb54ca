//! The cases, one file per promise. Each is `pub async fn name(world: &World)` and stands in the list below, which makes both
//! [`CASES`] and [`suite!`](crate::suite).

use futures_util::future::BoxFuture;
use leasehold::engine::Capabilities;

use crate::need::{DEATH, DURABLE, EVICTION, FIFO, INSPECTION, Need, PERMITS, PROCESSES, RECORDS, REENTRY, SHARED};
use crate::world::World;

/// A behaviour that an engine must show.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its file and its function.
    pub name: &'static str,
    /// What the engine must be able to do.
    pub needs: &'static [Need],
    /// Runs it; panics if the engine behaves otherwise.
    pub run: for<'a> fn(&'a World) -> BoxFuture<'a, ()>,
}

impl Case {
    /// What the case needs and an engine cannot do.
    pub fn missing(&self, capabilities: &Capabilities) -> Vec<Need> {
        self.needs.iter().filter(|need| !(need.met)(capabilities)).copied().collect()
    }
}

/// Makes the modules, the list and the macro `suite!` from the names of the cases. `$d` is a dollar sign.
macro_rules! cases {
    ($d:tt $($module:ident { $($name:ident [$($need:ident)*])* })*) => {
        $(pub mod $module;)*

        /// All cases.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            needs: &[$($need),*],
            run: |world| Box::pin($module::$name(world)),
        }),*),*];

        /// Makes a module of tests, one for each case, for the engine that the [`Subject`](crate::Subject) opens.
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

/// Makes a module of tests of the essential cases only: for an engine whose whole suite is for the nightly run.
#[macro_export]
macro_rules! essentials {
    ($suite:ident, $subject:expr) => {
        $crate::essentials! { $suite, $subject,
            exclusion::tasks_never_overlap
            exclusion::processes_never_overlap
            reentry::the_same_owner_enters_again_with_the_same_token
            shared::a_writer_and_a_reader_exclude_each_other
            permits::never_more_than_the_limit
            tokens::rise_with_every_grant
            expiry::the_holder_stops_before_another_is_granted
            crash::a_killed_holder_is_replaced_at_once
            cancel::on_a_held_lock
            release::the_second_one_finds_nothing
            unknown::a_lost_reply_to_an_attempt_is_one_grant
            unknown::a_lost_reply_to_a_release_is_a_release
            bounds::a_try_answers_without_waiting
            bounds::a_bounded_wait_ends_in_a_timeout
            all::it_is_all_or_nothing
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
        processes_never_overlap [PROCESSES]
        clients_see_each_other []
    }
    fifo {
        claims_are_granted_in_the_order_of_arrival [FIFO]
        tasks_are_granted_in_the_order_of_arrival [FIFO INSPECTION]
        processes_are_granted_in_the_order_of_arrival [FIFO INSPECTION PROCESSES]
        nobody_barges_past_the_queue [FIFO]
        a_silent_waiter_is_passed_over [FIFO]
        a_wait_longer_than_the_ttl_keeps_its_place [FIFO INSPECTION]
    }
    reentry {
        the_same_owner_enters_again_with_the_same_token [REENTRY]
        another_owner_waits [REENTRY]
        without_an_owner_nobody_enters_again []
        the_lock_is_free_after_the_last_release [REENTRY]
        a_nested_reader_passes_a_waiting_writer [REENTRY SHARED FIFO INSPECTION]
        an_upgrade_is_refused [REENTRY SHARED]
        nested_permits_count_once_and_with_the_largest [REENTRY PERMITS]
        the_same_owner_enters_from_another_process [REENTRY PROCESSES]
        an_owner_whose_outer_hold_expired_enters_no_more [REENTRY]
    }
    shared {
        readers_hold_together [SHARED]
        a_writer_and_a_reader_exclude_each_other [SHARED]
        readers_wait_behind_a_waiting_writer [SHARED FIFO INSPECTION]
        a_storm_of_readers_and_writers_never_mixes [SHARED]
        processes_read_together_and_write_alone [SHARED PROCESSES]
    }
    permits {
        never_more_than_the_limit [PERMITS]
        a_large_request_is_not_overtaken [PERMITS FIFO INSPECTION]
        another_limit_is_refused [PERMITS]
        none_and_too_many_are_refused_before_any_call [PERMITS]
        an_exclusive_hold_keeps_all_permits_out [PERMITS]
        processes_share_the_permits [PERMITS PROCESSES]
    }
    tokens {
        rise_with_every_grant []
        rise_over_an_expiry []
        rise_over_an_eviction [EVICTION INSPECTION]
        rise_over_a_crash [PROCESSES]
        rise_when_the_engine_is_opened_again [DURABLE PROCESSES]
        differ_among_readers [SHARED]
        are_known_to_the_inspection [INSPECTION]
    }
    expiry {
        a_kept_lease_outlives_its_ttl []
        the_holder_stops_before_another_is_granted []
        max_hold_ends_it []
        a_max_hold_shorter_than_a_call_ends_at_once []
        protected_work_is_dropped_at_the_loss []
    }
    crash {
        a_killed_holder_is_replaced_within_its_ttl [PROCESSES]
        a_killed_holder_is_replaced_at_once [PROCESSES DEATH]
        a_killed_waiter_does_not_stop_the_queue [PROCESSES INSPECTION FIFO]
        killed_readers_and_permits_make_room [PROCESSES SHARED PERMITS]
        one_killed_process_leaves_the_others_alone [PROCESSES]
    }
    pause {
        a_holder_stopped_past_its_ttl_knows_and_is_fenced_off [PROCESSES]
        a_waiter_stopped_past_its_ttl_asks_again [PROCESSES FIFO INSPECTION]
    }
    cancel {
        on_a_free_lock []
        on_a_held_lock []
        during_the_hand_over []
        of_several_locks []
        of_a_release []
        by_dropping_everything_at_once []
    }
    release {
        the_second_one_finds_nothing []
        it_says_that_the_lock_was_lost []
        it_never_touches_another_claim []
        a_waiting_claim_leaves_the_queue [FIFO]
        a_dropped_guard_gives_the_lock_back []
        a_closed_client_leaves_nothing []
    }
    unknown {
        a_lost_reply_to_an_attempt_is_one_grant []
        a_lost_request_is_asked_again []
        a_lost_reply_to_a_try_is_cleaned_up []
        a_lost_reply_before_a_final_error_is_cleaned_up []
        a_lost_reply_while_waiting_keeps_the_place [FIFO]
        a_lost_reply_to_a_release_is_a_release []
        a_lost_request_to_release_is_sent_again []
        lost_replies_to_renewals_lose_nothing []
        a_refusal_for_now_is_tried_again_within_the_wait []
        an_engine_that_is_away_ends_the_wait_in_time []
        an_engine_that_never_answers_ends_the_wait_in_time []
        an_engine_away_for_a_ttl_is_an_error []
        a_wait_longer_than_the_ttl_covers_the_engines_absence []
    }
    evict {
        the_holder_is_told_and_the_next_is_granted [EVICTION INSPECTION]
        a_waiter_leaves_the_queue [EVICTION FIFO INSPECTION]
        a_waiter_that_is_removed_ends_with_an_error [EVICTION FIFO INSPECTION]
        a_grant_that_was_not_polled_for_ends_with_its_eviction [EVICTION FIFO INSPECTION]
        the_advice_spares_who_stays [EVICTION PERMITS FIFO INSPECTION]
        an_unknown_claim_is_nobody [EVICTION]
        one_of_two_claims_of_an_owner_ends [EVICTION REENTRY INSPECTION]
        a_holder_in_another_process_is_told [EVICTION PROCESSES INSPECTION]
    }
    release_requests {
        the_holder_is_asked_and_keeps_the_lock_until_it_releases_it [EVICTION INSPECTION]
        a_holder_is_asked_in_the_moment_of_its_grant [EVICTION FIFO INSPECTION]
        a_holder_that_does_not_release_it_loses_it_at_its_deadline [EVICTION INSPECTION]
        a_holder_that_was_asked_may_be_evicted [EVICTION INSPECTION]
        a_claim_that_does_not_hold_is_not_asked [EVICTION]
    }
    names {
        nasty_names_do_not_meet []
        random_names_do_not_meet []
        bad_names_are_refused_before_any_call []
    }
    inspect {
        shows_who_holds_and_who_waits [INSPECTION]
        ages_grow [INSPECTION]
        lists_by_prefix [INSPECTION]
        shows_other_processes [INSPECTION PROCESSES]
        shows_every_holder_of_permits [INSPECTION PERMITS]
        shows_nothing_after_the_release [INSPECTION]
        changes_nothing [INSPECTION]
    }
    all {
        opposite_orders_do_not_deadlock []
        it_is_all_or_nothing []
        there_is_one_deadline []
        a_name_wanted_twice_is_taken_once []
        modes_can_be_mixed [SHARED PERMITS]
        it_is_lost_when_one_is_lost []
    }
    election {
        one_leads_and_all_can_see_it [INSPECTION]
        an_observer_sees_every_leader [INSPECTION]
        an_observer_at_rest_asks_for_nothing [INSPECTION]
        a_watch_sees_every_change_since_it_began [INSPECTION]
        a_lost_leadership_is_told []
    }
    bounds {
        a_try_answers_without_waiting []
        a_bounded_wait_ends_in_a_timeout []
        an_unbounded_wait_ends_with_the_grant []
        a_wait_of_nothing_still_takes_a_free_lock []
        a_ttl_out_of_bounds_is_refused_before_any_call []
        a_bad_description_is_refused_before_any_call []
        waiting_does_not_hammer_the_engine []
    }
    records {
        what_was_written_is_read [RECORDS]
        where_there_is_none_nothing_is_read [RECORDS]
        a_late_writer_changes_nothing [RECORDS]
        a_version_never_comes_back [RECORDS]
        of_two_who_write_at_once_one_succeeds [RECORDS]
        every_update_counts_once [RECORDS]
        names_do_not_meet [RECORDS]
        they_do_not_meet_locks [RECORDS]
        names_are_listed_by_prefix_in_order [RECORDS]
        the_clock_moves_on_and_all_agree [RECORDS]
        no_clients_wall_clock_plays_a_role [RECORDS PROCESSES]
        they_outlive_their_clients [RECORDS DURABLE]
        any_text_is_kept_as_it_is [RECORDS]
        too_long_a_value_is_refused_before_any_call [RECORDS]
        a_bad_name_is_refused_before_any_call [RECORDS]
        a_lost_reply_is_read_again [RECORDS]
        an_engine_that_is_away_ends_an_update_in_time [RECORDS]
    }
    random {
        operations_match_the_model [FIFO INSPECTION]
    }
}
