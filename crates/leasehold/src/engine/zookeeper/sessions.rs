//! The sessions that claims share: few for many TTLs ([`sharing`](crate::logic::sharing)), and none
//! that is unused for long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::engine::ZookeeperEngine;
use super::session::Session;
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::logic::sharing::{self, Choice, Open};

/// How long an unused session is kept for the next claim.
const IDLE: Duration = Duration::from_secs(30);

/// Sessions, by the timeout that was requested.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Duration, Arc<Slot>>>);

/// One session, or room for one.
#[derive(Debug, Default)]
pub(super) struct Slot {
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// The timeout that the server granted last, in nanoseconds; zero: unknown.
    given: AtomicU64,
    /// When it was last needed, in nanoseconds.
    used: AtomicU64,
}

impl Slot {
    fn given(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.given.load(Ordering::Acquire))).filter(|given| !given.is_zero())
    }

    fn used(&self) -> Moment {
        Moment::from_nanos(self.used.load(Ordering::Acquire))
    }

    fn note_used(&self, now: Moment) {
        self.used.store(now.as_nanos(), Ordering::Release);
    }

    /// Takes the session, if only this slot has it. `Err`: it is needed.
    fn unneeded(self: &Arc<Self>) -> std::result::Result<Option<Arc<Session>>, ()> {
        // A user takes a reference to the slot first, under the mutex of all slots.
        if Arc::strong_count(self) > 1 {
            return Err(());
        }
        let mut session = self.session.try_lock().map_err(|_| ())?;
        match session.as_ref() {
            Some(one) if Arc::strong_count(one) > 1 => Err(()),
            _ => Ok(session.take()),
        }
    }

    fn is_needed(self: &Arc<Self>) -> bool {
        let count = |session: &Option<Arc<Session>>| session.as_ref().map_or(0, Arc::strong_count);
        Arc::strong_count(self) > 1 || self.session.try_lock().map_or(true, |session| count(&session) > 1)
    }
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of the session for claims of this TTL, and the timeout to request.
    fn slot_for(&self, ttl: Duration) -> (Duration, Arc<Slot>) {
        let mut all = self.all();
        let open: Vec<Open> = all.iter().map(|(asked, slot)| Open { asked: *asked, given: slot.given() }).collect();
        let (Choice::Share(asked) | Choice::Open(asked)) = sharing::choose(&open, ttl);
        (asked, Arc::clone(all.entry(asked).or_default()))
    }

    /// The slot of the session of exactly this timeout.
    fn slot_of(&self, timeout: Duration) -> (Duration, Arc<Slot>) {
        (timeout, Arc::clone(self.all().entry(timeout).or_default()))
    }

    /// The slot that was used last.
    fn latest(&self) -> Option<(Duration, Arc<Slot>)> {
        let all = self.all();
        all.iter().max_by_key(|(_, slot)| slot.used()).map(|(asked, slot)| (*asked, Arc::clone(slot)))
    }

    /// Takes out the sessions that have been unused for long, except the one used last.
    fn take_idle(&self, now: Moment) -> Vec<Arc<Session>> {
        let mut all = self.all();
        for slot in all.values().filter(|slot| slot.is_needed()) {
            slot.note_used(now);
        }
        let latest = all.iter().max_by_key(|(_, slot)| slot.used()).map(|(asked, _)| *asked);
        let mut idle = Vec::new();
        all.retain(|asked, slot| {
            if Some(*asked) == latest || now.since(slot.used()) < IDLE {
                return true;
            }
            match slot.unneeded() {
                Ok(session) => {
                    idle.extend(session);
                    false
                }
                Err(()) => true,
            }
        });
        idle
    }

    /// Takes out all sessions.
    pub(super) async fn take_all(&self) -> Vec<Arc<Session>> {
        let slots: Vec<Arc<Slot>> = self.all().drain().map(|(_, slot)| slot).collect();
        let mut sessions = Vec::new();
        for slot in slots {
            sessions.extend(slot.session.lock().await.take());
        }
        sessions
    }
}

impl ZookeeperEngine {
    /// A session for requests that belong to no claim.
    pub(super) async fn any_session(&self) -> Result<Arc<Session>> {
        let first = || self.sessions.slot_of(self.config.session_timeout.unwrap_or(crate::locks::DEFAULT_TTL));
        self.session_in(self.sessions.latest().unwrap_or_else(first)).await
    }

    /// The session that claims of this TTL share.
    pub(super) async fn shared_session(&self, ttl: Duration) -> Result<Arc<Session>> {
        let slot = match self.config.session_timeout {
            Some(timeout) => self.sessions.slot_of(timeout),
            None => self.sessions.slot_for(ttl),
        };
        self.session_in(slot).await
    }

    async fn session_in(&self, (asked, slot): (Duration, Arc<Slot>)) -> Result<Arc<Session>> {
        slot.note_used(self.clock.now());
        let mut session = slot.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| !session.is_over()) {
            return Ok(Arc::clone(session));
        }
        let opened = self.new_session(asked).await?;
        slot.given.store(u64::try_from(opened.timeout.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
        *session = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

/// Closes unused sessions, as long as the engine lives.
pub(super) async fn tidy(engine: Weak<ZookeeperEngine>, clock: Clock) {
    loop {
        clock.sleep_until(clock.now().after(IDLE / 2)).await;
        let Some(engine) = engine.upgrade() else { return };
        let idle = engine.sessions.take_idle(clock.now());
        drop(engine);
        for session in idle {
            tracing::debug!(?session, "no claim needs it: closed");
            session.close().await;
        }
    }
}
