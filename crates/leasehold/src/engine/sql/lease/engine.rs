//! Implements the engine trait on the lease table.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use super::bells::Bells;
use super::lot::{Lot, Reading, lock};
use super::step::{Op, Out};
use super::wire::Statements;
use super::{inspect, news, pulse};
use crate::claim::{Claim, ClaimId, Token};
use crate::clock::{Clock, Moment};
use crate::engine::sql::config::{Config, Wake};
use crate::engine::sql::ddl::Tables;
use crate::engine::sql::link::Link;
use crate::engine::sql::load;
use crate::engine::sql::pool::Pool;
use crate::engine::sql::pooler::{self, Probed};
use crate::engine::sql::records::Shelf;
use crate::engine::sql::{Dialect, IS_GALERA, is_galera, make_tables};
use crate::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, LossBoard, Losses, PartyView, Record, RecordStore,
    Released, Renewal, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::cohort::Cohort;
use crate::logic::connections::{self, Wake as Wakeup};
use crate::logic::lease::{self as rules, Validity};
use crate::name::LockName;

/// Time limit of a step that no claim's TTL bounds.
pub(super) const UNHURRIED: Duration = Duration::from_secs(15);

/// Locks in a table of leases.
#[derive(Debug)]
pub(crate) struct LeaseEngine {
    pub(super) pool: Arc<Pool>,
    pub(super) clock: Clock,
    pub(super) sql: Statements,
    records: Shelf,
    can: Capabilities,
    /// Identifies this client to others.
    pub(super) inbox: Arc<str>,
    /// Whether a granted claim can be sent a notification.
    pub(super) sends: bool,
    /// Whether no notification would reach us at present.
    is_deaf: AtomicBool,
    /// Our wake-up locks, where the database sends no notifications.
    pub(super) bells: Option<Bells>,
    /// How many connections may wait on other clients' wake-up locks.
    pub(super) ears: Option<Arc<Semaphore>>,
    pub(super) lots: Mutex<HashMap<LockName, Arc<Lot>>>,
    pub(super) losses: LossBoard,
    attendant: Mutex<Option<JoinHandle<()>>>,
    /// Our claims that hold a lock.
    held: Mutex<HashSet<ClaimId>>,
    /// Notified when the first of them acquires: the listening connection is needed again.
    pub(super) holds: Arc<Notify>,
    /// Notified when a row is remembered: a task must then check whether others write to it.
    pub(super) kept: Arc<Notify>,
}

impl LeaseEngine {
    /// Connects, and creates the table if it does not exist.
    pub(crate) async fn open(config: Config, can: Capabilities, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let sends = config.dialect == Dialect::Postgres;
        let all = config.connections;
        // One connection to listen on; or one for our wake-up locks and some for those of others.
        // The rest run statements.
        let (apart, ears) = match (config.wake, sends) {
            (Wake::Poll, _) => (0, 0),
            (Wake::Auto, true) => (1, 0),
            (Wake::Auto, false) => (1 + all / 3, all / 3),
        };
        let pool = Pool::of(&config, (all - apart).max(1));
        let sql = Statements::new(config.dialect, &Tables::of(&config));
        let second = own_sessions(&pool).await?;
        let mut link = pool.take().await?;
        make_tables(&config, &mut link).await.map_err(|failure| pool.tell(&failure))?;
        // A lease that others may judge expired this much early must still be renewed in time.
        let mut can = can;
        can.min_ttl = can.min_ttl.max(config.clock_skew * 3);
        // A named lock exists on one server only.
        let rings = ears > 0 && !is_galera(link.run(IS_GALERA, &[]).await).map_err(|failure| pool.tell(&failure))?;
        drop(link);
        let listens = sends && config.wake == Wake::Auto;
        let inbox = format!("{}{:016x}", if listens { "" } else { "-" }, crate::random::bits() as u64);
        let bells_pool = Arc::clone(&pool);
        let engine = Arc::new(Self {
            records: Shelf::new(&pool),
            pool,
            clock: clock.clone(),
            sql,
            can,
            inbox: inbox.into(),
            sends,
            is_deaf: AtomicBool::new(true),
            bells: rings.then(|| Bells::start(Arc::clone(&bells_pool), clock.clone())),
            ears: rings.then(|| Arc::new(Semaphore::new(ears))),
            lots: Mutex::default(),
            losses: LossBoard::default(),
            attendant: Mutex::default(),
            held: Mutex::default(),
            holds: Arc::default(),
            kept: Arc::default(),
        });
        tokio::spawn(pulse::attend(Arc::downgrade(&engine)));
        if listens {
            *lock(&engine.attendant) = Some(tokio::spawn(news::listen(Arc::downgrade(&engine), second)));
        } else if let Some(second) = second {
            second.close().await;
        }
        Ok(engine)
    }

