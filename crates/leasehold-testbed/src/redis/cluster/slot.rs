//! The slot of a key.

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16384;

/// The slot of `key`: the checksum of the text between its first `{` and the next `}`, or of the
/// whole key if there is none.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(byte) << 8), |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16("123456789"), 0x31C3);
    }

    #[test]
    fn only_a_non_empty_hash_tag_counts() {
        assert_eq!(slot_of("a{b}c"), slot_of("b"));
        assert_eq!(slot_of("a{b}{c}"), slot_of("b"));
        assert_eq!(slot_of("a{{b}}"), slot_of("{b"));
        for plain in ["{}a", "a{", "}a{"] {
            assert_eq!(slot_of(plain), crc16(plain) % SLOTS);
        }
    }
}
