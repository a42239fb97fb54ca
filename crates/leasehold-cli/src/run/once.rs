//! `leasehold run --once-per`: under the system's own cron, one run per tick in the whole fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::engine::Reach;
use leasehold::schedule::{self, Ended, Event, Job, Jobs, Outcome, Status, Tick};
use leasehold::{ErrorKind, Locks};
use rustix::process::Signal;
use rustix::termios::isatty;

use super::job::Task;
use super::options::RunArgs;
use super::parting::close;
use super::plan::{Patience, Plan};
use super::report::Report;
use super::signals::Signals;
use crate::cron::log;
use crate::exit::{self, Failure};

/// A call that starts nothing for this long prints what it waits for.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// Runs the command for the tick that this call belongs to, unless another host ran it.
pub(super) async fn run(args: &RunArgs, schedule: &str, report: &Report) -> Result<u8, Failure> {
    let job = job(args, schedule)?;
    let mut plan = Plan::new(args)?;
    plan.name = job.lock_name().clone();
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = super::open(args, &mut plan, report) => locks?,
        signal = signals.next_end() => return Ok(exit::by_signal(signal.as_raw())),
    };
    if locks.capabilities().reach == Reach::Process {
        report.warning(&format!("{} is shared with no other process: others run it, too", locks.url()));
    }
    let course = Arc::new(Course::default());
    let (watched, told) = (Arc::clone(&course), report.clone());
    let job = job.describe(plan.description()).on_event(move |job, event| {
        watched.heed(event);
        if told.is_talkative() {
            log::event(job, event, told.is_json());
        }
    });
    let (conflict, name) = (plan.conflict, args.name.clone());
    let wait = match plan.patience {
        Patience::None => Some(Duration::ZERO),
        Patience::For(wait) => Some(wait),
        Patience::Forever => None,
    };
    let engine = args.engine.for_command();
    let task = Task { plan: Arc::new(plan), locks: locks.clone(), engine, report: report.clone(), orders: None };
    let result = tend(&locks, job, args.skew, wait, task, &course, &mut signals).await;
    let url = locks.url();
    close(locks, &mut signals, report).await;
    match result {
        Ok(Tended { code: Some(code), .. }) => Ok(code),
        Ok(Tended { ended, .. }) => {
            if ended.is_empty() {
                report.note(&format!("{name}: nothing is due here on {url}; what was, ran elsewhere or was missed"));
            }
            Ok(0)
        }
        Err(failure) if failure.kind == ErrorKind::Timeout.as_str() => {
            report.not_run(&format!("{name} on {url}: it runs elsewhere, and is not waited for any longer"));
            Ok(conflict)
        }
        Err(failure) => Err(failure),
    }
}

/// The progress of this call.
#[derive(Default)]
struct Course {
    running: AtomicU32,
    ended: AtomicBool,
    lost: AtomicBool,
    /// The exit code of a failed command.
    code: AtomicU8,
}

impl Course {
    fn heed(&self, event: &Event) {
        match event {
            Event::Began { .. } => {
                self.running.fetch_add(1, Ordering::SeqCst);
            }
            // Sent when the end is recorded, or is known not to be. To stop before that would run a
            // finished command again.
            Event::Ended { outcome, .. } => {
                self.running.fetch_sub(1, Ordering::SeqCst);
                self.ended.store(true, Ordering::SeqCst);
                self.lost.fetch_or(matches!(outcome, Outcome::Lost | Outcome::TimedOut), Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// The exit code that the ended runs call for.
    fn code(&self) -> Option<u8> {
        match self.code.load(Ordering::SeqCst) {
            _ if self.lost.load(Ordering::SeqCst) => Some(exit::LOST),
            0 => None,
            code => Some(code),
        }
    }

    /// The exit code of a call that gets this signal; `None` while a command runs. That command
    /// gets the signal through its supervisor, and its outcome is recorded first. After the command
    /// has ended, while only its lock is kept, its outcome is known.
    fn code_at(&self, signal: Signal) -> Option<u8> {
        if self.running.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let ended = self.ended.load(Ordering::SeqCst);
        Some(if ended { self.code().unwrap_or(0) } else { exit::by_signal(signal.as_raw()) })
    }
}

/// The ended runs, and the exit code that they call for.
struct Tended {
    ended: Vec<Ended>,
    code: Option<u8>,
}

async fn tend(
    locks: &Locks,
    job: Job,
    skew: Option<Duration>,
    wait: Option<Duration>,
    task: Task,
    course: &Course,
    signals: &mut Signals,
) -> Result<Tended, Failure> {
    let work = |run: schedule::Run| {
        let task = task.clone();
        async move {
            let result = task.perform(run).await;
            if let Err(failed) = &result {
                course.code.store(failed.code, Ordering::SeqCst);
            }
            result
        }
    };
    let known = job.clone();
    let mut once = Box::pin(schedule::once(locks, job, skew, wait, work));
    let mut waiting = Box::pin(say_why_it_waits(locks, &known, course, &task.report));
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut once => break ended?,
            never = &mut waiting => match never {},
            signal = signals.next_end() => {
                if let Some(code) = course.code_at(signal) {
                    return Ok(Tended { ended: Vec::new(), code: Some(code) });
                }
            }
        }
    };
    drop(once);
    Ok(Tended { ended, code: course.code() })
}

/// Prints, to a terminal or with --verbose or --json, what an idle call waits for.
async fn say_why_it_waits(locks: &Locks, job: &Job, course: &Course, report: &Report) -> std::convert::Infallible {
    let watched = report.is_talkative() || isatty(std::io::stderr());
    tokio::time::sleep(FIRST_WORD).await;
    if watched && course.running.load(Ordering::SeqCst) == 0 && !course.ended.load(Ordering::SeqCst) {
        let status = match Jobs::of(locks) {
            Ok(jobs) => jobs.status(job.name()).await.ok().flatten(),
            Err(_) => None,
        };
        if let Some(status) = status {
            report.always(&why(job, &status));
        }
    }
    std::future::pending().await
}

fn why(job: &Job, status: &Status) -> String {
    let name = job.name();
    if let Some(run) = status.running.first() {
        return format!("{name}: runs on {} for {}; waiting for its end", run.node, Tick::from_unix(run.tick));
    }
    match job.cron().next_after(status.now) {
        None => format!("{name}: nothing is due"),
        Some(next) => {
            let seconds = next.unix().saturating_sub(status.now.unix());
            let local = job.cron().local(next);
            format!("{name}: nothing is due; waiting for the tick at {local}, in {seconds}s (--skew 0 does not wait)")
        }
    }
}

fn job(args: &RunArgs, schedule: &str) -> Result<Job, Failure> {
    let mut job = Job::new(&args.name, schedule)?.ttl(args.ttl).minds_loss();
    if let Some(zone) = &args.zone {
        job = job.zone(zone)?;
    }
    if let Some(most) = args.max_hold {
        job = job.max_hold(most);
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
