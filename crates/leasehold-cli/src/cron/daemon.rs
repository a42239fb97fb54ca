//! `leasehold cron FILE`: runs scheduled jobs until a signal stops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::clock::Instant;
use leasehold::engine::Reach;
use leasehold::{Error, Locks};
use leasehold_schedule::{Scheduler, StopHandle};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

use super::args::DaemonArgs;
use super::log::Notice;
use super::presence::HostPresence;
use super::schedule_file::Schedule;
use super::{log, schedule_file};
use crate::exit::{self, Failure};
use crate::run::{JobTask, Report, SignalOrders, Signals, signals};

/// Signals that arrive within this time after the first one do not count as a second signal.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(500);

/// Runs the jobs of the schedule file until a signal stops this host. Returns the exit code. With
/// --json, a failure is logged as JSON.
pub(super) async fn run(args: DaemonArgs) -> Result<u8, Failure> {
    let json = args.json;
    run_file(args).await.map_err(|failure| if json { log::log_failure(failure) } else { failure })
}

/// Opens the engine, and retries without a limit while it is unreachable: a service manager may
/// give up on a process that exits during an outage. Any other error is returned at once.
async fn open_engine(args: &DaemonArgs) -> Result<Locks, Error> {
    let (json, was_unreachable) = (args.json, Arc::new(AtomicBool::new(false)));
    let unreachable_flag = Arc::clone(&was_unreachable);
    let unreachable = move |error: &Error| {
        unreachable_flag.store(true, Ordering::SeqCst);
        log::log_notice(&Notice::Unreachable { message: &error.to_string() }, json);
    };
    let builder = Locks::builder().ttl(args.ttl).connect_timeout(Duration::MAX).on_unreachable(unreachable);
    let locks = builder.open(args.engine.url()).await?;
    if was_unreachable.load(Ordering::SeqCst) {
        log::log_notice(&Notice::Reached { engine: &locks.url() }, json);
    }
    Ok(locks)
}

/// Waits for a signal that stops the process. HUP has no effect here: nothing is loaded yet.
async fn wait_for_stop_signal(signals: &mut Signals) {
    while !is_stop_signal(signals.next().await) {}
}

/// Whether the signal makes `leasehold cron` start no more runs.
fn is_stop_signal(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::QUIT)
}

/// Reads the schedule file, opens the engine, and runs the jobs until a signal stops this host.
async fn run_file(args: DaemonArgs) -> Result<u8, Failure> {
    let Some(path) = args.file.clone() else {
        return Err(Failure::usage(
            "no schedule file was given: `leasehold cron FILE`; `leasehold cron --help` shows its form",
        ));
    };
    log::enable_timestamps();
    // The whole file is validated before any job starts.
    let Schedule { jobs, warnings } = schedule_file::read_jobs(&path, args.ttl)?;
    for message in &warnings {
        log::log_notice(&Notice::Warning { message }, args.json);
    }
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = open_engine(&args) => locks?,
        () = wait_for_stop_signal(&mut signals) => return Ok(0),
    };
    let capabilities = locks.capabilities();
    if !capabilities.warning.is_empty() {
        log::log_notice(&Notice::Warning { message: &format!("warning: {}", capabilities.warning) }, args.json);
    }
    if capabilities.reach == Reach::Process {
        let message = format!("other processes do not share {}: each process runs every tick", locks.url());
        log::log_notice(&Notice::Warning { message: &message }, args.json);
    }
    let (signal_sender, signal_orders) = watch::channel(None);
    let mut daemon = Daemon {
        args,
        path,
        locks,
        signal_orders,
        tasks: JoinSet::new(),
        stop_handle: StopHandle::new(),
        presence: None,
    };
    let local = LocalSet::new();
    local
        .run_until(async {
            daemon.start_jobs(jobs).await?;
            Ok(daemon.run_until_stopped(&mut signals, &signal_sender).await)
        })
        .await
}

/// `leasehold cron FILE` while it runs: its schedulers, and what they share.
struct Daemon {
    args: DaemonArgs,
    path: std::path::PathBuf,
    locks: Locks,
    /// The signals to send to the commands of all jobs.
    signal_orders: SignalOrders,
    /// The current scheduler, and those of earlier files whose runs are still active. Each returns
    /// whether it succeeded.
    tasks: JoinSet<bool>,
    /// Stops the current scheduler: it starts no more runs, and its active runs continue.
    stop_handle: StopHandle,
    /// Makes this host visible to others.
    presence: Option<HostPresence>,
}

