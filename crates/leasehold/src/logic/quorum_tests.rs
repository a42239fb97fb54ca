use proptest::prelude::*;

use super::*;

const NONE: Token = Token(0);

fn yes(last: u64, own: u64, bound: u64) -> Vote {
    Vote::Yes { last: Token(last), own: Token(own), bound: Token(bound) }
}

fn three() -> Taking {
    Taking::new(Quorum::of(3))
}

#[test]
fn a_majority_of_guesses_is_held_in_one_round() {
    let mut taking = three();
    assert_eq!(taking.vote(0, yes(9, 9, 0)), Move::Wait);
    assert_eq!(taking.vote(1, yes(9, 9, 0)), Move::Held(Token(9)));
    assert_eq!(taking.writing(), None);
}

#[test]
fn a_majority_that_stored_is_enough_though_another_node_is_bound_elsewhere() {
    let mut taking = three();
    for node in 0..2 {
        taking.vote(node, yes(0, 0, 0));
    }
    assert_eq!(taking.vote(2, yes(0, 0, 0)), Move::Wait);
    assert_eq!(taking.wrote(0, Token(1), Written::Stored), Move::Wait);
    assert_eq!(taking.wrote(1, Token(1), Written::Bound(Token(7))), Move::Wait);
    assert_eq!(taking.wrote(2, Token(1), Written::Stored), Move::Held(Token(1)));
}

#[test]
fn what_was_stored_before_does_not_count_while_another_token_replaces_it() {
    let mut taking = three();
    taking.vote(0, yes(5, 5, 0));
    assert_eq!(taking.vote(1, yes(3, 0, 0)), Move::Write(Token(6)));
    assert_eq!(taking.vote(2, yes(5, 5, 0)), Move::Wait, "node 0 may have stored 6 meanwhile");
    assert_eq!(taking.wrote(0, Token(6), Written::Stored), Move::Wait);
    assert_eq!(taking.wrote(2, Token(6), Written::Stored), Move::Held(Token(6)));
}

#[test]
fn of_two_tokens_of_one_owner_the_one_that_a_majority_can_have_is_shared() {
    let mut taking = three();
    assert_eq!(taking.vote(2, yes(9, 9, 9)), Move::Wait);
    assert_eq!(taking.vote(0, yes(4, 4, 4)), Move::Wait);
    assert_eq!(taking.vote(1, yes(4, 4, 4)), Move::Held(Token(4)));
}

#[test]
fn a_token_of_the_same_owner_that_no_majority_can_have_is_left_alone() {
    let mut taking = three();
    taking.vote(0, yes(4, 4, 4));
    taking.vote(1, yes(8, 0, 0));
    assert_eq!(taking.vote(2, yes(8, 0, 0)), Move::Write(Token(9)));
}

#[test]
fn a_lower_token_needs_another_attempt() {
    let mut taking = three();
    taking.vote(0, yes(6, 0, 0));
    assert_eq!(taking.vote(1, yes(0, 0, 0)), Move::Write(Token(7)));
    taking.vote(2, yes(0, 0, 5));
    taking.wrote(1, Token(7), Written::Bound(Token(5)));
    assert_eq!(taking.wrote(2, Token(7), Written::Bound(Token(5))), Move::Failed(Failure::Busy));
}

