//! Which tokens a resource accepts.

use crate::types::{Owner, Token};

/// The highest token that a resource has seen, and its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FenceState {
    /// The highest token.
    pub token: Token,
    /// The owner that presented it, where owners are distinguished.
    pub owner: Option<Owner>,
}

/// Whether a resource that has `seen` accepts a write with `token` of `owner`. It accepts a higher
/// token, and the same token from the same owner only. Two owners with the same token mean that the
/// engine lost its counter: the first to write wins.
pub fn admits(seen: FenceState, token: Token, owner: Option<Owner>) -> bool {
    token > seen.token || (token == seen.token && owner == seen.owner)
}

/// The token to write to the resource after a force release: the resource then rejects the evicted
/// holder's writes and no others.
///
/// It lies strictly between the evicted holder's token and every other token that is in use or may
/// still be used:
/// - `others` are the tokens of the holders that stay, and of waiters that already have one.
/// - `fresh` is above all tokens so far and below all future ones.
///
/// Strictly, because [`admits`] rejects a seen token from another owner and accepts it from the
/// same one.
///
/// `None` means one of two things: no token has to be rejected (a waiter has none), or no number
/// lies between. In the second case any token would reject a remaining holder.
pub fn force_release_token(
    evicted: Option<Token>,
    others: impl IntoIterator<Item = Token>,
    fresh: Token,
) -> Option<Token> {
    let evicted = evicted?;
    let advised = match others.into_iter().min() {
        None => fresh,
        Some(lowest) => Token(lowest.0.saturating_sub(1)),
    };
    (advised > evicted).then_some(advised)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_force_release_token_refuses_the_evicted_holder_and_no_other(
            evicted in 0u64..20, others in prop::collection::vec(1u64..24, 0..4), owners in prop::collection::vec(prop::option::of(0u128..2), 6),
        ) {
            let fresh = Token(30);
            let owner_at = |at: usize| owners[at].map(Owner::from_bits);
            let advised = force_release_token((evicted > 0).then_some(Token(evicted)), others.iter().copied().map(Token), fresh);
            let Some(advised) = advised else {
                // Only if no token has to be rejected, or no number lies between.
                prop_assert!(evicted == 0 || others.iter().any(|other| *other <= evicted + 1));
                return Ok(());
            };
            let seen = FenceState { token: advised, owner: owner_at(0) };
            prop_assert!(!admits(seen, Token(evicted), owner_at(1)));
            for (at, other) in others.iter().enumerate() {
                prop_assert!(admits(seen, Token(*other), owner_at(at + 2)));
            }
            prop_assert!(admits(seen, Token(fresh.0 + 1), owner_at(1)));
        }

        #[test]
        fn accepted_tokens_never_fall_and_one_token_has_one_owner(writes in prop::collection::vec((1u64..6, 0u128..3), 0..40)) {
            let mut seen = FenceState::default();
            let mut accepted: Vec<(u64, u128)> = Vec::new();
            for (token, owner) in writes {
                let some_owner = Some(Owner::from_bits(owner));
                if admits(seen, Token(token), some_owner) {
                    seen = FenceState { token: Token(token), owner: some_owner };
                    accepted.push((token, owner));
                }
            }
            for pair in accepted.windows(2) {
                prop_assert!(pair[0].0 < pair[1].0 || pair[0] == pair[1]);
            }
        }
    }
}
