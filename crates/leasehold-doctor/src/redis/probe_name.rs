//! Names for the locks of probes.

use std::ops::RangeInclusive;

use leasehold_internals::redis::keys::slot;

/// A lock name that no client uses, and whose hash slot is one of `slots`; any slot if that is
/// empty.
pub(crate) fn unused_lock_name(slots: &[RangeInclusive<u16>]) -> String {
    let random = leasehold_internals::random::random_bits();
    let mut names = (0u32..).map(|turn| format!("leasehold-doctor-{random:032x}-{turn}"));
    let fits = |name: &String| slots.is_empty() || slots.iter().any(|range| range.contains(&slot(name)));
    // Among 400,000 names there is practically always one in even a single slot; if not, the server
    // answers the probe with MOVED.
    names.by_ref().take(400_000).find(fits).unwrap_or_else(|| format!("leasehold-doctor-{random:032x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_name_is_in_one_of_the_nodes_slots() {
        let name = unused_lock_name(&[100..=102]);
        assert!((100..=102).contains(&slot(&format!("x:l{{{name}}}"))), "{name}");
        assert_ne!(unused_lock_name(&[]), unused_lock_name(&[]));
    }
}
