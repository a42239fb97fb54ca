//! One step on one lock: latch its file, apply a step of the table, write, unlatch, notify.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};

use super::bells::Ring;
use super::engine::FileEngine;
use super::inspect;
use super::session::Session;
use super::store::{Latch, Stop};
use super::wire::{self, Note, Record};
use crate::claim::{Claim, ClaimId, Mode, Token};
use crate::clock::Moment;
use crate::engine::{LockView, PartyView};
use crate::error::{Error, ErrorKind};
use crate::logic::queue::{Line, relinked};
use crate::logic::table::{Departure, Granted, Party, Table, Verdict};
use crate::name::LockName;

/// What to do. Plain data, so that a step that cannot be taken immediately can be taken later.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Attempt {
        claim: Arc<Claim>,
        queue: bool,
    },
    /// Reads the state of a claim; does not add a claim that is absent.
    Look(ClaimId),
    Renew(ClaimId),
    Depart(ClaimId),
    /// Removes the claims of a client that may be dead.
    Bury(u128),
    Inspect,
    Evict(ClaimId),
    RequestRelease(ClaimId),
}

impl Op {
    /// The claim whose state is asked for.
    fn asker(&self) -> Option<ClaimId> {
        match self {
            Self::Attempt { claim, .. } => Some(claim.id),
            Self::Look(claim) => Some(*claim),
            _ => None,
        }
    }
}

/// The result of a step.
#[derive(Debug)]
pub(super) enum Out {
    /// The verdict, when the next lease ends, and the clients that a queued claim should watch.
    Verdict(Verdict, Option<Moment>, Vec<u128>),
    Renewed(Option<Moment>),
    Departed(Departure),
    Buried,
    View(LockView),
    Evicted(Option<PartyView>, Option<Token>),
    ReleaseRequested(Option<PartyView>),
    /// The file was removed during the step.
    Gone,
}

impl FileEngine {
    /// Takes a step. With `patient` it may wait for the disk, and does nothing if the caller is
    /// dropped meanwhile; otherwise it takes microseconds.
    pub(super) fn step(&self, name: &LockName, op: &Op, patient: Option<&AtomicBool>) -> Result<Out, Stop> {
        let (may_block, session) = (patient.is_some(), self.session());
        loop {
            let there = session.client.is_registered();
            if !matches!(op, Op::Depart(_) | Op::Renew(_)) && !there {
                return Err(Stop::FolderGone);
            }
            let file = session.store.file(&session.folder, name, may_block)?;
            let mut file = match file.try_lock() {
                Ok(file) => file,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if may_block => file.lock().unwrap_or_else(PoisonError::into_inner),
                Err(TryLockError::WouldBlock) => return Err(Stop::Busy),
            };
            let mut latch = file.latch()?;
            let linked = latch.0.is_linked();
            if !matches!(op, Op::Depart(_)) && !linked {
                session.store.forget(name);
                if matches!(op, Op::Renew(_)) {
                    return Ok(Out::Gone);
                }
                continue;
            }
            if patient.is_some_and(|dropped| dropped.load(Ordering::SeqCst)) {
                // Inside the latch: the clean-up after the caller runs later, and no grant can
                // follow it.
                return Err(Stop::Failed(Error::new(ErrorKind::Closed, "whoever asked has gone")));
            }
            let (out, rings) = self.inside(&session, name, op, &mut latch, may_block)?;
            drop(latch);
            drop(file);
            for (client, claim, ring) in rings {
                self.ring(&session, client, claim, ring);
            }
            // A lock in a folder or file that others do not find any more did not exclude them: it
            // was lost before this release.
            return Ok(match out {
                Out::Departed(_) if !there || !linked => Out::Departed(Departure::Absent),
                out => out,
            });
        }
    }

