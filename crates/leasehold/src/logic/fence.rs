//! Which token a resource accepts.

use crate::claim::{Owner, Token};

/// The highest token that a resource has seen, and whose it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The highest token.
    pub token: Token,
    /// Who brought it, where owners are told apart.
    pub owner: Option<Owner>,
}

/// Whether a write with `token` of `owner` may pass after `seen`: a higher token may; the same one again only from the same
/// owner. Two owners with one token mean that the engine lost its counter: the first to write wins.
pub fn admits(seen: Seen, token: Token, owner: Option<Owner>) -> bool {
    token > seen.token || (token == seen.token && owner == seen.owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn accepted_tokens_never_fall_and_one_token_has_one_owner(writes in prop::collection::vec((1u64..6, 0u128..3), 0..40)) {
            let mut seen = Seen::default();
            let mut accepted: Vec<(u64, u128)> = Vec::new();
            for (token, owner) in writes {
                let who = Some(Owner::from_bits(owner));
                if admits(seen, Token(token), who) {
                    seen = Seen { token: Token(token), owner: who };
                    accepted.push((token, owner));
                }
            }
            for pair in accepted.windows(2) {
                prop_assert!(pair[0].0 < pair[1].0 || pair[0] == pair[1]);
            }
        }
    }
}
