//! What must not happen.

use std::time::Duration;

use crate::core::guard::LeaseWatcher;
use crate::types::{Owner, Token};
use crate::virtual_time::Report;

/// Observes every grant and the end of each.
#[derive(Debug)]
pub(super) struct InvariantChecker {
    report: Report,
    is_logging: bool,
    now: Duration,
    highest: Token,
    holders: Vec<HeldGuard>,
    last_number: u64,
    /// A hash of all events so far, in their order.
    pub(super) event_hash: u64,
}

#[derive(Debug)]
struct HeldGuard {
    number: u64,
    client: usize,
    owner: Option<Owner>,
    token: Token,
    watch: LeaseWatcher,
}

impl InvariantChecker {
    pub(super) fn new(logs: bool) -> Self {
        let report = Report::default();
        Self {
            report,
            is_logging: logs,
            now: Duration::ZERO,
            highest: Token(0),
            holders: Vec::new(),
            last_number: 0,
            event_hash: 0,
        }
    }

    pub(super) fn count(&mut self, label: &'static str) {
        self.report.count(label);
    }

    pub(super) fn record_breach(&mut self, description: String) {
        let entry = format!("{:>10.6} s  {description}", self.now.as_secs_f64());
        self.report.log.push(entry.clone());
        self.report.violations.push(entry);
    }

    /// Records an event, and checks the holders.
    pub(super) fn record_event(&mut self, now: Duration, description: impl FnOnce() -> String) {
        self.now = now;
        self.count("events");
        let description = if self.is_logging { description() } else { String::new() };
        self.event_hash = self.event_hash.wrapping_mul(0x0000_0100_0000_01B3) ^ now.as_nanos() as u64;
        if self.is_logging {
            let hash = |trace: u64, byte: u8| trace.wrapping_mul(0x0000_0100_0000_01B3) ^ u64::from(byte);
            self.event_hash = description.bytes().fold(self.event_hash, hash);
            self.report.log.push(format!("{:>10.6} s  {description}", now.as_secs_f64()));
        }
        self.check_exclusion();
    }

    fn check_exclusion(&mut self) {
        let held: Vec<&HeldGuard> = self.holders.iter().filter(|held| held.watch.is_held()).collect();
        let Some((first, rest)) = held.split_first() else { return };
        let alone =
            |other: &&HeldGuard| other.owner.is_some() && other.owner == first.owner && other.token == first.token;
        if !rest.iter().all(alone) {
            let holders: Vec<_> = held.iter().map(|held| (held.client, held.token)).collect();
            self.record_breach(format!("two hold the lock: {holders:?}"));
        }
    }

    /// Records a guard; returns its number, for [`record_end`](Self::record_end).
    pub(super) fn record_grant(
        &mut self,
        client: usize,
        owner: Option<Owner>,
        token: Token,
        watch: LeaseWatcher,
    ) -> u64 {
        self.count("grants");
        let shares = self.holders.iter().any(|held| owner.is_some() && held.owner == owner && held.token == token);
        if shares {
            self.count("re-entries");
        } else if token <= self.highest {
            self.record_breach(format!("{client} was granted {token:?} after {:?}", self.highest));
        }
        self.highest = self.highest.max(token);
        self.last_number += 1;
        self.holders.push(HeldGuard { number: self.last_number, client, owner, token, watch });
        self.check_exclusion();
        self.last_number
    }

    /// The holder is done with the guard.
    pub(super) fn record_end(&mut self, number: u64) {
        self.holders.retain(|held| held.number != number);
    }

    /// Checks that a call took no longer than `max`.
    pub(super) fn check_duration(&mut self, call: &'static str, elapsed: Duration, max: Duration) {
        self.count(call);
        // The timers count whole milliseconds, and round up.
        if elapsed > max + Duration::from_millis(5) {
            self.record_breach(format!("{call} took {elapsed:?}, and may take {max:?}"));
        }
    }

    pub(super) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }
}