    fn inside(
        &self,
        session: &Session,
        name: &LockName,
        op: &Op,
        latch: &mut Latch<'_>,
        may_block: bool,
    ) -> Result<(Out, Rings), Stop> {
        latch.read(name, session.folder.boot)?;
        let slots = latch.0.counters.slots as usize;
        let mut table = wire::table(&latch.0.image, slots)
            .map_err(|why| super::error::damaged(&session.folder.lock_path(name), why))?;
        let counters = latch.0.counters;
        let most = counters.last.max(session.least) + 2 + table.waiters.len() as u64;
        let may_grant = matches!(op, Op::Attempt { .. } | Op::Evict(_)) || !table.waiters.is_empty();
        if may_grant && most > counters.reserved {
            if !may_block {
                return Err(Stop::NeedsSync);
            }
            latch.reserve(&session.folder, most)?;
        }
        if may_grant {
            latch.0.counters.last = latch.0.counters.last.max(session.least);
        }
        let before = line(&table);
        let end = table.next_expiry();
        let crowd = crowd(&table);
        let mut last = latch.0.counters.last;
        let mut token = || {
            last += 1;
            Token(last)
        };
        let now = self.clock.now();
        let mut stage = Stage { session, name, latch, now, token: &mut token };
        let Played { out, granted, ring } = stage.play(op, &mut table);
        let mut rings: Rings = ring.into_iter().collect();
        for holder in table.holders.iter_mut().filter(|party| granted.contains(&party.claim)) {
            holder.note.since = now;
            rings.push((holder.note.client, holder.claim, Ring::Look));
        }
        let relinked = relinked(&before, &line(&table));
        if !relinked.is_empty() {
            let relinked = table.waiters.iter().filter(|party| relinked.contains(&party.claim));
            rings.extend(relinked.map(|party| (party.note.client, party.claim, Ring::Look)));
        }
        // After a hand-off to a shorter lease, the first waiter must check again sooner than its
        // last recheck time.
        let sooner = table.next_expiry().zip(end).is_some_and(|(now, before)| now < before);
        if sooner || (!table.waiters.is_empty() && crowd != self::crowd(&table)) {
            rings.extend(table.waiters.front().map(|first| (first.note.client, first.claim, Ring::Look)));
        }
        if let (Some(claim), Out::Verdict(Verdict::Queued(_), _, ahead)) = (op.asker(), &out) {
            // Inside the latch, so that no notification can come before we listen.
            self.bells.listen(claim, ahead.clone());
        }
        if parties(&table).count() as u64 > wire::MOST_SLOTS {
            let message = format!("{} hold or wait already, and there is no room for more", wire::MOST_SLOTS);
            return Err(Stop::Failed(Error::new(ErrorKind::Full, message)));
        }
        latch.0.counters.last = last;
        session.saw(last);
        latch.write(&table)?;
        Ok((out, rings))
    }
}

/// The notifications to send: client, claim and content.
type Rings = Vec<(u128, ClaimId, Ring)>;

/// The result of applying a step.
struct Played {
    out: Out,
    granted: Granted,
    /// A notification besides those for the grants.
    ring: Option<(u128, ClaimId, Ring)>,
}

impl Played {
    fn new(out: Out, granted: Granted) -> Self {
        Self { out, granted, ring: None }
    }
}

fn parties(table: &Table<Note>) -> impl Iterator<Item = &Party<Note>> {
    table.holders.iter().chain(&table.waiters)
}

fn line(table: &Table<Note>) -> Line {
    let last_granted = table.holders.last().map(|party| party.claim);
    Line { last_granted, waiters: table.waiters.iter().map(|party| party.claim).collect() }
}

/// Everything that a step needs besides the table.
struct Stage<'a, 'f, T: FnMut() -> Token> {
    session: &'a Session,
    name: &'a LockName,
    latch: &'a Latch<'f>,
    now: Moment,
    token: &'a mut T,
}

impl<T: FnMut() -> Token> Stage<'_, '_, T> {
    fn play(&mut self, op: &Op, table: &mut Table<Note>) -> Played {
        self.skip_dead_waiters(table);
        self.end_of_an_earlier_session(op, table);
        match op {
            Op::Attempt { claim, queue } => {
                let (verdict, granted) = self.attempt(table, claim, *queue);
                let watch = watched_clients(table, claim.id, verdict);
                Played::new(Out::Verdict(verdict, table.next_expiry(), watch), granted)
            }
            Op::Look(claim) => {
                let (verdict, granted) = self.look(table, *claim);
                let watch = watched_clients(table, *claim, verdict);
                Played::new(Out::Verdict(verdict, table.next_expiry(), watch), granted)
            }
            Op::Renew(claim) => {
                let (until, granted) = table.renew(*claim, self.now, self.token);
                Played::new(Out::Renewed(until), granted)
            }
            Op::Depart(claim) => {
                let (departure, granted) = table.depart(*claim, self.now, self.token);
                Played::new(Out::Departed(departure), granted)
            }
            Op::Bury(client) => {
                if !self.session.is_alive(*client) {
                    remove_client(table, *client);
                }
                Played::new(Out::Buried, table.settle(self.now, self.token))
            }
            Op::Inspect => {
                self.bury_dead(table, true);
                let granted = table.settle(self.now, self.token);
                Played::new(Out::View(self.view(table)), granted)
            }
            Op::Evict(claim) => self.evict(*claim, table),
            Op::RequestRelease(claim) => self.request_release(*claim, table),
        }
    }

    fn view(&self, table: &Table<Note>) -> LockView {
        inspect::view(&self.session.folder, self.name, self.latch, table, self.now)
    }

    fn evict(&mut self, claim: ClaimId, table: &mut Table<Note>) -> Played {
        // A dead client is no remaining holder, and a claim that inspection does not show cannot be
        // the target.
        self.bury_dead(table, true);
        let before = table.settle(self.now, self.token);
        let view = self.view(table);
        let party = view.holders.into_iter().chain(view.waiters).find(|party| party.claim == claim);
        let (evicted, mut granted) = table.evict(claim, self.now, self.token);
        granted.extend(before);
        let Some(evicted) = evicted else { return Played::new(Out::Evicted(None, None), granted) };
        let ring = (evicted.party.note.client, claim, Ring::Evicted);
        Played { out: Out::Evicted(party, evicted.advice), granted, ring: Some(ring) }
    }

