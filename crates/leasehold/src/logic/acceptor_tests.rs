use proptest::prelude::*;

use super::*;

const TTL: u64 = 10;

fn request(claim: u128, attempt: u64, owner: Option<u128>) -> ClaimRequest {
    ClaimRequest { claim: ClaimId::from_bits(claim), attempt, owner: owner.map(Owner::from_bits), ttl: TTL }
}

#[test]
fn a_late_withdrawal_does_not_touch_a_later_attempt() {
    let mut node = AcceptorState::default();
    node.acquire(0, request(1, 1, None), Token(5));
    node.acquire(1, request(1, 2, None), Token(6));
    assert!(!node.withdraw(ClaimId::from_bits(1), 1));
    assert_eq!(node.write_token(2, request(1, 1, None), Token(9)), WriteReply::ClaimMissing, "nor does a late write");
    assert!(node.withdraw(ClaimId::from_bits(1), 2));
    assert_eq!(node.last_token(), Token(0), "a token that was never granted is not kept");
}

#[test]
fn after_a_release_and_after_the_end_of_a_lease_the_token_is_kept() {
    let mut node = AcceptorState::default();
    node.acquire(0, request(1, 1, None), Token(5));
    assert!(node.release(ClaimId::from_bits(1), u64::MAX));
    assert_eq!(
        node.acquire(1, request(2, 1, None), Token(5)),
        Vote::Yes { last_token: Token(5), own_token: Token(0), owner_token: Token(0) }
    );
    assert_eq!(node.write_token(1, request(2, 1, None), Token(6)), WriteReply::Stored);
    assert_eq!(
        node.acquire(1 + TTL, request(3, 1, None), Token(0)),
        Vote::Yes { last_token: Token(6), own_token: Token(0), owner_token: Token(0) }
    );
}

/// Without renewal, a dead client's claim expires one TTL after the node's clock was set back, not
/// when that clock reaches its old value.
#[test]
fn a_time_in_the_future_counts_as_now() {
    let mut node = AcceptorState::default();
    node.acquire(1000, request(1, 1, None), Token(5));
    assert_eq!(node.acquire(100, request(2, 1, None), Token(6)), Vote::No { last_token: Token(5) });
    assert_eq!(node.expires_at(ClaimId::from_bits(1)), Some(100 + TTL));
    assert_eq!(node.acquire(99 + TTL, request(2, 1, None), Token(6)), Vote::No { last_token: Token(5) });
    assert!(matches!(node.acquire(100 + TTL, request(2, 1, None), Token(6)), Vote::Yes { .. }));
}

#[test]
fn a_renewal_that_cannot_store_its_token_is_refused() {
    let mut node = AcceptorState::default();
    node.acquire(0, request(1, 1, None), Token(50));
    assert_eq!(
        node.acquire(TTL, request(2, 1, Some(7)), Token(0)),
        Vote::Yes { last_token: Token(50), own_token: Token(0), owner_token: Token(0) }
    );
    assert_eq!(node.renew(TTL, request(2, 2, Some(7)), Token(40)), Some(false), "a third claim would not see 40 here");
    assert_eq!(node.renew(TTL, request(2, 2, Some(7)), Token(60)), Some(true));
    assert_eq!(
        node.acquire(TTL, request(3, 1, Some(7)), Token(0)),
        Vote::Yes { last_token: Token(60), own_token: Token(60), owner_token: Token(60) }
    );
}

#[test]
fn a_node_that_restarted_empty_stores_no_new_token_below_its_clock_but_accepts_renewals() {
    let mut node = AcceptorState::cooling_down(1000);
    assert_eq!(node.acquire(999, request(1, 1, None), Token(2000)), Vote::CoolingDown);
    assert_eq!(node.renew(999, request(1, 1, None), Token(7)), None);
    assert_eq!(
        node.renew(1000, request(1, 1, None), Token(7)),
        Some(true),
        "a claim that still holds has a majority on the other nodes"
    );
    node.release(ClaimId::from_bits(1), u64::MAX);
    assert_eq!(
        node.acquire(1001, request(2, 1, None), Token(8)),
        Vote::Yes { last_token: Token(1000), own_token: Token(0), owner_token: Token(0) }
    );
    assert_eq!(node.write_token(1001, request(2, 1, None), Token(1000)), WriteReply::TokenTooLow(Token(1000)));
    assert_eq!(node.write_token(1001, request(2, 1, None), Token(1001)), WriteReply::Stored);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire { guess: u64 },
    Write(u64),
    Renew(u64),
    Release,
    Withdraw,
}

