use proptest::prelude::*;

use super::super::admission::fits;
use super::*;

const TTL: Duration = Duration::from_secs(10);

fn contender(id: u128, owner: Option<u128>, mode: Mode) -> Contender<()> {
    Contender {
        claim: ClaimId::from_bits(id),
        owner: owner.map(Owner::from_bits),
        mode,
        ttl: TTL,
        expires_at: Instant::default(),
        token: Token::default(),
        order: 0,
        details: (),
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

/// Returns the tokens 1, 2, 3 and so on, one per call.
fn counter() -> impl FnMut() -> Token {
    let mut last = 0;
    move || {
        last += 1;
        Token(last)
    }
}

#[test]
fn readers_are_granted_together_and_wait_behind_a_writer() {
    let mut table = LockTable::default();
    let mut token = counter();
    let mut ask =
        |table: &mut LockTable<()>, id, mode| table.attempt(contender(id, None, mode), true, at(1), &mut token).0;
    assert!(matches!(ask(&mut table, 1, Mode::Shared), Verdict::Granted(Token(1), _)));
    assert!(matches!(ask(&mut table, 2, Mode::Shared), Verdict::Granted(Token(2), _)));
    assert_eq!(ask(&mut table, 3, Mode::Exclusive), Verdict::Queued(0));
    assert_eq!(ask(&mut table, 4, Mode::Shared), Verdict::Queued(1));
    assert_eq!(ask(&mut table, 5, Mode::Shared), Verdict::Queued(2));
    let mut leave = |table: &mut LockTable<()>, id| table.release(ClaimId::from_bits(id), at(1), &mut token).1;
    assert!(leave(&mut table, 1).is_empty());
    assert_eq!(leave(&mut table, 2), [ClaimId::from_bits(3)]);
    assert_eq!(leave(&mut table, 3), [ClaimId::from_bits(4), ClaimId::from_bits(5)]);
}

#[test]
fn the_same_owner_re_enters_even_past_a_waiting_writer() {
    let mut table = LockTable::default();
    let mut token = counter();
    table.attempt(contender(1, Some(7), Mode::Shared), true, at(1), &mut token);
    table.attempt(contender(2, None, Mode::Exclusive), true, at(1), &mut token);
    let (verdict, _) = table.attempt(contender(3, Some(7), Mode::Shared), false, at(1), &mut token);
    assert!(matches!(verdict, Verdict::Granted(Token(1), _)), "{verdict:?}");
    let (verdict, _) = table.attempt(contender(4, Some(7), Mode::Exclusive), true, at(1), &mut token);
    assert_eq!(verdict, Verdict::Refused(Refusal::Upgrade(Mode::Shared)));
    assert!(
        table.release(ClaimId::from_bits(1), at(1), &mut token).1.is_empty(),
        "not free before the owner's last release"
    );
    assert_eq!(table.release(ClaimId::from_bits(3), at(1), &mut token).1, [ClaimId::from_bits(2)]);
}

#[test]
fn two_queued_claims_of_one_owner_enter_together_with_one_token() {
    let mut table = LockTable::default();
    let mut token = counter();
    table.attempt(contender(1, None, Mode::Exclusive), true, at(1), &mut token);
    table.attempt(contender(2, Some(7), Mode::Exclusive), true, at(1), &mut token);
    table.attempt(contender(3, Some(7), Mode::Exclusive), true, at(1), &mut token);
    let (_, granted) = table.release(ClaimId::from_bits(1), at(1), &mut token);
    assert_eq!(granted, [ClaimId::from_bits(2), ClaimId::from_bits(3)]);
    assert_eq!(table.holders[0].token, table.holders[1].token);
}

#[test]
fn an_expired_holder_is_removed_and_expired_waiters_are_skipped() {
    let mut table = LockTable::default();
    let mut token = counter();
    table.attempt(contender(1, None, Mode::Exclusive), true, at(0), &mut token);
    table.attempt(contender(2, None, Mode::Exclusive), true, at(0), &mut token);
    table.attempt(contender(3, None, Mode::Exclusive), true, at(5), &mut token);
    let granted = table.expire_and_grant(at(10), &mut token);
    assert_eq!(granted, [ClaimId::from_bits(3)]);
    assert_eq!(table.renew(ClaimId::from_bits(1), at(10), &mut token).0, None);
}

#[test]
fn another_limit_is_refused() {
    let mut table = LockTable::default();
    let mut token = counter();
    table.attempt(contender(1, None, Mode::Permits { n: 1, limit: 3 }), true, at(0), &mut token);
    let (verdict, _) = table.attempt(contender(2, None, Mode::Permits { n: 1, limit: 4 }), true, at(0), &mut token);
    assert_eq!(verdict, Verdict::Refused(Refusal::LimitMismatch(3)));
}

#[derive(Clone, Debug)]
enum Op {
    Attempt { id: u128, owner: Option<u128>, mode: Mode, queue: bool },
    Renew(u128),
    Release(u128),
    AdvanceTime(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![
        3 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        2 => (1u32..=3).prop_map(|n| Mode::Permits { n, limit: 3 }),
    ];
    prop_oneof![
        4 => (0u128..8, prop::option::of(0u128..3), mode, any::<bool>())
            .prop_map(|(id, owner, mode, queue)| Op::Attempt { id, owner, mode, queue }),
        2 => (0u128..8).prop_map(Op::Renew),
        3 => (0u128..8).prop_map(Op::Release),
        1 => (1u64..15).prop_map(Op::AdvanceTime),
    ]
}

/// Checks that live holders may hold together, that equal tokens have one owner, and that holders
/// and waiters are in order.
fn check(table: &LockTable<()>, now: Instant) -> Result<(), TestCaseError> {
    let live: Vec<_> = table.holders.iter().filter(|p| p.expires_at > now).collect();
    for (i, a) in live.iter().enumerate() {
        for b in &live[i + 1..] {
            let one_owner = a.owner.is_some() && a.owner == b.owner;
            prop_assert!(one_owner || fits(a.mode, [b.mode]) || fits(b.mode, [a.mode]), "{a:?} beside {b:?}");
            prop_assert_eq!(one_owner, a.token == b.token, "a token belongs to one owner");
        }
    }
    prop_assert!(table.holders.is_sorted_by_key(|p| p.order));
    prop_assert!(table.waiters.iter().is_sorted_by_key(|p| p.order));
    Ok(())
}

proptest! {
    #[test]
    fn any_sequence_keeps_exclusion_and_rising_tokens(ops in prop::collection::vec(op(), 0..60)) {
        let mut table = LockTable::default();
        let mut token = counter();
        let mut now = at(0);
        let mut highest = Token(0);
        for op in ops {
            let before = table.clone();
            match op {
                Op::Attempt { id, owner, mode, queue } => {
                    table.attempt(contender(id, owner, mode), queue, now, &mut token);
                }
                Op::Renew(id) => drop(table.renew(ClaimId::from_bits(id), now, &mut token)),
                Op::Release(id) => drop(table.release(ClaimId::from_bits(id), now, &mut token)),
                Op::AdvanceTime(seconds) => now = now.saturating_add(Duration::from_secs(seconds)),
            }
            check(&table, now)?;
            for contender in &table.holders {
                let known = before.holders.iter().any(|p| p.token == contender.token);
                prop_assert!(known || contender.token > highest, "a new grant has a new highest token");
            }
            highest = table.holders.iter().map(|p| p.token).fold(highest, Token::max);
        }
    }

    #[test]
    fn waiters_are_granted_in_the_order_of_their_arrival(count in 1u128..12, leave in prop::collection::vec(0u128..12, 0..30)) {
        let mut table = LockTable::default();
        let mut token = counter();
        for id in 0..count {
            table.attempt(contender(id, None, Mode::Exclusive), true, at(0), &mut token);
        }
        let mut order = vec![ClaimId::from_bits(0)];
        for id in leave.into_iter().chain(0..count) {
            order.extend(table.release(ClaimId::from_bits(id), at(0), &mut token).1);
        }
        prop_assert!(order.is_sorted());
        prop_assert!(table.is_empty());
    }
}
