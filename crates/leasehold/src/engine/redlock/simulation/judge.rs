//! What must not happen.

use std::time::Duration;

use crate::claim::{Owner, Token};
use crate::guard::Watch;
use crate::virtual_time::Report;

/// Observes every grant and the end of each.
#[derive(Debug)]
pub(super) struct Judge {
    report: Report,
    logs: bool,
    now: Duration,
    highest: Token,
    holders: Vec<Held>,
    next: u64,
    /// A hash of all events so far, in their order.
    pub(super) trace: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
    client: usize,
    owner: Option<Owner>,
    token: Token,
    watch: Watch,
}

impl Judge {
    pub(super) fn new(logs: bool) -> Self {
        let report = Report::default();
        Self { report, logs, now: Duration::ZERO, highest: Token(0), holders: Vec::new(), next: 0, trace: 0 }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        self.report.count(what);
    }

    pub(super) fn breach(&mut self, what: String) {
        let line = format!("{:>10.6} s  {what}", self.now.as_secs_f64());
        self.report.log.push(line.clone());
        self.report.breaches.push(line);
    }

    /// Records an event, and checks the holders.
    pub(super) fn event(&mut self, now: Duration, what: impl FnOnce() -> String) {
        self.now = now;
        self.count("events");
        let what = if self.logs { what() } else { String::new() };
        self.trace = self.trace.wrapping_mul(0x0000_0100_0000_01B3) ^ now.as_nanos() as u64;
        if self.logs {
            let hash = |trace: u64, byte: u8| trace.wrapping_mul(0x0000_0100_0000_01B3) ^ u64::from(byte);
            self.trace = what.bytes().fold(self.trace, hash);
            self.report.log.push(format!("{:>10.6} s  {what}", now.as_secs_f64()));
        }
        self.only_one();
    }

    fn only_one(&mut self) {
        let held: Vec<&Held> = self.holders.iter().filter(|held| held.watch.is_held()).collect();
        let Some((first, rest)) = held.split_first() else { return };
        let alone = |other: &&Held| other.owner.is_some() && other.owner == first.owner && other.token == first.token;
        if !rest.iter().all(alone) {
            let who: Vec<_> = held.iter().map(|held| (held.client, held.token)).collect();
            self.breach(format!("two hold the lock: {who:?}"));
        }
    }

    /// Records a guard; returns its number, for [`ended`](Self::ended).
    pub(super) fn granted(&mut self, client: usize, owner: Option<Owner>, token: Token, watch: Watch) -> u64 {
        self.count("grants");
        let shares = self.holders.iter().any(|held| owner.is_some() && held.owner == owner && held.token == token);
        if shares {
            self.count("re-entries");
        } else if token <= self.highest {
            self.breach(format!("{client} was granted {token:?} after {:?}", self.highest));
        }
        self.highest = self.highest.max(token);
        self.next += 1;
        self.holders.push(Held { number: self.next, client, owner, token, watch });
        self.only_one();
        self.next
    }

    /// The holder is done with the guard.
    pub(super) fn ended(&mut self, number: u64) {
        self.holders.retain(|held| held.number != number);
    }

    /// Checks that a call took no longer than `most`.
    pub(super) fn took(&mut self, call: &'static str, took: Duration, most: Duration) {
        self.count(call);
        // The timers count whole milliseconds, and round up.
        if took > most + Duration::from_millis(5) {
            self.breach(format!("{call} took {took:?}, and may take {most:?}"));
        }
    }

    pub(super) fn end(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }
}
