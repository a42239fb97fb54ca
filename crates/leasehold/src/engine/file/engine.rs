//! The engine trait, on a folder.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::task::JoinHandle;

use super::bells::{Bells, Ear, Ring};
use super::config::Config;
use super::session::Session;
use super::step::{Op, Out};
use super::store::Stop;
use super::watch::{Watch, Watches};
use super::{CAPABILITIES, folder, inspect, records, store, wire};
use crate::claim::{Claim, ClaimId};
use crate::clock::{self, Clock, Moment};
use crate::engine::{
    Answer, Capabilities, Engine, EngineUrl, Evicted, Grant, LockView, Losses, PartyView, Record, RecordStore,
    Released, Renewal, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::{self as rules, Validity};
use crate::name::LockName;

/// How long a step retries a busy lock file. A process is inside for microseconds, so one that
/// stays longer is stopped.
pub(super) const OCCUPIED: Duration = Duration::from_secs(2);

/// How often a waiter polls if nothing can be watched.
const UNWATCHED: Duration = Duration::from_millis(100);

/// The engine that keeps locks in a folder.
#[derive(Debug)]
pub struct FileEngine {
    config: Config,
    session: RwLock<Arc<Session>>,
    /// Held while the folder is opened again.
    reopening: Mutex<()>,
    pub(super) clock: Clock,
    pub(super) bells: Arc<Bells>,
    watches: Option<Arc<Watches>>,
    attendant: Option<JoinHandle<()>>,
    url: String,
}

impl FileEngine {
    /// Opens `file:` or `file:///dir`.
    pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<Self>> {
        let config = Config::read(url)?;
        let opened = tokio::task::spawn_blocking(move || Ok::<_, Error>((Session::open(&config)?, config)));
        let (session, config) = opened.await.map_err(ended)?.map_err(|error| error.at_engine("file"))?;
        let bells = Arc::new(Bells::new(&session.folder)?);
        session.listen(&bells).map_err(|error| error.at_engine("file"))?;
        let watches = Watches::new().inspect_err(|error| {
            tracing::debug!(%error, "no inotify: waiters look every {UNWATCHED:?} whether those ahead live");
        });
        let watches = watches.ok();
        let attendant = watches.as_ref().map(|watches| tokio::spawn(Arc::clone(watches).attend()));
        let url = format!("file://{}", session.root().display());
        let (clock, session) = (clock.clone(), RwLock::new(Arc::new(session)));
        Ok(Arc::new(Self { config, session, reopening: Mutex::default(), clock, bells, watches, attendant, url }))
    }

    /// The session of the folder that is open now.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The session, after opening the folder again if it was removed or replaced. Blocks.
    pub(super) fn current(&self) -> Result<Arc<Session>> {
        let session = self.session();
        if session.client.is_registered() { Ok(session) } else { self.reopen(&session) }
    }

    /// Opens the folder that is at the path now. All locks that were held are lost.
    fn reopen(&self, gone: &Arc<Session>) -> Result<Arc<Session>> {
        let _one = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        let session = self.session();
        if !Arc::ptr_eq(&session, gone) {
            return Ok(session);
        }
        let next = Arc::new(gone.next(&self.config, &self.bells).map_err(|error| error.at_engine("file"))?);
        tracing::error!(
            folder = %next.root().display(),
            tokens_above = next.least,
            "the folder, or this process's file in it, was removed while in use; opened it again. All locks that were held are lost"
        );
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }

    #[cfg(test)]
    pub(super) fn bells_rung(&self) -> u64 {
        self.bells.rung.load(std::sync::atomic::Ordering::SeqCst)
    }

    pub(super) fn ring(&self, session: &Session, client: u128, claim: ClaimId, ring: Ring) {
        if client == session.client.id {
            self.bells.ring_here(claim, ring);
        } else {
            self.bells.ring_there(&session.folder, client, claim, ring);
        }
    }

    /// Removes files of free locks in the background, if this process has made many files.
    fn sweep_if_due(self: &Arc<Self>) {
        let session = self.session();
        if session.store.sweep_is_due() {
            drop(tokio::task::spawn_blocking(move || {
                if let Ok(now) = session.client.touch() {
                    store::sweep(&session.folder, now, store::RUNNING);
                }
            }));
        }
    }

    /// Takes a step: immediately if it is fast, else on a thread that may block.
    async fn run(self: &Arc<Self>, name: LockName, op: Op) -> Result<Out> {
        for _ in 0..4 {
            match self.step(&name, &op, None) {
                Ok(out) => return Ok(out),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::NeedsSync | Stop::FolderGone) => break,
                Err(Stop::Busy) => tokio::task::yield_now().await,
            }
        }
        let (engine, caller) = (Arc::clone(self), Caller::default());
        let dropped = Arc::clone(&caller.dropped);
        let step = tokio::task::spawn_blocking(move || engine.step_blocking(&name, &op, &dropped));
        let out = step.await.map_err(ended)?;
        drop(caller);
        self.sweep_if_due();
        out
    }

    fn step_blocking(&self, name: &LockName, op: &Op, dropped: &AtomicBool) -> Result<Out> {
        let give_up = self.clock.now().after(OCCUPIED);
        let mut pause = Duration::from_micros(20);
        loop {
            match self.step(name, op, Some(dropped)) {
                Ok(out) => return Ok(out),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::FolderGone) => drop(self.current()?),
                Err(Stop::NeedsSync | Stop::Busy) => {}
            }
            if self.clock.now() >= give_up {
                return Err(occupied(&self.session().folder.lock_path(name)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    async fn ask(self: &Arc<Self>, name: &LockName, op: Op) -> Result<Answer> {
        match self.run(name.clone(), op).await? {
            Out::Verdict(verdict, expiry, _) => Ok(Answer::new(verdict, expiry, &self.clock)),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until a notification arrives, a client ahead dies, or `until`.
    async fn hear(self: &Arc<Self>, claim: &Claim, ear: &Ear, until: Moment) -> Result<()> {
        let mut ahead = ear.ahead();
        let session = self.session();
        ahead.retain(|client| *client != session.client.id);
        let watches: Vec<_> = ahead.iter().map(|client| self.watch_death(&session, *client)).collect();
        let seen: Vec<_> = watches.iter().flatten().map(|watch| Box::pin(watch.seen())).collect();
        let until = if seen.len() == ahead.len() { until } else { until.min(self.clock.now().after(UNWATCHED)) };
        let death = async {
            match seen.is_empty() {
                true => std::future::pending().await,
                false => futures_util::future::select_all(seen).await,
            }
        };
        // Checked after the watches are set: one of the two detects a death.
        if ahead.iter().all(|client| session.is_alive(*client)) {
            tokio::select! {
                () = ear.rung() => return Ok(()),
                () = self.clock.sleep_until(until) => {}
                _ = death => self.await_death(&session, &ahead).await,
            }
        }
        for client in ahead.into_iter().filter(|client| !session.is_alive(*client)) {
            self.run(claim.name().clone(), Op::Bury(client)).await?;
        }
        Ok(())
    }

    /// Whether a claim that left the table was evicted; waits a moment for the notification.
    async fn evicted_just_now(&self, ear: &Ear) -> bool {
        let until = self.clock.now().after(UNWATCHED);
        while !ear.is_evicted() {
            tokio::select! {
                () = ear.rung() => {}
                () = self.clock.sleep_until(until) => return ear.is_evicted(),
            }
        }
        true
    }

    fn watch_death(&self, session: &Session, client: u128) -> Option<Watch> {
        let path = session.folder.clients.path_by_handle(&folder::client_file(client));
        self.watches.as_ref()?.death(&path).ok()
    }

    /// The kernel reports the close of a file a moment before it releases the file's lock.
    async fn await_death(&self, session: &Session, clients: &[u128]) {
        let give_up = self.clock.now().after(UNWATCHED);
        while clients.iter().all(|client| session.is_alive(*client)) && self.clock.now() < give_up {
            clock::until_asked_again(Duration::from_millis(1)).await;
        }
    }

    async fn renew_one(self: &Arc<Self>, claim: &Claim) -> Result<Renewal> {
        match self.run(claim.name().clone(), Op::Renew(claim.id)).await? {
            Out::Renewed(Some(until)) => Ok(Renewal::Renewed(Validity::Until(until))),
            Out::Renewed(None) | Out::Gone => Ok(Renewal::Lost),
            other => Err(unexpected(&other)),
        }
    }

    async fn look(self: &Arc<Self>, name: LockName) -> Result<LockView> {
        match self.run(name, Op::Inspect).await? {
            Out::View(view) => Ok(view),
            other => Err(unexpected(&other)),
        }
    }
}

pub(super) fn occupied(path: &Path) -> Error {
    let message = format!(
        "a process has been inside {} for {OCCUPIED:?}, where microseconds are usual: is it stopped? `fuser` or `lslocks` \
         names it; let it go on, or kill it",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, message).retryable()
}

/// The caller of a step on another thread; notifies the step when the caller is dropped.
#[derive(Default)]
struct Caller {
    dropped: Arc<AtomicBool>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

fn ended(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the runtime ended during a step").effect_unknown().caused_by(error)
}

fn unexpected(out: &Out) -> Error {
    Error::new(ErrorKind::Unavailable, format!("a step gave another step's answer: {out:?}")).effect_unknown()
}

impl Engine for FileEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        Step::new(async move { self.ask(claim.name(), Op::Attempt { claim: Arc::clone(&claim), queue }).await })
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        Step::new(async move {
            let until = self.clock.now().after(patience);
            if let Some(ear) = self.bells.ear(claim.id) {
                self.hear(&claim, &ear, until).await?;
                if ear.is_evicted() {
                    self.bells.forget(claim.id);
                    return Ok(Answer::Evicted);
                }
            }
            let answer = self.ask(claim.name(), Op::Look(claim.id)).await?;
            if matches!(answer, Answer::Queued { .. }) {
                return Ok(answer);
            }
            let evicted = match self.bells.ear(claim.id) {
                // The claim lost its position or was evicted; the notification of an eviction comes
                // a moment after it.
                Some(ear) if matches!(answer, Answer::Busy { .. }) => self.evicted_just_now(&ear).await,
                _ => false,
            };
            self.bells.forget(claim.id);
            Ok(if evicted { Answer::Evicted } else { answer })
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        Step::new(async move {
            if !self.session().client.is_registered() {
                // Other clients consider this one dead.
                return Ok(vec![Renewal::Lost; claims.len()]);
            }
            // A busy file must not delay the others: after half of the caller's patience the answer
            // is `Unknown`.
            let patience =
                claims.iter().map(|claim| rules::call_timeout(claim.terms.ttl)).min().unwrap_or_default() / 2;
            let until = self.clock.now().after(patience);
            let renew = |claim: Arc<Claim>| {
                let engine = Arc::clone(&self);
                async move {
                    tokio::select! {
                        biased;
                        renewal = engine.renew_one(&claim) => renewal.unwrap_or_else(|error| {
                            tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed");
                            Renewal::Unknown
                        }),
                        () = engine.clock.sleep_until(until) => Renewal::Unknown,
                    }
                }
            };
            Ok(claims.into_iter().map(renew).collect::<FuturesOrdered<_>>().collect().await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move {
            let out = self.run(claim.name().clone(), Op::Depart(claim.id)).await;
            self.bells.forget(claim.id);
            match out? {
                Out::Departed(departure) => Ok(departure.into()),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn losses(&self) -> Losses {
        self.bells.evicted.listen()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        // The watch is set by the call itself, not by the first poll. The lock's file is made if it
        // does not exist yet.
        let session = self.session();
        if let Err(Stop::Failed(error)) = session.store.file(&session.folder, &name, true) {
            return Step::ready(Err(error));
        }
        let path = session.folder.locks.path_by_handle(&wire::file_name(&name));
        let watch = self.watches.as_ref().and_then(|watches| watches.change(&path).ok());
        let seen = watch.as_ref().map(Watch::seen);
        Step::ready(Ok(Step::new(async move {
            let patience = if seen.is_some() { patience } else { patience.min(UNWATCHED) };
            let until = self.clock.now().after(patience);
            tokio::select! {
                () = async { match seen { Some(seen) => seen.await, None => std::future::pending().await } } => {}
                () = self.clock.sleep_until(until) => {}
            }
            drop(watch);
            Ok(())
        })))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move {
            // A lock that was never acquired has no file, and inspection does not make one.
            let session = self.session();
            if session.client.is_registered() && !session.folder.locks.exists(&wire::file_name(&name)) {
                return Ok(LockView::free(name));
            }
            self.look(name).await
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move {
            let engine = Arc::clone(&self);
            let names = move || inspect::names(&engine.current()?.folder.locks, &prefix);
            let names = tokio::task::spawn_blocking(names).await.map_err(ended)??;
            let mut views = Vec::new();
            for name in names {
                let view = match self.look(name.clone()).await {
                    Ok(view) => view,
                    // A lock that is damaged, or belongs to another user, does not hide the others.
                    Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Denied) => {
                        LockView { trouble: Some(error.to_string()), ..LockView::free(name) }
                    }
                    Err(error) => return Err(error),
                };
                if !view.holders.is_empty() || !view.waiters.is_empty() || view.trouble.is_some() {
                    views.push(view);
                }
            }
            Ok(views)
        })
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        Step::new(async move {
            match self.run(name.clone(), Op::Evict(claim)).await? {
                Out::Evicted(party, token) => {
                    if let Some(party) = &party {
                        // The eviction is done, whether or not it can be logged.
                        if let Err(error) =
                            self.session().folder.audit(&inspect::audit_line(&name, party, token, &reason))
                        {
                            tracing::error!(%error, %name, "an eviction is not on record");
                        }
                    }
                    Ok(Evicted { party, token })
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        Step::new(async move {
            match self.run(name.clone(), Op::RequestRelease(claim)).await? {
                Out::ReleaseRequested(party) => {
                    tracing::info!(%name, ?claim, reason, there = party.is_some(), "release requested");
                    Ok(party)
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.session().client.lifeline()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for FileEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { tokio::task::spawn_blocking(move || self.read_record(&name)).await.map_err(ended)? })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move {
            let caller = Caller::default();
            let dropped = Arc::clone(&caller.dropped);
            let step = tokio::task::spawn_blocking(move || self.write_record(&name, over, value, &dropped));
            let written = step.await.map_err(ended)?;
            drop(caller);
            written
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move {
            tokio::task::spawn_blocking(move || records::names(&self.current()?.folder, &prefix))
                .await
                .map_err(ended)?
        })
    }
}

impl Drop for FileEngine {
    fn drop(&mut self) {
        self.attendant.iter().for_each(JoinHandle::abort);
    }
}
