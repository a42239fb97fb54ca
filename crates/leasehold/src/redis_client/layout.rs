//! How values are stored on servers, defined once for Rust and for the scripts.
//!
//! [`layout!`] makes a struct that reads and writes a value. In a script, the two functions of
//! [`Layout::functions`] do the same: `read_…` turns a value into a table with the struct's fields,
//! and `write_…` does the opposite. Where a table would take too long, [`expand`] puts code in the
//! place of these words, which use a local variable for each field:
//!
//! | in a script | stands for |
//! |---|---|
//! | `READ(old, simple, main)` | `local old_token, old_kept, … = …`: all fields of a `simple`; `old_next` is the position behind it |
//! | `READ(old, simple.kept, main, at)` | the same from the byte `at`, and only up to the field `kept` |
//! | `WRITE(old, simple)` | the value with these variables, without its last field if that is the rest |
//! | `IS(simple, main)` | whether the value has this kind and the present format |
//! | `EMPTY(simple)` | the value whose fields are all zero or empty |
//!
//! Values are packed with Redis's `struct` library. A number is a double, as in Lua, and exact up
//! to 2^53.

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
    /// The first bytes of a value with a kind: the format number and the letter.
    fn tag(&self) -> Option<String> {
        self.kind.map(|kind| format!("{FORMAT}{kind}"))
    }

    /// The fields that `struct` packs, up to `last` if it is given, and their codes.
    ///
    /// # Panics
    /// If no field has the name `last`.
    fn packed(&self, last: Option<&str>) -> (Vec<&'static str>, String) {
        let (mut names, mut codes) = (Vec::new(), String::from(">"));
        codes.push_str(if self.kind.is_some() { "c2" } else { "" });
        for (name, field_type) in self.fields {
            match field_type {
                FieldType::Fixed(code) => codes.push_str(code),
                FieldType::Text => codes.push_str("I4c0"),
                FieldType::Rest => break,
            }
            names.push(*name);
            if last == Some(*name) {
                return (names, codes);
            }
        }
        assert!(last.is_none(), "the layout {} has no field {last:?}", self.name);
        (names, codes)
    }

    /// The variables that `struct` returns for these fields, each with the prefix.
    fn variables(&self, prefix: &str, names: &[&str]) -> String {
        let tag = self.kind.map(|_| "_".to_owned());
        let fields = names.iter().copied().chain(["next"]).map(|name| format!("{prefix}{name}"));
        tag.into_iter().chain(fields).collect::<Vec<_>>().join(", ")
    }

    /// The call that packs the fields but the rest; each variable has the prefix.
    fn pack_call(&self, prefix: &str) -> String {
        let (names, codes) = self.packed(None);
        let argument = |name: &&str| {
            let is_text = self.fields.iter().any(|(field, kind)| field == name && *kind == FieldType::Text);
            if is_text { format!("#{prefix}{name}, {prefix}{name}") } else { format!("{prefix}{name}") }
        };
        let tag = self.tag().map(|tag| format!("'{tag}'"));
        let arguments: Vec<_> = tag.into_iter().chain(names.iter().map(argument)).collect();
        format!("encode('{codes}', {})", arguments.join(", "))
    }

    /// The field that is the rest of the value.
    fn rest(&self) -> Option<&'static str> {
        self.fields.iter().find(|(_, kind)| *kind == FieldType::Rest).map(|(field, _)| *field)
    }

    /// The value whose fields are all zero or empty, as a text in Lua.
    fn empty_value(&self) -> String {
        let size = |(_, field_type): &(&str, FieldType)| match field_type {
            FieldType::Fixed("d") => 8,
            FieldType::Fixed("B") => 1,
            FieldType::Fixed(code) => code[1..].parse().unwrap_or(0),
            FieldType::Text => 4,
            FieldType::Rest => 0,
        };
        let zeros: usize = self.fields.iter().map(size).sum();
        format!("'{}{}'", self.tag().unwrap_or_default(), r"\0".repeat(zeros))
    }

    /// The functions `read_…` and `write_…` for the scripts.
    ///
    /// `read_…(packed, at)` begins at the byte `at`, or at the first. It returns the table, and the
    /// position behind the value. For a value of another kind it returns nil.
    pub fn functions(&self) -> String {
        let (name, (names, codes)) = (self.name, self.packed(None));
        let mut lua = format!("local function read_{name}(packed, at)\n");
        if let Some(kind) = self.kind {
            let _ = writeln!(lua, "  if kind_of(packed) ~= '{kind}' then return nil end");
        }
        let _ = writeln!(lua, "  local {} = decode('{codes}', packed, at)", self.variables("", &names));
        let rest = self.rest().map(|field| format!("{field} = sub(packed, next)"));
        let table: Vec<_> = names.iter().map(|field| format!("{field} = {field}")).chain(rest).collect();
        let _ = writeln!(lua, "  return {{ {} }}, next\nend", table.join(", "));
        let tail = self.rest().map_or(String::new(), |field| format!(" .. value.{field}"));
        let _ = writeln!(lua, "local function write_{name}(value)\n  return {}{tail}\nend", self.pack_call("value."));
        lua
    }
}

