//! A server in memory: [`AcceptorState`] in place of the scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::super::server::{Request, RequestKind};
use super::super::wire::StoredVote;
use crate::clock::Instant;
use crate::engine::LockOptions;
use crate::logic::acceptor::{AcceptorState, ClaimRequest};
use crate::logic::quorum::{Vote, WriteReply};
use crate::redis_client::{Nested, Reader, Stored, StoredContender, encode_contender};
use crate::types::{ClaimId, Holder, LockName, Mode, Owner, Token};

/// One server.
#[derive(Debug)]
pub(super) struct SimulatedServer {
    locks: BTreeMap<String, AcceptorState>,
    /// All claims that this server has ever received, by lock.
    claims: BTreeSet<(String, ClaimId)>,
    /// Its clock at the start, in µs, and by how many parts per million it is fast.
    clock_base: u64,
    drift_ppm: i64,
    start: Instant,
    pub(super) is_up: bool,
    pub(super) hangs_until: Instant,
    /// In µs of its own clock.
    cool_down_until: u64,
    /// How many requests of each kind it received.
    pub(super) request_counts: BTreeMap<&'static str, u64>,
}

impl SimulatedServer {
    pub(super) fn new(base: u64, ppm: i64, start: Instant) -> Self {
        Self {
            locks: BTreeMap::new(),
            claims: BTreeSet::new(),
            clock_base: base,
            drift_ppm: ppm,
            start,
            is_up: true,
            hangs_until: start,
            cool_down_until: 0,
            request_counts: BTreeMap::new(),
        }
    }

    /// Its clock, in µs.
    pub(super) fn clock_us(&self, now: Instant) -> u64 {
        let passed = now.duration_since(self.start).as_micros() as i64;
        self.clock_base.saturating_add_signed(passed + passed * self.drift_ppm / 1_000_000)
    }

    /// Loses all data, and starts a cool-down of this length.
    pub(super) fn restart_empty(&mut self, now: Instant, cool_down: Duration) {
        self.locks.clear();
        self.cool_down_until = self.clock_us(now) + cool_down.as_micros() as u64;
    }

    /// The claims that are live at that time.
    pub(super) fn live_claims(&self, now: Instant) -> Vec<(String, ClaimId)> {
        let time = self.clock_us(now);
        let ends = |(key, claim): &&(String, ClaimId)| self.locks.get(key).and_then(|lock| lock.expires_at(*claim));
        self.claims.iter().filter(|claim| ends(claim).is_some_and(|ends| ends > time)).cloned().collect()
    }

    fn lock(&mut self, key: &str, claim: ClaimId) -> &mut AcceptorState {
        self.claims.insert((key.to_owned(), claim));
        let cool_down_until = self.cool_down_until;
        self.locks.entry(key.to_owned()).or_insert_with(|| AcceptorState::cooling_down(cool_down_until))
    }

    /// Serves a request, and answers as a script does.
    pub(super) fn serve(&mut self, now: Instant, request: &Request) -> Value {
        let (time, arguments) = (self.clock_us(now), &request.arguments[..]);
        let word = |at: usize| &arguments[at][..];
        let count = |this: &mut Self, label| *this.request_counts.entry(label).or_default() += 1;
        match request.kind {
            RequestKind::Probe => int(time),
            RequestKind::Acquire => {
                count(self, "acquires");
                let (ask, guess) = (parse_ask(word(1), word(2), word(4)), Token(number(word(3))));
                let cool_down_until = self.cool_down_until;
                let lock = self.lock(&request.keys[0], ask.claim);
                let before = lock.last_token();
                encode_vote(lock.acquire(time, ask, guess), (guess, before), (time, cool_down_until), lock.last_token())
            }
            RequestKind::StoreToken => {
                count(self, "writes");
                let ask = ClaimRequest { owner: parse_owner(word(4)), ttl: 0, ..ask_without_ttl(word(1), word(2)) };
                let token = Token(number(word(3)));
                encode_written(self.lock(&request.keys[0], ask.claim).write_token(time, ask, token))
            }
            RequestKind::Release => {
                count(self, "releases");
                let ClaimRequest { claim, attempt, .. } = ask_without_ttl(word(1), word(2));
                let lock = self.lock(&request.keys[0], claim);
                let was_present =
                    if word(3) == b"granted" { lock.release(claim, attempt) } else { lock.withdraw(claim, attempt) };
                Value::Int(was_present.into())
            }
            RequestKind::Renew => {
                count(self, "renewals");
                let renew = |(key, words): (&String, &[Vec<u8>])| {
                    let ask = parse_ask(&words[0], word(1), &words[2]);
                    let renewed = self.lock(key, ask.claim).renew(time, ask, Token(number(&words[1])));
                    renewed.map_or('2', |renewed| if renewed { '1' } else { '0' })
                };
                text(&request.keys.iter().zip(arguments[2..].chunks(3)).map(renew).collect::<String>())
            }
            RequestKind::ForceRelease => {
                let (claim, token) = (parse_claim(word(1)), Token(number(word(2))));
                let lock = self.lock(&request.keys[0], claim);
                let known = lock.last_token();
                let own_token = lock.token(claim).unwrap_or_default();
                let outcome = lock.force_release(time, claim, token, word(3) == b"always");
                let flag = |flag: bool| Value::Int(flag.into());
                let vote = StoredVote { claim, attempt: 0, token: own_token, since: time, contender: any_contender() };
                let vote = if outcome.was_present { Value::BulkString(vote.write()) } else { Value::Nil };
                let stored = flag(outcome.is_stored);
                Value::Array(vec![stored, int(known.0), int(time), vote, flag(outcome.others_remain)])
            }
        }
    }

