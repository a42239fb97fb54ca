use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::table::Verdict;
use super::*;

const TTL: Duration = Duration::from_secs(9);
const US: u8 = 0;
const THEM: u8 = 1;

fn party(id: u128, whose: u8) -> Party<u8> {
    Party {
        claim: ClaimId::from_bits(id),
        owner: None,
        mode: Mode::Exclusive,
        ttl: TTL,
        until: Moment::default(),
        token: Token::default(),
        place: 0,
        note: whose,
    }
}

fn at(seconds: u64) -> Moment {
    Moment::default().after(Duration::from_secs(seconds))
}

/// A lock that claim 1 holds, with `behind` waiting: ids up to 9 are ours, those above are others'.
fn written(behind: &[u128]) -> (Table<u8>, u64) {
    let (mut table, mut last) = (Table::default(), 0);
    for id in [&[1], behind].concat() {
        let mut token = || {
            last += 1;
            Token(last)
        };
        table.attempt(party(id, if id < 10 { US } else { THEM }), true, at(1), &mut token);
    }
    (table, last)
}

fn ours(party: &Party<u8>) -> bool {
    party.note == US
}

fn cohort(table: &Table<u8>, last: &mut u64) -> Option<Cohort> {
    let tokens = Tokens::reserve(None, table, ours, last);
    Cohort::after(None, table, ours, tokens, |until| until)
}

#[test]
fn the_lock_goes_down_the_line_and_no_further_than_ours() {
    let (table, mut last) = written(&[2, 3, 10, 4]);
    let mut cohort = cohort(&table, &mut last).expect("a cohort");
    assert_eq!(last, 3);
    let id = ClaimId::from_bits;
    assert_eq!(cohort.pass(id(2), at(1), |_| true), None, "it is not 2 who has it");
    assert_eq!(cohort.pass(id(1), at(1), |_| true), Some((id(2), Token(2), at(10))));
    assert_eq!(cohort.pass(id(2), at(1), |_| true), Some((id(3), Token(3), at(10))));
    assert_eq!(cohort.pass(id(3), at(1), |_| true), None, "another client's is next");
    let mut found = table.clone();
    assert_eq!(cohort.catch_up(&mut found, last, 0, at(2)), Fate::Stands);
    let holder = &found.holders[0];
    assert_eq!((holder.claim, holder.token, holder.until, found.holders.len()), (id(3), Token(3), at(11), 1));
    assert_eq!(found.waiters.iter().map(|party| party.claim).collect::<Vec<_>>(), [id(10), id(4)]);
}

#[test]
fn nobody_is_passed_over_and_nothing_is_passed_on_late_or_blindly() {
    let (table, mut last) = written(&[2, 3]);
    let cohort = cohort(&table, &mut last).expect("a cohort");
    let id = ClaimId::from_bits;
    assert_eq!(cohort.clone().pass(id(1), at(1), |claim| claim != id(2)), None);
    assert_eq!(cohort.clone().pass(id(1), at(5), |_| true), None, "too little is left");
    let mut frozen = cohort.clone();
    frozen.freeze();
    assert_eq!(frozen.pass(id(1), at(1), |_| true), None);
    let (free, mut none) = (Table::<u8>::default(), 7);
    assert_eq!(super::tests::cohort(&free, &mut none), None);
    assert_eq!(none, 7, "no token is taken where nobody follows");
}

#[test]
fn a_shared_or_re_entrant_holder_leads_nobody() {
    for change in [
        |party: &mut Party<u8>| party.mode = Mode::Shared,
        |party: &mut Party<u8>| party.owner = Some(crate::claim::Owner::from_bits(1)),
        |party: &mut Party<u8>| party.note = THEM,
    ] {
        let (mut table, mut last) = written(&[2]);
        change(&mut table.holders[0]);
        assert_eq!(cohort(&table, &mut last), None);
        assert_eq!(last, 1);
    }
    let (mut table, mut last) = written(&[2, 3]);
    table.waiters[0].ttl = TTL * 2;
    let mut cohort = cohort(&table, &mut last).expect("a cohort");
    assert_eq!(cohort.pass(ClaimId::from_bits(1), at(1), |_| true), None, "another TTL");
}

