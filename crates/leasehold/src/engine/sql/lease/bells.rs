//! Bells: where the database sends no messages (MySQL), a named lock of ours rings when we let go of it.
//!
//! Each of our claims that has been there for a moment has a bell, which one connection of ours holds, unless another of ours is
//! right behind it: that one needs none. Whoever waits right behind the claim, in another process, blocks in `GET_LOCK` on its bell: it wakes when we ring by `RELEASE_LOCK`, and also when our
//! process dies, for then the server lets go. A bell that rings for nothing costs a look, one that is not there yet another try a
//! little later. Nothing rests on it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::sql::config::Config;
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::{Link, Value};

/// How long a claim is there before it gets a bell: most are gone by then, and nobody waits for them.
const SETTLED: Duration = Duration::from_millis(5);

/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How many bells one statement takes or rings.
const AT_ONCE: usize = 64;

/// The name of a claim's bell.
pub(super) fn name(claim: ClaimId) -> String {
    format!("leasehold:{:032x}", claim.bits())
}

/// What the keeper of the bells is told.
#[derive(Debug)]
enum Order {
    Hang(ClaimId),
    /// Nobody would hear it: it gets none, unless it has it already.
    Spare(ClaimId),
    Ring(ClaimId),
    End,
}

/// Our bells.
#[derive(Debug)]
pub(super) struct Bells(UnboundedSender<Order>);

impl Bells {
    /// Begins to keep them, on a connection of its own.
    pub(super) fn start(config: Arc<Config>, clock: Clock) -> Self {
        let (sender, orders) = unbounded_channel();
        tokio::spawn(keep(config, clock, orders));
        Self(sender)
    }

    /// A claim of ours is there.
    pub(super) fn hang(&self, claim: ClaimId) {
        let _ = self.0.send(Order::Hang(claim));
    }

    /// A claim of ours has another of ours right behind it.
    pub(super) fn spare(&self, claim: ClaimId) {
        let _ = self.0.send(Order::Spare(claim));
    }

    /// Nothing is held any more: the connection is given up.
    pub(super) fn end(&self) {
        let _ = self.0.send(Order::End);
    }

    /// A claim of ours is gone.
    pub(super) fn ring(&self, claim: ClaimId) {
        let _ = self.0.send(Order::Ring(claim));
    }
}

/// The keeper's book: which claims have a bell, which will, and what to tell the server next.
#[derive(Debug, Default)]
struct Book {
    /// When each claim that has none yet gets one, in order.
    due: VecDeque<(Moment, ClaimId)>,
    waiting: HashSet<ClaimId>,
    /// Those that the server has.
    hung: HashSet<ClaimId>,
    /// Those that it has, and shall let go.
    to_ring: Vec<ClaimId>,
}

impl Book {
    fn write(&mut self, order: Order, now: Moment) {
        match order {
            Order::Hang(claim) => {
                if !self.hung.contains(&claim) && self.waiting.insert(claim) {
                    self.due.push_back((now.after(SETTLED), claim));
                }
            }
            Order::Spare(claim) => {
                self.waiting.remove(&claim);
            }
            Order::End => {}
            Order::Ring(claim) => {
                self.waiting.remove(&claim);
                if self.hung.remove(&claim) {
                    self.to_ring.push(claim);
                }
            }
        }
    }

    /// When the next bell is due.
    fn next_due(&mut self) -> Option<Moment> {
        while self.due.front().is_some_and(|(_, claim)| !self.waiting.contains(claim)) {
            self.due.pop_front();
        }
        self.due.front().map(|(at, _)| *at)
    }

    /// The bells to hang now.
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

    /// The connection is gone, and all bells have rung with it: they are hung again on the next one.
    fn lost(&mut self, now: Moment) {
        self.to_ring.clear();
        for claim in std::mem::take(&mut self.hung) {
            self.write(Order::Hang(claim), now);
        }
    }
}

