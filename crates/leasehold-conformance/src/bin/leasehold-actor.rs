//! A process that takes locks as it is told, and reports: `leasehold_conformance::protocol` has its words.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks, Outcome, Owner, Result};
use leasehold_conformance::probe;
use leasehold_conformance::protocol::{Ask, How, Order, Report};
use leasehold_conformance::register::Register;
use tokio::io::{AsyncBufReadExt, BufReader};

/// The guards in hand, by the names that the orders gave them.
type Guards = Arc<Mutex<HashMap<String, Arc<Guard>>>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut locks = None;
    let guards = Guards::default();
    while let Some(line) = lines.next_line().await? {
        let order = serde_json::from_str(&line)?;
        match order {
            Order::Open { url, ttl_ms } => match open(&url, ttl_ms).await {
                Ok(opened) => locks = Some(opened),
                Err(error) => say(&failed("", &error)),
            },
            Order::Quit => return Ok(()),
            order => match &locks {
                Some(locks) => drop(tokio::spawn(obey(locks.clone(), Arc::clone(&guards), order))),
                None => say(&failed("", &Error::new(ErrorKind::Closed, "nothing is open"))),
            },
        }
    }
    Ok(())
}

fn say(report: &Report) {
    let Ok(mut line) = serde_json::to_string(report) else { return };
    line.push('\n');
    // Nobody listens any more when this fails.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

fn failed(guard: &str, error: &Error) -> Report {
    Report::Failed { guard: guard.to_owned(), kind: error.kind().as_str().to_owned(), message: error.to_string() }
}

async fn open(url: &str, ttl_ms: u64) -> Result<Locks> {
    let locks = Locks::builder().ttl(Duration::from_millis(ttl_ms)).open(url).await?;
    say(&Report::Opened { pid: std::process::id() });
    Ok(locks)
}

async fn obey(locks: Locks, guards: Guards, order: Order) {
    let all = || guards.lock().unwrap_or_else(PoisonError::into_inner);
    let find = |name: &str| all().get(name).cloned();
    match order {
        Order::Lock(ask) => {
            let guard = ask.guard.clone();
            let mut asked = lock(&locks, &ask).await;
            while ask.stubborn && asked.as_ref().is_err_and(Error::is_retryable) {
                asked = lock(&locks, &ask).await;
            }
            match asked {
                Ok(Some(granted)) => {
                    let (token, at) = (granted.token().0, locks.clock().now().as_nanos());
                    let kept = keep(&locks, &guard, granted);
                    all().insert(guard.clone(), kept);
                    say(&Report::Granted { guard, token, at });
                }
                Ok(None) => say(&Report::Busy { guard }),
                Err(error) => say(&failed(&guard, &error)),
            }
        }
        Order::Held { guard } => {
            // Read in this order: what is said of the guard was true at `at`, or later.
            let at = locks.clock().now().as_nanos();
            let (held, deadline) = find(&guard).map_or((false, 0), |g| (g.is_held(), g.deadline().as_nanos()));
            say(&Report::Held { guard, held, at, deadline });
        }
        Order::Release { guard } => {
            let taken = all().remove(&guard);
            let outcome = match taken.and_then(Arc::into_inner) {
                Some(held) => held.release().await,
                None => Err(Error::new(ErrorKind::Closed, "there is no such guard, or it is in use")),
            };
            say(&match outcome {
                Ok(Outcome::Released) => Report::Released { guard, outcome: "released".to_owned() },
                Ok(Outcome::WasLost(reason)) => Report::Released { guard, outcome: reason.as_str().to_owned() },
                Err(error) => failed(&guard, &error),
            });
        }
        Order::Write { guard, register, value, fenced } => {
            let written = find(&guard).map(|held| write(&held, &register, value, fenced));
            let accepted = written.is_some_and(|written| written.unwrap_or(false));
            say(&Report::Written { guard, accepted });
        }
        Order::Storm { name, folder, rounds, locked } => match storm(&locks, &name, &folder, rounds, locked).await {
            Ok(report) => say(&report),
            Err(error) => say(&failed(&name, &error)),
        },
        Order::Record { name, over, value } => match record(&locks, &name, over, value).await {
            Ok(report) => say(&report),
            Err(error) => say(&failed(&name, &error)),
        },
        Order::Wall => say(&Report::Wall { ms: wall() }),
        Order::Open { .. } | Order::Quit => {}
    }
}

async fn record(locks: &Locks, name: &str, over: u64, value: String) -> Result<Report> {
    let Some(written) = locks.records()?.compare_and_set(name, over, value).await? else {
        return Err(Error::new(ErrorKind::Conflict, format!("there is no version {over}")));
    };
    let now_us = u64::try_from(written.now.as_micros()).unwrap_or(u64::MAX);
    Ok(Report::Recorded { version: written.version, now_us })
}

#[allow(clippy::disallowed_methods, reason = "a test wants to see that this clock plays no role")]
fn wall() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Tells of the guard's loss from now on.
fn keep(locks: &Locks, name: &str, granted: Guard) -> Arc<Guard> {
    let (watch, guard, clock) = (granted.watch(), name.to_owned(), locks.clock().clone());
    tokio::spawn(async move {
        let reason = watch.lost().await.as_str().to_owned();
        say(&Report::Lost { guard, reason, at: clock.now().as_nanos() });
    });
    Arc::new(granted)
}

async fn lock(locks: &Locks, ask: &Ask) -> Result<Option<Guard>> {
    let owner = ask.owner.as_deref().map(Owner::named);
    let wait = ask.wait_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    let now = ask.wait_ms == Some(0);
    macro_rules! ask_for {
        ($what:expr, $lock:ident($($arg:expr),*), $try_lock:ident) => {{
            let mut what = $what.describe(&ask.describe);
            if let Some(owner) = &owner {
                what = what.owner(owner);
            }
            if let Some(wait) = wait {
                what = what.wait(wait);
            }
            if now { what.$try_lock($($arg),*).await } else { what.$lock($($arg),*).await.map(Some) }
        }};
    }
    match ask.how {
        How::Exclusive => ask_for!(locks.mutex(&ask.name), lock(), try_lock),
        How::Shared => ask_for!(locks.rwlock(&ask.name), read(), try_read),
        How::Permits(n, limit) => ask_for!(locks.semaphore(&ask.name, limit), acquire(n), try_acquire),
    }
}

fn write(guard: &Guard, register: &Path, value: u64, fenced: bool) -> std::io::Result<bool> {
    let mut register = Register::open(register)?;
    if fenced { register.write_fenced(guard.token(), value) } else { register.write_naively(value) }
}

async fn storm(locks: &Locks, name: &str, folder: &Path, rounds: u32, locked: bool) -> Result<Report> {
    let broken = |error: std::io::Error| Error::new(ErrorKind::Denied, "the folder cannot be used").caused_by(error);
    let (mut met, mut tokens) = (0, Vec::new());
    for _ in 0..rounds {
        let guard = if locked { Some(locks.mutex(name).lock().await?) } else { None };
        met += u32::from(probe::visit(folder).await.map_err(broken)?);
        if let Some(guard) = guard {
            tokens.push(guard.token().0);
            let _ = guard.release().await?;
        } else if met > 0 {
            break;
        }
    }
    Ok(Report::Calm { met, tokens })
}