/// The store, our process with its cohort, and another process that works on the store directly.
#[derive(Debug, Default)]
struct World {
    now: u64,
    table: Table<u8>,
    last: u64,
    version: u64,
    next_claim: u128,
    cohort: Option<Cohort>,
    /// Our requests that are not written yet.
    asked: Vec<Ask>,
    flight: Option<Flight>,
    /// Our claims that hold or wait, as they know it themselves: with their token, and until when.
    holding: Option<(ClaimId, Token, Moment)>,
    waiting: BTreeSet<ClaimId>,
    /// All granted tokens, in the order of the grants.
    given: Vec<u64>,
    known: BTreeSet<(ClaimId, Token)>,
    /// The highest token that we sent in a write.
    sent: u64,
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Come(ClaimId),
    Leave(ClaimId),
}

#[derive(Debug)]
struct Flight {
    over: u64,
    table: Table<u8>,
    last: u64,
    tokens: Tokens,
    granted: Vec<ClaimId>,
    asked: Vec<Ask>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Come,
    Leave,
    Send,
    /// The write succeeds or fails, and its reply arrives or is lost.
    Arrive {
        told: bool,
    },
    TheyCome,
    TheyLeave,
    TheyEvict {
        waiter: bool,
    },
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Come),
        8 => Just(Act::Leave),
        6 => Just(Act::Send),
        6 => prop::bool::weighted(0.85).prop_map(|told| Act::Arrive { told }),
        2 => Just(Act::TheyCome),
        2 => Just(Act::TheyLeave),
        1 => prop::bool::ANY.prop_map(|waiter| Act::TheyEvict { waiter }),
        2 => (0u64..4).prop_map(Act::Pass),
    ]
}

impl World {
    fn claim(&mut self) -> ClaimId {
        self.next_claim += 1;
        ClaimId::from_bits(self.next_claim)
    }

    /// A new grant must have a higher token than all before, and no other claim may rely on the
    /// lock.
    fn given(&mut self, claim: ClaimId, token: Token) {
        if !self.known.insert((claim, token)) {
            // The same grant, requested again.
            return;
        }
        assert!(self.given.iter().all(|before| *before < token.0), "{token:?} after {:?}", self.given);
        self.given.push(token.0);
        if let Some((holder, _, until)) = self.holding {
            assert!(holder == claim || until <= at(self.now), "{claim:?} while {holder:?} holds until {until:?}");
        }
    }

    /// A write succeeded: records the claims that it granted.
    fn made(&mut self, table: Table<u8>, granted: &[ClaimId]) {
        self.table = table;
        self.version += 1;
        for claim in granted {
            if let Some(token) = self.table.holder(*claim).map(|held| held.token) {
                self.given(*claim, token);
            }
        }
    }

    fn act(&mut self, act: Act) {
        let now = at(self.now);
        // A guard never reports the lock as held after its deadline.
        self.holding.take_if(|(_, _, until)| *until <= now);
        match act {
            Act::Pass(seconds) => self.now += seconds,
            Act::Come => {
                let claim = self.claim();
                self.asked.push(Ask::Come(claim));
            }
            Act::Leave => {
                let Some((claim, ..)) = self.holding.take() else { return };
                let waiting = &self.waiting;
                let passed =
                    self.cohort.as_mut().and_then(|cohort| cohort.pass(claim, now, |next| waiting.contains(&next)));
                match passed {
                    Some((next, token, until)) => {
                        self.waiting.remove(&next);
                        self.given(next, token);
                        self.holding = Some((next, token, until));
                    }
                    None => self.asked.push(Ask::Leave(claim)),
                }
            }
            Act::Send => self.send(now),
            Act::Arrive { told } => self.arrive(told),
            Act::TheyCome => {
                let claim = self.claim();
                self.they(|table, mut token| {
                    let (verdict, mut granted) = table.attempt(party(claim.bits(), THEM), true, now, &mut token);
                    granted.extend(matches!(verdict, Verdict::Granted(..)).then_some(claim));
                    granted
                });
            }
            Act::TheyLeave => {
                let held = self.table.holders.iter().find(|party| party.note == THEM).map(|party| party.claim);
                if let Some(claim) = held {
                    self.they(|table, mut token| table.depart(claim, now, &mut token).1);
                }
            }
            Act::TheyEvict { waiter } => {
                let of = if waiter { self.table.waiters.front() } else { self.table.holders.first() };
                let Some(claim) = of.map(|party| party.claim) else { return };
                // The current holder is notified sooner or later, and its token is rejected at
                // once: it counts as gone.
                self.holding = None;
                if let Some(cohort) = &mut self.cohort {
                    cohort.freeze();
                }
                let (mut fence, before) = (0, self.given.len());
                self.they(|table, mut token| {
                    let mut granted = table.settle(now, &mut token);
                    fence = token().0;
                    granted.extend(table.depart(claim, now, &mut token).1);
                    granted
                });
                assert!(self.given[..before].iter().all(|token| *token < fence), "{fence} after {:?}", self.given);
                self.given.push(fence);
            }
        }
    }

