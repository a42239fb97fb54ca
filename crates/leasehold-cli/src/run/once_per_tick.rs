//! `leasehold run --once-per`: under the system's own cron, one run per tick in the whole fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::engine::Reach;
use leasehold::{ErrorKind, Locks};
use leasehold_schedule::{self as schedule, FinishedRun, Job, JobEvent, JobStatus, Jobs, Tick, TickOutcome};
use rustix::process::Signal;
use rustix::termios::isatty;

use super::job_task::JobTask;
use super::options::RunArgs;
use super::plan::{Plan, WaitLimit};
use super::report::Report;
use super::signals::Signals;
use super::teardown::close;
use crate::cron::log;
use crate::exit::{self, Failure};

/// A call that has started no run after this time prints what it waits for.
const NOTICE_AFTER: Duration = Duration::from_millis(500);

/// Runs the command for the tick that this call belongs to, unless another host ran it. Returns the
/// exit code.
pub(super) async fn run(args: &RunArgs, schedule: &str, report: &Report) -> Result<u8, Failure> {
    let job = build_job(args, schedule)?;
    let mut plan = Plan::new(args)?;
    plan.name = job.lock_name().clone();
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = super::open_engine(args, &mut plan, report) => locks?,
        signal = signals.next_end_signal() => return Ok(exit::signal_exit_code(signal.as_raw())),
    };
    if locks.capabilities().reach == Reach::Process {
        report.warn(&format!("other processes do not share {}: they run this tick, too", locks.url()));
    }
    let progress = Arc::new(CallProgress::default());
    let (event_progress, event_report) = (Arc::clone(&progress), report.clone());
    let job = job.describe(plan.description()).on_event(move |job, event| {
        event_progress.record_event(event);
        if event_report.is_verbose() {
            log::log_event(job, event, event_report.is_json());
        }
    });
    let (conflict, name) = (plan.conflict_exit_code, args.name.clone());
    let wait = match plan.wait_limit {
        WaitLimit::NoWait => Some(Duration::ZERO),
        WaitLimit::AtMost(wait) => Some(wait),
        WaitLimit::Unlimited => None,
    };
    let engine = args.engine.child_engine();
    let task =
        JobTask { plan: Arc::new(plan), locks: locks.clone(), engine, report: report.clone(), signal_orders: None };
    let result = run_until_signal(&locks, job, args.skew, wait, task, &progress, &mut signals).await;
    let url = locks.url();
    close(locks, &mut signals, report).await;
    match result {
        Ok(CallResult { code: Some(code), .. }) => Ok(code),
        Ok(CallResult { ended, .. }) => {
            if ended.is_empty() {
                report.note_if_verbose(&format!(
                    "{name}: no tick is due here on {url}; past ticks ran elsewhere or were missed"
                ));
            }
            Ok(0)
        }
        Err(failure) if failure.kind == ErrorKind::Timeout.as_str() => {
            report.report_not_run(&format!("{name} on {url}: another host runs it, and the wait for it has ended"));
            Ok(conflict)
        }
        Err(failure) => Err(failure),
    }
}

/// What this call has done so far.
#[derive(Default)]
struct CallProgress {
    /// How many runs are active.
    running_count: AtomicU32,
    /// Whether a run has ended.
    has_ended: AtomicBool,
    /// Whether a run lost its lock, or took longer than --max-hold.
    is_lost: AtomicBool,
    /// The exit code of a failed command; 0 if none failed.
    failure_code: AtomicU8,
}

