//! All keys, scripts, arguments, replies and messages.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>c{key}` | hash | one key of the cache, as documented in `scripts/load_record.lua` |
//! | `<prefix>t{key}` | string | a value of a textbook [strategy](super::strategy) |
//! | `<prefix>i<number>` | channel | a client's inbox, with the ends of loads that its readers wait for |

use std::sync::Arc;

use redis::{Cmd, Value};

use crate::logic::{
    Data, LoadedValue, Operation, OperationReply, ReadReply, ReadRequest, StoreRefusal, WriteEnd, WriteRequest,
};
use leasehold_internals::redis::keys::named_key;
use leasehold_internals::redis::values::{bytes, check_format, integer};
use leasehold_internals::redis::{CachedScript, Reader};

/// The default prefix of the cache's keys. It differs from the locks' prefix: a cache may be
/// evicted, and locks may not.
pub(crate) const PREFIX: &str = "leasehold-cache:";

pub(crate) fn entry_key(prefix: &str, key: &str) -> String {
    named_key(prefix, 'c', key)
}

pub(crate) fn plain_key(prefix: &str, key: &str) -> String {
    named_key(prefix, 't', key)
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

/// One script for each [`Operation`], and `textbook` for the textbook strategies.
#[derive(Debug)]
pub(crate) struct Scripts {
    read: Arc<CachedScript>,
    store: Arc<CachedScript>,
    release_lease: Arc<CachedScript>,
    invalidate: Arc<CachedScript>,
    begin_write: Arc<CachedScript>,
    extend_write: Arc<CachedScript>,
    finish_write: Arc<CachedScript>,
    pub(crate) textbook: Arc<CachedScript>,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let on_record = |rest: &str| CachedScript::new([lua!("prelude"), lua!("load_record"), rest].concat());
        Self {
            read: CachedScript::new(
                [lua!("prelude"), lua!("read_fresh"), lua!("load_record"), lua!("read_or_lend")].concat(),
            ),
            store: on_record(lua!("store_loaded")),
            release_lease: on_record(lua!("release_lease")),
            invalidate: on_record(lua!("invalidate")),
            begin_write: on_record(lua!("begin_write")),
            extend_write: on_record(lua!("extend_write")),
            finish_write: on_record(lua!("finish_write")),
            textbook: CachedScript::new(lua!("run_textbook_command").to_owned()),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<CachedScript>> {
        let Self { read, store, release_lease, invalidate, begin_write, extend_write, finish_write, textbook } = self;
        [read, store, release_lease, invalidate, begin_write, extend_write, finish_write, textbook]
            .map(Arc::clone)
            .to_vec()
    }

    pub(crate) fn for_operation(&self, operation: &Operation) -> &CachedScript {
        match operation {
            Operation::Read(_) => &self.read,
            Operation::Store(_) => &self.store,
            Operation::GiveUp(..) => &self.release_lease,
            Operation::Invalidate(..) => &self.invalidate,
            Operation::BeginWrite(_) => &self.begin_write,
            Operation::ExtendWrite(..) => &self.extend_write,
            Operation::FinishWrite(..) => &self.finish_write,
        }
    }
}

fn encode_id(id: u128) -> String {
    format!("{id:032x}")
}

fn encode_time(microseconds: u64) -> String {
    format!("{microseconds:016}")
}

/// A token or a version in twenty digits, so that texts compare as the numbers do.
fn encode_number(number: u64) -> String {
    format!("{number:020}")
}

/// Appends the operation's own arguments, which follow those that all scripts have.
pub(crate) fn push_arguments(command: &mut Cmd, operation: &Operation) {
    match operation {
        Operation::Read(ReadRequest { lease, lease_time, keep_for, stale_for, early_factor }) => {
            command.arg(encode_id(*lease)).arg(*lease_time).arg(*keep_for).arg(*stale_for).arg(*early_factor);
        }
        Operation::Store(load) => {
            command.arg(encode_id(load.lease)).arg(encode_time(load.generation));
            push_loaded_value(command, load);
        }
        Operation::GiveUp(lease, why) => {
            command.arg(encode_id(*lease)).arg(why);
        }
        Operation::Invalidate(version, stale_for, keep_for) => {
            command.arg(encode_number(*version)).arg(*stale_for).arg(*keep_for);
        }
        Operation::BeginWrite(WriteRequest { mark, token, mark_time, stale_for, keep_for }) => {
            command.arg(encode_id(*mark)).arg(encode_number(*token)).arg(*mark_time).arg(*stale_for).arg(*keep_for);
        }
        Operation::ExtendWrite(mark, mark_for, keep_for) => {
            command.arg(encode_id(*mark)).arg(*mark_for).arg(*keep_for);
        }
        Operation::FinishWrite(mark, None, keep_for) => {
            command.arg(encode_id(*mark)).arg(*keep_for).arg("0");
        }
        Operation::FinishWrite(mark, Some(load), keep_for) => {
            command.arg(encode_id(*mark)).arg(*keep_for).arg("1").arg(encode_time(load.generation));
            push_loaded_value(command, load);
        }
    }
}

fn push_loaded_value(command: &mut Cmd, load: &LoadedValue) {
    match &load.data {
        Some(data) => command.arg("V").arg(data),
        None => command.arg("N").arg(""),
    };
    command.arg(load.version.map(encode_number).unwrap_or_default());
    command.arg(encode_time(load.load_cost)).arg(load.fresh_for).arg(load.stale_for);
}

/// Parses the reply of the operation's script; `None` if the script cannot have sent it.
pub(crate) fn parse_reply(operation: &Operation, value: Value) -> Option<OperationReply> {
    match operation {
        Operation::Read(_) => parse_read_reply(value).map(OperationReply::Read),
        Operation::Store(_) => Some(OperationReply::Stored(match integer(&value)? {
            0 => Ok(()),
            1 => Err(StoreRefusal::Invalidated),
            2 => Err(StoreRefusal::Overtaken),
            3 => Err(StoreRefusal::Older),
            4 => Err(StoreRefusal::NoRow),
            _ => return None,
        })),
        Operation::GiveUp(..) | Operation::Invalidate(..) => (integer(&value)? == 0).then_some(OperationReply::Done),
        Operation::BeginWrite(_) => {
            let Value::Array(parts) = value else { return None };
            let token = std::str::from_utf8(bytes(parts.get(1)?)?).ok()?.parse().ok()?;
            Some(OperationReply::WriteBegun(if integer(parts.first()?)? == 1 { Ok(token) } else { Err(token) }))
        }
        Operation::ExtendWrite(..) => Some(OperationReply::WriteExtended(integer(&value)? == 1)),
        Operation::FinishWrite(..) => Some(OperationReply::WriteFinished(if integer(&value)? == 1 {
            WriteEnd::MarkHeld
        } else {
            WriteEnd::Overtaken
        })),
    }
}

fn parse_read_reply(value: Value) -> Option<ReadReply> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let what = integer(&parts.next()?)?;
    match what {
        5 => {
            let lease = u128::from_str_radix(std::str::from_utf8(bytes(&parts.next()?)?).ok()?, 16).ok()?;
            return Some(ReadReply::Wait(lease, integer(&parts.next()?)?.try_into().ok()?));
        }
        6 => return Some(ReadReply::WriteInProgress),
        _ => {}
    }
    let kind = parts.next()?;
    let Value::BulkString(data) = parts.next()? else { return None };
    let data: Option<Data> = match bytes(&kind)? {
        b"V" => Some(Some(data)),
        b"N" => Some(None),
        _ => None,
    };
    let generation = parts.next();
    let generation = || Reader(bytes(generation.as_ref()?)?).number(16);
    Some(match what {
        1 => ReadReply::Hit(data?),
        2 => ReadReply::Early(data?, generation()?),
        3 => ReadReply::Stale(data?),
        4 => ReadReply::Load(generation()?, data),
        _ => return None,
    })
}

/// A message in a client's inbox: a lease that its readers wait for has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) lease: u128,
    pub(crate) key: String,
    /// The error of the load; `None` if it did not fail.
    pub(crate) failure: Option<String>,
}

