//! The tools of a case: clients of one fresh instance, their engines, and other processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::engine::{AcquireReply, Capabilities, Engine, Fairness, Grant, LockView};
use leasehold::{Claim, Holder, LockName, LockOptions, Locks, Mode, Owner, Token};
use leasehold_testbed::eventually;
use tokio::sync::OnceCell;

use crate::actor_process::ActorProcess;
use crate::flaky::FlakyEngine;
use crate::subject::Instance;

/// The time limit of every wait, well below [`LONG_TTL`]. Only a failing case waits this long, so
/// it says nothing about speed.
pub const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// A TTL that no case outlives: a lock that becomes free earlier did not expire.
pub const LONG_TTL: Duration = Duration::from_secs(600);
/// The poll interval for an engine without notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// One fresh instance of the engine, and the clients and processes that a case opens on it.
#[derive(Debug)]
pub struct TestContext {
    instance: Instance,
    /// The first client; it keeps an in-memory instance alive and inspects it.
    first_client: Arc<dyn Engine>,
    actor_path: PathBuf,
    next_name: AtomicU32,
    /// The client that checks whether locks are free; opened at its first use.
    probe_client: OnceCell<Locks>,
}

/// `url` with a connect timeout of a minute, unless it has one: a slow server on a busy machine
/// does not count as unreachable.
pub fn patient_url(url: &str) -> String {
    if url.contains("connect-timeout=") {
        return url.to_owned();
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}connect-timeout=60s")
}

/// A claim to use with an engine directly.
pub fn new_claim(name: &str, mode: Mode, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
    let name = LockName::new(name).expect("a valid name");
    let holder = Arc::new(Holder::this_process());
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, mode, owner, ttl, holder))))
}

/// Acquires a claim on a free lock directly from an engine.
pub async fn acquire_claim(engine: &Arc<dyn Engine>, name: &str, ttl: Duration) -> Arc<Claim> {
    let claim = new_claim(name, Mode::Exclusive, None, ttl);
    let answer = Arc::clone(engine).attempt(Arc::clone(&claim), false).await.expect("an answer");
    assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
    claim
}

impl TestContext {
    /// Opens the instance for a case; `actor_path` is the program of the other processes.
    pub async fn new(instance: Instance, actor: &Path) -> Self {
        let base = instance.engine().await;
        Self {
            instance,
            first_client: base,
            actor_path: actor.to_owned(),
            next_name: AtomicU32::new(0),
            probe_client: OnceCell::new(),
        }
    }