fn vote() -> impl Strategy<Value = Vote> {
    prop_oneof![
        6 => (0u64..6, 0u64..6, prop_oneof![3 => Just(0u64), 1 => 1u64..6]).prop_map(|(last, own, bound)| {
            let own = if bound > 0 && own > 0 { bound } else { own };
            yes(last.max(own).max(bound), own, bound)
        }),
        2 => (0u64..6).prop_map(|last| Vote::No { last: Token(last) }),
        1 => Just(Vote::Abstains),
        1 => Just(Vote::Silent),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    prop_oneof![
        5 => Just(Written::Stored),
        1 => (0u64..9).prop_map(|above| Written::Behind(Token(above))),
        1 => (1u64..6).prop_map(|bound| Written::Bound(Token(bound))),
        1 => Just(Written::Gone),
        1 => Just(Written::Silent),
    ]
}

/// Plays an attempt to its end: every node votes and answers every write, in any order. Returns the
/// result, the token that each node stored, and the tokens that were written.
fn play(votes: &[Vote], order: &[u16], answers: &[Written]) -> (Move, Vec<Token>, Vec<Token>) {
    let mut taking = Taking::new(Quorum::of(votes.len()));
    let mut stored = vec![NONE; votes.len()];
    let mut asked = vec![NONE; votes.len()];
    let mut todo: Vec<(usize, Option<Token>)> = (0..votes.len()).map(|node| (node, None)).collect();
    let (mut tokens, mut last, mut turn) = (Vec::new(), Move::Wait, 0);
    while !todo.is_empty() {
        let (node, token) = todo.swap_remove(usize::from(order[turn % order.len()]) % todo.len());
        let answer = answers[turn % answers.len()];
        turn += 1;
        last = match token {
            None => {
                if let Vote::Yes { own, .. } = votes[node] {
                    stored[node] = own;
                }
                taking.vote(node, votes[node])
            }
            Some(token) => {
                // A node reports that it is behind only if it is.
                let answer = match answer {
                    Written::Behind(last) => Written::Behind(last.max(token)),
                    // A late message of an earlier round does not replace a higher token.
                    _ if stored[node] > token => Written::Behind(stored[node]),
                    Written::Bound(bound) if bound == token => Written::Stored,
                    answer if stored[node] == token && answer != Written::Silent => Written::Stored,
                    answer => answer,
                };
                if answer == Written::Stored {
                    stored[node] = token;
                }
                taking.wrote(node, token, answer)
            }
        };
        match last {
            Move::Held(_) | Move::Failed(_) => return (last, stored, tokens),
            Move::Write(token) => tokens.push(token),
            Move::Wait => {}
        }
        if let Some(token) = taking.writing() {
            for (node, asked) in asked.iter_mut().enumerate().filter(|(node, _)| taking.said_yes(*node)) {
                if *asked != token {
                    *asked = token;
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
        let quorum = Quorum::of(nodes);
        prop_assert!(quorum.needed * 2 > nodes && (quorum.needed - 1) * 2 <= nodes);
        prop_assert_eq!(quorum.needed + quorum.spare(), nodes);
        prop_assert!(quorum.spare() < quorum.needed);
    }

    #[test]
    fn a_node_is_waited_for_a_tenth_of_the_ttl_at_most(ttl in 10u64..1_000_000, most in 1u64..100_000) {
        let wait = node_timeout(Duration::from_millis(ttl), Duration::from_millis(most));
        prop_assert!(wait <= Duration::from_millis(most) && wait <= Duration::from_millis(ttl) / 10);
        prop_assert!(wait >= Duration::from_millis(1));
    }

    #[test]
    fn validity_ends_before_the_ttl_less_the_drift(sent in 0u64..1 << 60, took in 0u64..1 << 38, ttl in 1u64..300_000) {
        let (sent, ttl) = (Moment::from_nanos(sent), Duration::from_millis(ttl));
        let now = sent.after(Duration::from_nanos(took));
        let end = sent.after(ttl).before(Drift::REMOTE.of(ttl));
        match validity(sent, now, ttl, Drift::REMOTE) {
            Some(left) => prop_assert!(!left.is_zero() && now.after(left) == end),
            None => prop_assert!(now >= end),
        }
    }

    #[test]
    fn every_attempt_ends_and_is_held_only_where_a_majority_has_stored_its_token(
        votes in prop_oneof![prop::collection::vec(vote(), 3), prop::collection::vec(vote(), 5)],
        order in prop::collection::vec(any::<u16>(), 8), answers in prop::collection::vec(written(), 8),
    ) {
        let quorum = Quorum::of(votes.len());
        let (end, stored, tokens) = play(&votes, &order, &answers);
        let yes = votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        match end {
            Move::Held(token) => {
                prop_assert!(token > NONE && yes >= quorum.needed);
                prop_assert!(stored.iter().filter(|stored| **stored == token).count() >= quorum.needed);
                prop_assert!(tokens.last().is_none_or(|last| *last == token), "only what is written counts");
            }
            Move::Failed(_) => {}
            Move::Wait | Move::Write(_) => prop_assert!(false, "all have answered, and it still waits"),
        }
        prop_assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of one attempt rise: {tokens:?}");
    }

    #[test]
    fn where_every_write_succeeds_a_majority_of_strangers_always_gets_it(
        lasts in prop::collection::vec(prop::option::weighted(0.7, 0u64..9), 5), order in prop::collection::vec(any::<u16>(), 8),
    ) {
        let votes: Vec<Vote> = lasts.iter().map(|last| last.map_or(Vote::Silent, |last| yes(last, 0, 0))).collect();
        let (end, _, tokens) = play(&votes, &order, &[Written::Stored]);
        let alive = lasts.iter().flatten().count();
        match end {
            Move::Held(token) => prop_assert!(alive >= 3 && tokens == [token]),
            end => prop_assert!(alive < 3 && end == Move::Failed(Failure::Unreachable), "{end:?}"),
        }
    }

    #[test]
    fn a_tally_does_not_depend_on_the_order_and_does_not_change_its_mind(
        answers in prop::collection::vec(prop::option::of(any::<bool>()), 1..8), turn in any::<prop::sample::Index>(),
    ) {
        let quorum = Quorum::of(answers.len());
        let outcomes = |from: usize| {
            let mut tally = Tally::new(quorum);
            let nodes = (from..answers.len()).chain(0..from);
            nodes.map(|node| tally.hear(node, answers[node])).collect::<Vec<_>>()
        };
        let (one, other) = (outcomes(0), outcomes(turn.index(answers.len())));
        prop_assert_eq!(one.last(), other.last());
        prop_assert_ne!(*one.last().unwrap(), Outcome::Open);
        for outcomes in [&one, &other] {
            let decided = outcomes.iter().find(|outcome| **outcome != Outcome::Open);
            prop_assert_eq!(decided, outcomes.last());
        }
        let done = answers.iter().filter(|answer| **answer == Some(true)).count();
        prop_assert_eq!(*one.last().unwrap() == Outcome::Done, done >= quorum.needed);
    }
}

/// Found by the property above, when a late message could still replace a higher token.
#[test]
fn a_late_message_of_an_earlier_round_changes_nothing() {
    let votes = [yes(0, 0, 0), yes(0, 0, 0), yes(0, 0, 0), yes(0, 0, 0), Vote::No { last: NONE }];
    let order = [15186, 0, 0, 14130, 41603, 296, 50746, 20953];
    let mut answers = [Written::Stored; 8];
    (answers[4], answers[7]) = (Written::Gone, Written::Behind(NONE));
    let (end, stored, tokens) = play(&votes, &order, &answers);
    let Move::Held(token) = end else { panic!("{end:?}") };
    assert!(stored.iter().filter(|stored| **stored == token).count() >= 3, "{stored:?} {tokens:?}");
}
