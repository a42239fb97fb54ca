//! The layout of every key, script and record on a node.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>q<name>` | string | one lock, see `scripts/see.lua` |
//! | `<prefix>e` | string | with `strict`: the server's run |
//!
//! All keys expire.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::server::What;
use crate::claim::{ClaimId, Owner, Token};
use crate::engine::redis::wire::{Party, Reader, Stored, bytes, integer, lua as shared};
use crate::logic::quorum::{Vote, Written};
use crate::name::LockName;

/// A lock's key.
pub(super) fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}q{name}")
}

/// The name in a lock's key.
pub(super) fn name(prefix: &str, key: &str) -> Option<LockName> {
    LockName::new(key.strip_prefix(prefix)?.strip_prefix('q')?).ok()
}

/// A number, as the scripts compare it.
pub(super) fn digits(number: u64) -> String {
    format!("{number:016}")
}

/// An owner, as the scripts store it.
pub(super) fn owner(owner: Option<Owner>) -> [u8; 16] {
    // Zero means no owner; an owner whose bits are zero gets another number.
    owner.map_or(0, |owner| if owner.bits() == 0 { u128::MAX } else { owner.bits() }).to_be_bytes()
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

/// The scripts of one engine.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) take: Arc<Stored>,
    pub(super) write: Arc<Stored>,
    pub(super) renew: Arc<Stored>,
    pub(super) release: Arc<Stored>,
    pub(super) evict: Arc<Stored>,
    /// Returns the time, and runs the first part of strict mode.
    pub(super) touch: Arc<Stored>,
}

impl Scripts {
    pub(super) fn new(strict: bool) -> Self {
        let guard = if strict { shared::STRICT } else { shared::LAX };
        let full = |text| Stored::new([shared::WORDS, shared::HEAD, guard, lua!("see"), text].concat());
        // The first part of a script handles the common case alone.
        let quick =
            |first: &str, rest| Stored::new([shared::WORDS, shared::HEAD, guard, first, lua!("see"), rest].concat());
        Self {
            take: quick(lua!("take_first"), lua!("take")),
            write: quick(lua!("write_first"), lua!("write")),
            renew: full(lua!("renew")),
            release: Stored::new([shared::WORDS, lua!("release")].concat()),
            evict: full(lua!("evict")),
            touch: Stored::new([shared::WORDS, shared::HEAD, guard, "return clock"].concat()),
        }
    }

    /// The script for a request.
    pub(super) fn of(&self, what: What) -> &Stored {
        match what {
            What::Take => &self.take,
            What::Write => &self.write,
            What::Renew => &self.renew,
            What::Release => &self.release,
            What::Evict => &self.evict,
            What::Touch => &self.touch,
        }
    }

    /// All scripts, for a server to store.
    pub(super) fn each(&self) -> Vec<Arc<Stored>> {
        let Self { take, write, renew, release, evict, touch } = self;
        [take, write, renew, release, evict, touch].map(Arc::clone).to_vec()
    }
}

/// A node's answer to a claim: its vote, its time, and how long its cool-down still lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Voted {
    pub(super) vote: Vote,
    pub(super) clock: Option<u64>,
    pub(super) abstains: Option<Duration>,
}

impl Voted {
    /// Reads the answer of `take` to a request with this guess.
    pub(super) fn read(answer: &Value, guess: Token) -> Option<Self> {
        if *answer == Value::Int(1) {
            let vote = Vote::Yes { last: guess, own: guess, bound: Token::default() };
            return Some(Self { vote, clock: None, abstains: None });
        }
        let mut reader = Reader(bytes(answer)?);
        let kind = reader.bytes(1)?[0];
        let (last, clock) = (Token(reader.number(16)?), reader.number(16)?);
        let mut abstains = None;
        let vote = match kind {
            b'N' => Vote::No { last },
            b'A' => {
                abstains = Some(Duration::from_micros(reader.number(16)?));
                Vote::Abstains
            }
            b'Y' => Vote::Yes { last, own: Token(reader.number(16)?), bound: Token(reader.number(16)?) },
            _ => return None,
        };
        Some(Self { vote, clock: Some(clock), abstains })
    }
}

/// Reads the answer of `write`.
pub(super) fn written(answer: &Value) -> Option<Written> {
    let mut reader = Reader(bytes(answer)?);
    Some(match reader.bytes(1)?[0] {
        b'S' => Written::Stored,
        b'G' => Written::Gone,
        b'A' => Written::Silent,
        b'B' => Written::Bound(Token(reader.number(16)?)),
        b'L' => Written::Behind(Token(reader.number(16)?)),
        _ => return None,
    })
}

/// Reads the answer of `renew` for `count` leases.
pub(super) fn renewed(answer: &Value, count: usize) -> Option<Vec<Option<bool>>> {
    let letters = bytes(answer)?;
    let letter = |letter: &u8| match letter {
        b'1' => Some(Some(true)),
        b'0' => Some(Some(false)),
        b'A' => Some(None),
        _ => None,
    };
    (letters.len() == count).then(|| letters.iter().map(letter).collect()).flatten()
}

/// A claim, as a node stores it.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) claim: ClaimId,
    pub(super) token: Token,
    /// When it expires, in us of the node's clock.
    pub(super) ends: u64,
    pub(super) party: Party,
}

impl Record {
    /// Reads the next record of a string.
    pub(super) fn read(reader: &mut Reader<'_>, now: u64) -> Option<Self> {
        let claim = ClaimId::from_bits(u128::from_be_bytes(reader.bytes(16)?.try_into().ok()?));
        reader.number(16)?;
        let (token, since, length) = (Token(reader.number(16)?), reader.number(16)?, reader.number(4)?);
        let party = Party::read(reader.bytes(length as usize)?)?;
        // A time in the future counts as now: the clock was set back.
        Some(Self { claim, token, ends: since.min(now) + party.ttl.as_micros() as u64, party })
    }
}

/// A lock, as one node stores it.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock {
    /// The node's time, in us.
    pub(super) now: u64,
    pub(super) last: Token,
    pub(super) records: Vec<Record>,
}

impl Stock {
    /// Reads the answers of `TIME` and `GET`; `None` if a script did not write them.
    pub(super) fn read(time: &Value, text: &Value) -> Option<Self> {
        let mut stock = Self { now: micros(time)?, ..Self::default() };
        if *text == Value::Nil {
            return Some(stock);
        }
        let mut reader = Reader(bytes(text)?);
        stock.last = Token(reader.number(16)?);
        reader.bytes(32)?;
        while !reader.0.is_empty() {
            let record = Record::read(&mut reader, stock.now)?;
            stock.last = stock.last.max(record.token);
            stock.records.push(record);
        }
        stock.records.retain(|record| record.ends > stock.now);
        Some(stock)
    }
}

/// The answer of `TIME`, in us.
pub(super) fn micros(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = &parts[..] else { return None };
    u64::try_from(integer(seconds)?.checked_mul(1_000_000)?.checked_add(integer(micros)?)?).ok()
}
