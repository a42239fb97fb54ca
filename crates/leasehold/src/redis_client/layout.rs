//! How values are stored on servers, defined once for Rust and for the scripts.
//!
//! [`layout!`] makes a struct that reads and writes a value, and [`Layout::lua`] makes the two Lua
//! functions that do the same: `read_…` turns a value into a table with the struct's fields, and
//! `write_…` does the opposite. Values are packed with Redis's `struct` library. A number is a
//! double, as in Lua, and exact up to 2^53.

use std::fmt::Write;
use std::sync::Arc;

use super::values::{Reader, kind_of, not_ours};
use crate::types::{ClaimId, FORMAT, Result, Token};

/// The type of a field, as the scripts pack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A value of fixed size, by this code of Lua's `struct` library.
    Fixed(&'static str),
    /// A text, preceded by its length.
    Text,
    /// The rest of the value: the last field.
    Rest,
}

/// A field of a stored value.
pub trait Field: Sized {
    /// Its type in the scripts.
    const TYPE: FieldType;
    /// Reads it from the front of a value.
    fn parse(reader: &mut Reader<'_>) -> Option<Self>;
    /// Appends it to a value.
    fn append(&self, value: &mut Vec<u8>);
}

/// The fields of a stored value, in order.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// What the value is called in the scripts.
    pub name: &'static str,
    /// The letter that follows the format number in a value of this layout. A value without it is
    /// part of another.
    pub kind: Option<char>,
    /// Names and types of the fields.
    pub fields: &'static [(&'static str, FieldType)],
}

impl Layout {
    /// The functions `read_…` and `write_…` for the scripts.
    ///
    /// `read_…(packed, at)` begins at the byte `at`, or at the first. It returns the table, and the
    /// position behind the value. For a value of another kind it returns nil.
    pub fn lua(&self) -> String {
        let Self { name, kind, fields } = self;
        let names: Vec<_> = fields.iter().map(|(field, _)| *field).collect();
        let rest = fields.iter().find(|(_, kind)| *kind == FieldType::Rest).map(|(field, _)| *field);
        let code = |(_, kind): &(&str, FieldType)| match kind {
            FieldType::Fixed(code) => *code,
            FieldType::Text => "I4c0",
            FieldType::Rest => "",
        };
        let codes: String = fields.iter().map(code).collect();
        let (header, skipped) = if kind.is_some() { ("c1c1", "_, _, ") } else { ("", "") };
        let format = format!("'>{header}{codes}'");
        let packed: Vec<_> = names.iter().filter(|field| Some(**field) != rest).copied().collect();
        let mut lua = format!("local function read_{name}(packed, at)\n");
        if let Some(kind) = kind {
            let _ = writeln!(lua, "  if kind_of(packed) ~= '{kind}' then return nil end");
        }
        let _ = writeln!(lua, "  local {skipped}{}, next = decode({format}, packed, at)", packed.join(", "));
        let value = |field: &&str| {
            if Some(*field) == rest { format!("{field} = sub(packed, next)") } else { format!("{field} = {field}") }
        };
        let table: Vec<_> = names.iter().map(value).collect();
        let _ = writeln!(lua, "  return {{ {} }}, next\nend", table.join(", "));
        let argument = |(field, kind): &(&str, FieldType)| match kind {
            FieldType::Fixed(_) => Some(format!("value.{field}")),
            FieldType::Text => Some(format!("#value.{field}, value.{field}")),
            FieldType::Rest => None,
        };
        let header = kind.map(|kind| format!("FORMAT, '{kind}'"));
        let arguments: Vec<_> = header.into_iter().chain(fields.iter().filter_map(argument)).collect();
        let tail = rest.map_or(String::new(), |field| format!(" .. value.{field}"));
        let _ = writeln!(
            lua,
            "local function write_{name}(value)\n  return encode({format}, {}){tail}\nend",
            arguments.join(", ")
        );
        lua
    }
}

/// A value with a layout.
pub trait Stored: Sized {
    /// Its fields.
    const LAYOUT: Layout;

    /// Reads the fields from the front of a value.
    fn parse(reader: &mut Reader<'_>) -> Option<Self>;

    /// Appends the fields to a value.
    fn append(&self, value: &mut Vec<u8>);

    /// Reads a whole value, with its format number and its kind if it has one.
    ///
    /// # Errors
    /// `UnknownFormat` if it has another format number, `Corrupt` if leasehold did not write it.
    fn read(text: &[u8]) -> Result<Self> {
        let fields = match Self::LAYOUT.kind {
            None => text,
            Some(kind) => match kind_of(text)? {
                (found, fields) if char::from(found) == kind => fields,
                _ => return Err(not_ours()),
            },
        };
        Self::parse(&mut Reader(fields)).ok_or_else(not_ours)
    }

    /// The whole value.
    fn write(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(160);
        if let Some(kind) = Self::LAYOUT.kind {
            value.extend(FORMAT.to_string().bytes());
            value.push(kind as u8);
        }
        self.append(&mut value);
        value
    }
}

/// Defines a stored value: its name in the scripts, its kind if it is a value of its own, and its
/// fields.
#[doc(hidden)]
#[macro_export]
macro_rules! stored_layout {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident = $lua:literal $(, kind $kind:literal)? {
            $($(#[$field_attribute:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $type,)*
        }

        impl $crate::internals::redis::Stored for $name {
            const LAYOUT: $crate::internals::redis::Layout = $crate::internals::redis::Layout {
                name: $lua,
                kind: [$(Some($kind),)? None][0],
                fields: &[$((stringify!($field), <$type as $crate::internals::redis::Field>::TYPE),)*],
            };

            fn parse(reader: &mut $crate::internals::redis::Reader<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::internals::redis::Field::parse(reader)?,)* })
            }

            fn append(&self, value: &mut Vec<u8>) {
                $($crate::internals::redis::Field::append(&self.$field, value);)*
            }
        }
    };
}
pub use stored_layout as layout;

