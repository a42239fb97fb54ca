//! Wake-up locks, for databases without notifications (MySQL): named locks whose release wakes a
//! waiter.
//!
//! A claim of ours that lasts a moment gets such a lock ("bell" in the code), which one connection
//! of ours holds. A claim needs none if another of our own claims is right behind it. The waiter
//! right behind the claim, in another process, blocks in `GET_LOCK` on its wake-up lock. It wakes
//! when we call `RELEASE_LOCK`, and also when our process dies, since the server then releases the
//! lock. A wake-up in vain costs one look at the row; a missing wake-up lock costs a retry a little
//! later. Correctness never depends on it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::lot::lock;
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::{Link, Reply, Value};
use crate::engine::sql::pool::Pool;

/// How old a claim must be to get a wake-up lock: most end earlier, without a waiter.
const SETTLED: Duration = Duration::from_millis(5);

/// Time limit for the server's answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long wake-up locks stay unchecked. If the server had lost them, waiters would look at the
/// row again and again.
const LOOK: Duration = Duration::from_secs(3);

/// How many wake-up locks one statement acquires or releases.
const AT_ONCE: usize = 64;

/// The name of a claim's wake-up lock.
pub(super) fn name(claim: ClaimId) -> String {
    format!("leasehold:{:032x}", claim.bits())
}

/// A change for the task that keeps the wake-up locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// One of our claims exists.
    Hang(ClaimId),
    /// No other client waits behind the claim: it gets no wake-up lock, but keeps one that it has.
    Spare(ClaimId),
    /// One of our claims is gone.
    Ring(ClaimId),
}

/// Our wake-up locks.
#[derive(Debug)]
pub(super) struct Bells {
    desk: Arc<Desk>,
    clock: Clock,
}

/// The queue of orders. The task wakes only for what cannot wait until its next alarm: most claims
/// are gone by then.
#[derive(Debug, Default)]
struct Desk {
    book: Mutex<Book>,
    wake: Notify,
}

impl Bells {
    /// Starts the task that keeps them, on a connection of its own.
    pub(super) fn start(pool: Arc<Pool>, clock: Clock) -> Self {
        let desk = Arc::new(Desk::default());
        tokio::spawn(keep(pool, clock.clone(), Arc::clone(&desk)));
        Self { desk, clock }
    }

    pub(super) fn order(&self, orders: impl Iterator<Item = Order>) {
        let now = self.clock.now();
        let mut book = lock(&self.desk.book);
        let mut wakes = false;
        for order in orders {
            wakes |= book.write(order, now);
        }
        drop(book);
        if wakes {
            self.desk.wake.notify_one();
        }
    }

    /// Gives up the connection: no claim holds any more.
    pub(super) fn end(&self) {
        lock(&self.desk.book).ended = true;
        self.desk.wake.notify_one();
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.end();
    }
}

/// The task's state: which claims have a wake-up lock, which will, and what to send to the server
/// next.
#[derive(Debug, Default)]
struct Book {
    /// When each claim without a wake-up lock gets one, in order.
    due: VecDeque<(Moment, ClaimId)>,
    waiting: HashSet<ClaimId>,
    /// Claims whose wake-up lock the server has.
    hung: HashSet<ClaimId>,
    /// Wake-up locks that the server has and must release.
    to_ring: Vec<ClaimId>,
    /// When the task wakes without a notification.
    alarm: Option<Moment>,
    ended: bool,
}

impl Book {
    /// Records an order. Returns whether the task must wake for it.
    fn write(&mut self, order: Order, now: Moment) -> bool {
        match order {
            Order::Hang(claim) => {
                if self.hung.contains(&claim) || !self.waiting.insert(claim) {
                    return false;
                }
                let due = now.after(SETTLED);
                self.due.push_back((due, claim));
                self.alarm.is_none_or(|alarm| alarm > due)
            }
            Order::Spare(claim) => {
                self.waiting.remove(&claim);
                false
            }
            Order::Ring(claim) => {
                self.waiting.remove(&claim);
                let hangs = self.hung.remove(&claim);
                if hangs {
                    self.to_ring.push(claim);
                }
                hangs
            }
        }
    }

    /// When the next wake-up lock is due.
    fn next_due(&mut self) -> Option<Moment> {
        while self.due.front().is_some_and(|(_, claim)| !self.waiting.contains(claim)) {
            self.due.pop_front();
        }
        self.due.front().map(|(at, _)| *at)
    }

