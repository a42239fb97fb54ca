//! Scheduled jobs: each tick of a job runs once in the fleet.
//!
//! Every node runs the same jobs ([`run()`], [`Scheduler`]); one of them runs each tick. A tick is
//! identified by the job and its *nominal* time, never by the time at which a node reads the
//! record. So skewed clocks, restarts and late starters cannot fire it again.
//!
//! # The protocol
//! A job has a lock and a record, both named `cron:<job>`. All times in the record are the
//! engine's. The record has
//! - the *watermark*: the newest tick that was judged;
//! - the ticks that were chosen and have not begun;
//! - the runs in progress, each with its token;
//! - the last twenty outcomes.
//!
//! A node
//! 1. reads the record, and with it the engine's clock. If nothing is due, it sleeps until the next
//!    tick, by its own monotonic clock, and reads the record again. It never reads its wall clock.
//! 2. acquires the job's lock, waiting in the queue.
//! 3. reads the record again and decides ([`decide`](crate::logic::decide())): it judges
//!    every tick since the watermark once, and chooses the next one to run.
//! 4. writes the record over the version that it read, with the new watermark, and with the run
//!    under the guard's token.
//! 5. only then runs the job, as long as it holds the lock.
//! 6. records the outcome, if the run with its token is still listed, and releases the lock.
//!
//! | event | consequence |
//! |---|---|
//! | two nodes find the same tick due | one acquires the lock; the other reads, under the lock, that the tick is judged |
//! | a node's clock is minutes off | no effect: only the engine's clock counts |
//! | a node dies before 4 | no tick was judged: the next waiter judges it |
//! | the reply to 4 is lost, or too few replicas have the write | the node reads the record again, and the token shows whether the entry is its own; if so, it writes the entry again, and begins only after a confirmation |
//! | a node dies between 4 and 6 | the next holder finds a run with an older token: by [`Crash`] it is recorded as crashed, or run again with the new token |
//! | a node is suspended before 4 for longer than its lease | its write fails because the version has changed; or the record has a higher token, and the node starts no run |
//! | a node is suspended after 4 for longer than its lease | its run was recorded as crashed; it stops at its next step, its outcome is not recorded, and its token is rejected where tokens are checked |
//! | a run reaches `max_hold`: its lock is free before its node can record that | the node records it just before (a second, or a twentieth); if the engine does not respond then, the next holder records the run as crashed |
//! | a node must stop, and ends its run ([`Run::mark_interrupted`]) | as after a crash, but at once: with [`Crash::Retry`] the next waiter takes it over, otherwise it is recorded as lost |
//! | a node dies after the work and before 6 | as during the run: with [`Crash::Retry`] the work is done again, with a higher token |
//! | the engine is unreachable | no run begins; once it responds, late ticks run if within their grace, and otherwise follow [`Missed`] |
//! | the engine's clock is set back | no tick is due until the clock has passed the watermark; [`JobEvent::ClockBehind`] reports it, [`Jobs::reset`] ends it |
//! | the engine's clock is set forward | ticks come early, each once |
//! | the engine loses the record (a wipe, [`Jobs::remove`] while nodes run) | a node that has seen it continues from the present: ticks due since its last read are recorded as unknown |
//! | the record goes back (a failover without the last writes) | no node decides below the newest watermark that it has seen itself; ticks that waited in it are recorded as unknown |
//! | the same, and the deciding node had not seen the lost part (it is new, or last read up to ten seconds before) | where the engine reports its server runs, see below; elsewhere ticks since the remaining record may run again: docs/schedule.md lists what each engine keeps |
//! | the schedule changes | the new schedule's ticks count from the time when a node first had it |
//! | nodes have different schedules for a while | each tick of either schedule runs once |
//! | the record cannot be parsed | an error, and nothing runs |
//!
//! # Servers that lose acknowledged writes
//! Some engines reply before a write is durable: Redis replicates asynchronously. Such an engine
//! can report its *server run* with every record that it reads, in one step
//! ([`RecordStore::get_in_run`](leasehold::engine::RecordStore::get_in_run)). A server run has a
//! name, which changes with a start, a promotion or an election. It also has the time on the
//! engine's clock at which a client first saw it. Redis reports it with `strict`. A job's record
//! has the server run in which it was last *decided*. Other writes (a pause, an outcome) leave that
//! unchanged, because they judge no tick.
//!
//! The rule: a node that decides in another server run than the record's puts the present server
//! run into the record. It also sets the record's *uncertainty limit* to the beginning of that run.
//!
//! - Any tick up to the limit that the record does not mention may have begun, with all entries
//!   about it lost.
//! - A tick above the limit cannot have begun in an earlier server run: it came due after that
//!   server run had ended.
//! - In strict mode no node acquires the lock before every lease of the earlier server run has
//!   expired. So a lost run has ended, too, when the next node decides.
//!
//! The policies then mean:
//!
//! - [`Crash::AtMostOnce`] (or one attempt): up to the limit, due ticks, ticks that waited in the
//!   record, and manual runs are recorded as [`TickOutcome::Unknown`] and do not begin.
//! - [`Crash::Retry`] prefers a second start to none: such ticks are judged as usual (grace,
//!   [`Missed`]), and begin with attempt 2. It is unknown how often they had begun before, so the
//!   number of starts may exceed the limit by those that were lost. The token is higher in any
//!   case. With [`Overlap::Allow`] these ticks are unknown, too: a node that acquired the lock
//!   before the lost run would begin them with a lower token.
//! - [`Missed`] and the grace apply only to ticks above the limit, except with `Retry`.
//!
//! | event | consequence |
//! |---|---|
//! | the reply to a read is lost | it is read again; the engine reports the server run again, with the same beginning |
//! | the reply to the write is lost | read again, in the same server run or a newer one: the token shows whether the entry is there, and the server run whether it may be lost |
//! | a node stops between reading in one server run and writing in the next | the write is refused, even if the new server has that very version: later writes may be lost ([`RecordStore::compare_and_set_in_run`](leasehold::engine::RecordStore::compare_and_set_in_run)) |
//! | that node had recorded a run, and begins it in the new server run | it holds the lock by its own clock, and no other node acquires it before that expires |
//! | two nodes decide at once in a new server run | one acquires the lock; the other reads that the record is in this server run |
//! | a second failover during the cool-down | no run began meanwhile; the next server run began later, and the limit is higher |
//! | the record survived, but is older | its watermark remains valid, and ticks from it to the limit are unknown |
//! | the record survived completely (a restart with all data) | the same, because the two cases look alike. The ticks of the server's downtime are unknown, and not late |
//! | the record is gone, and a node had seen it | ticks due since that node read it are unknown, with every policy |
//! | the record is gone, and no node had seen it (`run --once-per`) | the job looks new, but a tick before the beginning of the server run is unknown: it may have been lost |
//! | a job is new in a server run | its ticks begin when its first node has read it, and no earlier tick counts |
//! | the record lists a run without its outcome | its node died, or the outcome was lost: handled as any crash, and the entry notes it |
//! | the schedule is paused | ticks that waited are unknown; ticks of a pause never run later |
//! | a pause or a manual run was lost | as if it had not been requested |
//! | the server's clock is set back within a server run | the limit stays: no tick up to it begins |
//! | the clock was set back *and* the server loses writes | a tick that ran by the earlier clock can be above the limit, and runs again |
//! | the clocks of two servers differ | by less than the duration of a failover: no effect. By more: ticks of that difference run again, or are unknown unnecessarily |
//! | no node reads the record for days (`run --once-per @weekly`) | the record keeps its server run and does not expire; the next tick is unknown only if the server was restarted meanwhile |
//!
//! With [`Overlap::Allow`] the lock is a semaphore with that many permits, and a node inspects the
//! holders to find dead runs.
//!
//! # Metrics
//! | name | kind | label | meaning |
//! |---|---|---|---|
//! | `leasehold_schedule_ticks_total` | counter | `result`: done, failed, crashed, lost, timed-out, overlapped, missed | outcomes of ticks on this node |
//! | `leasehold_schedule_lag_seconds` | histogram | | time from a tick's nominal time to the start of its run |