/// A request of one of six claims, the first three of which have one owner: the claim, its attempt
/// number, the request, and the time that passes before it.
fn step() -> impl Strategy<Value = (u128, u64, Op, u64)> {
    let op = prop_oneof![
        4 => (0u64..12).prop_map(|guess| Op::Acquire { guess }),
        3 => (1u64..12).prop_map(Op::Write),
        2 => (1u64..12).prop_map(Op::Renew),
        1 => Just(Op::Release),
        1 => Just(Op::Withdraw),
    ];
    (0u128..6, 1u64..4, op, prop_oneof![4 => Just(0u64), 1 => 1u64..15])
}

/// Lets the node handle a request, and returns its answer as text.
fn apply(node: &mut AcceptorState, now: u64, claim_request: ClaimRequest, op: Op) -> String {
    match op {
        Op::Acquire { guess } => {
            format!(
                "{:?}",
                node.acquire(now, claim_request, Token(if claim_request.owner.is_some() { 0 } else { guess }))
            )
        }
        Op::Write(token) => format!("{:?}", node.write_token(now, claim_request, Token(token))),
        Op::Renew(token) => format!("{:?}", node.renew(now, claim_request, Token(token))),
        Op::Release => format!("{:?}", node.release(claim_request.claim, u64::MAX)),
        Op::Withdraw => format!("{:?}", node.withdraw(claim_request.claim, claim_request.attempt)),
    }
}

proptest! {
    #[test]
    fn one_owner_at_a_time_with_one_token_and_none_is_lost(steps in prop::collection::vec(step(), 0..60)) {
        let mut node = AcceptorState::default();
        let mut now = 0;
        for (claim, attempt, op, pass) in steps {
            now += pass;
            let claim_request = request(claim, attempt, (claim < 3).then_some(7));
            let before = node.clone();
            let answer = apply(&mut node, now, claim_request, op);
            let live: Vec<_> = node.claims.iter().filter(|(_, stored)| stored.expires_at() > now).collect();
            for (id, stored) in &live {
                for (other_id, other) in &live {
                    prop_assert!(id == other_id || stored.owner.is_some() && stored.owner == other.owner, "two owners");
                    let tokens = (stored.token, other.token);
                    prop_assert!(tokens.0 == tokens.1 || tokens.0.0 == 0 || tokens.1.0 == 0, "two tokens: {node:?}");
                }
            }
            let own_claim = node.claims.get(&claim_request.claim);
            match op {
                Op::Withdraw => prop_assert!(node.last_token() <= before.last_token()),
                _ => prop_assert!(node.last_token() >= before.last_token(), "{op:?} {answer}"),
            }
            match op {
                Op::Write(token) if answer == "Stored" => prop_assert!(own_claim.is_some_and(|own_claim| own_claim.token.0 == token)),
                Op::Renew(token) if answer == "Some(true)" => {
                    prop_assert!(own_claim.is_some_and(|own_claim| own_claim.token.0 == token && own_claim.stored_at == now));
                }
                Op::Acquire { .. } if answer.starts_with("Yes") => prop_assert!(own_claim.is_some_and(|own_claim| own_claim.stored_at == now)),
                Op::Release => prop_assert!(own_claim.is_none()),
                _ => {}
            }
            if let (Op::Acquire { .. }, true) = (op, answer.starts_with("No")) {
                prop_assert!(own_claim.is_none() || before.claims.contains_key(&claim_request.claim));
            }
            if !matches!(op, Op::Release | Op::Withdraw) {
                let once = node.clone();
                let again = apply(&mut node, now, claim_request, op);
                prop_assert_eq!(&once, &node, "{:?} twice", op);
                prop_assert!(answer == again || answer.starts_with("Yes") && again.starts_with("Yes"));
            }
        }
    }

    #[test]
    fn a_new_token_is_above_all_that_were_granted(
        grants in prop::collection::vec((0u64..9, any::<bool>(), 0u64..15), 1..20),
    ) {
        let mut node = AcceptorState::default();
        let (mut now, mut highest) = (0, 0);
        for (id, (guess, released, pass)) in grants.into_iter().enumerate() {
            let claim_request = request(id as u128, 1, None);
            let Vote::Yes { last_token: last, own_token: own, .. } = node.acquire(now, claim_request, Token(guess)) else {
                now += pass;
                continue;
            };
            let token = if own.0 > 0 { own } else { Token(last.0 + 1) };
            prop_assert!(own == token || node.write_token(now, claim_request, token) == WriteReply::Stored);
            prop_assert!(token.0 > highest);
            highest = token.0;
            if released {
                node.release(claim_request.claim, u64::MAX);
            }
            now += pass;
        }
    }
}