    /// The wake-up locks to acquire now.
    fn take_due(&mut self, now: Moment) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        while claims.len() < AT_ONCE && self.next_due().is_some_and(|at| at <= now) {
            let Some((_, claim)) = self.due.pop_front() else { break };
            self.waiting.remove(&claim);
            self.hung.insert(claim);
            claims.push(claim);
        }
        claims
    }

    /// Schedules those that could not be acquired once more.
    fn again(&mut self, claims: &[ClaimId], now: Moment) {
        for claim in claims {
            if self.hung.remove(claim) {
                self.write(Order::Hang(*claim), now);
            }
        }
    }

    /// The connection is gone, which released all wake-up locks: they are acquired again on the
    /// next one.
    fn lost(&mut self, now: Moment) {
        self.to_ring.clear();
        for claim in std::mem::take(&mut self.hung) {
            self.write(Order::Hang(claim), now);
        }
    }
}

async fn keep(pool: Arc<Pool>, clock: Clock, desk: Arc<Desk>) {
    let mut link: Option<Link> = None;
    while let Some((hang, ring)) = desk.next(&clock).await {
        if pool.spares() {
            // Closing it releases all wake-up locks. Until the server has connections to spare,
            // waiters poll.
            if let Some(link) = link.take() {
                link.close().await;
            }
        } else if link.is_none() {
            link = Link::open(&pool.config).await.inspect_err(|failure| pool.note_refusal(failure)).ok();
        }
        let Some(open) = &mut link else {
            lock(&desk.book).lost(clock.now().after(Duration::from_secs(1)));
            continue;
        };
        match tell(open, &clock, &hang, &ring).await {
            // Another client was probing that wake-up lock: try again a little later.
            Ok(taken) => lock(&desk.book).again(&taken, clock.now()),
            Err(failure) => {
                tracing::debug!(?failure, "the bells are gone");
                link = None;
                lock(&desk.book).lost(clock.now());
            }
        }
    }
    if let Some(link) = link {
        link.close().await;
    }
}

impl Desk {
    /// Waits until there are wake-up locks to acquire or release. If those held have not been
    /// checked for a while, it returns with neither. `None`: shut down.
    async fn next(&self, clock: &Clock) -> Option<(Vec<ClaimId>, Vec<ClaimId>)> {
        let look_at = clock.now().after(LOOK);
        loop {
            let (alarm, any) = {
                let (mut book, now) = (lock(&self.book), clock.now());
                if book.ended {
                    return None;
                }
                let (hang, ring) = (book.take_due(now), std::mem::take(&mut book.to_ring));
                book.alarm = book.next_due();
                let any = !book.hung.is_empty();
                if !hang.is_empty() || !ring.is_empty() || any && now >= look_at {
                    return Some((hang, ring));
                }
                (book.alarm, any)
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = wake(clock, alarm) => {}
                () = wake(clock, any.then_some(look_at)) => {}
            }
        }
    }
}

/// Releases and acquires wake-up locks; returns those that could not be acquired. With nothing to
/// do, it checks that the server still has our connection and so our wake-up locks.
async fn tell(link: &mut Link, clock: &Clock, hang: &[ClaimId], ring: &[ClaimId]) -> Result<Vec<ClaimId>, Failure> {
    if hang.is_empty() && ring.is_empty() {
        answer(link, clock, "SELECT 1", &[]).await?;
    }
    order(link, clock, "RELEASE_LOCK", ring).await?;
    order(link, clock, "GET_LOCK", hang).await
}

async fn answer(link: &mut Link, clock: &Clock, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
    let late = || Err(Failure::Broken("the bells gave no answer".into()));
    clock.timeout(ANSWER, link.run(sql, values)).await.unwrap_or_else(|_| late())
}

