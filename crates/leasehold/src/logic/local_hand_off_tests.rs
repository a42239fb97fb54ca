use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::table::Verdict;
use super::*;

const TTL: Duration = Duration::from_secs(9);
/// The `details` of a claim of this process.
const THIS_PROCESS: u8 = 0;
/// The `details` of a claim of another process.
const OTHER_PROCESS: u8 = 1;

fn contender(id: u128, whose: u8) -> Contender<u8> {
    Contender {
        claim: ClaimId::from_bits(id),
        owner: None,
        mode: Mode::Exclusive,
        ttl: TTL,
        expires_at: Instant::default(),
        token: Token::default(),
        order: 0,
        details: whose,
    }
}

fn at(seconds: u64) -> Instant {
    Instant::default().saturating_add(Duration::from_secs(seconds))
}

/// A lock that claim 1 holds, with these waiters behind it: ids up to 9 are of this process,
/// those above of another one. Also returns the last token.
fn lock_with_waiters(waiters: &[u128]) -> (LockTable<u8>, u64) {
    let (mut table, mut last) = (LockTable::default(), 0);
    for id in [&[1], waiters].concat() {
        let mut token = || {
            last += 1;
            Token(last)
        };
        table.attempt(contender(id, if id < 10 { THIS_PROCESS } else { OTHER_PROCESS }), true, at(1), &mut token);
    }
    (table, last)
}

fn is_of_this_process(contender: &Contender<u8>) -> bool {
    contender.details == THIS_PROCESS
}

/// The local hand-offs at a lock with this state, with tokens reserved above `last`.
fn hand_off(table: &LockTable<u8>, last: &mut u64) -> Option<LocalHandOff> {
    let tokens = ReservedTokens::reserve(None, table, is_of_this_process, last);
    LocalHandOff::rebuild(None, table, is_of_this_process, tokens, |until| until)
}

#[test]
fn the_lock_is_handed_off_only_to_our_claims() {
    let (table, mut last) = lock_with_waiters(&[2, 3, 10, 4]);
    let mut hand_off = hand_off(&table, &mut last).expect("local hand-offs");
    assert_eq!(last, 3);
    let id = ClaimId::from_bits;
    assert_eq!(hand_off.hand_off(id(2), at(1), |_| true), None, "claim 2 does not hold the lock");
    assert_eq!(hand_off.hand_off(id(1), at(1), |_| true), Some((id(2), Token(2), at(10))));
    assert_eq!(hand_off.hand_off(id(2), at(1), |_| true), Some((id(3), Token(3), at(10))));
    assert_eq!(hand_off.hand_off(id(3), at(1), |_| true), None, "a claim of another process is next");
    let mut found = table.clone();
    assert_eq!(hand_off.apply_to_table(&mut found, last, 0, at(2)), HandOffState::Intact);
    let holder = &found.holders[0];
    assert_eq!((holder.claim, holder.token, holder.expires_at, found.holders.len()), (id(3), Token(3), at(11), 1));
    assert_eq!(found.waiters.iter().map(|contender| contender.claim).collect::<Vec<_>>(), [id(10), id(4)]);
}

#[test]
fn no_waiter_is_overtaken_and_no_hand_off_is_late_or_uncertain() {
    let (table, mut last) = lock_with_waiters(&[2, 3]);
    let hand_off = hand_off(&table, &mut last).expect("local hand-offs");
    let id = ClaimId::from_bits;
    assert_eq!(hand_off.clone().hand_off(id(1), at(1), |claim| claim != id(2)), None);
    assert_eq!(hand_off.clone().hand_off(id(1), at(5), |_| true), None, "too little of the lease is left");
    let mut frozen = hand_off.clone();
    frozen.freeze();
    assert_eq!(frozen.hand_off(id(1), at(1), |_| true), None);
    let (free, mut none) = (LockTable::<u8>::default(), 7);
    assert_eq!(super::tests::hand_off(&free, &mut none), None);
    assert_eq!(none, 7, "no token is used when no waiter follows");
}

#[test]
fn a_shared_or_re_entrant_holder_hands_off_to_no_claim() {
    for change in [
        |contender: &mut Contender<u8>| contender.mode = Mode::Shared,
        |contender: &mut Contender<u8>| contender.owner = Some(crate::types::Owner::from_bits(1)),
        |contender: &mut Contender<u8>| contender.details = OTHER_PROCESS,
    ] {
        let (mut table, mut last) = lock_with_waiters(&[2]);
        change(&mut table.holders[0]);
        assert_eq!(hand_off(&table, &mut last), None);
        assert_eq!(last, 1);
    }
    let (mut table, mut last) = lock_with_waiters(&[2, 3]);
    table.waiters[0].ttl = TTL * 2;
    let mut hand_off = hand_off(&table, &mut last).expect("local hand-offs");
    assert_eq!(hand_off.hand_off(ClaimId::from_bits(1), at(1), |_| true), None, "another TTL");
}

