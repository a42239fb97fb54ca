//! `leasehold run`: runs a command under a lock.
//!
//! ```text
//! plan (validated options) -> acquire (wait, show, leave the queue)
//!     -> child + warden -> supervise -> release
//! ```
//! `lost` computes when a command whose lock is in danger gets TERM and KILL. `supervise` sends
//! them while we run. `watch` - another process, the warden - sends them if we are killed or
//! stopped.

mod acquire;
mod child;
mod group;
mod held;
mod job;
mod lost;
mod message;
mod once;
mod options;
mod parting;
mod plan;
mod reentry;
mod refusal;
mod report;
pub(crate) mod signals;
mod stop;
mod supervise;
mod terminal;
mod waiting;
mod warden;
mod watch;

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Reach;
use leasehold::{Guard, Locks, Outcome, Owner};

use self::acquire::{Acquired, acquire};
use self::child::{Birth, Child};
use self::held::Ancestors;
pub(crate) use self::job::Task;
use self::lost::{Lease, OnLost};
pub(crate) use self::options::RunArgs;
use self::parting::{close, release};
use self::plan::Patience;
pub(crate) use self::plan::{Plan, Times};
pub(crate) use self::report::Report;
pub(crate) use self::signals::{Orders, Signals};
use self::supervise::{End, State, Supervisor};
use self::terminal::Terminal;
pub(crate) use self::warden::WARDEN;
use self::warden::Warden;
pub(crate) use self::watch::warden_main;
use crate::engine_url::ForCommand;
use crate::exit::{self, Failure};

/// The minimum time to reach the engine, however short the wait for the lock is.
const LEAST_WAIT: Duration = Duration::from_millis(250);

/// Runs a command under a lock; returns the exit code.
pub(crate) async fn run(args: RunArgs) -> Result<u8, Failure> {
    let report = Report::new(&args);
    match run_under_lock(&args, &report).await {
        Ok(code) => {
            report.exit(code);
            Ok(code)
        }
        Err(failure) => Err(report.failure(failure)),
    }
}

/// Opens the engine. The time in which the engine is unreachable counts towards the wait for the
/// lock.
async fn open(args: &RunArgs, plan: &mut Plan, report: &Report) -> Result<Locks, Failure> {
    let within = match plan.patience {
        Patience::For(wait) => wait.max(LEAST_WAIT),
        Patience::None | Patience::Forever => args.engine.connect_timeout,
    };
    let (clock, report) = (Clock::system(), report.clone());
    let began = clock.now();
    let locks = args.engine.open_within(plan.ttl, within, move |line| report.warning(line)).await?;
    if let Patience::For(wait) = &mut plan.patience {
        *wait = wait.saturating_sub(clock.now().since(began)).max(LEAST_WAIT.min(*wait));
    }
    Ok(locks)
}

async fn run_under_lock(args: &RunArgs, report: &Report) -> Result<u8, Failure> {
    if let Some(schedule) = &args.once_per {
        return once::run(args, schedule, report).await;
    }
    let mut plan = Plan::new(args)?;
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = open(args, &mut plan, report) => locks?,
        signal = signals.next_end() => return Ok(exit::by_signal(signal.as_raw())),
    };
    if locks.capabilities().reach == Reach::Process {
        report.warning(&format!("{} is shared with no other process: this lock keeps nobody out", locks.url()));
    }
    let (engine, around) = (args.engine.for_command(), Ancestors::read());
    reentry::refuse_unseen(&locks, &plan, &around)?;
    let result = match acquire(&locks, &plan, &around, &mut signals, report).await {
        Ok(Acquired::Held(guard, owner)) => {
            hold(&Run { plan: &plan, locks: &locks, around, owner, engine, report }, guard, &mut signals).await
        }
        Ok(Acquired::Conflict) => Ok(plan.conflict),
        Ok(Acquired::Interrupted(signal)) => Ok(exit::by_signal(signal.as_raw())),
        Err(failure) => Err(failure),
    };
    close(locks, &mut signals, report).await;
    result
}

