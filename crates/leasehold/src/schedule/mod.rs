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
//! | the engine forgets the record (a wipe, [`Jobs::forget`] while nodes run) | a node that has seen it goes on from the present: what came due since it last looked is entered as unknown |
//! | the record goes back (a fail-over without the last writes) | no node decides below the newest watermark that it has seen itself; what waited in it is entered as unknown |
//! | the same, and the node that decides had not seen what is lost (it is new, or last looked up to ten seconds before) | where the engine tells its runs, see below; elsewhere ticks since what is left of the record may run again: docs/schedule.md has what each engine keeps |
//! | the timetable changes | the new one's ticks count from the moment when a node first had it |
//! | nodes have different timetables for a while | each instant of either is run once |
//! | the record cannot be understood | an error, and nothing is run |
//!
//! # Servers that forget
//! Some engines answer before what they answered is safe: Redis replicates behind its answers. Such an engine can tell the *run* of its servers with every record
//! that it reads, in one step ([`Engine::recall_in_run`](crate::engine::Engine::recall_in_run)): a name, which a start, a promotion and an election change, and when a client first
//! saw that run, on the engine's clock. Redis does with `strict`. The record of a job has the run in which it was last *decided*. Other writes (a pause, an end)
//! leave that alone, since they judge nothing.
//!
//! The rule: the node that decides in another run than the record's sets the record's *doubt* to the beginning of the present run, and the record's run to the present one.
//! Any tick up to the doubt that the record does not mention may have begun, with all that was written about it lost. A tick above the doubt cannot have begun in an
//! earlier run: it came due after that run had ended. In strict mode no node gets the lock before every lease of the earlier run is over, so that a run which was forgotten
//! is over as well when the next node decides.
//!
//! - [`Crash::AtMostOnce`] (and one attempt): ticks up to the doubt, those that waited in the record, and runs by hand are entered as [`Outcome::Unknown`], and are not begun.
//! - [`Crash::Retry`] asks for a second begin rather than none: such ticks are judged as ever (grace, [`Missed`]), and begin with attempt 2. How often they had begun
//!   before is not known, so their number of begins may exceed the limit by those that were forgotten. The token is higher in any case. With [`Overlap::Allow`] they are
//!   unknown as well: a node that was let in before the forgotten run would begin them with a lower token.
//! - [`Missed`] and the grace decide about ticks above the doubt only, but for `Retry`.
//!
//! | what if | then |
//! |---|---|
//! | the reply to a read is lost | it is read again; the run is told again, with the same beginning |
//! | the reply to the write is lost | read again, in the same run or in a newer one: the token tells whether the entry is there, and the run whether it may be lost |
//! | a node stops between reading in one run and writing in the next | the write is refused, also if the new server has that very version: what was written after it may be forgotten ([`Engine::record_in_run`](crate::engine::Engine::record_in_run)) |
//! | that node had a run entered, and begins it in the new run | it holds the lock by its own clock, and no other node has it before that is over |
//! | two nodes decide at once in a new run | one has the lock; the other reads that the record is in this run |
//! | a second fail-over during the cool-down | nothing was begun meanwhile; the next run began later, and the doubt is higher |
//! | the record survived, but is older | its watermark stands, and ticks from it to the doubt are unknown |
//! | the record survived whole (a restart with all data) | the same: nothing tells the two apart. The ticks of the time in which the server was away are unknown, and not late |
//! | the record is gone, and a node had seen it | what came due since that node looked is unknown, with every policy |
//! | the record is gone, and no node had seen it (`run --once-per`) | the job looks new, but a tick before the beginning of the run is unknown: it may be what was forgotten |
//! | a job is new in a run | its ticks begin when its first node has read it, and no tick before counts |
//! | a run is in the record without its end | its node died, or its end was forgotten: as in any crash, and the entry says so |
//! | the timetable is paused | what waited is unknown; the ticks of a pause are not made up for anyway |
//! | a pause or a run by hand was forgotten | it is as if it had not been asked for |
//! | the server's clock is set back in a run | the doubt stays where it is: nothing up to it is begun |
//! | the clock was set back *and* the server forgets | a tick that ran by the earlier clock can be above the doubt, and runs again |
//! | the clocks of two servers differ | by less than a fail-over takes: nothing. By more: ticks of that difference run again, or are unknown without need |
//! | nobody asks for days (`run --once-per @weekly`) | the record has its run, and does not end; only if the server was restarted meanwhile is the next tick unknown |
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
