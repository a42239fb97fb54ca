//! The layout of every key, script and record on a node.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>q<name>` | string | one lock, see `scripts/record.lua` |
//! | `<prefix>e` | string | with `strict`: the server's run |
//!
//! Each value begins with the number of its format, one digit. All keys expire.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::server::RequestKind;
use crate::logic::quorum::{Vote, WriteReply};
use crate::redis_client::values::{bytes, check_format, integer, not_ours};
use crate::redis_client::{CachedScript, Contender, Reader, lua as shared};
use crate::types::{ClaimId, LockName, Owner, Result, Token};

/// A lock's key.
pub(super) fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}q{name}")
}

/// The name in a lock's key.
pub(super) fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    LockName::new(key.strip_prefix(prefix)?.strip_prefix('q')?).ok()
}

/// A number, as the scripts compare it.
pub(super) fn digits(number: u64) -> String {
    format!("{number:016}")
}

/// An owner, as the scripts store it.
pub(super) fn encode_owner(owner: Option<Owner>) -> [u8; 16] {
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
    pub(super) acquire: Arc<CachedScript>,
    pub(super) store_token: Arc<CachedScript>,
    pub(super) renew: Arc<CachedScript>,
    pub(super) release: Arc<CachedScript>,
    pub(super) force_release: Arc<CachedScript>,
    /// Returns the time, and runs the first part of strict mode.
    pub(super) probe: Arc<CachedScript>,
}

impl Scripts {
    pub(super) fn new(strict: bool) -> Self {
        let guard = if strict { shared::STRICT } else { shared::STRICT_OFF };
        let full =
            |text| CachedScript::new([shared::PRELUDE, shared::SERVER_TIME, guard, lua!("record"), text].concat());
        // The first part of a script handles the common case alone.
        let quick = |first: &str, rest| {
            CachedScript::new([shared::PRELUDE, shared::SERVER_TIME, guard, first, lua!("record"), rest].concat())
        };
        Self {
            acquire: quick(lua!("acquire_first"), lua!("acquire")),
            store_token: quick(lua!("store_token_first"), lua!("store_token")),
            renew: full(lua!("renew")),
            release: CachedScript::new([shared::PRELUDE, lua!("release")].concat()),
            force_release: full(lua!("force_release")),
            probe: CachedScript::new([shared::PRELUDE, shared::SERVER_TIME, guard, "return clock"].concat()),
        }
    }

    /// The script for a request.
    pub(super) fn for_kind(&self, kind: RequestKind) -> &CachedScript {
        match kind {
            RequestKind::Acquire => &self.acquire,
            RequestKind::StoreToken => &self.store_token,
            RequestKind::Renew => &self.renew,
            RequestKind::Release => &self.release,
            RequestKind::ForceRelease => &self.force_release,
            RequestKind::Probe => &self.probe,
        }
    }

    /// All scripts, for a server to store.
    pub(super) fn all_scripts(&self) -> Vec<Arc<CachedScript>> {
        let Self { acquire, store_token, renew, release, force_release, probe } = self;
        [acquire, store_token, renew, release, force_release, probe].map(Arc::clone).to_vec()
    }
}

/// A node's answer to a claim: its vote, its time, and how long its cool-down still lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeVote {
    pub(super) vote: Vote,
    pub(super) clock: Option<u64>,
    pub(super) cooling_down: Option<Duration>,
}

impl NodeVote {
    /// Reads the answer of `acquire` to a request with this guess.
    pub(super) fn read(answer: &Value, guess: Token) -> Option<Self> {
        if *answer == Value::Int(1) {
            let vote = Vote::Yes { last_token: guess, own_token: guess, owner_token: Token::default() };
            return Some(Self { vote, clock: None, cooling_down: None });
        }
        let mut reader = Reader(bytes(answer)?);
        let kind = reader.bytes(1)?[0];
        let (last, clock) = (Token(reader.number(16)?), reader.number(16)?);
        let mut cooling_down = None;
        let vote = match kind {
            b'N' => Vote::No { last_token: last },
            b'A' => {
                cooling_down = Some(Duration::from_micros(reader.number(16)?));
                Vote::CoolingDown
            }
            b'Y' => Vote::Yes {
                last_token: last,
                own_token: Token(reader.number(16)?),
                owner_token: Token(reader.number(16)?),
            },
            _ => return None,
        };
        Some(Self { vote, clock: Some(clock), cooling_down })
    }
}

