//! `leasehold cron FILE`: runs scheduled jobs until a signal stops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::engine::Reach;
use leasehold::schedule::{Scheduler, Stop};
use leasehold::{Error, Locks};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

use super::args::DaemonArgs;
use super::file::Schedule;
use super::log::Notice;
use super::presence::Presence;
use super::{file, log};
use crate::exit::{self, Failure};
use crate::run::{Orders, Report, Signals, Task, signals};

/// Repeated signals within this time count as one.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Runs the jobs of a file. With --json, a failure is logged as JSON.
pub(super) async fn run(args: DaemonArgs) -> Result<u8, Failure> {
    let json = args.json;
    run_file(args).await.map_err(|failure| if json { log::failure(failure) } else { failure })
}

/// Opens the engine and retries while it is unreachable, without a limit: a service manager may
/// give up on a process that exits during an outage. An error that retrying cannot cure is
/// returned.
async fn open(args: &DaemonArgs) -> Result<Locks, Error> {
    let (json, away) = (args.json, Arc::new(AtomicBool::new(false)));
    let noted = Arc::clone(&away);
    let unreachable = move |error: &Error| {
        noted.store(true, Ordering::SeqCst);
        log::notice(&Notice::Unreachable { message: &error.to_string() }, json);
    };
    let builder = Locks::builder().ttl(args.ttl).connect_timeout(Duration::MAX).on_unreachable(unreachable);
    let locks = builder.open(args.engine.url()).await?;
    if away.load(Ordering::SeqCst) {
        log::notice(&Notice::Reached { engine: &locks.url() }, json);
    }
    Ok(locks)
}

/// Waits for a signal that stops the process. HUP has no effect here: nothing is loaded yet.
async fn told_to_stop(signals: &mut Signals) {
    while !stops(signals.next().await) {}
}

fn stops(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::QUIT)
}

async fn run_file(args: DaemonArgs) -> Result<u8, Failure> {
    let Some(path) = args.file.clone() else {
        return Err(Failure::usage("which timetable? `leasehold cron FILE`; `leasehold cron --help` shows its form"));
    };
    log::stamp();
    // The whole file is validated before any job starts.
    let Schedule { jobs, warnings } = file::read(&path, args.ttl)?;
    for message in &warnings {
        log::notice(&Notice::Warning { message }, args.json);
    }
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot listen to signals", error))?;
    let locks = tokio::select! {
        biased;
        locks = open(&args) => locks?,
        () = told_to_stop(&mut signals) => return Ok(0),
    };
    let capabilities = locks.capabilities();
    if !capabilities.caution.is_empty() {
        log::notice(&Notice::Warning { message: &format!("warning: {}", capabilities.caution) }, args.json);
    }
    if capabilities.reach == Reach::Process {
        let message = format!("{} is shared with no other process: each runs every tick", locks.url());
        log::notice(&Notice::Warning { message: &message }, args.json);
    }
    let (orders, obeyed) = watch::channel(None);
    let mut fleet = Fleet { args, path, locks, obeyed, tasks: JoinSet::new(), stop: Stop::new(), presence: None };
    let local = LocalSet::new();
    local
        .run_until(async {
            fleet.begin(jobs).await?;
            Ok(fleet.tend(&mut signals, &orders).await)
        })
        .await
}

/// The running schedulers and what they share.
struct Fleet {
    args: DaemonArgs,
    path: std::path::PathBuf,
    locks: Locks,
    obeyed: Orders,
    /// The current scheduler, and those of earlier files whose runs go on. Each returns whether all
    /// went well.
    tasks: JoinSet<bool>,
    stop: Stop,
    /// Makes this host visible to others.
    presence: Option<Presence>,
}

