//! Which modes may hold a lock together.
//!
//! | held \ wanted | exclusive | shared | permits |
//! |---|---|---|---|
//! | exclusive | no | no | no |
//! | shared | no | yes | no |
//! | permits | no | no | while the sum stays within the limit |
//!
//! An exclusive claim on a semaphore's name therefore waits until all permits are released. It
//! blocks new permits meanwhile.

use crate::types::Mode;

/// Whether a claim in mode `wanted` may hold the lock beside holders in these modes.
pub fn fits(wanted: Mode, holders: impl IntoIterator<Item = Mode>) -> bool {
    let mut used: u64 = 0;
    for held in holders {
        match (wanted, held) {
            (Mode::Shared, Mode::Shared) => {}
            (Mode::Permits { .. }, Mode::Permits { n, .. }) => used += u64::from(n),
            _ => return false,
        }
    }
    match wanted {
        Mode::Permits { n, limit } => used + u64::from(n) <= u64::from(limit),
        Mode::Exclusive | Mode::Shared => true,
    }
}

/// Whether a claim in mode `wanted` may hold the lock beside these holders, each given with its
/// owner. Of an owner that re-entered a semaphore, only its largest number of permits counts.
pub fn fits_owned<O: PartialEq>(wanted: Mode, held: impl Iterator<Item = (Option<O>, Mode)> + Clone) -> bool {
    if !matches!(wanted, Mode::Permits { .. }) {
        return fits(wanted, held.map(|(_, mode)| mode));
    }
    let permits = |mode: Mode| if let Mode::Permits { n, .. } = mode { n } else { u32::MAX };
    let counts = |(index, (owner, mode)): &(usize, (Option<O>, Mode))| {
        // The owner's largest; among equal ones the first.
        let larger = |(other_index, (other_owner, other_mode)): (usize, (Option<O>, Mode))| {
            other_index != *index
                && other_owner == *owner
                && (permits(other_mode), *index) > (permits(*mode), other_index)
        };
        owner.is_none() || !held.clone().enumerate().any(larger)
    };
    fits(wanted, held.clone().enumerate().filter(counts).map(|(_, (_, mode))| mode))
}

/// Whether a holder in mode `held` has all that the mode `wanted` allows: a claim of the same owner
/// then re-enters at once.
pub fn covers(held: Mode, wanted: Mode) -> bool {
    match (held, wanted) {
        (Mode::Exclusive, _) | (Mode::Shared, Mode::Shared) => true,
        (Mode::Permits { n: held, limit }, Mode::Permits { n, limit: wanted_limit }) => {
            n <= held && limit == wanted_limit
        }
        _ => false,
    }
}

/// The limit of the mode `present`, if both modes are permits and their limits differ.
pub fn conflicting_limit(wanted: Mode, present: Mode) -> Option<u32> {
    match (wanted, present) {
        (Mode::Permits { limit: wanted_limit, .. }, Mode::Permits { limit, .. }) if wanted_limit != limit => {
            Some(limit)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1u32..=4).prop_map(|n| Mode::Permits { n, limit: 4 })]
    }

    proptest! {
        #[test]
        fn modes_admitted_one_by_one_may_hold_together(requests in prop::collection::vec(mode(), 0..12)) {
            let mut held: Vec<Mode> = Vec::new();
            for wanted in requests {
                if fits(wanted, held.iter().copied()) {
                    held.push(wanted);
                }
            }
            let exclusive = held.iter().filter(|mode| **mode == Mode::Exclusive).count();
            let shared = held.iter().filter(|mode| **mode == Mode::Shared).count();
            let permits: u32 = held.iter().map(|mode| if let Mode::Permits { n, .. } = mode { *n } else { 0 }).sum();
            prop_assert!(exclusive <= 1);
            prop_assert!(exclusive == 0 || held.len() == 1);
            prop_assert!(shared == 0 || permits == 0);
            prop_assert!(permits <= 4);
        }

        #[test]
        fn a_free_lock_admits_every_mode(wanted in mode()) {
            prop_assert!(fits(wanted, []));
        }

        #[test]
        fn a_covered_mode_needs_no_further_permits(held in mode(), wanted in mode(), others in prop::collection::vec(mode(), 0..4)) {
            if covers(held, wanted) && fits(held, others.iter().copied()) && held != Mode::Exclusive {
                prop_assert!(fits(wanted, others.iter().copied()));
            }
        }
    }
}
