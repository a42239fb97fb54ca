//! Rounds: all requests for one lock at a time become one decision and one statement.

use std::sync::Arc;
use std::time::Duration;

use super::engine::LeaseEngine;
use super::lot::{Asked, Lot, Reading, Row, lock};
use super::settle::Basis;
use super::state::{self, Content, Note, Parties, micros, moment};
use super::step::{self, Op, Out};
use super::wire::{self, Stored, Swap};
use crate::claim::{Claim, ClaimId, Token};
use crate::clock::Moment;
use crate::engine::sql::error::{Failure, Meaning};
use crate::engine::sql::link::{Reply, Value, lock_wait};
use crate::engine::sql::pool::Pooled;
use crate::error::{Error, ErrorKind};
use crate::logic::cohort::{Cohort, Tokens};
use crate::logic::lease as rules;
use crate::logic::table::{Departure, Party, Table};

/// How often a round is decided again because another client wrote first, before the caller has to
/// retry.
const COLLISIONS: usize = 64;

/// How many parties may hold or wait.
const MOST_PARTIES: usize = 10_000;

/// A task runs rounds at this lock. If it ends half-way because its runtime did, the next request
/// starts afresh.
struct AtWork {
    lot: Arc<Lot>,
    ended: bool,
}

impl AtWork {
    fn begin(lot: Arc<Lot>) -> Self {
        Self { lot, ended: false }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut inside = self.lot.lock();
        inside.at_work = false;
        inside.row = None;
        inside.uncertain = true;
        inside.freeze();
        inside.asked.clear();
    }
}