impl Fleet {
    /// Replaces the running jobs with these.
    async fn begin(&mut self, jobs: Vec<(leasehold::schedule::Job, crate::run::Plan)>) -> Result<(), Failure> {
        let mut scheduler = Scheduler::new(&self.locks);
        let count = jobs.len();
        let (json, quiet) = (self.args.json, self.args.quiet);
        for (job, plan) in jobs {
            let task = Arc::new(Task {
                plan: Arc::new(plan),
                locks: self.locks.clone(),
                engine: self.args.engine.for_command(),
                report: Report::quiet(json, job.name()),
                orders: Some(self.obeyed.clone()),
            });
            let job = job.on_event(move |job, event| {
                if !quiet || log::is_trouble(event) {
                    log::event(job, event, json);
                }
            });
            scheduler.add(job, move |run| {
                let task = Arc::clone(&task);
                async move { task.perform(run).await }
            })?;
        }
        self.stop.stop();
        self.stop = scheduler.stop();
        self.tasks.spawn_local(async move {
            let mut well = true;
            scheduler
                .run(|job, error| {
                    well = false;
                    log::notice(&Notice::EndedHere { job, message: &error.to_string() }, json);
                })
                .await;
            well
        });
        if let Some(presence) = self.presence.take() {
            presence.hide().await;
        }
        self.presence = Some(Presence::show(&self.locks, &self.path.to_string_lossy(), count));
        Ok(())
    }

    /// Runs until all runs have ended. After a signal nothing starts, and running commands get
    /// their grace.
    async fn tend(&mut self, signals: &mut Signals, orders: &watch::Sender<Option<Signal>>) -> u8 {
        let clock = self.locks.clock().clone();
        let (mut asked, mut patience) = (None, Moment::NEVER);
        let mut well = true;
        loop {
            tokio::select! {
                biased;
                ended = self.tasks.join_next() => match ended {
                    None => break,
                    Some(ended) => well &= ended.unwrap_or(false),
                },
                signal = signals.next() => match signal {
                    // Service managers send HUP after TERM, for shells: by then the file is not
                    // reloaded.
                    Signal::HUP if asked.is_none() => self.reload().await,
                    signal if stops(signal) => {
                        let now = clock.now();
                        self.stop.stop();
                        let first = *asked.get_or_insert(now);
                        // timeout(1) and others send one signal twice.
                        let again = now >= first.after(SAME_SIGNAL);
                        patience = if again { now } else { first.after(self.args.stop_grace) };
                        if now == first {
                            let (signal, grace) = (signals::name(signal), self.args.stop_grace);
                            log::notice(&Notice::Stopping { signal, grace_seconds: grace.as_secs_f64() }, self.args.json);
                        }
                    }
                    _ => {}
                },
                () = clock.sleep_until(patience) => {
                    // TERM first; a command that ignores it gets KILL.
                    let next = if orders.borrow().is_some() { Signal::KILL } else { Signal::TERM };
                    log::notice(&Notice::Ending { signal: signals::name(next) }, self.args.json);
                    orders.send_replace(Some(next));
                    patience = clock.now().after(self.args.stop_grace.max(Duration::from_secs(5)));
                }
            }
        }
        if let Some(presence) = self.presence.take() {
            presence.hide().await;
        }
        if let Err(error) = self.locks.clone().close().await {
            log::notice(&Notice::Warning { message: &error.to_string() }, self.args.json);
        }
        if asked.is_some() {
            log::notice(&Notice::Stopped, self.args.json);
        }
        if well { 0 } else { exit::UNAVAILABLE }
    }

    /// Reloads the file. Running jobs finish under their old settings.
    async fn reload(&mut self) {
        let begun = match file::read(&self.path, self.args.ttl) {
            Ok(schedule) => self.begin(schedule.jobs).await,
            Err(failure) => Err(failure),
        };
        match begun {
            Ok(()) => log::notice(&Notice::Reloaded { file: &self.path.to_string_lossy() }, self.args.json),
            Err(failure) => log::notice(&Notice::Refused { message: &failure.message }, self.args.json),
        }
    }
}