/// The context of one run.
struct Run<'a> {
    plan: &'a Plan,
    locks: &'a Locks,
    around: Ancestors,
    owner: Option<Owner>,
    engine: ForCommand,
    report: &'a Report,
}

/// Runs the command while holding the lock, then releases the lock in any case.
async fn hold(run: &Run<'_>, guard: Guard, signals: &mut Signals) -> Result<u8, Failure> {
    let started = run.locks.clock().now();
    let end = match command(run, &guard, signals).await {
        Ok(end) => end,
        Err(failure) => {
            release(run, guard, signals).await;
            return Err(failure);
        }
    };
    run.report.ended(end.status);
    // A loss reported just after the command ended happened before its end.
    let held_at_end = guard.is_held();
    let mut code = end.status.code();
    let at_least = started.after(run.plan.min_hold);
    if !end.lost && held_at_end && run.locks.clock().now() < at_least {
        run.report.note("the command has ended; keeping the lock for --min-hold");
        tokio::select! {
            biased;
            signal = signals.next_end() => code = exit::by_signal(signal.as_raw()),
            _ = guard.lost() => {}
            () = guard.release_requested() => {}
            () = run.locks.clock().sleep_until(at_least) => {}
        }
    }
    let was_held = guard.is_held();
    let outcome = release(run, guard, signals).await;
    // A loss that only the release finds is reported, too: the exit code alone does not name the
    // lock.
    if let Some(Outcome::WasLost(reason)) = outcome.filter(|_| !end.lost) {
        run.report.lost(&run.plan.name, &run.locks.url(), reason, "the command had ended by then");
    }
    let lost = end.lost || !held_at_end || (was_held && matches!(outcome, Some(Outcome::WasLost(_))));
    Ok(if lost && run.plan.rules.on_lost != OnLost::Ignore { exit::LOST } else { code })
}

/// Starts the warden, then the command, and supervises it.
async fn command(run: &Run<'_>, guard: &Guard, signals: &mut Signals) -> Result<End, Failure> {
    let system = |what: &'static str| move |error: std::io::Error| Failure::system(what, error);
    let clock = run.locks.clock();
    let mask = signals::prepare_mask().map_err(|error| Failure::system("cannot set the signal mask", error))?;
    let mut terminal = if run.plan.detached { None } else { Terminal::find() };
    let mut warden = Warden::start(run.locks.lifeline()).map_err(system("cannot start the warden"))?;
    let lease = Lease::new(guard.deadline(), clock.now(), run.plan.cap(clock.now()));
    warden.tell(run.plan.rules.for_warden(run.plan.rules.before(lease), lease), clock.now());
    let birth = Birth {
        warden: warden.pipe().try_clone_to_owned().map_err(system("cannot reach the warden"))?,
        terminal: terminal.as_mut().filter(|terminal| terminal.is_lent_at_once()).and_then(Terminal::handle),
        mask,
    };
    signals.listen_to_job_control().map_err(system("cannot listen to signals"))?;
    let child = match Child::start(run, guard, birth) {
        Ok(child) => child,
        Err(failure) => {
            if let Some(terminal) = &terminal {
                terminal.take_back(None);
            }
            warden.dismiss();
            warden.gone(clock).await;
            return Err(failure);
        }
    };
    run.report.started(child.group().as_raw_nonzero().get().unsigned_abs());
    let (plan, report, started) = (run.plan, run.report, clock.now());
    let (warden_for_it, state) = (&mut warden, State::default());
    let supervisor = Supervisor {
        plan,
        engine: run.locks.url(),
        guard,
        clock,
        report,
        signals,
        child,
        warden: warden_for_it,
        terminal,
        started,
        lease,
        state,
    };
    let end = supervisor.run().await;
    warden.gone(clock).await;
    Ok(end)
}