impl LeaseEngine {
    /// Queues a request for a lock, and returns its outcome.
    pub(super) async fn ask(self: &Arc<Self>, lot: &Arc<Lot>, op: Op, ttl: Duration) -> super::lot::Answered {
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut lot = Arc::clone(lot);
        let start = loop {
            let mut inside = lot.lock();
            if inside.gone {
                drop(inside);
                lot = self.lot(&lot.name.clone());
                continue;
            }
            if let Op::Depart(claim) = op {
                if inside.pass_on(claim, self.clock.now()) {
                    let start = !std::mem::replace(&mut inside.at_work, true);
                    drop(inside);
                    if start {
                        tokio::spawn(Arc::clone(self).work(AtWork::begin(lot)));
                    }
                    return Ok((Out::Departed(Departure::Released), Reading::default()));
                }
                if let Some(ear) = inside.ears.get(&claim) {
                    ear.leave();
                }
            }
            inside.asked.push(Asked { op, within: rules::call_timeout(ttl), tell });
            break !std::mem::replace(&mut inside.at_work, true);
        };
        // In a task of its own: the caller may stop waiting while other callers wait for the same
        // rounds.
        if start {
            tokio::spawn(Arc::clone(self).work(AtWork::begin(lot)));
        }
        match told.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime ended during a step").effect_unknown()),
        }
    }

    /// Runs rounds while there is anything to do.
    async fn work(self: Arc<Self>, mut work: AtWork) {
        let lot = &work.lot;
        loop {
            let asked = {
                let mut inside = lot.lock();
                // No caller waits for these any more; a separate step cleans up what they may have
                // done.
                inside.asked.retain(|asked| !asked.tell.is_closed() || matches!(asked.op, Op::Depart(_)));
                let asked = std::mem::take(&mut inside.asked);
                if asked.iter().any(|asked| matches!(asked.op, Op::Depart(_) | Op::Evict(_))) {
                    inside.freeze();
                }
                if asked.is_empty() && !inside.is_behind() {
                    inside.at_work = false;
                    work.ended = true;
                    drop(inside);
                    self.tidy(lot);
                    return;
                }
                asked
            };
            let within = asked.iter().map(|asked| asked.within).min();
            let within = within.unwrap_or_else(|| lot.lock().cohort_timeout());
            let (ops, tells): (Vec<Op>, Vec<_>) = asked.into_iter().map(|asked| (asked.op, asked.tell)).unzip();
            let result = match self.clock.timeout(within, self.round(lot, &ops, within)).await {
                Ok(result) => result,
                Err(_) => {
                    lot.lock().row = None;
                    Err(Failure::silent(within))
                }
            };
            match result {
                Ok((outs, reading)) => {
                    for (tell, out) in tells.into_iter().zip(outs) {
                        let _ = tell.send(Ok((out, reading)));
                    }
                }
                Err(failure) => {
                    // The next renewal at the latest writes the current holder.
                    let mut inside = lot.lock();
                    inside.uncertain = true;
                    inside.freeze();
                    let ends = tells.is_empty() && inside.asked.is_empty();
                    inside.at_work = !ends;
                    work.ended = ends;
                    drop(inside);
                    if ends {
                        tracing::warn!(?failure, name = %lot.name, "who has the lock could not be written down yet");
                        return;
                    }
                    for tell in tells {
                        let _ = tell.send(Err(self.pool.tell(&failure)));
                    }
                }
            }
        }
    }

    /// Runs one round. If the connection turns out to be dead, it tries once more on a new one: the
    /// server may have restarted, and every step may run twice.
    async fn round(
        self: &Arc<Self>,
        lot: &Arc<Lot>,
        ops: &[Op],
        within: Duration,
    ) -> Result<(Vec<Out>, Reading), Failure> {
        // Which of the claims that leave are ours to release.
        let ours: Vec<ClaimId> = {
            let inside = lot.lock();
            let passed = inside.cohort.as_ref().and_then(Cohort::current);
            let is_ours = |claim: ClaimId| {
                passed == Some(claim)
                    || inside.row.as_ref().is_some_and(|row| row.content.table.holder(claim).is_some())
            };
            ops.iter().filter_map(Op::departs).filter(|claim| is_ours(*claim)).collect()
        };
        let writes = lot.lock().writes;
        match self.decide(lot, ops, within).await {
            Err(failure) if failure.is_lost_line(self.pool.config.dialect) => {
                tracing::debug!(?failure, name = %lot.name, "again, on another connection");
                {
                    let mut inside = lot.lock();
                    inside.row = None;
                    inside.uncertain = true;
                    inside.freeze();
                }
                self.pool.forget_idle();
                let wrote = lot.lock().writes > writes;
                let (mut outs, reading) = Box::pin(self.decide(lot, ops, within)).await?;
                // The claim was ours and is gone: our first try released it.
                for (op, out) in ops.iter().zip(&mut outs) {
                    if let (Op::Depart(claim), Out::Departed(departure @ Departure::Absent)) = (op, &mut *out)
                        && ours.contains(claim)
                    {
                        *departure = Departure::Released;
                    }
                    // Another client's claim is gone: our first try may have removed it, or it left.
                    if wrote && *out == Out::Evicted(None, None) {
                        *out = Out::Unknown;
                    }
                }
                Ok((outs, reading))
            }
            result => result,
        }
    }

    async fn decide(
        self: &Arc<Self>,
        lot: &Arc<Lot>,
        ops: &[Op],
        within: Duration,
    ) -> Result<(Vec<Out>, Reading), Failure> {
        let mut link = self.pool.borrow().await?;
        let wait = lock_wait(within);
        let mut row = lot.lock().row.take();
        // A row read before these requests came decides only a write that is conditional on it.
        let mut fresh = false;
        let mut free = row.is_none() && !lot.lock().is_behind();
        for _ in 0..COLLISIONS {
            let heard = lot.lock().heard;
            let found = match row.take() {
                Some(row) => row,
                None => match self.find(lot, ops, &wait, &mut link, &mut free, &mut fresh).await? {
                    Some(row) => row,
                    None => continue,
                },
            };
            if !fresh && free && ops.len() == 1 {
                return Ok(self.keep(lot, found));
            }
            let local = self.clock.now();
            let now = if fresh { found.reading.shown } else { found.reading.at_least(local) };
            let now = now.before(self.pool.config.clock_skew);
            let mut content = found.content.clone();
            let mut last = found.token;
            let cohort = self.catch_up(lot, ops, &mut content.table, last, now);
            let alive = |claim: ClaimId| lot.lock().ears.get(&claim).is_some_and(|ear| ear.is_used(local));
            let (mut outs, effects) =
                step::play(ops, &found.content, &mut content, &mut last, now, &self.inbox, &alive);
            let table = &content.table;
            check_room(table)?;
            let changed = content != found.content || last != found.token || found.healed;
            if !changed && !fresh {
                // There is nothing to write, so the row must be read now to be sure.
                continue;
            }
            if !changed || found.version < 0 {
                let reading = found.reading;
                let tokens = Tokens::left(cohort.as_ref(), last);
                self.settle(lot, found, Basis { tokens, heard, wrote: false }, &effects, &outs, ops);
                return Ok((outs, reading));
            }
            let ours = |party: &Party<Note>| party.note.inbox == self.inbox;
            let tokens = Tokens::reserve(cohort.as_ref(), table, ours, &mut last);
            let messages = self.messages(&lot.name, table, &effects);
            let swap =
                Swap { lock_wait: &wait, ..swap(lot.name.as_str(), found.version, last, &content, now, &messages) };
            // If no party and no eviction is left, no reply needs a time.
            let clears =
                content.is_empty() && messages.is_empty() && outs.iter().all(|out| matches!(out, Out::Departed(_)));
            {
                let mut inside = lot.lock();
                inside.sent = inside.sent.max(last);
                inside.writes += 1;
            }
            let sent = self.clock.now();
            let Some(at) = self.write(&mut link, &swap, clears.then_some(now)).await? else { continue };
            let reading = Reading { sent, heard: self.clock.now(), shown: at };
            let written = Row {
                version: found.version + 1,
                token: last,
                content: rebased(content, now, at),
                healed: false,
                reading,
            };
            step::dated(&mut outs, ops, &written.content.table);
            self.settle(lot, written, Basis { tokens, heard, wrote: true }, &effects, &outs, ops);
            return Ok((outs, reading));
        }
        Err(Failure::Contended(format!("others wrote first {COLLISIONS} times in a row")))
    }

    /// Writes the decision over the row that was read; with `clears`, without a time of its own.
    /// Returns the time of the write on the database's clock. `None`: another client wrote first.
    async fn write(
        &self,
        link: &mut Pooled,
        swap: &Swap<'_>,
        clears: Option<Moment>,
    ) -> Result<Option<Moment>, Failure> {
        let Some(now) = clears else {
            let (sql, values) = self.sql.swap(swap);
            let reply = self.run(link, sql, &values).await?;
            return Ok(self.sql.made(&reply).map_err(strange)?.map(moment));
        };
        let (sql, values) = self.sql.clear(swap);
        Ok((self.run(link, sql, &values).await?.changed > 0).then_some(now))
    }

    /// Acquires the lock if it may be free, or reads its row. `None`: there was no row, and a
    /// request wants the lock.
    async fn find(
        &self,
        lot: &Lot,
        ops: &[Op],
        wait: &str,
        link: &mut Pooled,
        free: &mut bool,
        fresh: &mut bool,
    ) -> Result<Option<Row>, Failure> {
        let wanted = ops.iter().find_map(|op| if let Op::Attempt { claim, .. } = op { Some(claim) } else { None });
        if let Some(claim) = wanted.filter(|_| *free)
            && let Some(taken) = self.take_free(lot, claim, wait, link).await?
        {
            return Ok(Some(taken));
        }
        *free = false;
        *fresh = true;
        let found = self.read(lot, link).await?;
        if found.is_none() && wanted.is_some() {
            *free = true;
            *fresh = false;
            return Ok(None);
        }
        if found.is_some() {
            return Ok(found);
        }
        // The lock was never acquired, or its row was deleted by hand. Even so, a force release's
        // token is above all earlier ones.
        let sent = self.clock.now();
        let reply = self.run(link, self.sql.clock(), &[]).await?;
        let shown = reply.value().and_then(Value::int).ok_or_else(|| strange("no time"))?;
        let reading = Reading { sent, heard: self.clock.now(), shown: moment(shown) };
        Ok(Some(Row { version: -1, token: 0, content: Content::default(), healed: false, reading }))
    }

    /// Runs one statement; creates the table if it does not exist.
    pub(super) async fn run(&self, link: &mut Pooled, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let (mut collisions, mut made) = (0, false);
        loop {
            match link.run(sql, values).await {
                Err(failure) => match failure.meaning(self.pool.config.dialect) {
                    // The server chose this transaction to give way: no effect.
                    Some(Meaning::Collision) if collisions < 8 => collisions += 1,
                    Some(Meaning::NoTable) if !made => {
                        made = true;
                        Box::pin(super::super::make_tables(&self.pool.config, link)).await?;
                    }
                    _ => return Err(failure),
                },
                result => return result,
            }
        }
    }

    /// Acquires the lock for a claim if it is free.
    async fn take_free(&self, lot: &Lot, claim: &Claim, wait: &str, link: &mut Pooled) -> Result<Option<Row>, Failure> {
        let mut party = step::party(claim, &self.inbox);
        // Placeholders for what the statement returns.
        party.until = Moment::default().after(party.ttl);
        party.token = Token(u64::MAX);
        party.place = 1;
        let mut content = Content::from(Table { holders: vec![party], waiters: Default::default() });
        let text = state::write(&content, Moment::default());
        let ttl = i64::try_from(claim.terms.ttl.as_micros()).unwrap_or(i64::MAX / 4);
        let skew = i64::try_from(self.pool.config.clock_skew.as_micros()).unwrap_or(0);
        let (sql, values) = self.sql.take(lot.name.as_str(), ttl, &text, skew, wait);
        let sent = self.clock.now();
        let reply = self.run(link, sql, &values).await?;
        let Some(at) = self.sql.made(&reply).map_err(strange)? else { return Ok(None) };
        let token = u64::try_from(at).map_err(|_| strange("a moment below zero"))?;
        if let Some(lost) = lot.lock().cohort.take().filter(Cohort::is_behind).and_then(|cohort| cohort.current()) {
            self.losses.post(lost);
        }
        let reading = Reading { sent, heard: self.clock.now(), shown: moment(at) };
        for party in &mut content.table.holders {
            party.token = Token(token);
            party.until = moment(at).after(party.ttl);
            party.note.since = Some(moment(at));
        }
        Ok(Some(Row { version: at, token, content, healed: false, reading }))
    }

    /// Remembers a row that holds only the requesting claim, and answers with its grant.
    fn keep(&self, lot: &Lot, row: Row) -> (Vec<Out>, Reading) {
        let reading = row.reading;
        let out = row.content.table.holders.first().map(|party| Out::Granted(party.token, party.until));
        self.put(&mut lot.lock(), row);
        (out.into_iter().collect(), reading)
    }

    /// Reads the row. `None`: the lock was never acquired, or its row was deleted by hand.
    pub(super) async fn read(&self, lot: &Lot, link: &mut Pooled) -> Result<Option<Row>, Failure> {
        let (sql, values) = self.sql.read(lot.name.as_str());
        let sent = self.clock.now();
        let reply = self.run(link, sql, &values).await?;
        let heard = self.clock.now();
        let Some(found) = reply.row() else { return Ok(None) };
        let Stored { version, token, now, state } = wire::stored(found).map_err(strange)?;
        let shown = moment(now);
        let (content, healed) = state::read_and_heal(&state, shown).map_err(|why| damaged(lot.name.as_str(), why))?;
        Ok(Some(Row { version, token, content, healed, reading: Reading { sent, heard, shown } }))
    }

    /// Drops the entry of a lock that none of our claims uses.
    pub(super) fn tidy(&self, lot: &Arc<Lot>) {
        let mut lots = lock(&self.lots);
        let mut inside = lot.lock();
        if inside.is_idle() && lots.get(&lot.name).is_some_and(|kept| Arc::ptr_eq(kept, lot)) {
            inside.gone = true;
            if let Some(bells) = &self.bells {
                bells.order(inside.hung.now(std::iter::empty()).into_iter());
            }
            lots.remove(&lot.name);
        }
    }
}

