//! Locks as tables and JSON show them.

use std::time::Duration;

use leasehold::engine::{ContenderView, LockView};
use leasehold::{ClaimId, Mode};
use serde::Serialize;

use crate::duration::format_duration;
use crate::output::escape_control_chars;

/// How many digits of a claim's id are shown: with all of them, a user could release the claim.
const CLAIM_DIGITS: usize = 8;

/// A lock as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct LockJson<'a> {
    name: &'a str,
    engine: &'a str,
    state: &'static str,
    /// Why the lock's data cannot be read, if it is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cool_down_seconds: Option<f64>,
    last_token: Option<u64>,
    holders: Vec<ContenderJson<'a>>,
    waiters: Vec<ContenderJson<'a>>,
}

impl<'a> LockJson<'a> {
    pub(crate) fn new(view: &'a LockView, engine: &'a str) -> Self {
        Self {
            name: view.name.as_str(),
            engine,
            state: lock_state(view),
            trouble: view.damage.as_deref(),
            cool_down_seconds: view.cool_down.map(|left| left.as_secs_f64()),
            last_token: view.last_token.map(|token| token.0),
            holders: view.holders.iter().map(ContenderJson::new).collect(),
            waiters: view.waiters.iter().map(ContenderJson::new).collect(),
        }
    }
}

/// A holder or waiter as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ContenderJson<'a> {
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
    /// The holder's description of what it does.
    text: &'a str,
    /// How long it has held the lock, or waited for it.
    age_seconds: f64,
    /// The time left of its lease.
    left_seconds: f64,
}

impl<'a> ContenderJson<'a> {
    pub(crate) fn new(contender: &'a ContenderView) -> Self {
        let (mode, permits, limit) = match contender.mode {
            Mode::Exclusive => ("exclusive", None, None),
            Mode::Shared => ("shared", None, None),
            Mode::Permits { n, limit } => ("permits", Some(n), Some(limit)),
        };
        Self {
            claim: format_claim_id(contender.claim),
            mode,
            permits,
            limit,
            token: contender.token.map(|token| token.0),
            host: &contender.holder.host,
            pid: contender.holder.pid,
            program: &contender.holder.program,
            text: &contender.holder.description,
            age_seconds: contender.age.as_secs_f64(),
            left_seconds: contender.remaining.as_secs_f64(),
        }
    }
}

/// A lock's state as `--json` prints it: `damaged`, `held`, `cooling-down`, `waited-for` or `free`.
pub(crate) fn lock_state(view: &LockView) -> &'static str {
    match (view.holders.first(), view.waiters.is_empty()) {
        _ if view.damage.is_some() => "damaged",
        (Some(_), _) => "held",
        _ if view.cool_down.is_some() => "cooling-down",
        (None, false) => "waited-for",
        (None, true) => "free",
    }
}

/// Why strict mode grants no lock for the time `left`: `it cools down for 12s (strict): …`.
pub(crate) fn format_cool_down(left: Duration) -> String {
    let left = format_duration(left);
    format!("it cools down for {left} (strict): a server restarted or was replaced, and may have lost a holder's lease")
}

/// The first digits of a claim's id, as tables and JSON show it.
pub(crate) fn format_claim_id(id: ClaimId) -> String {
    let mut digits = claim_hex(id);
    digits.truncate(CLAIM_DIGITS);
    digits
}

/// Whether a claim's id starts with these hexadecimal digits, in lower case.
pub(crate) fn claim_starts_with(id: ClaimId, prefix: &str) -> bool {
    claim_hex(id).starts_with(prefix)
}

/// All 32 hexadecimal digits of a claim's id.
fn claim_hex(id: ClaimId) -> String {
    format!("{:032x}", id.bits())
}

/// `host:pid`, with control characters escaped.
pub(crate) fn format_process(contender: &ContenderView) -> String {
    format!("{}:{}", escape_control_chars(&contender.holder.host), contender.holder.pid)
}

/// The holder's description, or its program if it has none.
pub(crate) fn format_activity(contender: &ContenderView) -> String {
    let holder = &contender.holder;
    escape_control_chars(if holder.description.is_empty() { &holder.program } else { &holder.description }).into_owned()
}

/// A token, or a dash if there is none.
pub(crate) fn format_token(token: Option<leasehold::Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

/// The time left of a lease; `over` if it has expired.
pub(crate) fn format_remaining(left: Duration) -> String {
    if left.is_zero() { "over".to_owned() } else { format_duration(left) }
}
