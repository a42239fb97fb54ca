//! The sessions that claims share. Claims of many TTLs share a few sessions
//! ([`session_sharing`](crate::logic::session_sharing)), and sessions that are unused for long are
//! closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::engine::ZookeeperEngine;
use super::session::Session;
use crate::clock::{Clock, Instant};
use crate::logic::session_sharing::{self, OpenSession, SessionChoice};
use crate::types::Result;

/// How long a session that no claim uses is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The slots of the shared sessions, by the timeout that is requested for each.
#[derive(Debug, Default)]
pub(super) struct SessionPool(Mutex<HashMap<Duration, Arc<Slot>>>);

/// A place for one session, which may not be open.
#[derive(Debug, Default)]
pub(super) struct Slot {
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// The timeout that the server last granted to this slot's session, in nanoseconds; 0: unknown.
    granted_timeout: AtomicU64,
    /// When the session was last used, in nanoseconds of the client's clock.
    last_used: AtomicU64,
}

impl Slot {
    /// The timeout that the server last granted; `None` if unknown.
    fn granted_timeout(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.granted_timeout.load(Ordering::Acquire))).filter(|granted| !granted.is_zero())
    }

    /// When the session was last used.
    fn last_used(&self) -> Instant {
        Instant::from_nanos(self.last_used.load(Ordering::Acquire))
    }

    /// Notes that the session is used now.
    fn mark_used(&self, now: Instant) {
        self.last_used.store(now.as_nanos(), Ordering::Release);
    }

    /// Takes the session out, unless a claim or a caller uses it or the slot: then `Err`.
    /// `Ok(None)`: the slot has no session.
    fn take_unneeded(self: &Arc<Self>) -> std::result::Result<Option<Arc<Session>>, ()> {
        // The caller has locked the map of slots, under which each user of a session first takes a
        // reference to its slot.
        if Arc::strong_count(self) > 1 {
            return Err(());
        }
        let mut session = self.session.try_lock().map_err(|_| ())?;
        match session.as_ref() {
            Some(open) if Arc::strong_count(open) > 1 => Err(()),
            _ => Ok(session.take()),
        }
    }

    /// Whether a claim or a caller uses the session or the slot.
    fn is_needed(self: &Arc<Self>) -> bool {
        let count = |session: &Option<Arc<Session>>| session.as_ref().map_or(0, Arc::strong_count);
        Arc::strong_count(self) > 1 || self.session.try_lock().map_or(true, |session| count(&session) > 1)
    }
}

impl SessionPool {
    fn lock(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of the session for claims of this TTL, and the timeout to request if it must be
    /// opened.
    fn slot_for(&self, ttl: Duration) -> (Duration, Arc<Slot>) {
        let mut all = self.lock();
        let open: Vec<OpenSession> = all
            .iter()
            .map(|(requested_timeout, slot)| OpenSession {
                requested_timeout: *requested_timeout,
                granted_timeout: slot.granted_timeout(),
            })
            .collect();
        let (SessionChoice::Share(requested_timeout) | SessionChoice::Open(requested_timeout)) =
            session_sharing::choose_session(&open, ttl);
        (requested_timeout, Arc::clone(all.entry(requested_timeout).or_default()))
    }

    /// The slot for a session of exactly this timeout, and that timeout.
    fn slot_with_timeout(&self, timeout: Duration) -> (Duration, Arc<Slot>) {
        (timeout, Arc::clone(self.lock().entry(timeout).or_default()))
    }

    /// The slot that was used last, and the timeout to request if its session must be opened.
    fn latest(&self) -> Option<(Duration, Arc<Slot>)> {
        let all = self.lock();
        all.iter()
            .max_by_key(|(_, slot)| slot.last_used())
            .map(|(requested_timeout, slot)| (*requested_timeout, Arc::clone(slot)))
    }

    /// Takes out the sessions that have been unused for [`IDLE_TIMEOUT`], except the one used last.
    fn take_idle(&self, now: Instant) -> Vec<Arc<Session>> {
        let mut all = self.lock();
        for slot in all.values().filter(|slot| slot.is_needed()) {
            slot.mark_used(now);
        }
        let latest =
            all.iter().max_by_key(|(_, slot)| slot.last_used()).map(|(requested_timeout, _)| *requested_timeout);
        let mut idle = Vec::new();
        all.retain(|requested_timeout, slot| {
            if Some(*requested_timeout) == latest || now.duration_since(slot.last_used()) < IDLE_TIMEOUT {
                return true;
            }
            match slot.take_unneeded() {
                Ok(session) => {
                    idle.extend(session);
                    false
                }
                Err(()) => true,
            }
        });
        idle
    }

    /// Takes out all sessions, used or not.
    pub(super) async fn take_all(&self) -> Vec<Arc<Session>> {
        let slots: Vec<Arc<Slot>> = self.lock().drain().map(|(_, slot)| slot).collect();
        let mut sessions = Vec::new();
        for slot in slots {
            sessions.extend(slot.session.lock().await.take());
        }
        sessions
    }
}

impl ZookeeperEngine {
    /// Any session, for requests that belong to no claim; opens one if none is open.
    pub(super) async fn any_session(&self) -> Result<Arc<Session>> {
        let first =
            || self.sessions.slot_with_timeout(self.config.session_timeout.unwrap_or(crate::types::DEFAULT_TTL));
        self.open_in_slot(self.sessions.latest().unwrap_or_else(first)).await
    }

    /// The session that claims of this TTL share; opens it if necessary.
    pub(super) async fn shared_session(&self, ttl: Duration) -> Result<Arc<Session>> {
        let slot = match self.config.session_timeout {
            Some(timeout) => self.sessions.slot_with_timeout(timeout),
            None => self.sessions.slot_for(ttl),
        };
        self.open_in_slot(slot).await
    }

    /// The session of a slot; opens it with the given timeout if it is not open.
    async fn open_in_slot(&self, (requested_timeout, slot): (Duration, Arc<Slot>)) -> Result<Arc<Session>> {
        slot.mark_used(self.clock.now());
        let mut session = slot.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| !session.is_over()) {
            return Ok(Arc::clone(session));
        }
        let opened = self.new_session(requested_timeout).await?;
        slot.granted_timeout.store(u64::try_from(opened.timeout.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
        *session = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

/// Closes unused sessions from time to time, until the engine is dropped.
pub(super) async fn close_idle_sessions(engine: Weak<ZookeeperEngine>, clock: Clock) {
    loop {
        clock.sleep_until(clock.now().saturating_add(IDLE_TIMEOUT / 2)).await;
        let Some(engine) = engine.upgrade() else { return };
        let idle = engine.sessions.take_idle(clock.now());
        drop(engine);
        for session in idle {
            tracing::debug!(?session, "closing a session that no claim needs");
            session.close().await;
        }
    }
}
