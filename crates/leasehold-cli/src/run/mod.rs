//! `leasehold run`: runs a command under a lock.
//!
//! ```text
//! plan (validated options) -> acquire (wait in the queue, or leave it)
//!     -> child + supervisor -> child_monitor -> release
//! ```
//! `loss_policy` computes when a command whose lock is in danger gets TERM and KILL.
//! `child_monitor` sends them while this process runs. `supervisor_main`, a separate process, sends
//! them if this one is killed or stopped.

mod acquire;
mod ancestors;
mod child;
mod child_monitor;
mod job_control;
mod job_task;
mod loss_policy;
mod once_per_tick;
mod options;
mod plan;
mod process_group;
mod reentry;
mod refusal;
mod report;
pub(crate) mod signals;
mod supervisor_main;
mod supervisor_message;
mod supervisor_process;
mod teardown;
mod terminal;
mod wait_display;

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Reach;
use leasehold::{Guard, Locks, Owner, ReleaseOutcome};

use self::acquire::{AcquireResult, acquire};
use self::ancestors::Ancestors;
use self::child::{Child, ChildSetup};
use self::child_monitor::{ChildMonitor, CommandEnd, MonitorState};
pub(crate) use self::job_task::JobTask;
use self::loss_policy::{Lease, OnLost};
pub(crate) use self::options::RunArgs;
use self::plan::WaitLimit;
pub(crate) use self::plan::{JobTimes, Plan};
pub(crate) use self::report::Report;
pub(crate) use self::signals::{SignalOrders, Signals};
pub(crate) use self::supervisor_main::supervisor_main;
pub(crate) use self::supervisor_process::SUPERVISOR_ARGUMENT;
use self::supervisor_process::SupervisorProcess;
use self::teardown::{close, release};
use self::terminal::Terminal;
use crate::engine_url::ChildEngine;
use crate::exit::{self, Failure};

/// The minimum time to reach the engine, however short --wait is.
const MIN_WAIT: Duration = Duration::from_millis(250);

/// Runs a command under a lock; returns the exit code.
pub(crate) async fn run(args: RunArgs) -> Result<u8, Failure> {
    let report = Report::new(&args);
    match run_under_lock(&args, &report).await {
        Ok(code) => {
            report.report_exit(code);
            Ok(code)
        }
        Err(failure) => Err(report.report_failure(failure)),
    }
}

/// Opens the engine. The time that this takes is subtracted from the plan's limit for the wait.
async fn open_engine(args: &RunArgs, plan: &mut Plan, report: &Report) -> Result<Locks, Failure> {
    let timeout = match plan.wait_limit {
        WaitLimit::AtMost(wait) => wait.max(MIN_WAIT),
        WaitLimit::NoWait | WaitLimit::Unlimited => args.engine.connect_timeout,
    };
    let (clock, report) = (Clock::system(), report.clone());
    let began = clock.now();
    let locks = args.engine.open_within(plan.ttl, timeout, move |line| report.warn(line)).await?;
    if let WaitLimit::AtMost(wait) = &mut plan.wait_limit {
        *wait = wait.saturating_sub(clock.now().duration_since(began)).max(MIN_WAIT.min(*wait));
    }
    Ok(locks)
}

/// Waits for the lock and runs the command while holding it; with --once-per, runs it for its tick.
/// Returns the exit code.
async fn run_under_lock(args: &RunArgs, report: &Report) -> Result<u8, Failure> {
    if let Some(schedule) = &args.once_per {
        return once_per_tick::run(args, schedule, report).await;
    }
    let mut plan = Plan::new(args)?;
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = open_engine(args, &mut plan, report) => locks?,
        signal = signals.next_end_signal() => return Ok(exit::signal_exit_code(signal.as_raw())),
    };
    if locks.capabilities().reach == Reach::Process {
        report.warn(&format!("other processes do not share {}: this lock excludes none of them", locks.url()));
    }
    let (engine, ancestors) = (args.engine.child_engine(), Ancestors::from_env());
    if let Some(warning) = ancestors.unknown_format_warning() {
        report.warn(&warning);
    }
    reentry::refuse_possible_deadlock(&locks, &plan, &ancestors)?;
    let result = match acquire(&locks, &plan, &ancestors, &mut signals, report).await {
        Ok(AcquireResult::Held(guard, owner)) => {
            run_while_held(
                &RunContext { plan: &plan, locks: &locks, ancestors, owner, engine, report },
                guard,
                &mut signals,
            )
            .await
        }
        Ok(AcquireResult::Conflict) => Ok(plan.conflict_exit_code),
        Ok(AcquireResult::Interrupted(signal)) => Ok(exit::signal_exit_code(signal.as_raw())),
        Err(failure) => Err(failure),
    };
    close(locks, &mut signals, report).await;
    result
}

