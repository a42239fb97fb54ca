//! Reads stored values and the answers of commands.

use redis::Value;

use super::config::Address;
use super::error;
use crate::types::{Error, ErrorKind, FORMAT, Result};

/// The number of the format, with which every value and message begins.
pub const FORMAT_DIGIT: u8 = b'0' + FORMAT as u8;

/// The rest of a stored value behind its format number; an error if that is another number.
pub fn check_format(text: &[u8]) -> Result<&[u8]> {
    match text.split_first() {
        Some((&FORMAT_DIGIT, rest)) => Ok(rest),
        Some((digit, _)) if digit.is_ascii_digit() => Err(Error::unknown_format(char::from(*digit), FORMAT)),
        _ => Err(not_ours()),
    }
}

/// The letter of a stored value's kind, and its fields; an error if it has another format.
pub fn kind_of(text: &[u8]) -> Result<(u8, &[u8])> {
    check_format(text)?.split_first().map(|(kind, fields)| (*kind, fields)).ok_or_else(not_ours)
}

/// No script of leasehold's has stored this.
pub fn not_ours() -> Error {
    Error::new(ErrorKind::Corrupt, "its record is not what leasehold writes")
}

/// Reads a text front to back.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    /// The number in the next `count` digits.
    pub fn number(&mut self, count: usize) -> Option<u64> {
        std::str::from_utf8(self.bytes(count)?).ok()?.parse().ok()
    }

    /// The next `count` bytes, if they are text.
    pub fn text(&mut self, count: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(count)?).ok()
    }
}

/// The bytes of a text answer.
pub fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// An integer, sent as a number or as digits.
pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The next cursor, and the keys, in the answer of `SCAN` by the server at `address`.
pub fn parse_scan(answer: &Value, address: &Address) -> Result<(String, Vec<String>)> {
    let text = |value: &Value| bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let read = || {
        let Value::Array(parts) = answer else { return None };
        let [cursor, Value::Array(keys)] = &parts[..] else { return None };
        Some((text(cursor)?, keys.iter().filter_map(text).collect()))
    };
    read().ok_or_else(|| error::unexpected_answer(address, answer))
}
