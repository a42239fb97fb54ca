//! What a case works with: clients of one fresh instance, their engines, and processes beside this one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::engine::{Answer, Capabilities, Engine, Fairness, Grant, LockView};
use leasehold::logic::lease::Validity;
use leasehold::{Claim, Holder, LockName, Locks, Mode, Owner, Terms, Token};
use leasehold_testbed::eventually;
use tokio::sync::OnceCell;

use crate::flaky::Flaky;
use crate::player::Player;
use crate::subject::Instance;

/// The one bound of every wait, against hanging: it says nothing of speed. Only a failure waits so long, and it is well below
/// [`LONG`].
pub const SOON: Duration = leasehold_testbed::BOUND;
/// A TTL that no case outlives: whatever becomes free before did not become free by expiry.
pub const LONG: Duration = Duration::from_secs(600);
/// Between two looks at an engine that cannot wake us.
const PAUSE: Duration = Duration::from_millis(10);

/// One fresh instance of the engine.
#[derive(Debug)]
pub struct World {
    instance: Instance,
    /// The first client; keeps an instance that lives in memory, and looks at it.
    base: Arc<dyn Engine>,
    actor: PathBuf,
    made: AtomicU32,
    /// The client that sees whether locks are free.
    probe: OnceCell<Locks>,
}

/// A claim for an engine itself.
pub fn claim(name: &str, mode: Mode, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
    let name = LockName::new(name).expect("a valid name");
    let holder = Arc::new(Holder::this_process());
    Arc::new(Claim::new(Arc::new(Terms::new(name, mode, owner, ttl, holder))))
}

/// Has an engine grant a claim on a free lock.
pub async fn granted(engine: &Arc<dyn Engine>, name: &str, ttl: Duration) -> Arc<Claim> {
    let claim = claim(name, Mode::Exclusive, None, ttl);
    let answer = Arc::clone(engine).attempt(Arc::clone(&claim), false).await.expect("an answer");
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    claim
}

impl World {
    /// Opens the instance for a case; `actor` is the program of the other processes.
    pub async fn new(instance: Instance, actor: &Path) -> Self {
        let base = instance.engine().await;
        Self { instance, base, actor: actor.to_owned(), made: AtomicU32::new(0), probe: OnceCell::new() }
    }

    /// What the engine says it can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.base.capabilities()
    }

    /// The URL that other processes open.
    pub fn url(&self) -> &str {
        self.instance.url()
    }

    /// A name that no other part of the case uses.
    pub fn name(&self, about: &str) -> String {
        format!("{about}-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    /// A further client's engine.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        self.instance.engine().await
    }

    /// A further client, whose leases outlast the case.
    pub async fn locks(&self) -> Locks {
        self.locks_for(LONG).await
    }

    /// A further client with this TTL.
    pub async fn locks_for(&self, ttl: Duration) -> Locks {
        Locks::builder().ttl(ttl).open_engine(self.engine().await)
    }

    /// A further client with this TTL on a line that fails as it is told to.
    pub async fn flaky(&self, ttl: Duration) -> (Locks, Arc<Flaky>) {
        let flaky = Arc::new(Flaky::new(self.engine().await));
        let engine: Arc<dyn Engine> = Arc::clone(&flaky) as _;
        (Locks::builder().ttl(ttl).open_engine(engine), flaky)
    }

    /// A claim for the engine itself.
    pub fn claim(&self, name: &str, mode: Mode, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
        claim(name, mode, owner, ttl)
    }

    /// Another process, with this TTL.
    pub async fn player(&self, ttl: Duration) -> Player {
        Player::open(&self.actor, self.url(), ttl).await
    }

    /// Another process, whose wall clock is so many seconds ahead; behind if negative.
    pub async fn skewed_player(&self, skew: i64, ttl: Duration) -> Player {
        let faked = format!("{skew:+}");
        // The loader puts the machine's own folder in place of $LIB.
        let library = "/usr/$LIB/faketime/libfaketimeMT.so.1";
        let env = [("LD_PRELOAD", library), ("FAKETIME", &faked), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        Player::open_with(&self.actor, &env, self.url(), ttl).await
    }

    /// Who holds the lock and who waits.
    pub async fn view(&self, name: &str) -> LockView {
        let name = LockName::new(name).expect("a valid name");
        Arc::clone(&self.base).inspect(name).await.expect("an inspection")
    }

    /// Whether waiters can be seen: there is a queue, and it can be looked at.
    pub fn shows_waiters(&self) -> bool {
        self.capabilities().inspection && self.capabilities().fairness == Fairness::Fifo
    }

    /// Waits until so many wait for the lock. Needs inspection and a queue.
    pub async fn until_waiting(&self, name: &str, count: usize) {
        eventually(SOON, || async {
            let view = self.view(name).await;
            if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
        })
        .await;
    }

    /// Waits until the engine grants a claim, asking as the library does; its token and, if the engine says it on our clock,
    /// the moment when the grant ends.
    pub async fn granted(&self, engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> (Token, Option<Moment>) {
        let give_up = Clock::system().now().after(SOON);
        // The same claim: asking again does no harm.
        let ask = || eventually(SOON, || Arc::clone(engine).attempt(Arc::clone(claim), true));
        let mut answer = ask().await;
        loop {
            answer = match answer {
                Answer::Granted(Grant { token, validity: Validity::Until(end) }) => return (token, Some(end)),
                Answer::Granted(grant) => return (grant.token, None),
                Answer::Refused(refusal) => panic!("refused: {refusal:?}"),
                Answer::Evicted => panic!("evicted"),
                Answer::Queued { recheck, .. } => {
                    let patience = recheck.unwrap_or(claim.terms.ttl / 3).min(claim.terms.ttl / 3).min(SOON);
                    eventually(SOON, || Arc::clone(engine).wait(Arc::clone(claim), patience)).await
                }
                Answer::Abstains { .. } => {
                    self.pass(PAUSE).await;
                    ask().await
                }
                Answer::Busy { recheck } => {
                    self.pass(recheck.unwrap_or(PAUSE).min(PAUSE)).await;
                    ask().await
                }
            };
            assert!(Clock::system().now() < give_up, "not granted in {SOON:?}: {answer:?}");
        }
    }

    /// Waits until so much time has passed on the clock that leases are measured by: for a lease to end, say.
    pub async fn pass(&self, time: Duration) {
        let clock = Clock::system();
        clock.sleep_until(clock.now().after(time)).await;
    }

    /// Waits until nobody holds the lock and nobody waits, as far as the engine can tell.
    pub async fn until_free(&self, name: &str) {
        if self.capabilities().inspection {
            eventually(SOON, || async {
                let view = self.view(name).await;
                let free = view.holders.is_empty() && view.waiters.is_empty();
                if free { Ok(()) } else { Err(format!("should be free: {view:?}")) }
            })
            .await;
        }
        let probe = self.probe.get_or_init(|| self.locks()).await;
        let guard = probe.mutex(name).wait(SOON).lock().await.expect("a free lock");
        let _ = guard.release().await.expect("a release");
    }

    /// Nothing is left when a case is over: no holder, no waiter, of any name.
    pub async fn until_empty(&self) {
        if !self.capabilities().inspection {
            return;
        }
        eventually(SOON, || async {
            let left = Arc::clone(&self.base).list(String::new()).await.map_err(|error| error.to_string())?;
            if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
        })
        .await;
    }
}