    pub(super) fn lot(&self, name: &LockName) -> Arc<Lot> {
        let mut lots = lock(&self.lots);
        Arc::clone(lots.entry(name.clone()).or_insert_with(|| Arc::new(Lot::new(name.clone()))))
    }

    /// A notification reports that one of our claims was granted the lock at `at`, on the
    /// database's clock.
    pub(super) fn told(&self, name: &LockName, claim: ClaimId, token: Token, at: Moment) {
        let Some(lot) = lock(&self.lots).get(name).cloned() else { return };
        let mut inside = lot.lock();
        let reading = inside.row.as_ref().map(|row| row.reading);
        inside.hear();
        if inside.cohort.as_ref().and_then(Cohort::current) == Some(claim) {
            // This grant replaces whatever we handed to the claim locally.
            inside.cohort = None;
        }
        let Some(ear) = inside.ears.get(&claim).cloned() else {
            // The notification may arrive before the reply to the statement that queued the claim.
            inside.missed |= inside.at_work;
            return;
        };
        if !ear.is_news(token) {
            // Either an old notification or a re-entry, which has its owner's token. Reading the
            // row decides.
            ear.rung.notify_one();
            return;
        }
        // The claim was granted after it was last seen waiting, and no earlier than the
        // notification's time on the clock as we know it.
        let first = ear.queued_at().after(ear.ttl);
        let end = reading.map_or(first, |reading: Reading| first.min(reading.until(at.after(ear.ttl))));
        ear.grant(token, end);
    }

    /// A notification reports that one of our claims changed.
    pub(super) fn look_again(&self, name: &LockName, claim: ClaimId) {
        if let Some(lot) = lock(&self.lots).get(name).cloned() {
            let mut inside = lot.lock();
            inside.hear();
            if let Some(ear) = inside.ears.get(&claim) {
                // The change may be the end of a grant that the caller has not fetched yet.
                ear.take_back();
            }
        }
    }

    /// Notifications stop reaching us, or reach us again.
    pub(super) fn deaf(&self, deaf: bool) {
        self.is_deaf.store(deaf, Ordering::SeqCst);
        // Without notifications, versions must be read.
        self.kept.notify_one();
        let lots: Vec<Arc<Lot>> = lock(&self.lots).values().cloned().collect();
        for lot in lots {
            let mut inside = lot.lock();
            inside.hear();
            // Each waiter looks at the row, then waits in the way that works now.
            for ear in inside.ears.values() {
                ear.rung.notify_one();
            }
        }
        if !deaf {
            // Claims that were force released meanwhile got no notification.
            self.losses.doubt();
        }
    }

    async fn answer(self: &Arc<Self>, claim: &Arc<Claim>, op: Op) -> Result<Answer> {
        let lot = self.lot(claim.name());
        let (out, reading) = self.ask(&lot, op, claim.terms.ttl).await?;
        Self::answered(out, reading)
    }

