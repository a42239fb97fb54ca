use proptest::prelude::*;

use super::*;

/// No token.
const NONE: Token = Token(0);

/// A yes vote with these tokens: the highest known, that of the claim, and that of its owner.
fn yes(last: u64, own: u64, owner: u64) -> Vote {
    Vote::Yes { last_token: Token(last), own_token: Token(own), owner_token: Token(owner) }
}

/// An attempt at three nodes.
fn three() -> QuorumAttempt {
    QuorumAttempt::new(Quorum::from_node_count(3))
}

#[test]
fn a_majority_of_guesses_is_held_in_one_round() {
    let mut attempt = three();
    assert_eq!(attempt.vote(0, yes(9, 9, 0)), AttemptAction::Wait);
    assert_eq!(attempt.vote(1, yes(9, 9, 0)), AttemptAction::Held(Token(9)));
    assert_eq!(attempt.pending_token(), None);
}

#[test]
fn a_majority_that_stored_is_enough_though_another_node_has_another_token_of_the_owner() {
    let mut attempt = three();
    for node in 0..2 {
        attempt.vote(node, yes(0, 0, 0));
    }
    assert_eq!(attempt.vote(2, yes(0, 0, 0)), AttemptAction::Wait);
    assert_eq!(attempt.write_reply(0, Token(1), WriteReply::Stored), AttemptAction::Wait);
    assert_eq!(attempt.write_reply(1, Token(1), WriteReply::OwnerToken(Token(7))), AttemptAction::Wait);
    assert_eq!(attempt.write_reply(2, Token(1), WriteReply::Stored), AttemptAction::Held(Token(1)));
}

#[test]
fn an_earlier_stored_token_does_not_count_while_another_replaces_it() {
    let mut attempt = three();
    attempt.vote(0, yes(5, 5, 0));
    assert_eq!(attempt.vote(1, yes(3, 0, 0)), AttemptAction::Write(Token(6)));
    assert_eq!(attempt.vote(2, yes(5, 5, 0)), AttemptAction::Wait, "node 0 may have stored 6 meanwhile");
    assert_eq!(attempt.write_reply(0, Token(6), WriteReply::Stored), AttemptAction::Wait);
    assert_eq!(attempt.write_reply(2, Token(6), WriteReply::Stored), AttemptAction::Held(Token(6)));
}

#[test]
fn the_owners_token_that_a_majority_can_store_is_shared() {
    let mut attempt = three();
    assert_eq!(attempt.vote(2, yes(9, 9, 9)), AttemptAction::Wait);
    assert_eq!(attempt.vote(0, yes(4, 4, 4)), AttemptAction::Wait);
    assert_eq!(attempt.vote(1, yes(4, 4, 4)), AttemptAction::Held(Token(4)));
}

#[test]
fn an_owners_token_that_no_majority_can_store_is_not_shared() {
    let mut attempt = three();
    attempt.vote(0, yes(4, 4, 4));
    attempt.vote(1, yes(8, 0, 0));
    assert_eq!(attempt.vote(2, yes(8, 0, 0)), AttemptAction::Write(Token(9)));
}

#[test]
fn a_lower_token_needs_another_attempt() {
    let mut attempt = three();
    attempt.vote(0, yes(6, 0, 0));
    assert_eq!(attempt.vote(1, yes(0, 0, 0)), AttemptAction::Write(Token(7)));
    attempt.vote(2, yes(0, 0, 5));
    attempt.write_reply(1, Token(7), WriteReply::OwnerToken(Token(5)));
    assert_eq!(
        attempt.write_reply(2, Token(7), WriteReply::OwnerToken(Token(5))),
        AttemptAction::Failed(Failure::Busy)
    );
}

fn vote() -> impl Strategy<Value = Vote> {
    prop_oneof![
        6 => (0u64..6, 0u64..6, prop_oneof![3 => Just(0u64), 1 => 1u64..6]).prop_map(|(last, own, bound)| {
            let own = if bound > 0 && own > 0 { bound } else { own };
            yes(last.max(own).max(bound), own, bound)
        }),
        2 => (0u64..6).prop_map(|last| Vote::No { last_token: Token(last) }),
        1 => Just(Vote::CoolingDown),
        1 => Just(Vote::NoResponse),
    ]
}