impl Daemon {
    /// Starts a scheduler for these jobs, in place of the previous one, whose active runs continue.
    async fn start_jobs(&mut self, jobs: Vec<(leasehold_schedule::Job, crate::run::Plan)>) -> Result<(), Failure> {
        let mut scheduler = Scheduler::new(&self.locks);
        let count = jobs.len();
        let (json, quiet) = (self.args.json, self.args.quiet);
        for (job, plan) in jobs {
            let task = Arc::new(JobTask {
                plan: Arc::new(plan),
                locks: self.locks.clone(),
                engine: self.args.engine.child_engine(),
                report: Report::for_job(json, job.name()),
                signal_orders: Some(self.signal_orders.clone()),
            });
            let job = job.on_event(move |job, event| {
                if !quiet || log::is_problem(event) {
                    log::log_event(job, event, json);
                }
            });
            scheduler.add(job, move |run| {
                let task = Arc::clone(&task);
                async move { task.run(run).await }
            })?;
        }
        self.stop_handle.stop();
        self.stop_handle = scheduler.stop_handle();
        self.tasks.spawn_local(async move {
            let mut succeeded = true;
            scheduler
                .run(|job, error| {
                    succeeded = false;
                    log::log_notice(&Notice::EndedHere { job, message: &error.to_string() }, json);
                })
                .await;
            succeeded
        });
        if let Some(presence) = self.presence.take() {
            presence.withdraw().await;
        }
        self.presence = Some(HostPresence::announce(&self.locks, &self.path.to_string_lossy(), count));
        Ok(())
    }

    /// Waits until all runs have ended, and returns the exit code. After a signal no run starts,
    /// and active ones have --stop-grace to end.
    async fn run_until_stopped(&mut self, signals: &mut Signals, signal_sender: &watch::Sender<Option<Signal>>) -> u8 {
        let clock = self.locks.clock().clone();
        let (mut stop_requested_at, mut next_signal_at) = (None, Instant::NEVER);
        let mut all_succeeded = true;
        loop {
            tokio::select! {
                biased;
                ended = self.tasks.join_next() => match ended {
                    None => break,
                    Some(ended) => all_succeeded &= ended.unwrap_or(false),
                },
                signal = signals.next() => match signal {
                    // Service managers send HUP after TERM, for shells: by then the file is not
                    // reloaded.
                    Signal::HUP if stop_requested_at.is_none() => self.reload().await,
                    signal if is_stop_signal(signal) => {
                        let now = clock.now();
                        self.stop_handle.stop();
                        let first = *stop_requested_at.get_or_insert(now);
                        // timeout(1) and others send one signal twice.
                        let is_second_signal = now >= first.saturating_add(REPEATED_SIGNAL_WINDOW);
                        next_signal_at = if is_second_signal { now } else { first.saturating_add(self.args.stop_grace) };
                        if now == first {
                            let (signal, grace) = (signals::signal_name(signal), self.args.stop_grace);
                            log::log_notice(&Notice::Stopping { signal, grace_seconds: grace.as_secs_f64() }, self.args.json);
                        }
                    }
                    _ => {}
                },
                () = clock.sleep_until(next_signal_at) => {
                    // TERM first; a command that ignores it gets KILL.
                    let next = if signal_sender.borrow().is_some() { Signal::KILL } else { Signal::TERM };
                    log::log_notice(&Notice::Ending { signal: signals::signal_name(next) }, self.args.json);
                    signal_sender.send_replace(Some(next));
                    next_signal_at = clock.now().saturating_add(self.args.stop_grace.max(Duration::from_secs(5)));
                }
            }
        }
        if let Some(presence) = self.presence.take() {
            presence.withdraw().await;
        }
        if let Err(error) = self.locks.clone().close().await {
            log::log_notice(&Notice::Warning { message: &error.to_string() }, self.args.json);
        }
        if stop_requested_at.is_some() {
            log::log_notice(&Notice::Stopped, self.args.json);
        }
        if all_succeeded { 0 } else { exit::UNAVAILABLE }
    }

    /// Reloads the file. Running jobs finish under their old settings.
    async fn reload(&mut self) {
        let result = match schedule_file::read_jobs(&self.path, self.args.ttl) {
            Ok(schedule) => self.start_jobs(schedule.jobs).await,
            Err(failure) => Err(failure),
        };
        match result {
            Ok(()) => log::log_notice(&Notice::Reloaded { file: &self.path.to_string_lossy() }, self.args.json),
            Err(failure) => log::log_notice(&Notice::Refused { message: &failure.message }, self.args.json),
        }
    }
}
