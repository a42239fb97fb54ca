//! Jobs by a timetable, each tick of which runs once in the fleet.
//!
//! Every node runs the same jobs ([`run`], [`Scheduler`]); each tick of each job is run by one of them. A tick is named by the job and
//! its *nominal* time, never by the moment at which somebody looked: so skewed clocks, restarts and late starters cannot fire it again.
//!
//! # The protocol
//! A job has a lock and a record, both named `cron:<job>`. The record has the *watermark*, the newest tick that was judged; the
//! ticks that were chosen and have not begun; the runs that go on, each with its token; and the last twenty ends. All
//! times in it are the engine's. A node
//! 1. reads the record, and with it the engine's clock. Nothing due: it sleeps until the next tick, by its own monotonic clock, and
//!    looks again. Its wall clock is never read.
//! 2. takes the job's lock, waiting in line.
//! 3. reads the record again, and decides ([`decide`](crate::logic::schedule::decide())): every tick since the watermark is judged
//!    once and for all, and the next one to run is chosen.
//! 4. writes the record over the version that it read, with the watermark moved and the run entered under the guard's token. Only
//!    then does it
//! 5. run the job, as long as the lock is held.
//! 6. enters how it ended, if the run with its token is still there, and gives the lock back.
//!
//! | what if | then |
//! |---|---|
//! | two nodes find the same tick due | one has the lock; the other reads, under the lock, that it is judged |
//! | a clock is minutes wrong | nobody reads it: only the engine's counts |
//! | a node dies before 4 | nothing was judged: the next in line does it |
//! | the reply to 4 is lost, or too few replicas have it | the record is read again, and the token tells whether the entry is ours; if so it is written once more, and begun only when that was confirmed |
//! | a node dies between 4 and 6 | whoever has the lock next finds a run of an older token: by [`Crash`] it is entered as crashed, or run again with the new token |
//! | a node stands still before 4 for longer than its lease | the write fails: the version is another one; or the record has a higher token, and it does nothing |
//! | a node stands still after 4 for longer than its lease | its run was taken for dead; it stops at its next step, its end is not entered, and its token is refused where tokens are checked |
//! | a run reaches `max_hold`: its lock is free before its node can enter that | it enters that just before (a second, or a twentieth); if the engine does not answer then, whoever has the lock next takes it for dead |
//! | a node is told to stop, and ends its run ([`Run::interrupted`]) | as if it had died, but at once: with [`Crash::Retry`] the next in line takes it over, otherwise it is entered as lost |
//! | a node dies after the work and before 6 | as in mid-run: with [`Crash::Retry`] the work is done again, with a higher token |
//! | the engine is away | nothing is begun; when it is back, late ticks are run if within their grace, and missed by [`Missed`] if not |
//! | the engine's clock is set back | nothing is due until it has passed the watermark; [`Event::ClockBehind`] says so, [`Jobs::reset`] ends it |
//! | the engine's clock is set forward | ticks come early, each once |
//! | the engine forgets the record (a wipe, [`Jobs::forget`] while nodes run) | a node that has seen it goes on from the present: what came due since it last looked is not run |
//! | the record goes back (a fail-over without the last writes) | no node decides below the newest watermark that it has seen itself; what waited in it is entered as missed |
//! | the same, and whoever decides had not seen what is lost (it is new, or last looked up to ten seconds before) | ticks since what is left of it may run again: docs/schedule.md has what each engine keeps |
//! | the timetable changes | the new one's ticks count from the moment when a node first had it |
//! | nodes have different timetables for a while | each instant of either is run once |
//! | the record cannot be understood | an error, and nothing is run |
//!
//! With [`Overlap::Allow`] the lock is a semaphore of as many permits, and who still holds is looked up to know which runs are dead.

mod control;
mod cron;
mod drive;
mod event;
mod job;
mod perform;
mod run;
mod scheduler;
mod stop;
mod store;
mod tick;
mod worker;

pub use self::control::{Jobs, Status};
pub use self::cron::Cron;
pub use self::drive::{DEFAULT_SKEW, once, run, run_until};
pub use self::event::Event;
pub use self::job::{DEFAULT_GRACE, Job, PREFIX};
pub use self::perform::Ended;
pub use self::run::Run;
pub use self::scheduler::Scheduler;
pub use self::stop::Stop;
pub use self::tick::Tick;
pub use crate::logic::schedule::{Crash, Entry, MOST_BESIDE, MOST_TICKS, Missed, Outcome, Overlap, Running, Wanted};
