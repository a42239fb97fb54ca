//! All keys, scripts, arguments, replies and messages.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>c{key}` | hash | one key of the cache: an [`Entry`], its value, and the inboxes of waiting readers; see `scripts/load_record.lua` |
//! | `<prefix>t{key}` | string | a value of a textbook [strategy](super::strategy) |
//! | `<prefix>i<number>` | channel | a client's inbox, with the ends of loads that its readers wait for |

use std::sync::Arc;

use redis::{Cmd, Value};

use crate::logic::{
    Data, LoadedValue, Operation, OperationReply, ReadReply, ReadRequest, StoreRefusal, WriteEnd, WriteRequest,
};
use leasehold_internals::redis::keys::named_key;
use leasehold_internals::redis::values::{bytes, integer};
use leasehold_internals::redis::{CachedScript, Field, FieldType, Layout, Reader, Stored, expand, layout, lua};

/// The default prefix of the cache's keys. It differs from the locks' prefix: a cache may be
/// evicted, and locks may not.
pub(crate) const PREFIX: &str = "leasehold-cache:";

pub(crate) fn entry_key(prefix: &str, key: &str) -> String {
    named_key(prefix, 'c', key)
}

pub(crate) fn plain_key(prefix: &str, key: &str) -> String {
    named_key(prefix, 't', key)
}

/// A token or a version in twenty digits: it may be above 2^53, and such texts compare as the
/// numbers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal(pub u64);

impl Field for Decimal {
    const TYPE: FieldType = FieldType::Fixed("c20");

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.number(20).map(Self)
    }

    fn append(&self, value: &mut Vec<u8>) {
        value.extend(encode_number(self.0).bytes());
    }
}

layout! {
    /// One key of the cache, without its value: the field `m`. Times are in µs.
    pub struct Entry = "entry", kind 'C' {
        /// The number of the last change.
        generation: u64,
        /// The key is kept until then.
        keep: u64,
        /// The reader that may load the value; zero: none.
        lease: u128,
        lease_until: u64,
        /// The write in progress; zero: none.
        mark: u128,
        mark_until: u64,
        /// The highest token of a writer.
        token: Decimal,
        /// The lowest version that a value may have.
        version: Decimal,
        /// `V`: a value; `N`: the row does not exist; `-`: nothing.
        kind: char,
        /// The generation of the value.
        of: u64,
        /// Until when the value is fresh.
        fresh: u64,
        /// How long its load took.
        cost: u64,
        /// Until when the row is expected to exist.
        row_until: u64,
        /// When this was written.
        written: u64,
    }
}

layout! {
    /// The inbox of a waiting reader.
    pub struct Inbox = "inbox" {
        number: u128,
    }
}

layout! {
    /// A message in a client's inbox: a lease that its readers wait for has ended.
    pub struct LeaseEnded = "lease_ended", kind 'E' {
        lease: u128,
        key: Arc<str>,
        /// The error of the load; empty if it did not fail.
        failure: Arc<str>,
    }
}

macro_rules! script {
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
        let entry = lua::FORMAT_CHECK.to_owned() + &Entry::LAYOUT.functions();
        let others = lua::functions(&[Inbox::LAYOUT, LeaseEnded::LAYOUT]);
        let step = |first: &str, rest: &str| {
            let parts = [lua::PRELUDE, lua::SERVER_TIME, first, &entry, &others, script!("load_record"), rest];
            CachedScript::new(expand(&parts.concat(), &[Entry::LAYOUT]))
        };
        Self {
            read: step(script!("read_fresh"), script!("read_or_lend")),
            store: step("", script!("store_loaded")),
            release_lease: step("", script!("release_lease")),
            invalidate: step("", script!("invalidate")),
            begin_write: step("", script!("begin_write")),
            extend_write: step("", script!("extend_write")),
            finish_write: step("", script!("finish_write")),
            textbook: CachedScript::new(script!("run_textbook_command").to_owned()),
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

fn encode_id(id: u128) -> [u8; 16] {
    id.to_be_bytes()
}

/// A token or a version: see [`Decimal`].
fn encode_number(number: u64) -> String {
    format!("{number:020}")
}

/// Appends the operation's own arguments, which follow those that all scripts have.
pub(crate) fn push_arguments(command: &mut Cmd, operation: &Operation) {
    match operation {
        Operation::Read(ReadRequest { lease, lease_time, keep_for, stale_for, early_factor }) => {
            command.arg(&encode_id(*lease)).arg(*lease_time).arg(*keep_for).arg(*stale_for).arg(*early_factor);
        }
        Operation::Store(load) => {
            command.arg(&encode_id(load.lease)).arg(load.generation);
            push_loaded_value(command, load);
        }
        Operation::GiveUp(lease, why) => {
            command.arg(&encode_id(*lease)).arg(why);
        }
        Operation::Invalidate(version, stale_for, keep_for) => {
            command.arg(encode_number(*version)).arg(*stale_for).arg(*keep_for);
        }
        Operation::BeginWrite(WriteRequest { mark, token, mark_time, stale_for, keep_for }) => {
            command.arg(&encode_id(*mark)).arg(encode_number(*token)).arg(*mark_time).arg(*stale_for).arg(*keep_for);
        }
        Operation::ExtendWrite(mark, mark_for, keep_for) => {
            command.arg(&encode_id(*mark)).arg(*mark_for).arg(*keep_for);
        }
        Operation::FinishWrite(mark, None, keep_for) => {
            command.arg(&encode_id(*mark)).arg(*keep_for).arg("0");
        }
        Operation::FinishWrite(mark, Some(load), keep_for) => {
            command.arg(&encode_id(*mark)).arg(*keep_for).arg("1").arg(load.generation);
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
    command.arg(load.load_cost).arg(load.fresh_for).arg(load.stale_for);
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
            let number = match parts.get(1)? {
                Value::Int(generation) => u64::try_from(*generation).ok()?,
                token => std::str::from_utf8(bytes(token)?).ok()?.parse().ok()?,
            };
            Some(OperationReply::WriteBegun(if integer(parts.first()?)? == 1 { Ok(number) } else { Err(number) }))
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
            let lease = u128::from_be_bytes(bytes(&parts.next()?)?.try_into().ok()?);
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
    let generation = || u64::try_from(integer(generation.as_ref()?)?).ok();
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
        let LeaseEnded { lease, key, failure } = LeaseEnded::read(text).ok()?;
        Some(Self { lease, key: key.to_string(), failure: Some(failure.to_string()).filter(|why| !why.is_empty()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_as_the_scripts_write_them() {
        let sent = |failure: &str| LeaseEnded { lease: 7, key: "a}b".into(), failure: failure.into() }.write();
        let message = Message { lease: 7, key: "a}b".into(), failure: None };
        assert_eq!(Message::parse(&sent("")), Some(message));
        assert_eq!(Message::parse(&sent("no luck")).unwrap().failure.as_deref(), Some("no luck"));
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
