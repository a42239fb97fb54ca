//! One session with the ensemble: opening it, proving until when it lives, and noticing its end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_zookeeper::{Client, Error as Cause, EventType, SaslOptions, SessionState, StateWatcher, WatchedEvent};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::config::{Config, Scheme};
use super::seats::Seats;
use super::{error, steps, tls, wire};
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::LossBoard;
use crate::error::Result;
use crate::logic::session::Proof;

/// An event to wait for.
pub(super) type Event = BoxFuture<'static, WatchedEvent>;

/// How long a lock is held before its own node is watched and the waiter behind it notified. Most
/// are released sooner, and need neither.
const SETTLED: Duration = Duration::from_millis(50);

/// How long closing waits for the end of a session, which would expire anyway.
const FAREWELL: Duration = Duration::from_millis(500);

/// The longest time without an answer before another server is tried.
const SILENCE: Duration = Duration::from_secs(4);

/// One session.
pub(super) struct Session {
    pub(super) client: Client,
    /// How long it outlives its client, as granted by the server.
    pub(super) timeout: Duration,
    clock: Clock,
    proof: Mutex<Proof>,
    over: AtomicBool,
    /// How often the state of the connection has changed.
    breaks: Arc<AtomicU64>,
    guarded: UnboundedSender<Guarded>,
}

/// A holding claim's own node.
pub(super) struct Guarded {
    pub(super) claim: ClaimId,
    pub(super) path: String,
    /// The watch on it, if there is one already.
    pub(super) event: Option<Event>,
    /// The data to write to it, which notifies the waiter behind it of the grant.
    pub(super) news: Option<String>,
    /// Whether that is urgent.
    pub(super) soon: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?})", self.client.session_id(), self.timeout)
    }
}

impl Session {
    /// Opens a session that outlives its client by `timeout`, or as near to that as the server
    /// allows.
    pub(super) async fn open(
        config: &Config,
        timeout: Duration,
        clock: &Clock,
        board: &Arc<LossBoard>,
        seats: &Arc<Seats>,
    ) -> Result<Arc<Self>> {
        let asked = clock.now();
        let connecting = connect(config, timeout);
        let client = clock.timeout(config.connect_timeout, connecting).await;
        let client = client.unwrap_or(Err(Cause::Timeout).map_err(|cause| error::unreachable(config, cause)))?;
        let timeout = client.session_timeout();
        // By default a session is at least two ticks long, and a follower reports twice a tick.
        let proof = Proof::new(asked, timeout, timeout / 4);
        let (guarded, requests) = unbounded_channel();
        let (proof, over) = (Mutex::new(proof), AtomicBool::new(false));
        let breaks = client.changes();
        let session = Arc::new(Self { client, timeout, clock: clock.clone(), proof, over, breaks, guarded });
        let care = Care { session: Arc::downgrade(&session), seats: Arc::downgrade(seats), board: Arc::clone(board) };
        tokio::spawn(care.run(clock.clone(), requests, session.client.state_watcher(), timeout));
        Ok(session)
    }

    /// Ends the session, unless it is still in use, and waits a short time until the server has
    /// ended it.
    pub(super) async fn close(self: Arc<Self>) {
        let (states, clock) = (self.client.state_watcher(), self.clock.clone());
        drop(self);
        let end = clock.now().after(FAREWELL);
        while !states.peek_state().is_terminated() && clock.now() < end {
            clock.sleep_until(clock.now().after(Duration::from_millis(2))).await;
        }
    }

    /// The count of the connection's state changes: the live counter, and its value now.
    pub(super) fn breaks(&self) -> (Arc<AtomicU64>, u64) {
        (Arc::clone(&self.breaks), self.breaks.load(Ordering::Acquire))
    }

    /// Whether no request can be sent any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    fn proof(&self) -> MutexGuard<'_, Proof> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of a read that was sent at `sent`.
    pub(super) fn read<T>(&self, sent: Moment, result: &std::result::Result<T, Cause>) {
        if result.is_ok() {
            self.proof().heard(sent, self.clock.now());
        }
    }

    /// Notes the end of a write that was sent at `sent`.
    pub(super) fn wrote<T, E>(&self, sent: Moment, result: &std::result::Result<T, E>) {
        if result.is_ok() {
            self.proof().committed(sent, self.clock.now());
        }
    }

