//! A process that acquires locks on command and reports the results; see
//! `leasehold_conformance::protocol`.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks, Owner, ReleaseOutcome, Result};
use leasehold_conformance::overlap_probe;
use leasehold_conformance::protocol::{ActorCommand, ActorReport, LockRequest, RequestMode};
use leasehold_conformance::register::Register;
use tokio::io::{AsyncBufReadExt, BufReader};

/// The held guards by name.
type Guards = Arc<Mutex<HashMap<String, Arc<Guard>>>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut locks = None;
    let guards = Guards::default();
    while let Some(line) = lines.next_line().await? {
        let command = serde_json::from_str(&line)?;
        match command {
            ActorCommand::Open { url, ttl_ms } => match open_locks(&url, ttl_ms).await {
                Ok(opened) => locks = Some(opened),
                Err(error) => print_report(&failure_report("", &error)),
            },
            ActorCommand::Quit => return Ok(()),
            command => match &locks {
                Some(locks) => drop(tokio::spawn(execute(locks.clone(), Arc::clone(&guards), command))),
                None => print_report(&failure_report("", &Error::new(ErrorKind::Closed, "no engine is open"))),
            },
        }
    }
    Ok(())
}

fn print_report(report: &ActorReport) {
    let Ok(mut line) = serde_json::to_string(report) else { return };
    line.push('\n');
    // This fails only when the test has ended.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

fn failure_report(guard: &str, error: &Error) -> ActorReport {
    ActorReport::Failed { guard: guard.to_owned(), kind: error.kind().as_str().to_owned(), message: error.to_string() }
}

async fn open_locks(url: &str, ttl_ms: u64) -> Result<Locks> {
    let locks = Locks::builder().ttl(Duration::from_millis(ttl_ms)).open(url).await?;
    print_report(&ActorReport::Opened { pid: std::process::id() });
    Ok(locks)
}

async fn execute(locks: Locks, guards: Guards, command: ActorCommand) {
    let all = || guards.lock().unwrap_or_else(PoisonError::into_inner);
    let find = |name: &str| all().get(name).cloned();
    match command {
        ActorCommand::Lock(request) => {
            let guard = request.guard.clone();
            let mut result = acquire(&locks, &request).await;
            while request.retries_unavailable && result.as_ref().is_err_and(Error::is_retryable) {
                result = acquire(&locks, &request).await;
            }
            match result {
                Ok(Some(granted)) => {
                    let (token, at) = (granted.token().0, locks.clock().now().as_nanos());
                    let kept = report_loss_of(&locks, &guard, granted);
                    all().insert(guard.clone(), kept);
                    print_report(&ActorReport::Granted { guard, token, at });
                }
                Ok(None) => print_report(&ActorReport::Busy { guard }),
                Err(error) => print_report(&failure_report(&guard, &error)),
            }
        }
        ActorCommand::Held { guard } => {
            // In this order: the state is that of `at` or later.
            let at = locks.clock().now().as_nanos();
            let (held, deadline) = find(&guard).map_or((false, 0), |g| (g.is_held(), g.deadline().as_nanos()));
            print_report(&ActorReport::Held { guard, held, at, deadline });
        }
        ActorCommand::Release { guard } => {
            let removed = all().remove(&guard);
            let outcome = match removed.and_then(Arc::into_inner) {
                Some(held) => held.release().await,
                None => Err(Error::new(ErrorKind::Closed, "no such guard, or the guard is in use")),
            };
            print_report(&match outcome {
                Ok(ReleaseOutcome::Released) => ActorReport::Released { guard, outcome: "released".to_owned() },
                Ok(ReleaseOutcome::AlreadyLost(reason)) => {
                    ActorReport::Released { guard, outcome: reason.as_str().to_owned() }
                }
                Err(error) => failure_report(&guard, &error),
            });
        }
        ActorCommand::Write { guard, register, value, fenced } => {
            let written = find(&guard).map(|held| run_writer(&held, &register, value, fenced));
            let accepted = written.is_some_and(|written| written.unwrap_or(false));
            print_report(&ActorReport::Written { guard, accepted });
        }
        ActorCommand::Contend { name, folder, rounds, locked } => {
            match run_contention(&locks, &name, &folder, rounds, locked).await {
                Ok(report) => print_report(&report),
                Err(error) => print_report(&failure_report(&name, &error)),
            }
        }
        ActorCommand::Record { name, expected_version: over, value } => {
            match write_record(&locks, &name, over, value).await {
                Ok(report) => print_report(&report),
                Err(error) => print_report(&failure_report(&name, &error)),
            }
        }
        ActorCommand::WallClock => print_report(&ActorReport::WallClock { ms: wall_clock_ms() }),
        ActorCommand::Open { .. } | ActorCommand::Quit => {}
    }
}

async fn write_record(locks: &Locks, name: &str, expected_version: u64, value: String) -> Result<ActorReport> {
    let Some(written) = locks.records()?.compare_and_set(name, expected_version, value).await? else {
        return Err(Error::new(ErrorKind::Conflict, format!("there is no version {expected_version}")));
    };
    let now_us = u64::try_from(written.engine_time.as_micros()).unwrap_or(u64::MAX);
    Ok(ActorReport::Recorded { version: written.version, now_us })
}

#[allow(clippy::disallowed_methods, reason = "a test checks that this clock has no effect")]
fn wall_clock_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Reports the guard's loss from now on.
fn report_loss_of(locks: &Locks, name: &str, granted: Guard) -> Arc<Guard> {
    let (watch, guard, clock) = (granted.watcher(), name.to_owned(), locks.clock().clone());
    tokio::spawn(async move {
        let reason = watch.lost().await.as_str().to_owned();
        print_report(&ActorReport::Lost { guard, reason, at: clock.now().as_nanos() });
    });
    Arc::new(granted)
}

async fn acquire(locks: &Locks, request: &LockRequest) -> Result<Option<Guard>> {
    let owner = request.owner.as_deref().map(Owner::named);
    let wait = request.wait_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    let now = request.wait_ms == Some(0);
    macro_rules! acquire_with {
        ($what:expr, $lock:ident($($arg:expr),*), $try_lock:ident) => {{
            let mut what = $what.describe(&request.describe);
            if let Some(owner) = &owner {
                what = what.owner(owner);
            }
            if let Some(wait) = wait {
                what = what.timeout(wait);
            }
            if now { what.$try_lock($($arg),*).await } else { what.$lock($($arg),*).await.map(Some) }
        }};
    }
    match request.mode {
        RequestMode::Exclusive => acquire_with!(locks.mutex(&request.name), lock(), try_lock),
        RequestMode::Shared => acquire_with!(locks.rwlock(&request.name), read(), try_read),
        RequestMode::Permits(n, limit) => acquire_with!(locks.semaphore(&request.name, limit), acquire(n), try_acquire),
    }
}

fn run_writer(guard: &Guard, register: &Path, value: u64, fenced: bool) -> std::io::Result<bool> {
    let mut register = Register::open(register)?;
    if fenced { register.write_fenced(guard.token(), value) } else { register.write_unfenced(value) }
}

async fn run_contention(locks: &Locks, name: &str, folder: &Path, rounds: u32, locked: bool) -> Result<ActorReport> {
    let broken = |error: std::io::Error| Error::new(ErrorKind::Denied, "the folder cannot be used").caused_by(error);
    let (mut met, mut tokens) = (0, Vec::new());
    for _ in 0..rounds {
        let guard = if locked { Some(locks.mutex(name).lock().await?) } else { None };
        met += u32::from(overlap_probe::visit_folder(folder).await.map_err(broken)?);
        if let Some(guard) = guard {
            tokens.push(guard.token().0);
            let _ = guard.release().await?;
        } else if met > 0 {
            break;
        }
    }
    Ok(ActorReport::ContentionResult { overlaps: met, tokens })
}