/// The store, this process with its local hand-offs, and another process that works on the store
/// directly.
#[derive(Debug, Default)]
struct World {
    now: u64,
    table: LockTable<u8>,
    last: u64,
    version: u64,
    next_claim: u128,
    hand_off: Option<LocalHandOff>,
    /// Requests of this process that are not written yet.
    pending_requests: Vec<Request>,
    write_in_flight: Option<WriteInFlight>,
    /// The claim of this process that believes to hold the lock, its token, and until when.
    holding: Option<(ClaimId, Token, Instant)>,
    /// The claims of this process that believe to wait.
    waiting: BTreeSet<ClaimId>,
    /// All granted tokens, in the order of the grants.
    granted_tokens: Vec<u64>,
    known_grants: BTreeSet<(ClaimId, Token)>,
    /// The highest token that this process sent in a write.
    highest_sent: u64,
}

/// A request of this process.
#[derive(Clone, Copy, Debug)]
enum Request {
    Join(ClaimId),
    Leave(ClaimId),
}

/// A write of this process that has not arrived at the store yet.
#[derive(Debug)]
struct WriteInFlight {
    expected_version: u64,
    table: LockTable<u8>,
    last: u64,
    tokens: ReservedTokens,
    granted: Vec<ClaimId>,
    requests: Vec<Request>,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// A new claim of this process requests the lock.
    Join,
    /// The claim of this process that holds the lock releases it.
    Leave,
    /// This process sends its pending requests in a write.
    Send,
    /// The write succeeds or fails, and its reply arrives or is lost.
    Arrive {
        reply_arrives: bool,
    },
    OthersJoin,
    OthersLeave,
    OthersForceRelease {
        waiter: bool,
    },
    AdvanceTime(u64),
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => Just(Action::Join),
        8 => Just(Action::Leave),
        6 => Just(Action::Send),
        6 => prop::bool::weighted(0.85).prop_map(|reply_arrives| Action::Arrive { reply_arrives }),
        2 => Just(Action::OthersJoin),
        2 => Just(Action::OthersLeave),
        1 => prop::bool::ANY.prop_map(|waiter| Action::OthersForceRelease { waiter }),
        2 => (0u64..4).prop_map(Action::AdvanceTime),
    ]
}

impl World {
    /// The id of a new claim.
    fn claim(&mut self) -> ClaimId {
        self.next_claim += 1;
        ClaimId::from_bits(self.next_claim)
    }

    /// A new grant must have a higher token than all before, and no other claim may rely on the
    /// lock.
    fn check_grant(&mut self, claim: ClaimId, token: Token) {
        if !self.known_grants.insert((claim, token)) {
            // The same grant, requested again.
            return;
        }
        assert!(
            self.granted_tokens.iter().all(|before| *before < token.0),
            "{token:?} after {:?}",
            self.granted_tokens
        );
        self.granted_tokens.push(token.0);
        if let Some((holder, _, until)) = self.holding {
            assert!(holder == claim || until <= at(self.now), "{claim:?} while {holder:?} holds until {until:?}");
        }
    }

    /// A write succeeded: records the claims that it granted.
    fn write_succeeded(&mut self, table: LockTable<u8>, granted: &[ClaimId]) {
        self.table = table;
        self.version += 1;
        for claim in granted {
            if let Some(token) = self.table.holder(*claim).map(|held| held.token) {
                self.check_grant(*claim, token);
            }
        }
    }

    fn apply(&mut self, act: Action) {
        let now = at(self.now);
        // A guard never reports the lock as held after its deadline.
        self.holding.take_if(|(_, _, until)| *until <= now);
        match act {
            Action::AdvanceTime(seconds) => self.now += seconds,
            Action::Join => {
                let claim = self.claim();
                self.pending_requests.push(Request::Join(claim));
            }
            Action::Leave => {
                let Some((claim, ..)) = self.holding.take() else { return };
                let waiting = &self.waiting;
                let passed = self
                    .hand_off
                    .as_mut()
                    .and_then(|hand_off| hand_off.hand_off(claim, now, |next| waiting.contains(&next)));
                match passed {
                    Some((next, token, until)) => {
                        self.waiting.remove(&next);
                        self.check_grant(next, token);
                        self.holding = Some((next, token, until));
                    }
                    None => self.pending_requests.push(Request::Leave(claim)),
                }
            }
            Action::Send => self.send_write(now),
            Action::Arrive { reply_arrives } => self.write_ends(reply_arrives),
            Action::OthersJoin => {
                let claim = self.claim();
                self.apply_for_others(|table, mut token| {
                    let (verdict, mut granted) =
                        table.attempt(contender(claim.bits(), OTHER_PROCESS), true, now, &mut token);
                    granted.extend(matches!(verdict, Verdict::Granted(..)).then_some(claim));
                    granted
                });
            }
            Action::OthersLeave => {
                let held = self
                    .table
                    .holders
                    .iter()
                    .find(|contender| contender.details == OTHER_PROCESS)
                    .map(|contender| contender.claim);
                if let Some(claim) = held {
                    self.apply_for_others(|table, mut token| table.release(claim, now, &mut token).1);
                }
            }
            Action::OthersForceRelease { waiter } => {
                let of = if waiter { self.table.waiters.front() } else { self.table.holders.first() };
                let Some(claim) = of.map(|contender| contender.claim) else { return };
                // The current holder is notified later, and its token is rejected at once: it
                // counts as ended.
                self.holding = None;
                if let Some(hand_off) = &mut self.hand_off {
                    hand_off.freeze();
                }
                let (mut fence, before) = (0, self.granted_tokens.len());
                self.apply_for_others(|table, mut token| {
                    let mut granted = table.expire_and_grant(now, &mut token);
                    fence = token().0;
                    granted.extend(table.release(claim, now, &mut token).1);
                    granted
                });
                assert!(
                    self.granted_tokens[..before].iter().all(|token| *token < fence),
                    "{fence} after {:?}",
                    self.granted_tokens
                );
                self.granted_tokens.push(fence);
            }
        }
    }