    /// The engine's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.first_client.capabilities()
    }

    /// The URL that other processes open.
    pub fn url(&self) -> &str {
        self.instance.url()
    }

    /// A name that no other part of the case uses.
    pub fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    /// Opens another client's engine.
    pub async fn open_engine(&self) -> Arc<dyn Engine> {
        self.instance.engine().await
    }

    /// Opens another client, whose leases outlast the case.
    pub async fn open_locks(&self) -> Locks {
        self.open_locks_with_ttl(LONG_TTL).await
    }

    /// Opens another client with this TTL.
    pub async fn open_locks_with_ttl(&self, ttl: Duration) -> Locks {
        Locks::builder().ttl(ttl).open_engine(self.open_engine().await)
    }

    /// Opens another client with this TTL, behind a connection with planned faults.
    pub async fn open_flaky(&self, ttl: Duration) -> (Locks, Arc<FlakyEngine>) {
        let flaky = Arc::new(FlakyEngine::new(self.open_engine().await));
        let engine: Arc<dyn Engine> = Arc::clone(&flaky) as _;
        (Locks::builder().ttl(ttl).open_engine(engine), flaky)
    }

    /// A claim on the lock `name`, for use with an engine without the library's client.
    pub fn new_claim(&self, name: &str, mode: Mode, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
        new_claim(name, mode, owner, ttl)
    }

    /// Starts another process with this TTL.
    pub async fn spawn_actor(&self, ttl: Duration) -> ActorProcess {
        ActorProcess::open(&self.actor_path, self.url(), ttl).await
    }

    /// Starts another process whose wall clock is this many seconds ahead, or behind if negative.
    pub async fn spawn_skewed_actor(&self, skew: i64, ttl: Duration) -> ActorProcess {
        let faked = format!("{skew:+}");
        // The loader replaces $LIB with the machine's library directory.
        let library = "/usr/$LIB/faketime/libfaketimeMT.so.1";
        let env = [("LD_PRELOAD", library), ("FAKETIME", &faked), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        ActorProcess::open_with(&self.actor_path, &env, self.url(), ttl).await
    }

    /// The holders and waiters of the lock.
    pub async fn inspect(&self, name: &str) -> LockView {
        let name = LockName::new(name).expect("a valid name");
        Arc::clone(&self.first_client).inspect(name).await.expect("an inspection")
    }

    /// Whether waiters can be inspected: the engine has a queue and inspections.
    pub fn can_show_waiters(&self) -> bool {
        self.capabilities().inspection && self.capabilities().fairness == Fairness::Fifo
    }

    /// Waits until `count` waiters queue for the lock. Needs inspection and a queue.
    pub async fn wait_for_waiters(&self, name: &str, count: usize) {
        eventually(TEST_TIMEOUT, || async {
            let view = self.inspect(name).await;
            if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
        })
        .await;
    }

    /// Waits until the engine grants a claim, retrying as the library does. Returns its token and,
    /// unless a session decides how long the grant lasts, when its lease began.
    pub async fn wait_granted(&self, engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> (Token, Option<Instant>) {
        let deadline = Clock::system().now().saturating_add(TEST_TIMEOUT);
        // It is the same claim, so a retry does no harm.
        let attempt = || eventually(TEST_TIMEOUT, || Arc::clone(engine).attempt(Arc::clone(claim), true));
        let mut answer = attempt().await;
        loop {
            answer = match answer {
                AcquireReply::Granted(Grant { token, reserved_at, expires_at }) => {
                    let lasts_a_ttl = reserved_at == expires_at.saturating_sub(claim.options.ttl);
                    return (token, lasts_a_ttl.then_some(reserved_at));
                }
                AcquireReply::Refused(refusal) => panic!("refused: {refusal:?}"),
                AcquireReply::ForceReleased => panic!("force-released"),
                AcquireReply::Queued { recheck_after: recheck, .. } => {
                    let timeout = recheck.unwrap_or(claim.options.ttl / 3).min(claim.options.ttl / 3).min(TEST_TIMEOUT);
                    eventually(TEST_TIMEOUT, || Arc::clone(engine).wait(Arc::clone(claim), timeout)).await
                }
                AcquireReply::CoolingDown { .. } => {
                    self.sleep(POLL_INTERVAL).await;
                    attempt().await
                }
                AcquireReply::Busy { recheck_after: recheck } => {
                    self.sleep(recheck.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL)).await;
                    attempt().await
                }
            };
            assert!(Clock::system().now() < deadline, "not granted in {TEST_TIMEOUT:?}: {answer:?}");
        }
    }

    /// Sleeps on the clock that measures leases, for example until a lease ends.
    pub async fn sleep(&self, time: Duration) {
        let clock = Clock::system();
        clock.sleep_until(clock.now().saturating_add(time)).await;
    }

    /// Waits until the lock has no holders and no waiters, as far as the engine can tell.
    pub async fn wait_until_free(&self, name: &str) {
        if self.capabilities().inspection {
            eventually(TEST_TIMEOUT, || async {
                let view = self.inspect(name).await;
                let free = view.holders.is_empty() && view.waiters.is_empty();
                if free { Ok(()) } else { Err(format!("should be free: {view:?}")) }
            })
            .await;
        }
        let probe = self.probe_client.get_or_init(|| self.open_locks()).await;
        let guard = probe.mutex(name).timeout(TEST_TIMEOUT).lock().await.expect("a free lock");
        let _ = guard.release().await.expect("a release");
    }

    /// Waits until no holder or waiter of any name is left, at the end of a case.
    pub async fn wait_until_empty(&self) {
        if !self.capabilities().inspection {
            return;
        }
        eventually(TEST_TIMEOUT, || async {
            let left = Arc::clone(&self.first_client).list(String::new()).await.map_err(|error| error.to_string())?;
            if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
        })
        .await;
    }
}