    fn answered(out: Out, reading: Reading) -> Result<Answer> {
        match out {
            Out::Granted(token, until) => {
                Ok(Answer::Granted(Grant { token, validity: Validity::Until(reading.until(until)) }))
            }
            Out::Queued { ahead, recheck } => Ok(Answer::Queued { ahead, recheck, cooling: None }),
            Out::Busy { recheck } => Ok(Answer::Busy { recheck }),
            Out::ForceReleased => Ok(Answer::Evicted),
            Out::Refused(refusal) => Ok(Answer::Refused(refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether no notification would reach us at present.
    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::SeqCst)
    }

    /// Whether this client holds any lock.
    pub(super) fn is_holder(&self) -> bool {
        !lock(&self.held).is_empty()
    }

    /// Notes that one of our claims holds its lock, or no longer does.
    fn note_held(self: &Arc<Self>, claim: ClaimId, holds: bool) {
        let mut held = lock(&self.held);
        let spared = self.pool.spares();
        let changed = if holds { held.insert(claim) } else { held.remove(&claim) };
        if !changed {
            return;
        }
        self.pool.set_holds(held.len());
        if holds && spared {
            // A holder must renew: it needs a connection from now on, and notifications of force
            // releases.
            let pool = Arc::clone(&self.pool);
            tokio::spawn(async move { pool.borrow().await.map(drop) });
            self.holds.notify_one();
        }
    }

    /// Checks how many connections the server has left, and so whether waiters close theirs. For
    /// clients without a listening connection.
    pub(super) async fn weigh(&self) {
        let now = if self.pool.is_short() { Wakeup::Poll } else { Wakeup::Listen };
        let load = match self.pool.borrow().await {
            Ok(mut link) => load::mysql(&mut link).await,
            Err(failure) => Err(failure),
        };
        match load {
            Ok(load) if connections::wake(now, Some(load), self.is_holder()) == Wakeup::Poll => {
                self.pool.short_for(load::CHECK * 2);
            }
            Ok(_) => self.pool.set_short(false),
            // The pool notes a refusal where it happens.
            Err(failure) => tracing::debug!(?failure, "the server does not say how many connections it has left"),
        }
    }

    /// Answers a waiting claim when the server has no connection to spare: the claim keeps waiting,
    /// and keeps its position until that expires.
    fn unless_refused(&self, answer: Result<Answer>, refusals: u64, waiting: Answer) -> Result<Answer> {
        match answer {
            Err(error) if error.is_retryable() && self.pool.refusals() > refusals => {
                tracing::debug!(%error, "waits without a connection");
                Ok(waiting)
            }
            answer => answer,
        }
    }

    async fn renew_one(self: &Arc<Self>, claim: &Claim) -> Renewal {
        let lot = self.lot(claim.name());
        match self.ask(&lot, Op::Renew(claim.id), claim.terms.ttl).await {
            Ok((Out::Renewed(Some(until)), reading)) => Renewal::Renewed(Validity::Until(reading.until(until))),
            Ok(_) => {
                self.note_held(claim.id, false);
                Renewal::Lost
            }
            Err(error) => {
                tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed");
                Renewal::Unknown
            }
        }
    }
}

/// Makes sure that each connection has a session of its own, before anything is kept in one.
/// Returns the second connection, if the check opened one. In PostgreSQL, `None` means that nothing
/// may be kept in a session.
async fn own_sessions(pool: &Arc<Pool>) -> Result<Option<Link>> {
    let config = &pool.config;
    if config.dialect == Dialect::MySql || config.pooler {
        return Ok(None);
    }
    let Probed { first, second, pooled } = pooler::probe(config).await.map_err(|failure| pool.tell(&failure))?;
    if pooled {
        first.close().await;
        if let Some(second) = second {
            second.close().await;
        }
        let message = format!(
            "{} is behind a pooler that gives each transaction another session: add pooler=transaction to the URL, or connect to the server itself",
            pool.server
        );
        return Err(Error::new(ErrorKind::Unsupported, message).at_engine(config.dialect.name()));
    }
    if second.is_some() {
        pool.own_sessions();
    }
    pool.adopt(first);
    Ok(second)
}

impl Drop for LeaseEngine {
    fn drop(&mut self) {
        if let Some(attendant) = lock(&self.attendant).take() {
            attendant.abort();
        }
    }
}

/// How long a client without a connection to listen on waits before its next look.
pub(super) fn look_pause() -> Duration {
    connections::look_pause((crate::random::bits() & u128::from(u32::MAX)) as u32)
}

fn unexpected(out: &Out) -> Error {
    Error::new(ErrorKind::Unavailable, format!("a step gave another step's answer: {out:?}")).effect_unknown()
}

impl Engine for LeaseEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn url(&self) -> String {
        self.pool.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        Step::new(async move {
            let refusals = self.pool.refusals();
            let answer = self.answer(&claim, Op::Attempt { claim: Arc::clone(&claim), queue }).await;
            if matches!(answer, Ok(Answer::Granted(_))) {
                self.note_held(claim.id, true);
            }
            if !queue || answer.is_ok() {
                return answer;
            }
            let pause = look_pause().min(claim.terms.ttl / 6);
            let answer = self.unless_refused(answer, refusals, Answer::Busy { recheck: Some(pause) });
            if answer.is_ok() {
                self.clock.sleep(pause).await;
            }
            answer
        })
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        Step::new(async move {
            let lot = self.lot(claim.name());
            let ear = lot.lock().ears.get(&claim.id).cloned();
            if let Some(ear) = &ear {
                ear.use_it(self.clock.now());
                self.follow(&lot);
                let until = self.clock.now().after(patience);
                if ear.granted().is_none() {
                    tokio::select! {
                        () = ear.rung.notified() => {}
                        () = self.clock.sleep_until(until) => {}
                    }
                }
                if let Some((token, end)) = ear.granted() {
                    lot.lock().ears.remove(&claim.id);
                    self.note_held(claim.id, true);
                    return Ok(Answer::Granted(Grant { token, validity: Validity::Until(end) }));
                }
            }
            let refusals = self.pool.refusals();
            let answer = self.answer(&claim, Op::Look(claim.id)).await;
            let waiting = Answer::Queued { ahead: 0, recheck: Some(look_pause()), cooling: None };
            let answer = self.unless_refused(answer, refusals, waiting);
            if matches!(answer, Ok(Answer::Granted(_))) {
                self.note_held(claim.id, true);
            }
            match &answer {
                Ok(Answer::Queued { .. }) => {}
                Ok(_) => {
                    lot.lock().ears.remove(&claim.id);
                }
                Err(_) => {
                    if let Some(ear) = lot.lock().ears.get(&claim.id) {
                        ear.pause();
                    }
                }
            }
            answer
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        let within = rules::renewal_timeout(claims.iter().map(|claim| claim.terms.ttl));
        Step::new(async move {
            let one = async |claim: &Arc<Claim>| {
                // One row may be locked by another transaction while the others are not.
                self.clock.timeout(within, self.renew_one(claim)).await.unwrap_or_else(|_| {
                    tracing::warn!(name = %claim.name(), "a lease was not renewed within {within:?}");
                    Renewal::Unknown
                })
            };
            Ok(futures_util::future::join_all(claims.iter().map(one)).await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move {
            let lot = self.lot(claim.name());
            let answer = self.ask(&lot, Op::Depart(claim.id), claim.terms.ttl).await;
            // Also on failure: no caller waits on this claim any more, and its position expires.
            lot.lock().ears.remove(&claim.id);
            self.note_held(claim.id, false);
            match answer?.0 {
                Out::Departed(departure) => Ok(departure.into()),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn losses(&self) -> Losses {
        self.losses.listen()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        Step::new(async move {
            let first = self.version(&name).await?;
            Ok(Step::new(async move {
                let until = self.clock.now().after(patience);
                loop {
                    let left = until.since(self.clock.now());
                    if left.is_zero() {
                        return Ok(());
                    }
                    self.clock.sleep_until(self.clock.now().after(left.min(self.pool.config.poll))).await;
                    if self.version(&name).await? != first {
                        return Ok(());
                    }
                }
            }))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::one(&self, name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::all(&self, &prefix).await })
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        Step::new(async move {
            let lot = self.lot(&name);
            match self.ask(&lot, Op::Evict(claim), UNHURRIED).await?.0 {
                Out::Evicted(party, token) => {
                    tracing::warn!(%name, ?claim, ?token, reason, "a claim was evicted");
                    Ok(Evicted { party, token })
                }
                Out::Unknown => {
                    let message =
                        "the reply was lost, and the claim is gone: it was force released, or it left by itself";
                    Err(Error::new(ErrorKind::Unavailable, message).effect_unknown())
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        Step::new(async move {
            let lot = self.lot(&name);
            match self.ask(&lot, Op::RequestRelease(claim), UNHURRIED).await?.0 {
                Out::ReleaseRequested(party) => {
                    tracing::info!(%name, ?claim, reason, there = party.is_some(), "release requested");
                    Ok(party)
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            if let Some(attendant) = lock(&self.attendant).take() {
                attendant.abort();
            }
            for lot in lock(&self.lots).values() {
                let mut inside = lot.lock();
                inside.ears.clear();
                inside.row = None;
            }
            if let Some(bells) = &self.bells {
                bells.end();
            }
            self.pool.close().await;
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for LeaseEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.read(&name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { self.records.write(&name, over, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.names(&prefix).await })
    }
}
