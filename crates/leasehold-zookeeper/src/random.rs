//! Random numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Random bits. The standard library keys its maps with random numbers from the system, which
/// differ from process to process and call to call.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number from 0 up to, but not including, `bound`; 0 if `bound` is 0.
pub(crate) fn below(bound: usize) -> usize {
    let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
    usize::try_from(bits() % bound).unwrap_or_default()
}

/// Puts a list in random order.
pub(crate) fn shuffle<T>(list: &mut [T]) {
    for end in (1..list.len()).rev() {
        list.swap(end, below(end + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_puts_any_item_first() {
        let mut seen = [false; 3];
        for _ in 0..200 {
            let mut list = [0, 1, 2];
            shuffle(&mut list);
            seen[list[0]] = true;
            list.sort_unstable();
            assert_eq!(list, [0, 1, 2]);
        }
        assert_eq!(seen, [true; 3]);
        assert_ne!(bits(), bits());
    }
}