mod control;
mod cron;
mod event;
mod execution;
mod job;
mod job_store;
#[doc(hidden)]
pub mod logic;
mod run;
mod runner;
mod scheduler;
mod stop_handle;
mod tick;
mod worker;

pub use self::control::{JobStatus, Jobs};
pub use self::cron::Cron;
pub use self::event::JobEvent;
pub use self::execution::FinishedRun;
pub use self::job::{DEFAULT_GRACE, Job, PREFIX};
pub use self::run::Run;
pub use self::runner::{DEFAULT_SKEW, run, run_due, run_until};
pub use self::scheduler::Scheduler;
pub use self::stop_handle::StopHandle;
pub use self::tick::Tick;
pub use crate::logic::{
    ActiveRun, Crash, HistoryEntry, MAX_CONCURRENT_RUNS, MAX_TICKS, Missed, OperatorRequest, Overlap, TickOutcome,
};

/// Compiles the code blocks in the documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/schedule.md")]
    mod page {}
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The metrics that a text names between these marks.
    fn metrics_in(text: &'static str, mark: char) -> impl Iterator<Item = &'static str> {
        text.split(mark).filter(|word| word.starts_with("leasehold_schedule_"))
    }

    #[test]
    fn the_documented_metrics_are_reported() {
        let documented: BTreeSet<_> = metrics_in(include_str!("lib.rs"), '`').collect();
        let sources = [include_str!("execution.rs"), include_str!("worker.rs")];
        let reported: BTreeSet<_> = sources.into_iter().flat_map(|text| metrics_in(text, '"')).collect();
        assert_eq!(documented, reported);
        assert!(!reported.is_empty());
    }
}
