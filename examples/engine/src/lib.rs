//! An engine outside the library: the locks of one process, in a map. It implements only what
//! [`Engine`] requires: no queue, no modes, no owners, no inspection. The library does the rest:
//! waiting, renewing, clean-up, and refusing features that the engine lacks. An engine over a
//! server looks the same, with one request where this one locks a mutex.
//!
//! ```text
//! Locks::builder().register("map", leasehold_example_engine::open).open("map:shop")
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use leasehold::clock::{Clock, Instant};
use leasehold::engine::{AcquireReply, Capabilities, Engine, EngineUrl, Grant, Reach, ReleaseReply, RenewReply, Step};
use leasehold::{Claim, ClaimId, LockName, Result, Token};

/// The state of one lock. It stays when the lock is free: tokens must keep rising.
#[derive(Debug, Default)]
struct LockState {
    last_token: u64,
    /// The claim that holds the lock, and when its lease ends.
    holder: Option<(ClaimId, Instant)>,
}

impl LockState {
    /// The holder, unless its lease has ended.
    fn holder(&self, now: Instant) -> Option<(ClaimId, Instant)> {
        self.holder.filter(|(_, until)| *until > now)
    }
}

type Store = Mutex<HashMap<LockName, LockState>>;

/// A client of one map.
#[derive(Debug)]
pub struct MapEngine {
    url: String,
    clock: Clock,
    capabilities: Capabilities,
    store: Arc<Store>,
}

/// Opens the map with this path. All clients of this process that name the same path share it.
///
/// # Errors
/// `InvalidUrl` if the URL has options.
pub async fn open(url: EngineUrl, clock: Clock) -> Result<Arc<dyn Engine>> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<Store>>>> = OnceLock::new();
    url.refuse_unknown_options(&[])?;
    let mut capabilities = Capabilities::exclusive_only("map");
    capabilities.reach = Reach::Process;
    let stores = STORES.get_or_init(Mutex::default);
    let store = Arc::clone(lock(stores).entry(url.path.clone()).or_default());
    Ok(Arc::new(MapEngine { url: url.to_string(), clock, capabilities, store }))
}

impl MapEngine {
    /// Applies `step` to the state of a claim's lock.
    fn apply<T>(&self, claim: &Claim, step: impl FnOnce(&mut LockState, Instant) -> T) -> T {
        let mut store = lock(&self.store);
        step(store.entry(claim.name().clone()).or_default(), self.clock.now())
    }
}

impl Engine for MapEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<AcquireReply> {
        let ttl = claim.options.ttl;
        let answer = self.apply(&claim, |state, now| match state.holder(now) {
            Some((holder, until)) if holder != claim.id => {
                AcquireReply::Busy { recheck_after: Some(until.duration_since(now)) }
            }
            held => {
                // A repeated request of the holder gets the same token.
                if held.is_none() {
                    state.last_token += 1;
                }
                state.holder = Some((claim.id, now.saturating_add(ttl)));
                AcquireReply::Granted(Grant::for_ttl(Token(state.last_token), now, ttl))
            }
        });
        Step::ready(Ok(answer))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        let renew = |claim: &Arc<Claim>| {
            let ttl = claim.options.ttl;
            self.apply(claim, |state, now| match state.holder(now) {
                Some((holder, _)) if holder == claim.id => {
                    state.holder = Some((claim.id, now.saturating_add(ttl)));
                    RenewReply::Renewed(now.saturating_add(ttl))
                }
                _ => RenewReply::Lost,
            })
        };
        Step::ready(Ok(claims.iter().map(renew).collect()))
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        let released = self.apply(&claim, |state, now| match state.holder(now) {
            Some((holder, _)) if holder == claim.id => {
                state.holder = None;
                ReleaseReply::Released
            }
            _ => ReleaseReply::Absent,
        });
        Step::ready(Ok(released))
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