async fn keep(config: Arc<Config>, clock: Clock, mut orders: UnboundedReceiver<Order>) {
    let mut book = Book::default();
    let mut link: Option<Link> = None;
    loop {
        let due = book.next_due();
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::End) | None => break,
                Some(order) => book.write(order, clock.now()),
            },
            () = wake(&clock, due) => {}
        }
        let mut ends = false;
        while let Ok(order) = orders.try_recv() {
            ends |= matches!(order, Order::End);
            book.write(order, clock.now());
        }
        if ends {
            break;
        }
        let hang = book.take_due(clock.now());
        let ring = std::mem::take(&mut book.to_ring);
        if hang.is_empty() && ring.is_empty() {
            continue;
        }
        if link.is_none() {
            link = Link::open(&config).await.ok();
        }
        let Some(open) = &mut link else {
            book.lost(clock.now().after(Duration::from_secs(1)));
            continue;
        };
        let mut done = order(open, "RELEASE_LOCK", &ring).await;
        if done.is_ok() {
            done = order(open, "GET_LOCK", &hang).await;
        }
        if let Err(failure) = done {
            tracing::debug!(?failure, "the bells are gone");
            link = None;
            book.lost(clock.now());
        }
    }
    if let Some(link) = link {
        link.close().await;
    }
}

async fn wake(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// One statement for all of them.
async fn order(link: &mut Link, what: &str, claims: &[ClaimId]) -> Result<(), Failure> {
    for claims in claims.chunks(AT_ONCE) {
        let each = if what == "GET_LOCK" { "GET_LOCK(?, 0)" } else { "RELEASE_LOCK(?)" };
        let sql = format!("DO {}", vec![each; claims.len()].join(", "));
        let values: Vec<Value> = claims.iter().map(|claim| Value::from(name(*claim))).collect();
        let late = || Err(Failure::Broken("the bells gave no answer".into()));
        tokio::time::timeout(ANSWER, link.run(&sql, &values)).await.unwrap_or_else(|_| late())?;
    }
    Ok(())
}

/// Who has a bell, or will, at one lock: so that it rings when they leave.
#[derive(Debug, Default)]
pub(super) struct Hung(HashMap<ClaimId, bool>);

impl Hung {
    /// What changed when our claims at a lock are these now, each with whether others may wait right behind it.
    pub(super) fn now(&mut self, ours: impl Iterator<Item = (ClaimId, bool)>, bells: &Bells) {
        let now: HashMap<ClaimId, bool> = ours.collect();
        for claim in self.0.keys().filter(|claim| !now.contains_key(claim)) {
            bells.ring(*claim);
        }
        for (claim, wanted) in &now {
            match (self.0.get(claim).copied().unwrap_or(false), wanted) {
                (false, true) => bells.hang(*claim),
                (true, false) => bells.spare(*claim),
                _ => {}
            }
        }
        self.0 = now;
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
        let (sender, mut orders) = unbounded_channel();
        let (bells, mut hung) = (Bells(sender), Hung::default());
        let mut told = |ours: &[(u128, bool)]| {
            hung.now(ours.iter().map(|(bits, wanted)| (claim(*bits), *wanted)), &bells);
            let mut told: Vec<String> = std::iter::from_fn(|| orders.try_recv().ok())
                .map(|order| match order {
                    Order::Hang(claim) => format!("hang {}", claim.bits()),
                    Order::Spare(claim) => format!("spare {}", claim.bits()),
                    Order::Ring(claim) => format!("ring {}", claim.bits()),
                    Order::End => "end".to_owned(),
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
    fn lost_bells_are_hung_again() {
        let mut book = Book::default();
        book.write(Order::Hang(claim(1)), at(0));
        assert_eq!(book.take_due(at(5)), vec![claim(1)]);
        book.lost(at(10));
        assert_eq!(book.take_due(at(15)), vec![claim(1)]);
    }
}