    fn they(&mut self, step: impl FnOnce(&mut Table<u8>, &mut dyn FnMut() -> Token) -> Vec<ClaimId>) {
        let mut table = self.table.clone();
        let mut last = self.last;
        let granted = step(&mut table, &mut || {
            last += 1;
            Token(last)
        });
        self.last = last;
        self.made(table, &granted);
    }

    fn send(&mut self, now: Moment) {
        if self.flight.is_some() {
            return;
        }
        let (mut table, mut last) = (self.table.clone(), self.last);
        let fate = self.cohort.as_ref().map(|cohort| cohort.catch_up(&mut table, last, self.sent, now));
        let behind = self.cohort.as_ref().is_some_and(Cohort::is_behind);
        let lost = behind && fate.is_some_and(|fate| fate != Fate::Stands);
        if fate == Some(Fate::Broken) {
            self.cohort = None;
        }
        if lost {
            self.holding = None;
        }
        let asked = std::mem::take(&mut self.asked);
        let mut token = || {
            last += 1;
            Token(last)
        };
        let mut granted = table.settle(now, &mut token);
        for ask in &asked {
            match ask {
                Ask::Come(claim) => {
                    let (verdict, others) = table.attempt(party(claim.bits(), US), true, now, &mut token);
                    granted.extend(others);
                    granted.extend(matches!(verdict, Verdict::Granted(..)).then_some(*claim));
                }
                Ask::Leave(claim) => granted.extend(table.depart(*claim, now, &mut token).1),
            }
        }
        for party in table.waiters.iter_mut().filter(|party| ours(party)) {
            party.until = now.after(TTL);
        }
        if let Some(cohort) = self.cohort.as_mut().filter(|_| asked.iter().any(|ask| matches!(ask, Ask::Leave(_)))) {
            cohort.freeze();
        }
        let tokens = Tokens::reserve(self.cohort.as_ref(), &table, ours, &mut last);
        self.sent = self.sent.max(last);
        self.flight = Some(Flight { over: self.version, table, last, tokens, granted, asked });
    }

    fn arrive(&mut self, told: bool) {
        let Some(flight) = self.flight.take() else { return };
        let wins = flight.over == self.version;
        if wins {
            self.last = flight.last;
            self.made(flight.table.clone(), &flight.granted);
        }
        if !wins || !told {
            // Repeat the requests on the present state; until a write succeeds, no local hand-offs.
            if let Some(cohort) = &mut self.cohort {
                cohort.freeze();
            }
            self.asked = [flight.asked, std::mem::take(&mut self.asked)].concat();
            return;
        }
        for ask in flight.asked {
            if let Ask::Come(claim) = ask {
                self.waiting.insert(claim);
            }
        }
        if let Some(held) = flight.table.holders.first().filter(|party| ours(party))
            && self.waiting.remove(&held.claim)
        {
            self.holding = Some((held.claim, held.token, held.until));
        }
        let before = self.cohort.take();
        let had = before.as_ref().filter(|cohort| cohort.is_behind()).and_then(Cohort::current);
        self.cohort = Cohort::after(before, &flight.table, ours, flight.tokens, |until| until);
        if had.is_some() && self.cohort.as_ref().and_then(Cohort::current) != had {
            self.holding = None;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 500 } else { 150 }))]

    #[test]
    fn tokens_rise_and_nobody_enters_beside_a_holder(acts in prop::collection::vec(acts(), 1..120)) {
        let mut world = World { now: 1, ..World::default() };
        for act in acts {
            world.act(act);
        }
    }
}