    /// Asks a holder to release its claim. The request is only a notification; nothing is written.
    fn request_release(&mut self, claim: ClaimId, table: &mut Table<Note>) -> Played {
        self.bury_dead(table, true);
        let granted = table.settle(self.now, self.token);
        let ring = table.holder(claim).map(|party| (party.note.client, claim, Ring::ReleaseRequested));
        let party = self.view(table).holders.into_iter().find(|party| party.claim == claim);
        Played { out: Out::ReleaseRequested(party), granted, ring }
    }

    /// Tries to acquire; if other claims are in the way, first checks that their clients are alive,
    /// and only then queues.
    fn attempt(&mut self, table: &mut Table<Note>, claim: &Arc<Claim>, queue: bool) -> (Verdict, Granted) {
        let terms = &claim.terms;
        let party = || Party {
            claim: claim.id,
            owner: terms.owner,
            mode: terms.mode,
            ttl: terms.ttl,
            until: self.now,
            token: Token::default(),
            place: 0,
            note: Note { client: self.session.client.id, since: self.now, record: Record::New(Arc::clone(claim)) },
        };
        let (verdict, mut granted) = table.attempt(party(), false, self.now, self.token);
        let again = match verdict {
            Verdict::Granted(..) => false,
            Verdict::Queued(_) => self.bury_dead(table, false),
            Verdict::Busy => self.bury_dead(table, false) || queue,
            Verdict::Refused(_) => self.bury_dead(table, true),
        };
        if !again {
            return (verdict, granted);
        }
        let (verdict, more) = table.attempt(party(), queue, self.now, self.token);
        granted.extend(more);
        (verdict, granted)
    }

    /// The state of a queued claim, after checking that the clients in its way are alive.
    fn look(&mut self, table: &mut Table<Note>, claim: ClaimId) -> (Verdict, Granted) {
        let (verdict, mut granted) = table.look(claim, self.now, self.token);
        if !matches!(verdict, Verdict::Queued(_)) || !self.bury_dead(table, false) {
            return (verdict, granted);
        }
        let (verdict, more) = table.look(claim, self.now, self.token);
        granted.extend(more);
        (verdict, granted)
    }

    /// Removes the claims of dead clients, of the holders or of all parties. `true` if there were
    /// any.
    fn bury_dead(&self, table: &mut Table<Note>, all: bool) -> bool {
        let waiters = table.waiters.iter().filter(|_| all);
        let mut clients: Vec<u128> = table.holders.iter().chain(waiters).map(|party| party.note.client).collect();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|client| !self.session.is_alive(*client));
        for client in &clients {
            remove_client(table, *client);
        }
        !clients.is_empty()
    }

    /// Removes a claim of a session that is over. It is lost even if it is still in the file,
    /// because others consider its client dead.
    fn end_of_an_earlier_session(&self, op: &Op, table: &mut Table<Note>) {
        let claim = match op {
            Op::Renew(claim) => Some(*claim),
            _ => op.asker(),
        };
        let client = parties(table).find(|party| Some(party.claim) == claim).map(|party| party.note.client);
        if let Some(client) = client.filter(|client| !self.session.is_alive(*client)) {
            remove_client(table, client);
        }
    }

    /// Removes dead clients from the front of the queue, so that the lock is not handed off to
    /// them.
    fn skip_dead_waiters(&self, table: &mut Table<Note>) {
        while let Some(first) = table.waiters.front() {
            if self.session.is_alive(first.note.client) {
                break;
            }
            let client = first.note.client;
            remove_client(table, client);
        }
    }
}

/// Removes all claims of a dead client.
fn remove_client(table: &mut Table<Note>, client: u128) {
    table.holders.retain(|party| party.note.client != client);
    table.waiters.retain(|party| party.note.client != client);
}

/// The clients whose death concerns a queued claim: that of the one party ahead which it watches.
/// The first waiter for permits watches all holders of permits, because each may free enough of
/// them.
fn watched_clients(table: &Table<Note>, claim: ClaimId, verdict: Verdict) -> Vec<u128> {
    if !matches!(verdict, Verdict::Queued(_)) {
        return Vec::new();
    }
    let next = table.waiters.front().is_some_and(|first| first.claim == claim);
    let mut crowd = if next { crowd(table) } else { Vec::new() };
    if !crowd.is_empty() {
        crowd.sort_unstable();
        crowd.dedup();
        return crowd;
    }
    let ahead = line(table).watched_by(claim);
    parties(table).filter(|party| Some(party.claim) == ahead).map(|party| party.note.client).collect()
}

/// The clients of the holders of permits, all of which the first waiter watches.
fn crowd(table: &Table<Note>) -> Vec<u128> {
    let permits = table.holders.iter().filter(|holder| matches!(holder.mode, Mode::Permits { .. }));
    permits.map(|holder| holder.note.client).collect()
}