    /// The session certainly lives until then, even if the leader's clock runs 1 % faster than
    /// ours.
    pub(super) fn until(&self) -> Moment {
        self.proof().until().before(self.timeout / 100)
    }

    /// Whether the certain time left is too short for a new grant.
    pub(super) fn runs_low(&self) -> bool {
        self.until().since(self.now()) < self.timeout / 8
    }

    /// Requests a watch on a holding claim's own node.
    pub(super) fn guard(&self, guarded: Guarded) {
        // There is no receiver after the end of the session; its claims are lost anyway.
        let _ = self.guarded.send(guarded);
    }
}

async fn connect(config: &Config, timeout: Duration) -> Result<Client> {
    let mut connector =
        Client::connector().with_session_timeout(timeout).with_connection_timeout((timeout * 2 / 5).min(SILENCE));
    if config.servers.len() == 1 {
        // There is no other server to try: errors are reported at once.
        connector = connector.with_fail_eagerly();
    }
    if let Some(login) = &config.login {
        connector = match login.scheme {
            Scheme::Digest => connector.with_auth("digest", format!("{}:{}", login.user, login.password).as_bytes()),
            Scheme::Sasl => connector.with_sasl(SaslOptions::digest_md5(login.user.clone(), login.password.clone())),
        };
    }
    if let Some(tls) = &config.tls {
        connector = connector.with_tls(tls::read(tls)?);
    }
    connector.connect(&config.hosts).await.map_err(|cause| error::unreachable(config, cause))
}

/// Looks after a session as long as it is in use.
struct Care {
    session: Weak<Session>,
    seats: Weak<Seats>,
    board: Arc<LossBoard>,
}

/// A holding claim's own node, and the state found.
type Told = (Guarded, Fate);

enum Fate {
    /// It is gone.
    Gone,
    /// It exists, and this is the watch on it.
    Watched(Event),
    /// The same, and an operator requests its release.
    Requested(Event),
    /// It exists, and must be read again.
    Changed,
}

impl Care {
    async fn run(
        self,
        clock: Clock,
        mut requests: UnboundedReceiver<Guarded>,
        mut states: StateWatcher,
        timeout: Duration,
    ) {
        let mut watched: FuturesUnordered<BoxFuture<'static, Told>> = FuturesUnordered::new();
        let mut waiting: VecDeque<(Moment, Guarded)> = VecDeque::new();
        let mut beat: Option<BoxFuture<'static, ()>> = None;
        let mut next_beat = clock.now().after(timeout / 6);
        loop {
            let alarm = waiting.front().map_or(next_beat, |(at, _)| (*at).min(next_beat));
            tokio::select! {
                biased;
                state = states.changed() => match state {
                    SessionState::Disconnected => {}
                    state if state.is_terminated() => break,
                    // Whatever happened meanwhile: check that all claims are still ours.
                    _ => self.board.doubt(),
                },
                request = requests.recv() => match request {
                    None => return,
                    Some(guarded) if guarded.soon => watched.push(arm(self.session.clone(), guarded).boxed()),
                    Some(guarded) => waiting.push_back((clock.now().after(SETTLED), guarded)),
                },
                Some((guarded, fate)) = watched.next(), if !watched.is_empty() => match fate {
                    Fate::Gone => self.lost(&guarded),
                    Fate::Changed if self.holds(&guarded) => {
                        watched.push(arm(self.session.clone(), guarded).boxed());
                    }
                    Fate::Changed => {}
                    Fate::Requested(event) => {
                        self.board.request_release(guarded.claim);
                        watched.push(watch(guarded, event).boxed());
                    }
                    Fate::Watched(event) => watched.push(watch(guarded, event).boxed()),
                },
                () = async { if let Some(beat) = &mut beat { beat.await } }, if beat.is_some() => beat = None,
                () = clock.sleep_until(alarm) => {
                    let now = clock.now();
                    while waiting.front().is_some_and(|(at, _)| *at <= now) {
                        let Some((_, guarded)) = waiting.pop_front() else { break };
                        if self.holds(&guarded) {
                            watched.push(arm(self.session.clone(), guarded).boxed());
                        }
                    }
                    if now >= next_beat {
                        self.reap();
                        next_beat = now.after(timeout / 6);
                        beat.get_or_insert_with(|| look(self.session.clone()).boxed());
                    }
                }
            }
        }
        self.end();
    }

