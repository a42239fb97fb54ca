//! Whom a waiter watches: exactly one party ahead of it, so that one departure wakes one waiter.

use crate::claim::ClaimId;

/// For each waiter, in order, the one party whose departure concerns it: the waiter just ahead of it, or, for the first,
/// whoever was granted last. When a waiter is granted it becomes the last grant, so the one behind it need not look again.
pub fn watched(
    last_granted: Option<ClaimId>,
    waiters: impl IntoIterator<Item = ClaimId>,
) -> impl Iterator<Item = (ClaimId, Option<ClaimId>)> {
    waiters.into_iter().scan(last_granted, |ahead, waiter| Some((waiter, ahead.replace(waiter))))
}

/// The waiters that watch somebody else than before, though they waited before: they must look again. Both are in order.
pub fn relinked(
    before: impl IntoIterator<Item = (ClaimId, Option<ClaimId>)>,
    after: impl IntoIterator<Item = (ClaimId, Option<ClaimId>)>,
) -> Vec<ClaimId> {
    let mut before = before.into_iter();
    let mut relinked = Vec::new();
    for (waiter, ahead) in after {
        match before.find(|(known, _)| *known == waiter) {
            Some((_, was_ahead)) if was_ahead != ahead => relinked.push(waiter),
            Some(_) => {}
            // Newly arrived: so are all behind it.
            None => break,
        }
    }
    relinked
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
            let before = watched(Some(ClaimId::from_bits(0)), ids(1..waiting + 1));
            let after = watched(Some(ClaimId::from_bits(1)), ids(2..waiting + 1));
            prop_assert_eq!(relinked(before, after), []);
        }

        #[test]
        fn a_waiter_that_leaves_concerns_the_one_behind_it(waiting in 2u128..20, leaves in 0u128..18) {
            let leaves = leaves % waiting;
            let all = ids(1..waiting + 1);
            let left: Vec<_> = all.iter().copied().filter(|c| c.bits() != leaves + 1).collect();
            let holder = Some(ClaimId::from_bits(0));
            let behind: Vec<_> = all.iter().copied().filter(|c| c.bits() == leaves + 2).collect();
            prop_assert_eq!(relinked(watched(holder, all), watched(holder, left)), behind);
        }

        #[test]
        fn every_waiter_watches_one_and_no_two_the_same(waiting in 0u128..20) {
            let mut targets: Vec<_> = watched(Some(ClaimId::from_bits(0)), ids(1..waiting + 1)).map(|(_, t)| t.unwrap()).collect();
            targets.sort();
            targets.dedup();
            prop_assert_eq!(targets.len() as u128, waiting);
        }
    }
}
