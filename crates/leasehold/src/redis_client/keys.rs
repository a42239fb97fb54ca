//! The names of keys and channels, and their slots in a cluster.

use std::sync::LazyLock;

use crate::types::LockName;

/// The key of this name, with this letter for its kind.
pub fn named_key(prefix: &str, letter: char, name: &str) -> String {
    if hash_tag(name).is_some() {
        format!("{prefix}{letter}={name}")
    } else if name.starts_with('}') {
        format!("{prefix}{letter}~{{x}}{name}")
    } else {
        format!("{prefix}{letter}{{{name}}}")
    }
}

/// The name in a key with this letter.
pub fn name_of(prefix: &str, letter: char, found: &str) -> Option<LockName> {
    let rest = found.strip_prefix(prefix)?.strip_prefix(letter)?;
    let name = match rest.as_bytes().first()? {
        b'=' => &rest[1..],
        b'~' => rest.strip_prefix("~{x}")?,
        _ => rest.strip_prefix('{')?.strip_suffix('}')?,
    };
    LockName::new(name).ok().filter(|name| named_key(prefix, letter, name.as_str()) == found)
}

/// A pattern that matches all keys that begin with `start`.
pub fn pattern(start: &str) -> String {
    let mut pattern = String::new();
    for letter in start.chars() {
        if "*?[]\\^-".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

/// The part of a key that determines its slot.
pub fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key in a cluster: CRC16 (XMODEM) of its hash tag.
pub fn slot(key: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in hash_tag(key).unwrap_or(key).bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// A key that belongs to no lock; in a cluster, one in this slot.
pub fn auxiliary_key(prefix: &str, letter: char, slot: Option<u16>) -> String {
    match slot {
        Some(slot) => format!("{prefix}{letter}{{{}}}", hash_tag_of_slot(slot)),
        None => format!("{prefix}{letter}"),
    }
}

/// A hash tag of this slot.
fn hash_tag_of_slot(slot: u16) -> u32 {
    static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut tags = vec![u32::MAX; SLOTS.into()];
        let mut found = 0;
        for number in 0.. {
            let tag = &mut tags[usize::from(self::slot(&number.to_string()))];
            if *tag == u32::MAX {
                *tag = number;
                found += 1;
            }
            if found == SLOTS {
                break;
            }
        }
        tags
    });
    TAGS.get(usize::from(slot)).copied().unwrap_or_default()
}

/// The length of an inbox's number.
pub const INBOX_DIGITS: usize = 16;

/// The channel of an inbox.
pub fn inbox_channel(prefix: &str, inbox: &str) -> String {
    format!("{prefix}i{inbox}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_servers() {
        for (key, expected) in
            [("123456789", 12_739), ("foo", 12_182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn special_characters_in_a_pattern_are_escaped() {
        assert_eq!(pattern("a*[b]:"), "a\\*\\[b\\]:*");
    }
}