impl Field for u64 {
    const TYPE: FieldType = FieldType::Fixed("d");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let number = f64::from_be_bytes(reader.bytes(8)?.try_into().ok()?);
        // The scripts write whole numbers only; another program may have written this.
        (number >= 0.0 && number < 2f64.powi(63) && number.fract() == 0.0).then_some(number as Self)
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend((*self as f64).to_be_bytes());
    }
}

impl Field for bool {
    const TYPE: FieldType = FieldType::Fixed("B");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.bytes(1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.push(u8::from(*self));
    }
}

impl Field for Token {
    const TYPE: FieldType = u64::TYPE;

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        u64::parse(reader).map(Self)
    }

    fn append(&self, value: &mut Vec<u8>) {
        self.0.append(value);
    }
}

/// An id. All bits zero mean that there is none.
impl Field for u128 {
    const TYPE: FieldType = FieldType::Fixed("c16");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self::from_be_bytes(reader.bytes(16)?.try_into().ok()?))
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend(self.to_be_bytes());
    }
}

impl Field for ClaimId {
    const TYPE: FieldType = u128::TYPE;

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        u128::parse(reader).map(Self::from_bits)
    }

    fn append(&self, value: &mut Vec<u8>) {
        self.bits().append(value);
    }
}

/// A letter that stands for a word.
impl Field for char {
    const TYPE: FieldType = FieldType::Fixed("c1");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes(1).map(|byte| Self::from(byte[0]))
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.push(*self as u8);
    }
}

/// The run of a server, as it is stored: see [`short_run`](super::short_run).
impl Field for [u8; super::RUN_DIGITS] {
    const TYPE: FieldType = FieldType::Fixed("c8");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes(super::RUN_DIGITS)?.try_into().ok()
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend(self);
    }
}

impl Field for Arc<str> {
    const TYPE: FieldType = FieldType::Text;

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::from_be_bytes(reader.bytes(4)?.try_into().ok()?);
        std::str::from_utf8(reader.bytes(length as usize)?).ok().map(Self::from)
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend((self.len() as u32).to_be_bytes());
        value.extend(self.bytes());
    }
}

/// The rest of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest(pub Vec<u8>);

impl Field for Rest {
    const TYPE: FieldType = FieldType::Rest;

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes(reader.0.len()).map(|rest| Self(rest.to_vec()))
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend(&self.0);
    }
}

/// A value of another layout, or one that the reader does not parse, preceded by its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nested(pub Vec<u8>);

impl Field for Nested {
    const TYPE: FieldType = FieldType::Text;

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::from_be_bytes(reader.bytes(4)?.try_into().ok()?);
        reader.bytes(length as usize).map(|value| Self(value.to_vec()))
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend((self.0.len() as u32).to_be_bytes());
        value.extend(&self.0);
    }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the structs of layouts are public")]
mod tests {
    use super::*;

    layout! {
        /// A value with every type of field.
        pub struct Example = "example", kind 'X' {
            number: u64,
            flag: bool,
            id: u128,
            letter: char,
            run: [u8; super::super::RUN_DIGITS],
            text: Arc<str>,
            nested: Nested,
            rest: Rest,
        }
    }

    fn example() -> Example {
        Example {
            number: 1 << 53,
            flag: true,
            id: u128::MAX - 1,
            letter: 'E',
            run: *b"12345678",
            text: "text".into(),
            nested: Nested(vec![0, 255]),
            rest: Rest(vec![7, 8]),
        }
    }

    #[test]
    fn a_value_is_read_back_as_it_was_written() {
        assert_eq!(Example::read(&example().write()).expect("an example"), example());
    }

    #[test]
    fn a_value_of_another_format_or_kind_is_refused() {
        let text = example().write();
        let error = |text: &[u8]| Example::read(text).expect_err("another value").kind();
        use crate::types::ErrorKind::{Corrupt, UnknownFormat};
        assert_eq!(error(&[b"2", &text[1..]].concat()), UnknownFormat);
        assert_eq!(error(&[b"1Y", &text[2..]].concat()), Corrupt);
        for length in 0..text.len() - 2 {
            assert!(Example::read(&text[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn the_scripts_get_functions_with_the_same_fields() {
        let expected = "\
local function read_example(packed, at)
  if kind_of(packed) ~= 'X' then return nil end
  local _, _, number, flag, id, letter, run, text, nested, next = decode('>c1c1dBc16c1c8I4c0I4c0', packed, at)
  return { number = number, flag = flag, id = id, letter = letter, run = run, text = text, nested = nested, rest = sub(packed, next) }, next
end
local function write_example(value)
  return encode('>c1c1dBc16c1c8I4c0I4c0', FORMAT, 'X', value.number, value.flag, value.id, value.letter, value.run, #value.text, value.text, #value.nested, value.nested) .. value.rest
end
";
        assert_eq!(Example::LAYOUT.lua(), expected);
    }
}