impl Message {
    /// `None` if the scripts cannot have sent `text`.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(check_format(text).ok()?);
        let lease = u128::from_str_radix(std::str::from_utf8(reader.bytes(32)?).ok()?, 16).ok()?;
        let size = reader.number(6)?;
        let key = String::from_utf8(reader.bytes(size.try_into().ok()?)?.to_vec()).ok()?;
        let rest = String::from_utf8_lossy(reader.0).into_owned();
        Some(Self { lease, key, failure: (!rest.is_empty()).then_some(rest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_as_the_scripts_write_them() {
        let text = format!("1{}000003a}}b", encode_id(7));
        let message = Message { lease: 7, key: "a}b".into(), failure: None };
        assert_eq!(Message::parse(text.as_bytes()), Some(message));
        let failed = Message::parse(format!("{text}no luck").as_bytes()).unwrap();
        assert_eq!(failed.failure.as_deref(), Some("no luck"));
        assert_eq!(Message::parse(b"nonsense"), None);
    }

    #[test]
    fn unknown_replies_are_not_parsed() {
        let request =
            Operation::Read(ReadRequest { lease: 1, lease_time: 1, keep_for: 1, stale_for: 0, early_factor: 0 });
        assert_eq!(parse_reply(&request, Value::Int(1)), None);
        assert_eq!(
            parse_reply(&request, Value::Array(vec![Value::Int(6)])),
            Some(OperationReply::Read(ReadReply::WriteInProgress))
        );
        assert_eq!(parse_reply(&Operation::Invalidate(0, 0, 0), Value::Nil), None);
    }
}
