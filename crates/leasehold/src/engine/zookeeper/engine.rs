//! The engine: the session of each claim, and the steps of each call.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_zookeeper::MultiWriteError;

use super::config::Config;
use super::endings::Past;
use super::seats::{Own, Seat, Seats, Stage};
use super::session::{Guarded, Session};
use super::sessions::Sessions;
use super::steps::Look;
use super::{error, inspect, records, sessions, steps, wire};
use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, LossBoard, Losses, PartyView, Record, RecordStore,
    Released, Renewal, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::Validity;
use crate::name::LockName;

/// How many folders are remembered as existing.
const FOLDERS: usize = 4096;

/// Holding claims on one session: the index of each in the request, and the path of its node.
type Held = Vec<(usize, String)>;

/// Locks in a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZookeeperEngine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    can: Capabilities,
    board: Arc<LossBoard>,
    pub(super) seats: Arc<Seats>,
    pub(super) sessions: Sessions,
    pub(super) past: Past,
    /// Sessions live on the runtime that opened the engine.
    runtime: tokio::runtime::Handle,
    folders: Mutex<HashSet<LockName>>,
}

/// Runs a call that goes on while it is not polled, and ends when it is dropped. It blocks other
/// steps of the claim, including the one that removes the claim when its TTL is over.
async fn on<T: Send + 'static>(
    runtime: tokio::runtime::Handle,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn_on(call, &runtime);
    match calls.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        _ => {
            let message = "the runtime that opened this engine has ended";
            Err(Error::new(ErrorKind::Closed, message).at_engine(error::NAME))
        }
    }
}