    /// The other process changes the store's state by `step`, which returns the claims that it
    /// granted.
    fn apply_for_others(&mut self, step: impl FnOnce(&mut LockTable<u8>, &mut dyn FnMut() -> Token) -> Vec<ClaimId>) {
        let mut table = self.table.clone();
        let mut last = self.last;
        let granted = step(&mut table, &mut || {
            last += 1;
            Token(last)
        });
        self.last = last;
        self.write_succeeded(table, &granted);
    }

    /// This process computes its write from the store's present state, unless one is in flight.
    fn send_write(&mut self, now: Instant) {
        if self.write_in_flight.is_some() {
            return;
        }
        let (mut table, mut last) = (self.table.clone(), self.last);
        let state =
            self.hand_off.as_ref().map(|hand_off| hand_off.apply_to_table(&mut table, last, self.highest_sent, now));
        let has_handed_off = self.hand_off.as_ref().is_some_and(LocalHandOff::has_unwritten_hand_off);
        let lost = has_handed_off && state.is_some_and(|state| state != HandOffState::Intact);
        if state == Some(HandOffState::Lost) {
            self.hand_off = None;
        }
        if lost {
            self.holding = None;
        }
        let requests = std::mem::take(&mut self.pending_requests);
        let mut token = || {
            last += 1;
            Token(last)
        };
        let mut granted = table.expire_and_grant(now, &mut token);
        for request in &requests {
            match request {
                Request::Join(claim) => {
                    let (verdict, others) = table.attempt(contender(claim.bits(), THIS_PROCESS), true, now, &mut token);
                    granted.extend(others);
                    granted.extend(matches!(verdict, Verdict::Granted(..)).then_some(*claim));
                }
                Request::Leave(claim) => granted.extend(table.release(*claim, now, &mut token).1),
            }
        }
        for contender in table.waiters.iter_mut().filter(|contender| is_of_this_process(contender)) {
            contender.expires_at = now.saturating_add(TTL);
        }
        if let Some(hand_off) =
            self.hand_off.as_mut().filter(|_| requests.iter().any(|request| matches!(request, Request::Leave(_))))
        {
            hand_off.freeze();
        }
        let tokens = ReservedTokens::reserve(self.hand_off.as_ref(), &table, is_of_this_process, &mut last);
        self.highest_sent = self.highest_sent.max(last);
        self.write_in_flight =
            Some(WriteInFlight { expected_version: self.version, table, last, tokens, granted, requests });
    }

    /// The write in flight arrives, and takes effect if the store has not changed since. Its reply
    /// arrives or is lost.
    fn write_ends(&mut self, reply_arrives: bool) {
        let Some(write) = self.write_in_flight.take() else { return };
        let wins = write.expected_version == self.version;
        if wins {
            self.last = write.last;
            self.write_succeeded(write.table.clone(), &write.granted);
        }
        if !wins || !reply_arrives {
            // Repeat the requests on the present state; until a write succeeds, no local hand-offs.
            if let Some(hand_off) = &mut self.hand_off {
                hand_off.freeze();
            }
            self.pending_requests = [write.requests, std::mem::take(&mut self.pending_requests)].concat();
            return;
        }
        for request in write.requests {
            if let Request::Join(claim) = request {
                self.waiting.insert(claim);
            }
        }
        if let Some(held) = write.table.holders.first().filter(|contender| is_of_this_process(contender))
            && self.waiting.remove(&held.claim)
        {
            self.holding = Some((held.claim, held.token, held.expires_at));
        }
        let before = self.hand_off.take();
        let holder =
            before.as_ref().filter(|hand_off| hand_off.has_unwritten_hand_off()).and_then(LocalHandOff::current_holder);
        self.hand_off = LocalHandOff::rebuild(before, &write.table, is_of_this_process, write.tokens, |until| until);
        if holder.is_some() && self.hand_off.as_ref().and_then(LocalHandOff::current_holder) != holder {
            self.holding = None;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 500 } else { 150 }))]

    #[test]
    fn tokens_rise_and_no_claim_is_granted_beside_a_holder(acts in prop::collection::vec(actions(), 1..120)) {
        let mut world = World { now: 1, ..World::default() };
        for act in acts {
            world.apply(act);
        }
    }
}
