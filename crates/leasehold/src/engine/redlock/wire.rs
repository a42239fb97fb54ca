//! The layout of every key, script and stored value on a node.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>q<name>` | string | one lock, a [`NodeLock`] |
//! | `<prefix>e` | string | with `strict`: an [`Epoch`](crate::redis_client::Epoch) |
//!
//! Each value begins with the number of its format, one digit, and the letter of its kind. All keys
//! expire.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::server::RequestKind;
use crate::logic::quorum::{Vote, WriteReply};
use crate::redis_client::values::{bytes, integer, not_ours};
use crate::redis_client::{
    CachedScript, Contender, Field, ForceReleased, Layout, Nested, Reader, Rest, Stored, StoredContender, expand,
    layout, lua as shared,
};
use crate::types::{ClaimId, LockName, Owner, Result, Token};

layout! {
    /// A lock, as one node stores it.
    pub struct NodeLock = "node_lock", kind 'N' {
        /// The highest token of the claims that have ended.
        ended_token: Token,
        /// The highest token that was released.
        released_token: Token,
        /// The last claim that released it.
        released_by: ClaimId,
        /// One [`StoredVote`] after another.
        votes: Rest,
    }
}

impl NodeLock {
    /// Its votes; `None` if leasehold did not write them.
    pub fn stored_votes(&self) -> Option<Vec<StoredVote>> {
        let (mut reader, mut votes) = (Reader(&self.votes.0), Vec::new());
        while !reader.0.is_empty() {
            votes.push(StoredVote::parse(&mut reader)?);
        }
        Some(votes)
    }
}

layout! {
    /// A node's vote for a claim.
    pub struct StoredVote = "vote" {
        claim: ClaimId,
        /// The number of the claim's attempt.
        attempt: u64,
        /// Zero: it has no token yet.
        token: Token,
        /// When the claim was last renewed, in µs of the node's clock.
        since: u64,
        /// The claim's [`StoredContender`].
        contender: Nested,
    }
}

/// A lock's key.
pub(super) fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}q{name}")
}

/// The name in a lock's key.
pub(super) fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    LockName::new(key.strip_prefix(prefix)?.strip_prefix('q')?).ok()
}

/// A number, as an argument of a script.
pub(super) fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
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
pub struct Scripts {
    pub acquire: Arc<CachedScript>,
    pub store_token: Arc<CachedScript>,
    pub renew: Arc<CachedScript>,
    pub release: Arc<CachedScript>,
    pub force_release: Arc<CachedScript>,
    /// Returns the time, and runs the first part of strict mode.
    pub(super) probe: Arc<CachedScript>,
}

impl Scripts {
    pub(super) fn new(strict: bool) -> Self {
        let strict_mode = if strict { shared::strict() } else { shared::STRICT_OFF.to_owned() };
        Self::assemble(&(shared::SERVER_TIME.to_owned() + &strict_mode))
    }

    /// `prologue` sets the time, the cool-down and the lowest token.
    pub fn assemble(prologue: &str) -> Self {
        let layouts = [NodeLock::LAYOUT, StoredVote::LAYOUT, StoredContender::LAYOUT];
        let state = shared::FORMAT_CHECK.to_owned() + &shared::functions(&layouts);
        let script =
            |parts: &[&str]| CachedScript::new(expand(&[&[shared::PRELUDE], parts].concat().concat(), &layouts));
        // The first part of a script handles the common case alone, before the functions of the
        // other cases are made.
        let step = |first: &str, rest: &str| script(&[prologue, first, &state, lua!("node_lock"), rest]);
        let force_release = [&ForceReleased::LAYOUT.functions(), lua!("force_release")].concat();
        Self {
            acquire: step(lua!("acquire_first"), lua!("acquire")),
            store_token: step(lua!("store_token_first"), lua!("store_token")),
            renew: step("", lua!("renew")),
            release: script(&[&state, lua!("release")]),
            force_release: step("", &force_release),
            probe: script(&[prologue, "return now"]),
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
        let Value::Array(parts) = answer else { return None };
        let number = |at: usize| u64::try_from(integer(parts.get(at)?)?).ok();
        let last = Token(number(1)?);
        let mut cooling_down = None;
        let vote = match bytes(parts.first()?)? {
            b"no" => Vote::No { last_token: last },
            b"cooling-down" => {
                cooling_down = Some(Duration::from_micros(number(3)?));
                Vote::CoolingDown
            }
            b"yes" => Vote::Yes { last_token: last, own_token: Token(number(3)?), owner_token: Token(number(4)?) },
            _ => return None,
        };
        Some(Self { vote, clock: Some(number(2)?), cooling_down })
    }
}

/// Reads the answer of `store_token`.
pub(super) fn parse_written(answer: &Value) -> Option<WriteReply> {
    let Value::Array(parts) = answer else { return None };
    let token = || integer(parts.get(1)?)?.try_into().ok().map(Token);
    Some(match bytes(parts.first()?)? {
        b"stored" => WriteReply::Stored,
        b"missing" => WriteReply::ClaimMissing,
        b"cooling-down" => WriteReply::NoResponse,
        b"owner" => WriteReply::OwnerToken(token()?),
        b"low" => WriteReply::TokenTooLow(token()?),
        _ => return None,
    })
}

/// Reads the answer of `renew` for `count` leases.
pub(super) fn parse_renewed(answer: &Value, count: usize) -> Option<Vec<Option<bool>>> {
    let codes = bytes(answer)?;
    let code = |code: &u8| match code {
        b'1' => Some(Some(true)),
        b'0' => Some(Some(false)),
        b'2' => Some(None),
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
    /// As a node with this time reads it.
    pub(super) fn new(vote: StoredVote, now: u64) -> Option<Self> {
        let StoredVote { claim, token, since, contender, .. } = vote;
        let contender = Contender::read(&contender.0)?;
        // A time in the future counts as now: the clock was set back.
        Some(Self { claim, token, expires_at: since.min(now) + contender.ttl.as_micros() as u64, contender })
    }
}

/// A lock on one node.
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
        let lock = NodeLock::read(bytes(text).ok_or_else(not_ours)?)?;
        Self::parse(&lock, now).ok_or_else(not_ours)
    }

    fn parse(lock: &NodeLock, now: u64) -> Option<Self> {
        let mut stored = Self { now, last_token: lock.ended_token, ..Self::default() };
        for vote in lock.stored_votes()? {
            let record = ClaimRecord::new(vote, now)?;
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
