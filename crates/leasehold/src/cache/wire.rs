//! All keys, scripts, arguments, answers and messages.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>c{key}` | hash | one key of the cache, as documented in `scripts/entry.lua` |
//! | `<prefix>t{key}` | string | a value of a textbook [strategy](super::strategy) |
//! | `<prefix>i<number>` | channel | a client's inbox, with the ends of loads that its readers wait for |

use std::sync::Arc;

use redis::{Cmd, Value};

use crate::engine::redis::wire::{Reader, Stored, bytes, integer, named_key};
use crate::logic::cache::{Ask, Begin, Data, Finished, Found, Load, Refused, Said, Step};

/// The default prefix of our keys. It differs from the locks' prefix: a cache may be evicted, and
/// locks may not.
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

/// The scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    ask: Arc<Stored>,
    set: Arc<Stored>,
    give_up: Arc<Stored>,
    invalidate: Arc<Stored>,
    begin: Arc<Stored>,
    extend: Arc<Stored>,
    finish: Arc<Stored>,
    pub(crate) plain: Arc<Stored>,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let on_entry = |rest: &str| Stored::new([lua!("head"), lua!("entry"), rest].concat());
        Self {
            ask: Stored::new([lua!("head"), lua!("hit"), lua!("entry"), lua!("ask")].concat()),
            set: on_entry(lua!("set")),
            give_up: on_entry(lua!("give_up")),
            invalidate: on_entry(lua!("invalidate")),
            begin: on_entry(lua!("begin")),
            extend: on_entry(lua!("extend")),
            finish: on_entry(lua!("finish")),
            plain: Stored::new(lua!("plain").to_owned()),
        }
    }

    pub(crate) fn each(&self) -> Vec<Arc<Stored>> {
        let Self { ask, set, give_up, invalidate, begin, extend, finish, plain } = self;
        [ask, set, give_up, invalidate, begin, extend, finish, plain].map(Arc::clone).to_vec()
    }

    pub(crate) fn of(&self, step: &Step) -> &Stored {
        match step {
            Step::Ask(_) => &self.ask,
            Step::Set(_) => &self.set,
            Step::GiveUp(..) => &self.give_up,
            Step::Invalidate(..) => &self.invalidate,
            Step::Begin(_) => &self.begin,
            Step::Extend(..) => &self.extend,
            Step::Finish(..) => &self.finish,
        }
    }
}

fn id(id: u128) -> String {
    format!("{id:032x}")
}

fn time(us: u64) -> String {
    format!("{us:016}")
}

/// A token or a version.
fn number(number: u64) -> String {
    format!("{number:020}")
}

/// The operation's own arguments.
pub(crate) fn arguments(command: &mut Cmd, step: &Step) {
    match step {
        Step::Ask(Ask { lease, lease_for, keep_for, stale_for, early }) => {
            command.arg(id(*lease)).arg(*lease_for).arg(*keep_for).arg(*stale_for).arg(*early);
        }
        Step::Set(load) => {
            command.arg(id(load.lease)).arg(time(load.generation));
            loaded(command, load);
        }
        Step::GiveUp(lease, why) => {
            command.arg(id(*lease)).arg(why);
        }
        Step::Invalidate(version, stale_for, keep_for) => {
            command.arg(number(*version)).arg(*stale_for).arg(*keep_for);
        }
        Step::Begin(Begin { mark, token, mark_for, stale_for, keep_for }) => {
            command.arg(id(*mark)).arg(number(*token)).arg(*mark_for).arg(*stale_for).arg(*keep_for);
        }
        Step::Extend(mark, mark_for, keep_for) => {
            command.arg(id(*mark)).arg(*mark_for).arg(*keep_for);
        }
        Step::Finish(mark, None, keep_for) => {
            command.arg(id(*mark)).arg(*keep_for).arg("0");
        }
        Step::Finish(mark, Some(load), keep_for) => {
            command.arg(id(*mark)).arg(*keep_for).arg("1").arg(time(load.generation));
            loaded(command, load);
        }
    }
}

fn loaded(command: &mut Cmd, load: &Load) {
    match &load.data {
        Some(data) => command.arg("V").arg(data),
        None => command.arg("N").arg(""),
    };
    command.arg(load.version.map(number).unwrap_or_default());
    command.arg(time(load.cost)).arg(load.fresh_for).arg(load.stale_for);
}

/// The answer to an operation; `None` if it comes from none of our scripts.
pub(crate) fn answer(step: &Step, value: Value) -> Option<Said> {
    match step {
        Step::Ask(_) => found(value).map(Said::Found),
        Step::Set(_) => Some(Said::Set(match integer(&value)? {
            0 => Ok(()),
            1 => Err(Refused::Invalidated),
            2 => Err(Refused::Overtaken),
            3 => Err(Refused::Older),
            4 => Err(Refused::Absent),
            _ => return None,
        })),
        Step::GiveUp(..) | Step::Invalidate(..) => (integer(&value)? == 0).then_some(Said::Done),
        Step::Begin(_) => {
            let Value::Array(parts) = value else { return None };
            let said = std::str::from_utf8(bytes(parts.get(1)?)?).ok()?.parse().ok()?;
            Some(Said::Begun(if integer(parts.first()?)? == 1 { Ok(said) } else { Err(said) }))
        }
        Step::Extend(..) => Some(Said::Extended(integer(&value)? == 1)),
        Step::Finish(..) => {
            Some(Said::Finished(if integer(&value)? == 1 { Finished::Kept } else { Finished::Overtaken }))
        }
    }
}

fn found(value: Value) -> Option<Found> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let what = integer(&parts.next()?)?;
    match what {
        5 => {
            let lease = u128::from_str_radix(std::str::from_utf8(bytes(&parts.next()?)?).ok()?, 16).ok()?;
            return Some(Found::Wait(lease, integer(&parts.next()?)?.try_into().ok()?));
        }
        6 => return Some(Found::Written),
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
        1 => Found::Hit(data?),
        2 => Found::Early(data?, generation()?),
        3 => Found::Stale(data?),
        4 => Found::Load(generation()?, data),
        _ => return None,
    })
}

/// A message in a client's inbox: the lease of this key has ended. With a text, its load has
/// failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) lease: u128,
    pub(crate) key: String,
    pub(crate) failure: Option<String>,
}

impl Message {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
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
    fn messages_are_read_as_the_scripts_write_them() {
        let text = format!("{}000003a}}b", id(7));
        let message = Message { lease: 7, key: "a}b".into(), failure: None };
        assert_eq!(Message::read(text.as_bytes()), Some(message));
        let failed = Message::read(format!("{text}no luck").as_bytes()).unwrap();
        assert_eq!(failed.failure.as_deref(), Some("no luck"));
        assert_eq!(Message::read(b"nonsense"), None);
    }

    #[test]
    fn what_no_script_answers_is_not_understood() {
        let ask = Step::Ask(Ask { lease: 1, lease_for: 1, keep_for: 1, stale_for: 0, early: 0 });
        assert_eq!(answer(&ask, Value::Int(1)), None);
        assert_eq!(answer(&ask, Value::Array(vec![Value::Int(6)])), Some(Said::Found(Found::Written)));
        assert_eq!(answer(&Step::Invalidate(0, 0, 0), Value::Nil), None);
    }
}
