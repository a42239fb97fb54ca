//! Whom a waiter watches: exactly one party ahead of it, so that one departure wakes one waiter.

use crate::claim::ClaimId;

/// The one party whose departure concerns the waiter at `index`: the waiter just ahead of it, or, for the first, whoever
/// was granted last. When a waiter is granted it becomes the last grant, so the one behind it need not look again.
pub fn watched<H, W>(holders: H, waiters: W, index: usize) -> Option<ClaimId>
where
    H: DoubleEndedIterator<Item = ClaimId>,
    W: IntoIterator<Item = ClaimId>,
{
    match index.checked_sub(1) {
        Some(ahead) => waiters.into_iter().nth(ahead),
        None => holders.into_iter().next_back(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(range: std::ops::Range<u128>) -> Vec<ClaimId> {
        range.map(ClaimId::from_bits).collect()
    }

    proptest! {
        #[test]
        fn a_hand_off_concerns_nobody_but_the_granted(waiting in 1u128..20) {
            // Claim 0 holds, 1..=waiting wait; 0 leaves and 1 is granted.
            let before = ids(1..waiting + 1);
            let after = ids(2..waiting + 1);
            for (index, claim) in after.iter().enumerate() {
                let old_index = before.iter().position(|c| c == claim).unwrap();
                let old = watched(ids(0..1).into_iter(), before.clone(), old_index);
                let new = watched(ids(1..2).into_iter(), after.clone(), index);
                prop_assert_eq!(old, new);
            }
        }

        #[test]
        fn every_waiter_watches_one_and_no_two_the_same(holders in 1u128..5, waiting in 0u128..20) {
            let waiters = ids(100..100 + waiting);
            let mut watched_by: Vec<ClaimId> = (0..waiters.len())
                .map(|i| watched(ids(0..holders).into_iter(), waiters.clone(), i).unwrap())
                .collect();
            watched_by.sort();
            watched_by.dedup();
            prop_assert_eq!(watched_by.len(), waiters.len());
        }
    }
}
