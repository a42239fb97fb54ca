//! Which tokens a resource accepts, and which token fences off a force-released holder.

use crate::types::{Owner, Token};

/// The highest token that a resource has seen, and its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FenceState {
    /// The highest token.
    pub token: Token,
    /// The owner that wrote with it; `None`: the caller does not distinguish owners.
    pub owner: Option<Owner>,
}

/// Whether a resource that has seen `seen` accepts a write of `owner` with `token`. It accepts a
/// higher token, and the same token only from the same owner. If two owners have the same token,
/// the engine has lost its counter: the first to write wins.
pub fn admits(seen: FenceState, token: Token, owner: Option<Owner>) -> bool {
    token > seen.token || (token == seen.token && owner == seen.owner)
}

/// The token to write to the resource after a force release: the resource then rejects the writes
/// of the force-released holder and no others.
///
/// It lies strictly between that holder's token (`force_released`; `None` for a waiter) and every
/// other token that is in use or may still be used:
/// - `others` are the tokens of the holders that stay, and of waiters that already have one.
/// - `fresh` is above all tokens so far and below all future ones.
///
/// Strictly, because [`admits`] rejects a seen token from another owner and accepts it from the
/// same one.
///
/// `None` means one of two things: there is no token to reject, because a waiter has none; or no
/// number lies between, so that any token would reject a remaining holder.
///
/// ```
/// use leasehold::{Token, engine::force_release_token};
///
/// // The holder with token 5 is force released; another stays with 9, and 12 is above all so far.
/// assert_eq!(force_release_token(Some(Token(5)), [Token(9)], Token(12)), Some(Token(8)));
/// assert_eq!(force_release_token(Some(Token(5)), [], Token(12)), Some(Token(12)));
/// ```
pub fn force_release_token(
    force_released: Option<Token>,
    others: impl IntoIterator<Item = Token>,
    fresh: Token,
) -> Option<Token> {
    let force_released = force_released?;
    let fence_token = match others.into_iter().min() {
        None => fresh,
        Some(lowest) => Token(lowest.0.saturating_sub(1)),
    };
    (fence_token > force_released).then_some(fence_token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_force_release_token_refuses_the_force_released_holder_and_no_other(
            released in 0u64..20, others in prop::collection::vec(1u64..24, 0..4), owners in prop::collection::vec(prop::option::of(0u128..2), 6),
        ) {
            let fresh = Token(30);
            let owner_at = |at: usize| owners[at].map(Owner::from_bits);
            let token = force_release_token((released > 0).then_some(Token(released)), others.iter().copied().map(Token), fresh);
            let Some(token) = token else {
                // Only if no token has to be rejected, or no number lies between.
                prop_assert!(released == 0 || others.iter().any(|other| *other <= released + 1));
                return Ok(());
            };
            let seen = FenceState { token, owner: owner_at(0) };
            prop_assert!(!admits(seen, Token(released), owner_at(1)));
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
