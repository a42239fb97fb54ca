//! The trait, on a folder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::task::JoinHandle;

use super::bells::{Bells, Ear, Ring};
use super::clients::{self, Client};
use super::config::Config;
use super::folder::Folder;
use super::step::{Op, Out};
use super::store::{Stop, Store};
use super::watch::{Watch, Watches};
use super::{CAPABILITIES, error, inspect, records, store};
use crate::claim::{Claim, ClaimId, Holder};
use crate::clock::{self, Clock, Moment};
use crate::engine::{
    Answer, Capabilities, Engine, EngineUrl, Evicted, Grant, LockView, Losses, Record, Released, Renewal, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::{self as rules, Validity};
use crate::name::LockName;

/// How long a step may find the lock's file occupied: it is entered for microseconds, so whoever is in it stands still.
pub(super) const OCCUPIED: Duration = Duration::from_secs(2);

/// How often a waiter looks by itself where nothing can be watched.
const UNWATCHED: Duration = Duration::from_millis(100);

/// Locks in a folder.
#[derive(Debug)]
pub struct FileEngine {
    pub(super) folder: Folder,
    pub(super) clock: Clock,
    pub(super) store: Store,
    client: Client,
    pub(super) bells: Arc<Bells>,
    watches: Option<Arc<Watches>>,
    attendants: Vec<JoinHandle<()>>,
    url: String,
}

impl FileEngine {
    /// Opens `file:` or `file:///dir`.
    pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<Self>> {
        let config = Config::read(url)?;
        let opened = tokio::task::spawn_blocking(move || {
            let folder = Folder::open(&config)?;
            let client = Client::register(&folder, &Holder::this_process())?;
            if let Some(now) = client.started() {
                store::sweep(&folder, now);
            }
            Ok::<_, Error>((folder, client))
        });
        let (folder, client) = opened.await.map_err(ended)?.map_err(|error| error.at_engine("file"))?;
        let bells = Arc::new(Bells::new(&folder)?);
        let bell = Bells::open(&folder, client.id).map_err(|error| error.at_engine("file"))?;
        let watches = Watches::new().inspect_err(|error| {
            tracing::debug!(%error, "no inotify: waiters look every {UNWATCHED:?} whether those ahead live");
        });
        let watches = watches.ok();
        let mut attendants = vec![tokio::spawn(Arc::clone(&bells).attend(bell))];
        attendants.extend(watches.iter().map(|watches| tokio::spawn(Arc::clone(watches).attend())));
        let url = format!("file://{}", folder.root().display());
        let (clock, store) = (clock.clone(), Store::default());
        Ok(Arc::new(Self { folder, clock, store, client, bells, watches, attendants, url }))
    }

    pub(super) fn client_id(&self) -> u128 {
        self.client.id
    }

    #[cfg(test)]
    pub(super) fn bells_rung(&self) -> u64 {
        self.bells.rung.load(std::sync::atomic::Ordering::SeqCst)
    }

    pub(super) fn is_registered(&self) -> bool {
        self.client.is_registered()
    }

    /// The file system's present time, which the wall clock of no process can falsify.
    pub(super) fn file_system_time(&self) -> Result<Duration> {
        self.client.touch().map_err(|e| error::at(&self.folder.client_path(self.client.id), "touch", e))
    }

    pub(super) fn is_alive(&self, client: u128) -> bool {
        client == self.client.id || clients::is_alive(&self.folder, client)
    }

    pub(super) fn ring(&self, client: u128, claim: ClaimId, ring: Ring) {
        if client == self.client.id {
            self.bells.ring_here(claim, ring);
        } else {
            self.bells.ring_there(&self.folder, client, claim, ring);
        }
    }

    /// Takes a step: here and now where that is quick, else on a thread that may block.
    async fn run(self: &Arc<Self>, name: LockName, op: Op) -> Result<Out> {
        for _ in 0..4 {
            match self.step(&name, &op, None) {
                Ok(out) => return Ok(out),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::NeedsSync) => break,
                Err(Stop::Busy) => tokio::task::yield_now().await,
            }
        }
        let (engine, caller) = (Arc::clone(self), Caller::default());
        let dropped = Arc::clone(&caller.dropped);
        let step = tokio::task::spawn_blocking(move || engine.step_blocking(&name, &op, &dropped));
        let out = step.await.map_err(ended)?;
        drop(caller);
        out
    }

    fn step_blocking(&self, name: &LockName, op: &Op, dropped: &AtomicBool) -> Result<Out> {
        let give_up = self.clock.now().after(OCCUPIED);
        let mut pause = Duration::from_micros(20);
        loop {
            match self.step(name, op, Some(dropped)) {
                Ok(out) => return Ok(out),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::NeedsSync | Stop::Busy) => {}
            }
            if self.clock.now() >= give_up {
                return Err(occupied(&self.folder.lock_path(name)));
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

    /// Waits until a bell rings, one of those ahead dies, or patience ends.
    async fn hear(self: &Arc<Self>, claim: &Claim, ear: &Ear, until: Moment) -> Result<()> {
        let mut ahead = ear.ahead();
        ahead.retain(|client| *client != self.client.id);
        let watches: Vec<_> = ahead.iter().map(|client| self.watch_death(*client)).collect();
        let seen: Vec<_> = watches.iter().flatten().map(|watch| Box::pin(watch.seen())).collect();
        let until = if seen.len() == ahead.len() { until } else { until.min(self.clock.now().after(UNWATCHED)) };
        let death = async {
            match seen.is_empty() {
                true => std::future::pending().await,
                false => futures_util::future::select_all(seen).await,
            }
        };
        // Looked after the watches were set: a death is seen by one or the other.
        if ahead.iter().all(|client| self.is_alive(*client)) {
            tokio::select! {
                () = ear.rung() => return Ok(()),
                () = self.clock.sleep_until(until) => {}
                _ = death => self.await_death(&ahead).await,
            }
        }
        for client in ahead.into_iter().filter(|client| !self.is_alive(*client)) {
            self.run(claim.name().clone(), Op::Bury(client)).await?;
        }
        Ok(())
    }

    /// Whether a claim that is not in the table any more is told that it was evicted.
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

    fn watch_death(&self, client: u128) -> Option<Watch> {
        self.watches.as_ref()?.death(&self.folder.client_path(client)).ok()
    }

    /// The kernel reports the close of a file a moment before it lets go of its lock.
    async fn await_death(&self, clients: &[u128]) {
        let give_up = self.clock.now().after(UNWATCHED);
        while clients.iter().all(|client| self.is_alive(*client)) && self.clock.now() < give_up {
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

/// Whoever waits for a step on another thread; tells it when they are gone.
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
                // Its place lapsed, or it was evicted: that is told a moment after it is done.
                Some(ear) if matches!(answer, Answer::Busy { .. }) => self.evicted_just_now(&ear).await,
                _ => false,
            };
            self.bells.forget(claim.id);
            Ok(if evicted { Answer::Evicted } else { answer })
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        Step::new(async move {
            if !self.client.is_registered() {
                // Others take us for dead.
                return Ok(vec![Renewal::Lost; claims.len()]);
            }
            // An occupied file must not hold up the others: after half of the caller's patience it is unknown.
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

    fn changed(self: Arc<Self>, name: LockName, patience: Duration) -> Step<()> {
        // The watch is set by the call itself, not by the first poll. A file that is not there yet is made.
        let made = self.store.file(&self.folder, &name, true);
        let watch = self.watches.as_ref().and_then(|watches| watches.change(&self.folder.lock_path(&name)).ok());
        let seen = watch.as_ref().map(Watch::seen);
        Step::new(async move {
            if let Err(Stop::Failed(error)) = made {
                return Err(error);
            }
            let patience = if seen.is_some() { patience } else { patience.min(UNWATCHED) };
            let until = self.clock.now().after(patience);
            tokio::select! {
                () = async { match seen { Some(seen) => seen.await, None => std::future::pending().await } } => {}
                () = self.clock.sleep_until(until) => {}
            }
            drop(watch);
            Ok(())
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move {
            // A lock that nobody ever took has no file, and looking does not make one.
            if !self.folder.lock_path(&name).exists() {
                return Ok(LockView::free(name));
            }
            self.look(name).await
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move {
            let folder = self.folder.locks().to_owned();
            let names =
                tokio::task::spawn_blocking(move || inspect::names(&folder, &prefix)).await.map_err(ended)??;
            let mut views = Vec::new();
            for name in names {
                let view = match self.look(name.clone()).await {
                    Ok(view) => view,
                    // One damaged file does not hide the others.
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
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
                        // It is done, whether or not that can be written down.
                        if let Err(error) = self.folder.audit(&inspect::audit_line(&name, party, token, &reason)) {
                            tracing::error!(%error, %name, "an eviction is not on record");
                        }
                    }
                    Ok(Evicted { party, token })
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn recall(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { tokio::task::spawn_blocking(move || self.read_record(&name)).await.map_err(ended)? })
    }

    fn record(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move {
            let caller = Caller::default();
            let dropped = Arc::clone(&caller.dropped);
            let step = tokio::task::spawn_blocking(move || self.write_record(&name, over, value, &dropped));
            let written = step.await.map_err(ended)?;
            drop(caller);
            written
        })
    }

    fn recorded(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move {
            tokio::task::spawn_blocking(move || records::names(&self.folder, &prefix)).await.map_err(ended)?
        })
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.client.lifeline()
    }
}

impl Drop for FileEngine {
    fn drop(&mut self) {
        self.attendants.iter().for_each(JoinHandle::abort);
        clients::remove(&self.folder, self.client.id);
    }
}