async fn wake(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Runs one statement for up to [`AT_ONCE`] of them; returns those that failed.
async fn order(link: &mut Link, clock: &Clock, what: &str, claims: &[ClaimId]) -> Result<Vec<ClaimId>, Failure> {
    let mut failed = Vec::new();
    for claims in claims.chunks(AT_ONCE) {
        let each = if what == "GET_LOCK" { "GET_LOCK(?, 0)" } else { "RELEASE_LOCK(?)" };
        let sql = format!("SELECT {}", vec![each; claims.len()].join(", "));
        let values: Vec<Value> = claims.iter().map(|claim| Value::from(name(*claim))).collect();
        let reply = answer(link, clock, &sql, &values).await?;
        let done = |index: usize| reply.row().and_then(|row| row.get(index)).and_then(Value::int) == Some(1);
        failed.extend(claims.iter().enumerate().filter(|(index, _)| !done(*index)).map(|(_, claim)| *claim));
    }
    Ok(failed)
}

/// Which claims at one lock have a wake-up lock, or will get one: it is released when they leave.
#[derive(Debug, Default)]
pub(super) struct Hung(HashMap<ClaimId, bool>);

impl Hung {
    /// Compares our claims at a lock, each with whether another client may wait right behind it,
    /// with the last ones. Returns the changes.
    pub(super) fn now(&mut self, ours: impl Iterator<Item = (ClaimId, bool)>) -> Vec<Order> {
        let now: HashMap<ClaimId, bool> = ours.collect();
        let gone = self.0.keys().filter(|claim| !now.contains_key(claim)).map(|claim| Order::Ring(*claim));
        let mut orders: Vec<Order> = gone.collect();
        for (claim, wanted) in &now {
            match (self.0.get(claim).copied().unwrap_or(false), wanted) {
                (false, true) => orders.push(Order::Hang(*claim)),
                (true, false) => orders.push(Order::Spare(*claim)),
                _ => {}
            }
        }
        self.0 = now;
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bits: u128) -> ClaimId {
        ClaimId::from_bits(bits)
    }

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn a_claim_that_is_soon_gone_never_gets_a_bell() {
        let mut book = Book::default();
        book.write(Order::Hang(claim(1)), at(0));
        book.write(Order::Ring(claim(1)), at(3));
        assert_eq!((book.next_due(), book.take_due(at(9)), book.to_ring.len()), (None, vec![], 0));
    }

    #[test]
    fn a_claim_that_stays_gets_one_and_rings_once() {
        let mut book = Book::default();
        book.write(Order::Hang(claim(1)), at(0));
        book.write(Order::Hang(claim(1)), at(1));
        assert_eq!(book.take_due(at(4)), vec![]);
        assert_eq!(book.take_due(at(5)), vec![claim(1)]);
        book.write(Order::Ring(claim(1)), at(6));
        book.write(Order::Ring(claim(1)), at(7));
        assert_eq!(book.to_ring, vec![claim(1)]);
    }

    #[test]
    fn a_claim_whose_next_is_ours_gets_none_but_keeps_what_it_has() {
        let mut book = Book::default();
        book.write(Order::Hang(claim(1)), at(0));
        book.write(Order::Spare(claim(1)), at(3));
        assert_eq!(book.take_due(at(5)), vec![]);
        book.write(Order::Hang(claim(1)), at(6));
        assert_eq!(book.take_due(at(11)), vec![claim(1)]);
        book.write(Order::Spare(claim(1)), at(12));
        book.write(Order::Ring(claim(1)), at(13));
        assert_eq!(book.to_ring, vec![claim(1)]);
    }

    #[test]
    fn who_is_told_of_what_changed() {
        let mut hung = Hung::default();
        let mut told = |ours: &[(u128, bool)]| {
            let orders = hung.now(ours.iter().map(|(bits, wanted)| (claim(*bits), *wanted)));
            let mut told: Vec<String> = orders
                .into_iter()
                .map(|order| match order {
                    Order::Hang(claim) => format!("hang {}", claim.bits()),
                    Order::Spare(claim) => format!("spare {}", claim.bits()),
                    Order::Ring(claim) => format!("ring {}", claim.bits()),
                })
                .collect();
            told.sort();
            told
        };
        assert_eq!(told(&[(1, true)]), ["hang 1"]);
        assert_eq!(told(&[(1, false), (2, true)]), ["hang 2", "spare 1"]);
        assert_eq!(told(&[(1, false), (2, true)]), [""; 0]);
        assert_eq!(told(&[(2, true)]), ["ring 1"]);
        assert_eq!(told(&[]), ["ring 2"]);
    }

    #[test]
    fn the_keeper_is_woken_only_for_what_cannot_wait() {
        let mut book = Book::default();
        assert!(book.write(Order::Hang(claim(1)), at(0)), "it would sleep on");
        book.alarm = book.next_due();
        assert!(!book.write(Order::Hang(claim(2)), at(1)), "it wakes before that");
        assert!(!book.write(Order::Ring(claim(1)), at(2)), "there is nothing to ring");
        assert_eq!(book.take_due(at(6)), vec![claim(2)]);
        book.alarm = book.next_due();
        assert!(book.write(Order::Ring(claim(2)), at(7)));
        assert!(book.write(Order::Hang(claim(3)), at(8)));
    }

    #[test]
    fn lost_bells_are_hung_again() {
        let mut book = Book::default();
        book.write(Order::Hang(claim(1)), at(0));
        assert_eq!(book.take_due(at(5)), vec![claim(1)]);
        book.lost(at(10));
        assert_eq!(book.take_due(at(15)), vec![claim(1)]);
    }
}