    /// The answers to `TIME` and `INFO`, which a client requests first.
    pub(super) fn identify(&self, now: Instant, run: &str) -> Vec<Value> {
        let time = self.clock_us(now);
        vec![Value::Array(vec![int(time / 1_000_000), int(time % 1_000_000)]), text(&format!("run_id:{run}\r\n"))]
    }
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn int(number: u64) -> Value {
    Value::Int(number.try_into().expect("small enough"))
}

fn number(digits: &[u8]) -> u64 {
    Reader(digits).number(digits.len()).expect("digits")
}

fn parse_claim(bytes: &[u8]) -> ClaimId {
    ClaimId::from_bits(u128::from_be_bytes(bytes.try_into().expect("16 bytes")))
}

fn parse_owner(bytes: &[u8]) -> Option<Owner> {
    let bits = u128::from_be_bytes(bytes.try_into().expect("16 bytes"));
    (bits != 0).then(|| Owner::from_bits(bits))
}

fn ask_without_ttl(id: &[u8], attempt: &[u8]) -> ClaimRequest {
    ClaimRequest { claim: parse_claim(id), attempt: number(attempt), owner: None, ttl: 0 }
}

fn parse_ask(id: &[u8], attempt: &[u8], contender: &[u8]) -> ClaimRequest {
    let contender = StoredContender::parse(&mut Reader(contender)).expect("a contender");
    let owner = (contender.owner != 0).then(|| Owner::from_bits(contender.owner));
    ClaimRequest { owner, ttl: contender.ttl, ..ask_without_ttl(id, attempt) }
}

/// A contender for a vote: the server does not store them.
fn any_contender() -> Nested {
    let name = LockName::new("any").expect("a name");
    let options = LockOptions::new(name, Mode::Exclusive, None, Duration::ZERO, Arc::new(Holder::new("", 0, "", "")));
    Nested(encode_contender(&options, &"".into()))
}

/// The same answer as the script `acquire` gives.
fn encode_vote(vote: Vote, (guess, before): (Token, Token), (time, until): (u64, u64), last: Token) -> Value {
    let answer = |word: &str, numbers: &[u64]| {
        Value::Array([text(word)].into_iter().chain(numbers.iter().map(|number| int(*number))).collect())
    };
    match vote {
        Vote::Yes { own_token: own, .. } if own == guess && guess > before => Value::Int(1),
        Vote::Yes { last_token: last, own_token: own, owner_token } => {
            answer("yes", &[last.0, time, own.0, owner_token.0])
        }
        Vote::No { last_token: last } => answer("no", &[last.0, time]),
        Vote::CoolingDown => answer("cooling-down", &[last.0, time, until.saturating_sub(time)]),
        Vote::NoResponse => unreachable!("a node that votes responds"),
    }
}

/// The same answer as the script `store_token` gives.
fn encode_written(written: WriteReply) -> Value {
    Value::Array(match written {
        WriteReply::Stored => vec![text("stored")],
        WriteReply::ClaimMissing => vec![text("missing")],
        WriteReply::NoResponse => vec![text("cooling-down")],
        WriteReply::OwnerToken(token) => vec![text("owner"), int(token.0)],
        WriteReply::TokenTooLow(token) => vec![text("low"), int(token.0)],
    })
}
