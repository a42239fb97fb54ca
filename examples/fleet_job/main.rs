//! One job on eight hosts, every second. Which host sends the message?
//!
//! ```text
//! cargo run -p leasehold-examples --bin fleet_job
//! cargo run -p leasehold-examples --bin fleet_job -- --engine redis://127.0.0.1/
//! ```
//! Each host is a process. The same job runs on all of them in three ways: by the host's own timer,
//! by the same timer with a lock around the run, and by `leasehold_schedule`. The timers fire one
//! after the other, as on hosts whose clocks differ. So a lock alone does not help: a later host
//! finds it free again. The schedule cannot suffer from a wrong clock: it names a tick by its
//! nominal time, uses the engine's clock, and never reads the host's.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/hosts.rs"]
#[allow(dead_code, reason = "not every example needs all of it")]
mod hosts;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use common::{EngineLocation, Failure};
use hosts::HostProcesses;
use leasehold::{ErrorKind, Locks};
use leasehold_schedule::{self as schedule, Job, JobEvent, Jobs, StopHandle};
use tokio::sync::mpsc::UnboundedReceiver;

const USAGE: &str = "fleet_job [--engine URL]

Eight hosts run one job every second, for five seconds: by their own timers, with a lock, and by leasehold_schedule.
  --engine URL   where the schedule is kept (file:///folder, redis://host, postgres://…, …); if not
                 given, file: in a temporary folder";

const HOSTS: u32 = 8;
const TICKS: u32 = 5;
const JOB: &str = "example-fleet-job";
/// How much the clock of each host lags behind that of the previous one.
const SKEW: Duration = Duration::from_millis(100);

/// A host: runs the job in all three ways.
async fn host(url: &str, number: u32) -> Result<bool, Failure> {
    let (locks, stop) = (Locks::open(url).await?, StopHandle::new());
    let joined = |_: &Job, event: &JobEvent| {
        if let JobEvent::Joined { .. } = event {
            println!("ready");
        }
    };
    let job = Job::new(JOB, "* * * * * *")?.on_event(joined);
    let scheduled = async {
        let work = |run: schedule::Run| async move {
            println!("schedule {} {}", run.tick(), run.token());
            Ok::<(), Infallible>(())
        };
        Ok(schedule::run_until(&locks, job, &stop, work).await?)
    };
    tokio::try_join!(scheduled, run_controls(&locks, number, hosts::read_commands(), &stop))?;
    locks.close().await?;
    Ok(true)
}

/// On the first order, runs the job at each tick of the host's own timer, without a lock and with
/// one. On the second order, or when the orders end, stops the schedule.
async fn run_controls(
    locks: &Locks,
    number: u32,
    mut orders: UnboundedReceiver<String>,
    stop: &StopHandle,
) -> Result<(), Failure> {
    if orders.recv().await.is_some() {
        tokio::time::sleep(SKEW * number).await;
        let mut timer = tokio::time::interval(Duration::from_secs(1));
        for tick in 1..=TICKS {
            timer.tick().await;
            println!("timer {tick}");
            if let Some(guard) = locks.mutex("example: fleet job").try_lock().await? {
                println!("lock {tick}");
                let _ = guard.release().await?;
            }
        }
        orders.recv().await;
    }
    stop.stop();
    Ok(())
}

/// For each tick, the numbers of the hosts that sent the message.
#[derive(Default)]
struct SentMessages(BTreeMap<String, Vec<u32>>);

impl SentMessages {
    fn add(&mut self, tick: &str, host: u32) {
        self.0.entry(tick.to_owned()).or_default().push(host);
    }

    fn ticks(&self) -> usize {
        self.0.len()
    }

    fn messages(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

/// The messages that the hosts reported as sent, for each of the three ways.
#[derive(Default)]
struct Report {
    timer: SentMessages,
    lock: SentMessages,
    schedule: SentMessages,
    ready: u32,
    ended: u32,
}

impl Report {
    fn record_report(&mut self, host: u32, text: &str) -> Result<(), Failure> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["ready"] => self.ready += 1,
            [hosts::ENDED_LINE] => self.ended += 1,
            ["timer", tick] => self.timer.add(tick, host),
            ["lock", tick] => self.lock.add(tick, host),
            ["schedule", tick, token] => {
                println!("{tick}: host {host} sends the message (token {token})");
                self.schedule.add(tick, host);
            }
            _ => return Err(format!("host {host}: {text}").into()),
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.timer.messages() == (HOSTS * TICKS) as usize && self.schedule.ticks() >= TICKS as usize
    }

    fn table(&self) {
        let by_lock = self.lock.messages();
        println!("\nthe messages of each tick, by their own timers, and with a lock around each run:");
        for (tick, hosts) in &self.timer.0 {
            let locked = self.lock.0.get(tick).map_or(0, Vec::len);
            println!("tick {tick}: {} by timers, {locked} with a lock", hosts.len());
        }
        println!("\n{:<36} ticks  messages", "");
        println!("{:<36} {:>5} {:>9}", "each host by its own timer", self.timer.ticks(), self.timer.messages());
        println!("{:<36} {:>5} {by_lock:>9}", "the same, with a lock around the run", self.timer.ticks());
        println!("{:<36} {:>5} {:>9}", "leasehold_schedule", self.schedule.ticks(), self.schedule.messages());
    }
}

async fn run_example(place: &EngineLocation) -> Result<bool, Failure> {
    let locks = Locks::open(&place.url).await?;
    let jobs = Jobs::new(&locks)?;
    // Removes the record of an earlier, killed run. If it was killed in the middle of a tick, the
    // hosts detect that and continue.
    if let Err(error) = jobs.remove(JOB).await
        && error.kind() != ErrorKind::Conflict
    {
        return Err(error.into());
    }
    println!("{HOSTS} hosts, each in its own process, on {place}; their wall clocks are never read");
    let mut fleet = HostProcesses::start(HOSTS, &place.url)?;
    let mut report = Report::default();
    let mut started = false;
    while !report.is_complete() {
        let (host, text) = fleet.next().await?;
        report.record_report(host, &text)?;
        if report.ended > 0 {
            return Err(format!("host {host} has ended").into());
        }
        if report.ready == HOSTS && !started {
            (1..=HOSTS).try_for_each(|host| fleet.send_command(host, "start the timers"))?;
            started = true;
        }
    }
    fleet.close_inputs();
    while report.ended < HOSTS {
        let (host, text) = fleet.next().await?;
        report.record_report(host, &text)?;
    }
    drop(fleet);
    jobs.remove(JOB).await?;
    locks.close().await?;
    report.table();
    Ok(report.schedule.messages() == report.schedule.ticks())
}

async fn run() -> Result<bool, Failure> {
    let (place, host_number) = hosts::options(USAGE)?;
    match host_number {
        Some(number) => host(&place.url, number).await,
        None => run_example(&place).await,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run().await)
}