impl ZookeeperEngine {
    /// Opens a first session, so that errors show at once.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let engine = Arc::new(Self {
            clock: clock.clone(),
            can: super::CAPABILITIES,
            board: Arc::default(),
            seats: Arc::default(),
            sessions: Sessions::default(),
            past: Past::default(),
            runtime: tokio::runtime::Handle::current(),
            folders: Mutex::default(),
            config,
        });
        engine.any_session().await?;
        tokio::spawn(sessions::tidy(Arc::downgrade(&engine), clock.clone()));
        Ok(engine)
    }

    /// The session for claims of this TTL.
    async fn session_for(&self, claim: &Claim) -> Result<Arc<Session>> {
        let ttl = claim.terms.ttl;
        let timeout = self.config.session_timeout.unwrap_or(ttl);
        let session = if timeout > ttl {
            Err(timeout)
        } else if self.config.own_sessions {
            Ok(self.new_session(timeout).await?)
        } else {
            Ok(self.shared_session(ttl).await?)
        };
        let longer = match session {
            Ok(session) if session.timeout <= ttl => return Ok(session),
            Ok(session) => session.timeout,
            Err(timeout) => timeout,
        };
        let whose =
            if self.config.session_timeout.is_some() { "session-timeout" } else { "the server's shortest session" };
        let message = format!(
            "{whose} is {longer:?}, and a dead holder's lock is free only then: a TTL of {ttl:?} cannot be kept; ask for {longer:?} or more"
        );
        Err(Error::new(ErrorKind::InvalidOption, message).at_engine(error::NAME))
    }

    pub(super) async fn new_session(&self, timeout: Duration) -> Result<Arc<Session>> {
        let (config, clock) = (self.config.clone(), self.clock.clone());
        let (board, seats) = (Arc::clone(&self.board), Arc::clone(&self.seats));
        let opening = async move { Session::open(&config, timeout, &clock, &board, &seats).await };
        let session = on(self.runtime.clone(), opening).await?;
        self.past.note(&session);
        Ok(session)
    }

    /// The folder of a lock.
    pub(super) fn folder(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.base, wire::escaped(name.as_str()))
    }

    /// The folder of the records.
    pub(super) fn records(&self) -> String {
        format!("{}/{}", self.config.base, wire::RECORDS)
    }

    /// The folder of the marks that force releases leave.
    pub(super) fn marks(&self) -> String {
        format!("{}/{}", self.config.base, wire::EVICTED)
    }

    /// The mark of a claim that was force released.
    pub(super) fn mark(&self, claim: ClaimId) -> String {
        format!("{}/{:032x}", self.marks(), claim.bits())
    }

    /// The note that a claim was released after an operator asked for it.
    pub(super) fn release_note(&self, claim: ClaimId) -> String {
        format!("{}-released", self.mark(claim))
    }

    /// The node of a record.
    pub(super) fn record_path(&self, name: &LockName) -> String {
        format!("{}/{}", self.records(), wire::escaped(name.as_str()))
    }

    /// Whether the folder of this lock existed lately.
    pub(super) fn knows_folder(&self, name: &LockName) -> bool {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    pub(super) fn note_folder(&self, name: &LockName, there: bool) {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if !there {
            folders.remove(name);
        } else if !folders.contains(name) {
            if folders.len() >= FOLDERS {
                folders.clear();
            }
            folders.insert(name.clone());
        }
    }

    pub(super) fn failed(&self, cause: leasehold_zookeeper::Error) -> Error {
        error::step(&self.config, cause)
    }

    /// The claim's entry, on a session that lives.
    async fn seat(&self, claim: &Arc<Claim>) -> Result<Arc<Seat>> {
        if let Some(seat) = self.seats.find(claim.id) {
            if !seat.session.is_over() {
                return Ok(seat);
            }
            self.seats.note_unresolved(&seat);
            self.seats.leave(&seat);
        }
        let session = self.session_for(claim).await?;
        Ok(self.seats.take(claim, self.folder(claim.name()), &session))
    }

    async fn do_attempt(&self, claim: &Arc<Claim>, queue: bool, sent: Moment) -> Result<Answer> {
        let seat = self.seat(claim).await?;
        let mut place = seat.place.lock().await;
        if !self.seats.has(&seat) {
            // The claim was removed meanwhile, because no caller wanted it for a TTL: the caller
            // tries again.
            return Ok(Answer::Busy { recheck: None });
        }
        let known = place.node().map(str::to_owned);
        seat.show();
        seat.set_leaving(false);
        let look = match steps::ask(self, &seat, claim, &mut place).await {
            Ok(look) => look,
            Err(error) => {
                // Refused for good: it has no node, and needs no session.
                if matches!(place.stage, Stage::New) && !error.is_retryable() {
                    self.seats.leave(&seat);
                }
                return Err(error);
            }
        };
        // A claim that is queued already stays in the queue.
        let queued = queue || (known.is_some() && known.as_deref() == place.node());
        let answer = match look {
            Look::Holds => {
                // Other clients may have seen it wait.
                let seen = known.is_some() || place.id().is_some_and(|id| place.line.has_behind(id));
                match self.grant(claim, &seat, &mut place, sent, seen) {
                    busy @ Answer::Busy { .. } if !queued => busy,
                    answer => return Ok(answer),
                }
            }
            Look::Waits(ahead) if queued => return Ok(Answer::Queued { ahead, recheck: None, cooling: None }),
            Look::Waits(_) => Answer::Busy { recheck: None },
            Look::Refused(refusal) => Answer::Refused(refusal),
            // It stays so until the claim is released: this answer may be lost.
            Look::Evicted => return Ok(Answer::Evicted),
        };
        steps::leave(&self.seats, &seat, &mut place).await.map_err(|cause| self.failed(cause))?;
        Ok(answer)
    }

    /// Acquires all of them in one round trip, or none.
    async fn do_attempt_all(&self, claims: &[Arc<Claim>], sent: Moment) -> Result<Option<Vec<Grant>>> {
        let answers = try_join_all(claims.iter().map(|claim| self.do_attempt(claim, false, sent))).await?;
        let grants: Option<Vec<Grant>> = answers
            .iter()
            .map(|answer| match answer {
                Answer::Granted(grant) => Some(*grant),
                _ => None,
            })
            .collect();
        if grants.is_none() {
            try_join_all(claims.iter().map(|claim| self.do_release(claim))).await?;
        }
        Ok(grants)
    }

    async fn do_wait(&self, claim: &Claim, patience: Duration, sent: Moment) -> Result<Answer> {
        // A claim that is not in the queue cannot be granted: the caller tries again.
        let absent = Answer::Busy { recheck: None };
        let Some(seat) = self.seats.find(claim.id).filter(|seat| !seat.is_gone()) else { return Ok(absent) };
        let mut place = seat.place.lock().await;
        if !self.seats.has(&seat) {
            return Ok(absent);
        }
        seat.show();
        if seat.is_held() {
            return Ok(self.grant(claim, &seat, &mut place, sent, false));
        }
        // A session may be shorter than the TTL: the leader must confirm it often enough.
        let patience = patience.min(seat.session.timeout / 3);
        let mut found = steps::wait(self, &seat, claim, &mut place, sent.after(patience)).await?;
        seat.show();
        if matches!(found, Some(Look::Holds)) && seat.session.runs_low() {
            found = Some(steps::ask(self, &seat, claim, &mut place).await?);
        }
        match found {
            Some(Look::Holds) => Ok(self.grant(claim, &seat, &mut place, sent, true)),
            Some(Look::Waits(ahead)) => Ok(Answer::Queued { ahead, recheck: None, cooling: None }),
            Some(Look::Evicted) => Ok(Answer::Evicted),
            Some(Look::Refused(_)) | None => Ok(absent),
        }
    }

    /// Grants the lock. Its validity counts from when the caller sent the request.
    fn grant(
        &self,
        claim: &Claim,
        seat: &Arc<Seat>,
        place: &mut super::seats::Place,
        sent: Moment,
        waited: bool,
    ) -> Answer {
        let Stage::In(own) = &place.stage else { return Answer::Busy { recheck: None } };
        let own: Own = own.clone();
        let path = seat.path(&own);
        place.armed = None;
        let event = place.own.take();
        let session = &seat.session;
        seat.note_granted();
        if !seat.set_held(Some(path.clone())) {
            let news = waited.then(|| super::wire::record(&claim.terms.holder, claim.terms.ttl));
            // A waiter behind it may be compatible: it is notified at once.
            let soon = own.stand.owner.is_some() || matches!(own.stand.mode, crate::claim::Mode::Permits { .. });
            session.guard(Guarded { claim: claim.id, path, event, news, soon: waited && soon });
        }
        let left = session.until().since(sent);
        if session.runs_low() {
            // The last proof of the session is too old: the caller asks again when there is a newer
            // one.
            return Answer::Busy { recheck: Some(session.timeout / 8) };
        }
        Answer::Granted(Grant { token: own.token(), validity: Validity::FromSend(left) })
    }

    async fn do_renew(&self, claims: &[Arc<Claim>], sent: Moment) -> Result<Vec<Renewal>> {
        let mut answers = vec![Renewal::Lost; claims.len()];
        let mut by_session: Vec<(Arc<Session>, Held)> = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            let Some(seat) = self.seats.find(claim.id).filter(|seat| !seat.is_gone()) else { continue };
            let Some(path) = seat.held_path() else { continue };
            seat.show();
            match by_session.iter_mut().find(|(session, _)| Arc::ptr_eq(session, &seat.session)) {
                Some((_, held)) => held.push((index, path)),
                None => by_session.push((Arc::clone(&seat.session), vec![(index, path)])),
            }
        }
        let checks = by_session.iter().map(|(session, held)| self.check(session, held, sent));
        let checked = futures_util::future::join_all(checks).await;
        let mut failed = None;
        for ((_, held), result) in by_session.iter().zip(checked) {
            match result {
                Ok(renewals) => {
                    for ((index, _), renewal) in held.iter().zip(renewals) {
                        answers[*index] = renewal;
                    }
                }
                Err(error) => {
                    held.iter().for_each(|(index, _)| answers[*index] = Renewal::Unknown);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if by_session.len() == 1 && by_session[0].1.len() == claims.len() => Err(error),
            _ => Ok(answers),
        }
    }

    /// Checks all nodes in one transaction, and repeats it without those that are gone.
    async fn check(&self, session: &Arc<Session>, held: &Held, sent: Moment) -> Result<Vec<Renewal>> {
        let mut there: Vec<usize> = (0..held.len()).collect();
        let mut answers = vec![Renewal::Lost; held.len()];
        while !there.is_empty() {
            let asked = session.now();
            let mut checks = session.client.new_multi_writer();
            for index in &there {
                checks.add_check_version(&held[*index].1, -1).map_err(|cause| self.failed(cause))?;
            }
            let result = checks.commit().await;
            session.wrote(asked, &result);
            match result {
                Ok(_) => {
                    let lasts = Validity::FromSend(session.until().since(sent));
                    there.drain(..).for_each(|index| answers[index] = Renewal::Renewed(lasts));
                }
                Err(MultiWriteError::OperationFailed { index, source: leasehold_zookeeper::Error::NoNode }) => {
                    there.remove(index);
                }
                Err(other) => return Err(self.failed(error::cause(other))),
            }
        }
        Ok(answers)
    }

    async fn do_release(&self, claim: &Claim) -> Result<Released> {
        let Some(seat) = self.seats.find(claim.id) else {
            self.seats.resolve(claim.id);
            return Ok(Released::Absent);
        };
        // Set whatever the outcome: no claim may re-enter with it any more.
        seat.set_leaving(true);
        let mut place = seat.place.lock().await;
        let noted = matches!(place.stage, Stage::In(_)) && claim.is_released_on_request();
        if noted {
            // Before its node is deleted: an operator waits for that, and then reads the note.
            inspect::note_release(self, &seat.session, claim.id).await;
        } else if matches!(place.stage, Stage::Evicted) {
            inspect::delete_mark(self, &seat.session, claim.id).await;
        }
        let held = seat.was_granted();
        let there = steps::leave(&self.seats, &seat, &mut place).await.map_err(|cause| self.failed(cause))?;
        self.seats.resolve(claim.id);
        if noted {
            inspect::sweep(self, &seat.session, &self.release_note(claim.id)).await;
        }
        Ok(match (there, held) {
            (false, _) => Released::Absent,
            (true, true) => Released::Released,
            (true, false) => Released::LeftQueue,
        })
    }
}

impl Engine for ZookeeperEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn url(&self) -> String {
        self.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        let sent = self.clock.now();
        let runtime = self.runtime.clone();
        Step::new(on(runtime, async move { self.do_attempt(&claim, queue, sent).await }))
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        let sent = self.clock.now();
        Step::new(async move { self.do_attempt_all(&claims, sent).await })
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        let sent = self.clock.now();
        let runtime = self.runtime.clone();
        Step::new(on(runtime, async move { self.do_wait(&claim, patience, sent).await }))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        let sent = self.clock.now();
        Step::new(async move { self.do_renew(&claims, sent).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move { self.do_release(&claim).await })
    }

    fn losses(&self) -> Losses {
        self.board.listen()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        Step::new(async move { inspect::watch(&self, &name, patience).await })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::one(&self, &name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::list(&self, &prefix).await })
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        Step::new(async move { inspect::evict(&self, &name, claim, &reason).await })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        Step::new(async move { inspect::request_release(&self, &name, claim, &reason).await })
    }

    fn was_released(self: Arc<Self>, claim: ClaimId) -> Step<Option<bool>> {
        Step::new(async move { inspect::was_released(&self, claim).await.map(Some) })
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            for session in self.sessions.take_all().await {
                session.close().await;
            }
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for ZookeeperEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { records::read(&self, &name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { records::write(&self, &name, over, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { records::names(&self, &prefix).await })
    }
}