impl CallProgress {
    /// Counts a run that starts or ends.
    fn record_event(&self, event: &JobEvent) {
        match event {
            JobEvent::RunStarted { .. } => {
                self.running_count.fetch_add(1, Ordering::SeqCst);
            }
            // By now the outcome is recorded, or cannot be. Stopping earlier would run a finished
            // command again.
            JobEvent::RunEnded { outcome, .. } => {
                self.running_count.fetch_sub(1, Ordering::SeqCst);
                self.has_ended.store(true, Ordering::SeqCst);
                self.is_lost.fetch_or(matches!(outcome, TickOutcome::Lost | TickOutcome::TimedOut), Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// The exit code that results from the ended runs; `None` if none of them failed.
    fn exit_code(&self) -> Option<u8> {
        match self.failure_code.load(Ordering::SeqCst) {
            _ if self.is_lost.load(Ordering::SeqCst) => Some(exit::LOST),
            0 => None,
            code => Some(code),
        }
    }

    /// The exit code of a call that gets this signal. `None` while a command runs: its monitor
    /// forwards the signal, and its outcome is recorded first. Once the command has ended, its
    /// outcome is known, even if its lock is still kept.
    fn exit_code_on_signal(&self, signal: Signal) -> Option<u8> {
        if self.running_count.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let ended = self.has_ended.load(Ordering::SeqCst);
        Some(if ended { self.exit_code().unwrap_or(0) } else { exit::signal_exit_code(signal.as_raw()) })
    }
}

/// The ended runs, and the exit code that results from them; `None` if none failed.
struct CallResult {
    ended: Vec<FinishedRun>,
    code: Option<u8>,
}

/// Runs the due ticks of the job until they have ended, or until a signal ends the call. `skew` is
/// how far this host's clock may be ahead; `timeout` limits the wait for another host's run.
async fn run_until_signal(
    locks: &Locks,
    job: Job,
    skew: Option<Duration>,
    timeout: Option<Duration>,
    task: JobTask,
    progress: &CallProgress,
    signals: &mut Signals,
) -> Result<CallResult, Failure> {
    let work = |run: schedule::Run| {
        let task = task.clone();
        async move {
            let result = task.run(run).await;
            if let Err(failed) = &result {
                progress.failure_code.store(failed.code, Ordering::SeqCst);
            }
            result
        }
    };
    let known = job.clone();
    let mut once = Box::pin(schedule::run_due(locks, job, skew, timeout, work));
    let mut waiting = Box::pin(report_idle_wait(locks, &known, progress, &task.report));
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut once => break ended?,
            never = &mut waiting => match never {},
            signal = signals.next_end_signal() => {
                if let Some(code) = progress.exit_code_on_signal(signal) {
                    return Ok(CallResult { ended: Vec::new(), code: Some(code) });
                }
            }
        }
    };
    drop(once);
    Ok(CallResult { ended, code: progress.exit_code() })
}

/// Prints, to a terminal or with --verbose or --json, what an idle call waits for.
async fn report_idle_wait(
    locks: &Locks,
    job: &Job,
    progress: &CallProgress,
    report: &Report,
) -> std::convert::Infallible {
    let watched = report.is_verbose() || isatty(std::io::stderr());
    tokio::time::sleep(NOTICE_AFTER).await;
    if watched && progress.running_count.load(Ordering::SeqCst) == 0 && !progress.has_ended.load(Ordering::SeqCst) {
        let status = match Jobs::new(locks) {
            Ok(jobs) => jobs.status(job.name()).await.ok().flatten(),
            Err(_) => None,
        };
        if let Some(status) = status {
            report.note_always(&describe_wait(job, &status));
        }
    }
    std::future::pending().await
}

/// What an idle call waits for: the end of an active run, or the next tick.
fn describe_wait(job: &Job, status: &JobStatus) -> String {
    let name = job.name();
    if let Some(run) = status.running.first() {
        return format!("{name}: runs on {} for {}; waiting for its end", run.node, Tick::from_unix(run.tick));
    }
    match job.cron().next_after(status.now) {
        None => format!("{name}: no tick is due"),
        Some(next) => {
            let seconds = next.unix().saturating_sub(status.now.unix());
            let local = job.cron().local(next);
            format!("{name}: no tick is due; waiting for the tick at {local}, in {seconds}s (--skew 0 does not wait)")
        }
    }
}

/// The job that the options describe.
fn build_job(args: &RunArgs, schedule: &str) -> Result<Job, Failure> {
    let mut job = Job::new(&args.name, schedule)?.ttl(args.ttl).handles_loss();
    if let Some(zone) = &args.zone {
        job = job.zone(zone)?;
    }
    if let Some(max_hold) = args.max_hold {
        job = job.max_hold(max_hold);
    }
    if let Some(crash) = args.crash {
        job = job.crash(crash);
    }
    if let Some(missed) = args.missed {
        job = job.missed(missed);
    }
    if let Some(overlap) = args.overlap {
        job = job.overlap(overlap);
    }
    Ok(job.min_hold(args.min_hold.unwrap_or_default()))
}