/// What the steps of one run share.
struct RunContext<'a> {
    plan: &'a Plan,
    locks: &'a Locks,
    ancestors: Ancestors,
    /// The owner with which nested runs re-enter the lock; `None` if they cannot.
    owner: Option<Owner>,
    /// How the command finds the engine.
    engine: ChildEngine,
    report: &'a Report,
}

/// Runs the command while holding the lock, then releases the lock in any case. Returns the exit
/// code.
async fn run_while_held(run: &RunContext<'_>, guard: Guard, signals: &mut Signals) -> Result<u8, Failure> {
    let started = run.locks.clock().now();
    let end = match run_command(run, &guard, signals).await {
        Ok(end) => end,
        Err(failure) => {
            release(run, guard, signals).await;
            return Err(failure);
        }
    };
    run.report.report_ended(end.status);
    // A loss that is reported just after the command ended happened before its end.
    let held_at_end = guard.is_held();
    let mut code = end.status.exit_code();
    let at_least = started.saturating_add(run.plan.min_hold);
    if !end.is_lost && held_at_end && run.locks.clock().now() < at_least {
        run.report.note_if_verbose("the command has ended; keeping the lock for --min-hold");
        tokio::select! {
            biased;
            signal = signals.next_end_signal() => code = exit::signal_exit_code(signal.as_raw()),
            _ = guard.lost() => {}
            () = guard.release_requested() => {}
            () = run.locks.clock().sleep_until(at_least) => {}
        }
    }
    let was_held = guard.is_held();
    let outcome = release(run, guard, signals).await;
    // A loss that only the release finds is reported, too: the exit code alone does not name the
    // lock.
    if let Some(ReleaseOutcome::AlreadyLost(reason)) = outcome.filter(|_| !end.is_lost) {
        run.report.report_lost(&run.plan.name, &run.locks.url(), reason, "the command had ended by then");
    }
    let lost = end.is_lost || !held_at_end || (was_held && matches!(outcome, Some(ReleaseOutcome::AlreadyLost(_))));
    Ok(if lost && run.plan.loss_policy.on_lost != OnLost::Ignore { exit::LOST } else { code })
}

/// Starts the supervisor process, then the command, and monitors the command until it has ended.
async fn run_command(run: &RunContext<'_>, guard: &Guard, signals: &mut Signals) -> Result<CommandEnd, Failure> {
    let system = |what: &'static str| move |error: std::io::Error| Failure::system(what, error);
    let clock = run.locks.clock();
    let mask = signals::prepare_mask().map_err(|error| Failure::system("cannot set the signal mask", error))?;
    let mut terminal = if run.plan.is_detached { None } else { Terminal::open() };
    let mut supervisor =
        SupervisorProcess::spawn(run.locks.liveness_fd()).map_err(system("cannot start the supervisor process"))?;
    let lease = Lease::new(guard.deadline(), clock.now(), run.plan.max_deadline(clock.now()));
    supervisor.send_schedule(
        run.plan.loss_policy.supervisor_schedule(run.plan.loss_policy.schedule_before_expiry(lease), lease),
        clock.now(),
    );
    let setup = ChildSetup {
        supervisor_pipe: supervisor
            .pipe()
            .try_clone_to_owned()
            .map_err(system("cannot duplicate the pipe to the supervisor process"))?,
        terminal: terminal.as_mut().filter(|terminal| terminal.is_lent_at_start()).and_then(Terminal::child_handle),
        mask,
    };
    signals.listen_to_job_control().map_err(system("cannot listen to signals"))?;
    let child = match Child::spawn(run, guard, setup) {
        Ok(child) => child,
        Err(failure) => {
            if let Some(terminal) = &terminal {
                terminal.reclaim(None);
            }
            supervisor.send_done();
            supervisor.wait_exited(clock).await;
            return Err(failure);
        }
    };
    run.report.report_started(child.group().as_raw_nonzero().get().unsigned_abs());
    let (plan, report, started) = (run.plan, run.report, clock.now());
    let state = MonitorState::default();
    let monitor = ChildMonitor {
        plan,
        engine: run.locks.url(),
        guard,
        clock,
        report,
        signals,
        child,
        supervisor: &mut supervisor,
        terminal,
        started,
        lease,
        state,
    };
    let end = monitor.run().await;
    supervisor.wait_exited(clock).await;
    Ok(end)
}