fn written() -> impl Strategy<Value = WriteReply> {
    prop_oneof![
        5 => Just(WriteReply::Stored),
        1 => (0u64..9).prop_map(|above| WriteReply::TokenTooLow(Token(above))),
        1 => (1u64..6).prop_map(|bound| WriteReply::OwnerToken(Token(bound))),
        1 => Just(WriteReply::ClaimMissing),
        1 => Just(WriteReply::NoResponse),
    ]
}

/// Runs an attempt to its end: every node votes, and answers every request to store a token, in the
/// order that the numbers of `order` choose. Returns the result, the token that each node stored,
/// and the tokens that were written.
fn run_attempt(votes: &[Vote], order: &[u16], answers: &[WriteReply]) -> (AttemptAction, Vec<Token>, Vec<Token>) {
    let mut attempt = QuorumAttempt::new(Quorum::from_node_count(votes.len()));
    let mut stored = vec![NONE; votes.len()];
    let mut sent_tokens = vec![NONE; votes.len()];
    let mut todo: Vec<(usize, Option<Token>)> = (0..votes.len()).map(|node| (node, None)).collect();
    let (mut tokens, mut last, mut turn) = (Vec::new(), AttemptAction::Wait, 0);
    while !todo.is_empty() {
        let (node, token) = todo.swap_remove(usize::from(order[turn % order.len()]) % todo.len());
        let answer = answers[turn % answers.len()];
        turn += 1;
        last = match token {
            None => {
                if let Vote::Yes { own_token: own, .. } = votes[node] {
                    stored[node] = own;
                }
                attempt.vote(node, votes[node])
            }
            Some(token) => {
                // A node answers with a higher token than `token` only if it has one.
                let answer = match answer {
                    WriteReply::TokenTooLow(last) => WriteReply::TokenTooLow(last.max(token)),
                    // A late message of an earlier round does not replace a higher token.
                    _ if stored[node] > token => WriteReply::TokenTooLow(stored[node]),
                    WriteReply::OwnerToken(bound) if bound == token => WriteReply::Stored,
                    answer if stored[node] == token && answer != WriteReply::NoResponse => WriteReply::Stored,
                    answer => answer,
                };
                if answer == WriteReply::Stored {
                    stored[node] = token;
                }
                attempt.write_reply(node, token, answer)
            }
        };
        match last {
            AttemptAction::Held(_) | AttemptAction::Failed(_) => return (last, stored, tokens),
            AttemptAction::Write(token) => tokens.push(token),
            AttemptAction::Wait => {}
        }
        if let Some(token) = attempt.pending_token() {
            for (node, sent_token) in sent_tokens.iter_mut().enumerate().filter(|(node, _)| attempt.has_yes_vote(*node))
            {
                if *sent_token != token {
                    *sent_token = token;
                    todo.push((node, Some(token)));
                }
            }
        }
    }
    (last, stored, tokens)
}