pub(super) fn damaged(name: &str, why: &str) -> Failure {
    Failure::Damaged(format!(
        "what is stored of {name:?} cannot be understood ({why}); it is freed by deleting its row"
    ))
}

pub(super) fn strange(what: &'static str) -> Failure {
    Failure::Strange(what.to_owned())
}

/// Refuses a row with too many parties.
fn check_room(table: &Parties) -> Result<(), Failure> {
    if table.holders.len() + table.waiters.len() > MOST_PARTIES {
        return Err(Failure::Full(format!("{MOST_PARTIES} hold or wait already, and there is no room for more")));
    }
    Ok(())
}

fn swap<'a>(
    name: &'a str,
    version: i64,
    token: u64,
    content: &Content,
    now: Moment,
    messages: &'a [(String, String)],
) -> Swap<'a> {
    let Content { table, evictions } = content;
    let ends = || {
        let parties = table.holders.iter().chain(&table.waiters).map(|party| (party.ttl, party.until));
        // Evictions count, too: the statement that acquires a free lock would overwrite them.
        parties.chain(evictions.iter().map(|eviction| (eviction.ttl, eviction.until)))
    };
    let begins = |(ttl, until): &(Duration, Moment)| *until == now.after(*ttl);
    let fresh = ends().filter(begins).map(|(ttl, _)| ttl).max();
    let fresh = fresh.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX / 4));
    let busy = ends().filter(|end| !begins(end)).map(|(_, until)| micros(until)).max().unwrap_or(0);
    Swap { name, version, token, busy, fresh, state: state::write(content, now), messages, lock_wait: "" }
}

/// The content as written at `at`, after it was decided at `now`.
fn rebased(mut content: Content, now: Moment, at: Moment) -> Content {
    // Nothing lasts longer than its TTL from here: the clock may have been set back since the row
    // was read.
    let rebase = |until: &mut Moment, ttl| {
        let most = at.after(ttl);
        *until = if *until == now.after(ttl) { most } else { (*until).min(most) };
    };
    let Content { table, evictions } = &mut content;
    for party in table.holders.iter_mut().chain(&mut table.waiters) {
        rebase(&mut party.until, party.ttl);
        party.note.since.get_or_insert(at);
    }
    for eviction in evictions.iter_mut() {
        rebase(&mut eviction.until, eviction.ttl);
    }
    content
}
