//! Which slot of a cluster a key belongs to.

use std::ops::RangeInclusive;

/// A cluster has so many.
const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands in its first braces, or of all of it.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let inside = &key[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &inside[..close],
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    let mut sum = 0u16;
    for &byte in bytes {
        sum ^= u16::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
        }
    }
    sum
}

/// A lock name that nobody has, in one of these slots; in any if there are none.
pub(crate) fn nobodys_name(slots: &[RangeInclusive<u16>]) -> String {
    let random = crate::random::bits();
    let mut names = (0u32..).map(|turn| format!("leasehold-doctor-{random:032x}-{turn}"));
    let fits = |name: &String| slots.is_empty() || slots.iter().any(|range| range.contains(&slot(name.as_bytes())));
    // Even a single slot is found among so many, as good as always; if not, the probe says MOVED.
    names.by_ref().take(400_000).find(fits).unwrap_or_else(|| format!("leasehold-doctor-{random:032x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        for (key, expected) in
            [("foo", 12_182), ("123456789", 12_739), ("a{foo}b", 12_182), ("{}foo", 9500), ("foo{", 7673)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn a_name_in_a_slot_that_a_node_has() {
        let name = nobodys_name(&[100..=102]);
        assert!((100..=102).contains(&slot(format!("x:l{{{name}}}").as_bytes())), "{name}");
        assert_ne!(nobodys_name(&[]), nobodys_name(&[]));
    }
}
