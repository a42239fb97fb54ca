//! A limit on concurrent work: twelve workers, three slots.
//!
//! ```text
//! cargo run -p leasehold-examples --bin slots
//! cargo run -p leasehold-examples --bin slots -- --engine redis://127.0.0.1/ --workers 20 --slots 5
//! ```
//! Each worker has its own connection to the engine, as if it were on its own machine. The workers
//! start one after the other, and are served in that order if the engine keeps an order.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

#[path = "../common/mod.rs"]
mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Arguments, EngineLocation, Failure};
use leasehold::clock::{Clock, Instant};
use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

const USAGE: &str = "slots [--engine URL] [--workers 12] [--slots 3]

Workers start the same work at once, and a semaphore limits how many run. Shows when each worker held a slot.
  --engine URL   where the semaphore is kept (file:///folder, memory:, redis://host, …); if not
                 given, file: in a temporary folder";

/// How long each worker holds a slot.
const WORK: Duration = Duration::from_millis(500);
/// The time between the starts of two workers.
const START_INTERVAL: Duration = Duration::from_millis(5);
/// The time of one character in the timeline.
const CHARACTER_TIME: Duration = Duration::from_millis(50);

struct Options {
    place: EngineLocation,
    workers: u32,
    slots: u32,
}

fn options() -> Result<Options, Failure> {
    let (mut words, mut workers, mut slots) = (Arguments::new(USAGE), 12, 3);
    while let Some(word) = words.next()? {
        match word.as_str() {
            "--workers" => workers = words.number(&word)?,
            "--slots" => slots = words.number(&word)?,
            _ => return Err(words.unknown_option(&word)),
        }
    }
    Ok(Options { place: words.engine_location()?, workers, slots })
}

/// Counts the workers that work at the same time, which the semaphore must limit.
#[derive(Default)]
struct LimitedWork {
    running: AtomicU32,
    max_running: AtomicU32,
}

impl LimitedWork {
    async fn work(&self) {
        let inside = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_running.fetch_max(inside, Ordering::SeqCst);
        tokio::time::sleep(WORK).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// When a worker started to wait, and when it held a slot.
struct WorkerTimes {
    worker: u32,
    waiting_since: Instant,
    began: Instant,
    ended: Instant,
    token: Option<u64>,
}

/// Lets all workers work; under a semaphore with `slots` permits if there is a `url`.
async fn run_workers(
    work: &Arc<LimitedWork>,
    workers: u32,
    slots: u32,
    url: Option<&str>,
) -> Result<Vec<WorkerTimes>, Failure> {
    // All are connected before the first one starts.
    let mut clients = Vec::new();
    for _ in 0..workers {
        clients.push(match url {
            Some(url) => Some(Locks::open(url).await?),
            None => None,
        });
    }
    let mut crowd = JoinSet::new();
    for (worker, locks) in (1..).zip(clients) {
        let shared_work = Arc::clone(work);
        crowd.spawn(async move {
            let clock = Clock::system();
            let arrived_at = clock.now();
            let guard = match &locks {
                Some(locks) => Some(locks.semaphore("example: slots", slots).acquire(1).await?),
                None => None,
            };
            let began = clock.now();
            shared_work.work().await;
            let ended = clock.now();
            let token = guard.as_ref().map(|guard| guard.token().0);
            release_and_flush(locks, guard).await?;
            Ok::<_, Failure>(WorkerTimes { worker, waiting_since: arrived_at, began, ended, token })
        });
        tokio::time::sleep(START_INTERVAL).await;
    }
    let mut visits = Vec::new();
    while let Some(visit) = crowd.join_next().await {
        visits.push(visit??);
    }
    visits.sort_by_key(|visit| visit.worker);
    Ok(visits)
}

async fn release_and_flush(locks: Option<Locks>, guard: Option<Guard>) -> Result<(), Failure> {
    if let Some(guard) = guard
        && let leasehold::ReleaseOutcome::AlreadyLost(reason) = guard.release().await?
    {
        return Err(format!("the slot was lost: {reason}").into());
    }
    if let Some(locks) = locks {
        locks.close().await?;
    }
    Ok(())
}

/// A line for each worker: `.` waiting, `█` working.
fn print_timeline(visits: &[WorkerTimes]) {
    let Some(start) = visits.iter().map(|visit| visit.waiting_since).min() else { return };
    let at = |moment: Instant| (moment.duration_since(start).as_millis() / CHARACTER_TIME.as_millis()) as usize;
    for WorkerTimes { worker, waiting_since: arrived_at, began, ended, token } in visits {
        let (arrived_at, began, ended) = (at(*arrived_at), at(*began), at(*ended));
        let inside = "█".repeat((ended - began).max(1));
        let token = token.map(|token| format!("  token {token}")).unwrap_or_default();
        println!("worker {worker:>2} {}{}{inside}{token}", " ".repeat(arrived_at), ".".repeat(began - arrived_at));
    }
}

async fn run() -> Result<bool, Failure> {
    let Options { place, workers, slots } = options()?;
    println!("without a semaphore (each letter is {} ms: . waits, █ is inside)", CHARACTER_TIME.as_millis());
    let free = Arc::<LimitedWork>::default();
    print_timeline(&run_workers(&free, workers, slots, None).await?);
    let without = free.max_running.load(Ordering::SeqCst);
    println!("at most {without} inside at once\n");

    println!("{slots} slots, on {place}");
    let limited = Arc::<LimitedWork>::default();
    let visits = run_workers(&limited, workers, slots, Some(&place.url)).await?;
    print_timeline(&visits);
    let most = limited.max_running.load(Ordering::SeqCst);
    println!("at most {most} of {workers} inside at once");
    Ok(most <= slots && visits.len() == workers as usize)
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run().await)
}
