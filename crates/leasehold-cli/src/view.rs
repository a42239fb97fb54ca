//! Locks as tables and JSON show them.

use std::time::Duration;

use leasehold::engine::{LockView, PartyView};
use leasehold::{ClaimId, Mode};
use serde::Serialize;

use crate::duration::human;
use crate::output::clean;

/// How many digits of a claim are shown: all of them would suffice to release it.
const CLAIM_DIGITS: usize = 8;

/// A lock as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct LockJson<'a> {
    name: &'a str,
    engine: &'a str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
    last_token: Option<u64>,
    holders: Vec<PartyJson<'a>>,
    waiters: Vec<PartyJson<'a>>,
}

impl<'a> LockJson<'a> {
    pub(crate) fn new(view: &'a LockView, engine: &'a str) -> Self {
        Self {
            name: view.name.as_str(),
            engine,
            state: state(view),
            trouble: view.trouble.as_deref(),
            last_token: view.last_token.map(|token| token.0),
            holders: view.holders.iter().map(PartyJson::new).collect(),
            waiters: view.waiters.iter().map(PartyJson::new).collect(),
        }
    }
}

/// A holder or waiter as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct PartyJson<'a> {
    claim: String,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    token: Option<u64>,
    host: &'a str,
    pid: u32,
    program: &'a str,
    text: &'a str,
    age_seconds: f64,
    left_seconds: f64,
}

impl<'a> PartyJson<'a> {
    pub(crate) fn new(party: &'a PartyView) -> Self {
        let (mode, permits, limit) = match party.mode {
            Mode::Exclusive => ("exclusive", None, None),
            Mode::Shared => ("shared", None, None),
            Mode::Permits { n, limit } => ("permits", Some(n), Some(limit)),
        };
        Self {
            claim: claim(party.claim),
            mode,
            permits,
            limit,
            token: party.token.map(|token| token.0),
            host: &party.holder.host,
            pid: party.holder.pid,
            program: &party.holder.program,
            text: &party.holder.text,
            age_seconds: party.age.as_secs_f64(),
            left_seconds: party.left.as_secs_f64(),
        }
    }
}

/// A lock's state in one word.
pub(crate) fn state(view: &LockView) -> &'static str {
    match (view.holders.first(), view.waiters.is_empty()) {
        _ if view.trouble.is_some() => "damaged",
        (Some(_), _) => "held",
        (None, false) => "waited-for",
        (None, true) => "free",
    }
}

/// The digits of a claim that are shown.
pub(crate) fn claim(id: ClaimId) -> String {
    let mut digits = all_digits(id);
    digits.truncate(CLAIM_DIGITS);
    digits
}

/// Whether a claim starts with these digits.
pub(crate) fn claim_starts_with(id: ClaimId, prefix: &str) -> bool {
    all_digits(id).starts_with(&prefix.trim_end_matches('…').to_ascii_lowercase())
}

fn all_digits(id: ClaimId) -> String {
    format!("{:032x}", id.bits())
}

/// `host:pid`, with control characters escaped.
pub(crate) fn process(party: &PartyView) -> String {
    format!("{}:{}", clean(&party.holder.host), party.holder.pid)
}

/// The holder's description, or its program if it has none.
pub(crate) fn doing(party: &PartyView) -> String {
    let holder = &party.holder;
    clean(if holder.text.is_empty() { &holder.program } else { &holder.text }).into_owned()
}

/// A token, or a dash.
pub(crate) fn token(token: Option<leasehold::Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

/// The time left of a lease.
pub(crate) fn left(left: Duration) -> String {
    if left.is_zero() { "over".to_owned() } else { human(left) }
}