    fn holds(&self, guarded: &Guarded) -> bool {
        self.seats.upgrade().is_some_and(|seats| seats.holds(guarded.claim, &guarded.path))
    }

    fn lost(&self, guarded: &Guarded) {
        if self.holds(guarded) {
            self.board.post(guarded.claim);
        }
    }

    /// Removes claims that no caller wants any more: their TTL is over, though the session lives.
    fn reap(&self) {
        let Some(seats) = self.seats.upgrade() else { return };
        for seat in seats.stale(&self.session) {
            let (seats, board) = (Arc::clone(&seats), Arc::clone(&self.board));
            tokio::spawn(async move {
                let mut place = seat.place.lock().await;
                if !seat.is_stale() {
                    return;
                }
                if seat.is_held() {
                    board.post(seat.claim);
                }
                seats.note_unresolved(&seat);
                match steps::leave(&seats, &seat, &mut place).await {
                    // No other client deleted its node before, so it was not evicted.
                    Ok(true) => seats.resolve(seat.claim),
                    Ok(false) => {}
                    // Tried again with the next beat.
                    Err(cause) => tracing::debug!(%cause, "a claim whose time is over could not be deleted yet"),
                }
            });
        }
    }

    /// Ends the claims of a session that is over.
    fn end(&self) {
        let Some(session) = self.session.upgrade() else { return };
        session.over.store(true, Ordering::Release);
        let Some(seats) = self.seats.upgrade() else { return };
        for claim in seats.clear(&session) {
            self.board.post(claim);
        }
    }
}

/// Waits for an event on a holding claim's own node.
async fn watch(guarded: Guarded, event: Event) -> Told {
    let fate = match event.await.event_type {
        EventType::NodeDeleted => Fate::Gone,
        // The watcher of the session's state reports its end.
        EventType::Session => Fate::Watched(futures_util::future::pending().boxed()),
        _ => Fate::Changed,
    };
    (guarded, fate)
}

/// Notifies the waiter behind a holder, if required, and watches the holder's own node from now on.
async fn arm(session: Weak<Session>, mut guarded: Guarded) -> Told {
    let Some(session) = session.upgrade() else {
        return (guarded, Fate::Watched(futures_util::future::pending().boxed()));
    };
    if let Some(news) = &guarded.news {
        let sent = session.now();
        // Only over what was written when the node was made: whatever was written since has told the one behind, too, and must not be lost.
        let result = session.client.set_data(&guarded.path, news.as_bytes(), Some(0)).await;
        session.wrote(sent, &result);
        match result {
            Ok(_) | Err(Cause::BadVersion) => guarded.news = None,
            Err(Cause::NoNode) => return (guarded, Fate::Gone),
            // The connection broke: try again.
            Err(_) => return again(&session, guarded).await,
        }
    }
    if let Some(event) = guarded.event.take() {
        return (guarded, Fate::Watched(event));
    }
    let sent = session.now();
    let result = session.client.get_and_watch_data(&guarded.path).await;
    session.read(sent, &result);
    match result {
        Ok((data, _, watcher)) if wire::is_release_requested(&data) => {
            (guarded, Fate::Requested(watcher.changed().boxed()))
        }
        Ok((_, _, watcher)) => (guarded, Fate::Watched(watcher.changed().boxed())),
        Err(Cause::NoNode) => (guarded, Fate::Gone),
        Err(_) => again(&session, guarded).await,
    }
}

/// After a pause, since a failure at once would repeat.
async fn again(session: &Session, guarded: Guarded) -> Told {
    session.clock.sleep_until(session.clock.now().after(SETTLED)).await;
    (guarded, Fate::Changed)
}

/// A heartbeat: shows the server our activity, and us that the server responds.
async fn look(session: Weak<Session>) {
    let Some(session) = session.upgrade() else { return };
    let sent = session.now();
    let result = session.client.check_stat("/").await;
    session.read(sent, &result);
}