proptest! {
    #[test]
    fn two_majorities_share_a_node(nodes in 1usize..100) {
        let quorum = Quorum::from_node_count(nodes);
        prop_assert!(quorum.majority * 2 > nodes && (quorum.majority - 1) * 2 <= nodes);
        prop_assert_eq!(quorum.majority + quorum.tolerated_failures(), nodes);
        prop_assert!(quorum.tolerated_failures() < quorum.majority);
    }

    #[test]
    fn the_node_timeout_is_at_most_a_tenth_of_the_ttl(ttl in 10u64..1_000_000, most in 1u64..100_000) {
        let wait = node_timeout(Duration::from_millis(ttl), Duration::from_millis(most));
        prop_assert!(wait <= Duration::from_millis(most) && wait <= Duration::from_millis(ttl) / 10);
        prop_assert!(wait >= Duration::from_millis(1));
    }

    #[test]
    fn validity_ends_before_the_ttl_less_the_drift(sent in 0u64..1 << 60, took in 0u64..1 << 38, ttl in 1u64..300_000) {
        let (sent, ttl) = (Instant::from_nanos(sent), Duration::from_millis(ttl));
        let now = sent.saturating_add(Duration::from_nanos(took));
        let end = sent.saturating_add(ttl).saturating_sub(Drift::REMOTE.margin_for(ttl));
        match validity(sent, now, ttl, Drift::REMOTE) {
            Some(left) => prop_assert!(!left.is_zero() && now.saturating_add(left) == end),
            None => prop_assert!(now >= end),
        }
    }

    #[test]
    fn every_attempt_ends_and_is_held_only_where_a_majority_has_stored_its_token(
        votes in prop_oneof![prop::collection::vec(vote(), 3), prop::collection::vec(vote(), 5)],
        order in prop::collection::vec(any::<u16>(), 8), answers in prop::collection::vec(written(), 8),
    ) {
        let quorum = Quorum::from_node_count(votes.len());
        let (end, stored, tokens) = run_attempt(&votes, &order, &answers);
        let yes_votes = votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        match end {
            AttemptAction::Held(token) => {
                prop_assert!(token > NONE && yes_votes >= quorum.majority);
                prop_assert!(stored.iter().filter(|stored| **stored == token).count() >= quorum.majority);
                prop_assert!(tokens.last().is_none_or(|last| *last == token), "only what is written counts");
            }
            AttemptAction::Failed(_) => {}
            AttemptAction::Wait | AttemptAction::Write(_) => prop_assert!(false, "all have answered, and it still waits"),
        }
        prop_assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of one attempt rise: {tokens:?}");
    }

    #[test]
    fn if_every_write_succeeds_a_free_majority_is_always_acquired(
        lasts in prop::collection::vec(prop::option::weighted(0.7, 0u64..9), 5), order in prop::collection::vec(any::<u16>(), 8),
    ) {
        let votes: Vec<Vote> = lasts.iter().map(|last| last.map_or(Vote::NoResponse, |last| yes(last, 0, 0))).collect();
        let (end, _, tokens) = run_attempt(&votes, &order, &[WriteReply::Stored]);
        let alive = lasts.iter().flatten().count();
        match end {
            AttemptAction::Held(token) => prop_assert!(alive >= 3 && tokens == [token]),
            end => prop_assert!(alive < 3 && end == AttemptAction::Failed(Failure::Unreachable), "{end:?}"),
        }
    }

    #[test]
    fn a_tally_is_independent_of_order_and_its_outcome_is_final(
        answers in prop::collection::vec(prop::option::of(any::<bool>()), 1..8), turn in any::<prop::sample::Index>(),
    ) {
        let quorum = Quorum::from_node_count(answers.len());
        let outcomes = |from: usize| {
            let mut tally = QuorumTally::new(quorum);
            let nodes = (from..answers.len()).chain(0..from);
            nodes.map(|node| tally.record_answer(node, answers[node])).collect::<Vec<_>>()
        };
        let (one, other) = (outcomes(0), outcomes(turn.index(answers.len())));
        prop_assert_eq!(one.last(), other.last());
        prop_assert_ne!(*one.last().unwrap(), QuorumOutcome::Pending);
        for outcomes in [&one, &other] {
            let decided = outcomes.iter().find(|outcome| **outcome != QuorumOutcome::Pending);
            prop_assert_eq!(decided, outcomes.last());
        }
        let done = answers.iter().filter(|answer| **answer == Some(true)).count();
        prop_assert_eq!(*one.last().unwrap() == QuorumOutcome::Done, done >= quorum.majority);
    }
}

/// A case that the property test found when a late message could still replace a higher token.
#[test]
fn a_late_message_of_an_earlier_round_has_no_effect() {
    let votes = [yes(0, 0, 0), yes(0, 0, 0), yes(0, 0, 0), yes(0, 0, 0), Vote::No { last_token: NONE }];
    let order = [15186, 0, 0, 14130, 41603, 296, 50746, 20953];
    let mut answers = [WriteReply::Stored; 8];
    (answers[4], answers[7]) = (WriteReply::ClaimMissing, WriteReply::TokenTooLow(NONE));
    let (end, stored, tokens) = run_attempt(&votes, &order, &answers);
    let AttemptAction::Held(token) = end else { panic!("{end:?}") };
    assert!(stored.iter().filter(|stored| **stored == token).count() >= 3, "{stored:?} {tokens:?}");
}