/// Reads the answer of `store_token`.
pub(super) fn parse_written(answer: &Value) -> Option<WriteReply> {
    let mut reader = Reader(bytes(answer)?);
    Some(match reader.bytes(1)?[0] {
        b'S' => WriteReply::Stored,
        b'G' => WriteReply::ClaimMissing,
        b'A' => WriteReply::NoResponse,
        b'B' => WriteReply::OwnerToken(Token(reader.number(16)?)),
        b'L' => WriteReply::TokenTooLow(Token(reader.number(16)?)),
        _ => return None,
    })
}

/// Reads the answer of `renew` for `count` leases.
pub(super) fn parse_renewed(answer: &Value, count: usize) -> Option<Vec<Option<bool>>> {
    let codes = bytes(answer)?;
    let code = |code: &u8| match code {
        b'1' => Some(Some(true)),
        b'0' => Some(Some(false)),
        b'A' => Some(None),
        _ => None,
    };
    (codes.len() == count).then(|| codes.iter().map(code).collect()).flatten()
}

/// A claim, as a node stores it.
#[derive(Clone, Debug)]
pub(super) struct ClaimRecord {
    pub(super) claim: ClaimId,
    pub(super) token: Token,
    /// When it expires, in µs of the node's clock.
    pub(super) expires_at: u64,
    pub(super) contender: Contender,
}

impl ClaimRecord {
    /// Reads the next record of a string.
    pub(super) fn read(reader: &mut Reader<'_>, now: u64) -> Option<Self> {
        let claim = ClaimId::from_bits(u128::from_be_bytes(reader.bytes(16)?.try_into().ok()?));
        reader.number(16)?;
        let (token, since, length) = (Token(reader.number(16)?), reader.number(16)?, reader.number(4)?);
        let contender = Contender::read(reader.bytes(length as usize)?)?;
        // A time in the future counts as now: the clock was set back.
        Some(Self { claim, token, expires_at: since.min(now) + contender.ttl.as_micros() as u64, contender })
    }
}

/// A lock, as one node stores it.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredLock {
    /// The node's time, in µs.
    pub(super) now: u64,
    pub(super) last_token: Token,
    pub(super) records: Vec<ClaimRecord>,
}

impl StoredLock {
    /// Reads the answers of `TIME` and `GET`.
    pub(super) fn read(time: &Value, text: &Value) -> Result<Self> {
        let now = parse_time(time).ok_or_else(not_ours)?;
        if *text == Value::Nil {
            return Ok(Self { now, ..Self::default() });
        }
        let text = bytes(text).ok_or_else(not_ours)?;
        Self::parse(check_format(text)?, now).ok_or_else(not_ours)
    }

    /// As above, from a text without its format number.
    fn parse(text: &[u8], now: u64) -> Option<Self> {
        let mut stored = Self { now, ..Self::default() };
        let mut reader = Reader(text);
        stored.last_token = Token(reader.number(16)?);
        reader.bytes(32)?;
        while !reader.0.is_empty() {
            let record = ClaimRecord::read(&mut reader, stored.now)?;
            stored.last_token = stored.last_token.max(record.token);
            stored.records.push(record);
        }
        stored.records.retain(|record| record.expires_at > stored.now);
        Some(stored)
    }
}

/// The answer of `TIME`, in µs.
pub(super) fn parse_time(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = &parts[..] else { return None };
    u64::try_from(integer(seconds)?.checked_mul(1_000_000)?.checked_add(integer(micros)?)?).ok()
}