/// Puts the code of these layouts in the place of the words `READ`, `WRITE`, `IS` and `EMPTY`.
///
/// # Panics
/// If the script names another layout.
pub fn expand(script: &str, layouts: &[Layout]) -> String {
    let find = |name: &str| {
        let found = layouts.iter().find(|layout| layout.name == name);
        found.unwrap_or_else(|| panic!("the script has no layout named {name:?}"))
    };
    let mut lua = String::with_capacity(script.len() * 2);
    let mut rest = script;
    while let Some((at, word)) = ["READ(", "WRITE(", "IS(", "EMPTY("]
        .into_iter()
        .filter_map(|word| word_position(rest, word).map(|at| (at, word)))
        .min_by_key(|(at, _)| *at)
    {
        lua.push_str(&rest[..at]);
        let (arguments, after) = arguments_of(&rest[at + word.len()..]);
        match (word, &arguments[..]) {
            ("READ(", [prefix, what, packed @ ..]) => {
                let (name, last) = what.split_once('.').map_or((*what, None), |(name, last)| (name, Some(last)));
                let layout = find(name);
                let (names, codes) = layout.packed(last);
                let variables = layout.variables(&format!("{prefix}_"), &names);
                let packed = expand(&packed.join(", "), layouts);
                let _ = write!(lua, "local {variables} = decode('{codes}', {packed})");
            }
            ("WRITE(", [prefix, name]) => lua.push_str(&find(name).pack_call(&format!("{prefix}_"))),
            ("IS(", [name, packed]) => {
                let _ = write!(lua, "(sub({packed}, 1, 2) == '{}')", find(name).tag().unwrap_or_default());
            }
            ("EMPTY(", [name]) => lua.push_str(&find(name).empty_value()),
            _ => panic!("{word} has other arguments than {arguments:?}"),
        }
        rest = after;
    }
    lua + rest
}

/// Where a word stands in a script: not as the end of another one.
fn word_position(script: &str, word: &str) -> Option<usize> {
    let is_whole = |at: &usize| !script[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    script.match_indices(word).map(|(at, _)| at).find(is_whole)
}

/// The arguments up to the closing bracket, and the text behind it.
fn arguments_of(text: &str) -> (Vec<&str>, &str) {
    let (mut arguments, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                arguments.push(text[start..at].trim());
                return (arguments, &text[at + 1..]);
            }
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    (arguments, "")
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
/// fields. `Field`, `Layout`, `Reader` and `Stored` must be in scope.
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

        impl Stored for $name {
            const LAYOUT: Layout = Layout {
                name: $lua,
                kind: [$(Some($kind),)? None][0],
                fields: &[$((stringify!($field), <$type as Field>::TYPE),)*],
            };

            fn parse(reader: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: Field::parse(reader)?,)* })
            }

            fn append(&self, value: &mut Vec<u8>) {
                $(Field::append(&self.$field, value);)*
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
  local _, number, flag, id, letter, run, text, nested, next = decode('>c2dBc16c1c8I4c0I4c0', packed, at)
  return { number = number, flag = flag, id = id, letter = letter, run = run, text = text, nested = nested, rest = sub(packed, next) }, next
end
local function write_example(value)
  return encode('>c2dBc16c1c8I4c0I4c0', '1X', value.number, value.flag, value.id, value.letter, value.run, #value.text, value.text, #value.nested, value.nested) .. value.rest
end
";
        assert_eq!(Example::LAYOUT.functions(), expected);
    }

    #[test]
    #[should_panic(expected = "the layout example has no field Some(\"ide\")")]
    fn a_field_that_does_not_exist_is_found_before_the_script_runs() {
        expand("READ(old, example.ide, main)", &[Example::LAYOUT]);
    }

    #[test]
    fn the_words_of_a_script_become_code_with_a_variable_for_each_field() {
        let expanded = |script: &str| expand(script, &[Example::LAYOUT]);
        assert_eq!(
            expanded("READ(old, example.id, call('GET', KEYS[1]), at)\nREAD(new, example, ARGV[4])"),
            "local _, old_number, old_flag, old_id, old_next = decode('>c2dBc16', call('GET', KEYS[1]), at)\n\
             local _, new_number, new_flag, new_id, new_letter, new_run, new_text, new_nested, new_next = \
             decode('>c2dBc16c1c8I4c0I4c0', ARGV[4])"
        );
        assert_eq!(
            expanded("if IS(example, main) then THIS() end return WRITE(old, example) .. tail"),
            "if (sub(main, 1, 2) == '1X') then THIS() end return encode('>c2dBc16c1c8I4c0I4c0', '1X', old_number, \
             old_flag, old_id, old_letter, old_run, #old_text, old_text, #old_nested, old_nested) .. tail"
        );
        let empty = expanded("EMPTY(example)");
        let value = empty.trim_matches('\'').replace(r"\0", "\0");
        let example = Example::read(value.as_bytes()).expect("an example");
        assert_eq!((example.number, &*example.text, example.rest), (0, "", Rest::default()));
    }
}
