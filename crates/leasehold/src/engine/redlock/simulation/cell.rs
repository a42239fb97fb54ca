//! A server in memory: [`Ballots`] in place of the scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::Value;

use super::super::server::{Request, What};
use super::super::wire::digits;
use crate::claim::{ClaimId, Owner, Token};
use crate::clock::Moment;
use crate::engine::redis::wire::{Party, Reader};
use crate::logic::ballots::{Ask, Ballots};
use crate::logic::quorum::{Vote, Written};

/// One server.
#[derive(Debug)]
pub(super) struct Cell {
    locks: BTreeMap<String, Ballots>,
    /// All claims that this server has ever seen, by lock.
    claims: BTreeSet<(String, ClaimId)>,
    /// Its clock at the start, in us, and by how many parts per million it is fast.
    base: u64,
    ppm: i64,
    start: Moment,
    pub(super) up: bool,
    pub(super) hangs_until: Moment,
    /// In us of its own clock.
    abstains_until: u64,
    /// How many requests of each kind it received.
    pub(super) asked: BTreeMap<&'static str, u64>,
}

impl Cell {
    pub(super) fn new(base: u64, ppm: i64, start: Moment) -> Self {
        Self {
            locks: BTreeMap::new(),
            claims: BTreeSet::new(),
            base,
            ppm,
            start,
            up: true,
            hangs_until: start,
            abstains_until: 0,
            asked: BTreeMap::new(),
        }
    }

    /// Its clock, in us.
    pub(super) fn time(&self, now: Moment) -> u64 {
        let passed = now.since(self.start).as_micros() as i64;
        self.base.saturating_add_signed(passed + passed * self.ppm / 1_000_000)
    }

    /// Loses all data, and starts a cool-down of this length.
    pub(super) fn forget(&mut self, now: Moment, strict: Duration) {
        self.locks.clear();
        self.abstains_until = self.time(now) + strict.as_micros() as u64;
    }

    /// The claims that are live at that time.
    pub(super) fn live(&self, now: Moment) -> Vec<(String, ClaimId)> {
        let time = self.time(now);
        let ends = |(key, claim): &&(String, ClaimId)| self.locks.get(key).and_then(|lock| lock.ends(*claim));
        self.claims.iter().filter(|claim| ends(claim).is_some_and(|ends| ends > time)).cloned().collect()
    }

    fn lock(&mut self, key: &str, claim: ClaimId) -> &mut Ballots {
        self.claims.insert((key.to_owned(), claim));
        let abstains_until = self.abstains_until;
        self.locks.entry(key.to_owned()).or_insert_with(|| Ballots::abstaining(abstains_until))
    }

    /// Serves a request, and answers as a script does.
    pub(super) fn serve(&mut self, now: Moment, request: &Request) -> Value {
        let (time, arguments) = (self.time(now), &request.arguments[..]);
        let word = |at: usize| &arguments[at][..];
        let count = |this: &mut Self, what| *this.asked.entry(what).or_default() += 1;
        match request.what {
            What::Touch => text(&digits(time)),
            What::Take => {
                count(self, "takes");
                let (ask, guess) = (ask(word(0), word(1), word(4)), Token(number(word(3))));
                let abstains_until = self.abstains_until;
                let lock = self.lock(&request.keys[0], ask.claim);
                let before = lock.last();
                voted(lock.take(time, ask, guess), (guess, before), (time, abstains_until), lock.last())
            }
            What::Write => {
                count(self, "writes");
                let ask = Ask { owner: owner(word(4)), ttl: 0, ..bare(word(0), word(1)) };
                text(&written(self.lock(&request.keys[0], ask.claim).write(time, ask, Token(number(word(3))))))
            }
            What::Release => {
                count(self, "releases");
                let Ask { claim, attempt, .. } = bare(word(0), word(1));
                let lock = self.lock(&request.keys[0], claim);
                let there = if word(3) == b"1" { lock.release(claim, attempt) } else { lock.withdraw(claim, attempt) };
                Value::Int(there.into())
            }
            What::Renew => {
                count(self, "renewals");
                let renew = |(key, words): (&String, &[Vec<u8>])| {
                    let ask = ask(&words[0], word(0), &words[2]);
                    let renewed = self.lock(key, ask.claim).renew(time, ask, Token(number(&words[1])));
                    renewed.map_or('A', |renewed| if renewed { '1' } else { '0' })
                };
                text(&request.keys.iter().zip(arguments[2..].chunks(3)).map(renew).collect::<String>())
            }
            What::Evict => {
                let (claim, token) = (claim(word(0)), Token(number(word(3))));
                let lock = self.lock(&request.keys[0], claim);
                let known = lock.last();
                let did = lock.evict(time, claim, token, word(4) == b"1");
                let yes = |yes: bool| Value::Int(yes.into());
                // The party is not known here.
                Value::Array(vec![yes(did.stored), int(known.0), int(time), text(""), yes(did.there), yes(did.others)])
            }
        }
    }

    /// The answers to `TIME` and `INFO`, which a client requests first.
    pub(super) fn introduce(&self, now: Moment, run: &str) -> Vec<Value> {
        let time = self.time(now);
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

fn claim(bytes: &[u8]) -> ClaimId {
    ClaimId::from_bits(u128::from_be_bytes(bytes.try_into().expect("16 bytes")))
}

fn owner(bytes: &[u8]) -> Option<Owner> {
    let bits = u128::from_be_bytes(bytes.try_into().expect("16 bytes"));
    (bits != 0).then(|| Owner::from_bits(bits))
}

fn bare(id: &[u8], attempt: &[u8]) -> Ask {
    Ask { claim: claim(id), attempt: number(attempt), owner: None, ttl: 0 }
}

fn ask(id: &[u8], attempt: &[u8], party: &[u8]) -> Ask {
    let ttl = Party::read(party).expect("a party").ttl.as_micros() as u64;
    Ask { owner: owner(&party[13..29]), ttl, ..bare(id, attempt) }
}

/// The same answer as the script `take` gives.
fn voted(vote: Vote, (guess, before): (Token, Token), (time, until): (u64, u64), last: Token) -> Value {
    let d = digits;
    match vote {
        Vote::Yes { own, .. } if own == guess && guess > before => Value::Int(1),
        Vote::Yes { last, own, bound } => text(&format!("Y{}{}{}{}", d(last.0), d(time), d(own.0), d(bound.0))),
        Vote::No { last } => text(&format!("N{}{}", d(last.0), d(time))),
        Vote::Abstains => text(&format!("A{}{}{}", d(last.0), d(time), d(until.saturating_sub(time)))),
        Vote::Silent => unreachable!("a node that votes is not silent"),
    }
}

fn written(written: Written) -> String {
    match written {
        Written::Stored => "S".to_owned(),
        Written::Gone => "G".to_owned(),
        Written::Silent => "A".to_owned(),
        Written::Bound(token) => format!("B{}", digits(token.0)),
        Written::Behind(token) => format!("L{}", digits(token.0)),
    }
}
