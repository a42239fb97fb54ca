//! Which claim a waiter watches: exactly one ahead of it, so that a claim that leaves wakes one
//! waiter.

use crate::types::ClaimId;

/// The waiters of one lock, in queue order, and the latest of its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitQueue {
    /// The holder that was granted last; `None`: the lock has no holder.
    pub last_granted: Option<ClaimId>,
    /// The waiters, the first of the queue first.
    pub waiters: Vec<ClaimId>,
}

impl WaitQueue {
    /// The claim that a waiter watches: the waiter just ahead of it or, for the first waiter, the
    /// holder that was granted last. So a waiter that is granted stays watched by the one behind
    /// it. `None`: the claim does not wait, or the lock has no holder.
    pub fn watched_by(&self, waiter: ClaimId) -> Option<ClaimId> {
        match self.waiters.iter().position(|claim| *claim == waiter)? {
            0 => self.last_granted,
            position => Some(self.waiters[position - 1]),
        }
    }
}

/// The waiters that were queued `before` and watch another claim in `after`: they must be woken. No
/// waiter overtakes another, so those of both queues have the same order in both, and new ones come
/// last.
pub fn waiters_with_new_target(before: &WaitQueue, after: &WaitQueue) -> Vec<ClaimId> {
    let mut with_new_target = Vec::new();
    let (mut was_ahead, mut ahead) = (before.last_granted, after.last_granted);
    let mut old = before.waiters.iter();
    for waiter in &after.waiters {
        let queued_before = old.by_ref().find(|claim| {
            let found = *claim == waiter;
            if !found {
                was_ahead = Some(**claim);
            }
            found
        });
        if queued_before.is_none() {
            break;
        }
        if was_ahead != ahead {
            with_new_target.push(*waiter);
        }
        (was_ahead, ahead) = (Some(*waiter), Some(*waiter));
    }
    with_new_target
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wait_queue(holder: u128, waiters: impl IntoIterator<Item = u128>) -> WaitQueue {
        let waiters = waiters.into_iter().map(ClaimId::from_bits).collect();
        WaitQueue { last_granted: Some(ClaimId::from_bits(holder)), waiters }
    }

    proptest! {
        #[test]
        fn a_hand_off_wakes_only_the_granted_waiter(waiting in 1u128..20) {
            // Claim 0 holds and 1..=waiting wait; 0 leaves and 1 is granted.
            prop_assert_eq!(waiters_with_new_target(&wait_queue(0, 1..=waiting), &wait_queue(1, 2..=waiting)), []);
        }

        #[test]
        fn a_leaving_waiter_wakes_only_the_one_behind_it(waiting in 2u128..20, leaves in 0u128..18) {
            let leaves = leaves % waiting + 1;
            let after = wait_queue(0, (1..=waiting).filter(|claim| *claim != leaves));
            let behind: Vec<_> = (leaves + 1..=waiting).take(1).map(ClaimId::from_bits).collect();
            prop_assert_eq!(waiters_with_new_target(&wait_queue(0, 1..=waiting), &after), behind);
        }

        #[test]
        fn exactly_the_waiters_with_a_new_target_are_notified(
            leave in prop::collection::vec(any::<bool>(), 0..20), holder in 100u128..102, come in 0u128..3,
        ) {
            let before = wait_queue(100, 0..leave.len() as u128);
            let staying = (0..leave.len() as u128).filter(|claim| !leave[*claim as usize]);
            let after = wait_queue(holder, staying.chain(200..200 + come));
            let notified = waiters_with_new_target(&before, &after);
            for waiter in &after.waiters {
                let waited = before.waiters.contains(waiter);
                let changed = before.watched_by(*waiter) != after.watched_by(*waiter);
                prop_assert_eq!(notified.contains(waiter), waited && changed);
            }
        }

        #[test]
        fn every_waiter_watches_one_claim_and_no_two_the_same(waiting in 0u128..20) {
            let queue = wait_queue(0, 1..=waiting);
            let mut targets: Vec<_> = queue.waiters.iter().map(|waiter| queue.watched_by(*waiter).unwrap()).collect();
            targets.sort();
            targets.dedup();
            prop_assert_eq!(targets.len() as u128, waiting);
        }
    }
}
