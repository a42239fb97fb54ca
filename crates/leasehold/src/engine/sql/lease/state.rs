//! The `state` column of a row: its holders, waiters and notes of force releases, as JSON that
//! people can read and databases can query.
//!
//! `{"holders":[…],"waiters":[…],"who":[["host",pid,"program","text"],…],"force_released":[…]}`.
//! - A contender, which is a holder or a waiter, is
//!   `{"id":"…","mode":"x","own":"…","at":µs,"ttl":µs,"token":n,"since":µs,"in":"…","who":0}`, plus
//!   `"asked":true` where an operator requests its release. It lasts for `ttl` from `at`, when it
//!   was last renewed, on the database's clock.
//! - A force-released claim is noted as `{"id":"…","at":µs,"ttl":µs}`. Without any, the list is
//!   left out.
//!
//! Where the text has [`NOW_PLACEHOLDER`], the statement that writes it inserts its time.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::clock::Instant;
use crate::logic::force_released_claims::{ForceReleasedClaim, ForceReleasedClaims};
use crate::logic::table::{Contender, LockTable};
use crate::types::{ClaimId, Holder, Mode, Owner, Token};

/// The database replaces this character in the text with its time in microseconds. It never occurs
/// in JSON otherwise.
pub(in super::super) const NOW_PLACEHOLDER: char = '\u{1}';
/// The database replaces this character in the text with the token that the statement grants.
pub(in super::super) const TOKEN_PLACEHOLDER: char = '\u{2}';

/// The stored fields of a holder or waiter besides those of [`Contender`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContenderDetails {
    /// Since when it holds or waits, on the database's clock. `None`: since the next write of the
    /// row.
    pub(super) since: Option<Instant>,
    /// The id of the client that it belongs to.
    pub(super) client_id: Arc<str>,
    /// Its process and description, for inspection.
    pub(super) holder: Arc<Holder>,
    /// Whether an operator has requested its release.
    pub(super) is_release_requested: bool,
}

/// The holders and waiters of a row.
pub(super) type Contenders = LockTable<ContenderDetails>;

/// The parsed `state` column of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) table: Contenders,
    /// The notes of claims that were force released.
    pub(super) force_released_claims: ForceReleasedClaims,
}

impl Content {
    /// Whether the row has no holders, no waiters and no notes.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.force_released_claims.is_empty()
    }
}

impl From<Contenders> for Content {
    fn from(table: Contenders) -> Self {
        Self { table, force_released_claims: ForceReleasedClaims::default() }
    }
}

/// A moment on the database's clock, which is given in microseconds since 1970.
pub(super) fn instant_from_micros(micros: i64) -> Instant {
    Instant::from_nanos(u64::try_from(micros).unwrap_or(0).saturating_mul(1000))
}

/// Converts a moment on the database's clock to microseconds since 1970.
pub(super) fn to_micros(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos() / 1000).unwrap_or(i64::MAX)
}

/// The text for a row's `state` column. A lease that begins at `now` gets [`NOW_PLACEHOLDER`], so
/// that it begins at the time of the write.
pub(super) fn write(content: &Content, now: Instant) -> String {
    let Content { table, force_released_claims } = content;
    let mut holders = HolderIndex::default();
    let force_release_count = force_released_claims.iter().count();
    let mut text =
        String::with_capacity(160 * (table.holders.len() + table.waiters.len()) + 80 * force_release_count + 64);
    text.push_str("{\"holders\":[");
    for (index, contender) in table.holders.iter().enumerate() {
        write_contender(&mut text, index, contender, holders.index_of(&contender.details.holder), now);
    }
    text.push_str("],\"waiters\":[");
    for (index, contender) in table.waiters.iter().enumerate() {
        write_contender(&mut text, index, contender, holders.index_of(&contender.details.holder), now);
    }
    text.push_str("],\"who\":[");
    for (index, holder) in holders.holders.iter().enumerate() {
        let row = serde_json::to_string(&(&*holder.host, holder.pid, &*holder.program, &*holder.description));
        text.push_str(if index == 0 { "" } else { "," });
        // Three texts and a number can always be written as JSON.
        text.push_str(&row.unwrap_or_default());
    }
    for (index, ForceReleasedClaim { claim, ttl, until }) in force_released_claims.iter().enumerate() {
        text.push_str(if index == 0 { "],\"force_released\":[" } else { "," });
        let _ = write!(text, "{{\"id\":\"{:032x}\"", claim.bits());
        write_lease(&mut text, *ttl, *until, now);
        text.push('}');
    }
    text.push_str("]}");
    text
}

/// Appends `at` and `ttl`: when a lease, queue position or note begins, and how long it lasts.
fn write_lease(text: &mut String, ttl: Duration, until: Instant, now: Instant) {
    // It begins now: the statement inserts the time of the write.
    if until == now.saturating_add(ttl) {
        let _ = write!(text, ",\"at\":{NOW_PLACEHOLDER},\"ttl\":{}", ttl.as_micros());
    } else {
        let _ = write!(text, ",\"at\":{},\"ttl\":{}", to_micros(until.saturating_sub(ttl)), ttl.as_micros());
    }
}

/// The list of processes in the text. Each is listed once, because claims of one process mostly
/// share it.
#[derive(Default)]
struct HolderIndex<'a> {
    /// The processes, in the order of the text.
    holders: Vec<&'a Holder>,
    /// The index of each, by its address, so that a shared one is found at once.
    indices: HashMap<*const Holder, usize>,
}

impl<'a> HolderIndex<'a> {
    /// The process's index in the list; adds it if it is missing.
    fn index_of(&mut self, holder: &'a Arc<Holder>) -> usize {
        *self.indices.entry(Arc::as_ptr(holder)).or_insert_with(|| {
            self.holders.iter().position(|other| **other == **holder).unwrap_or_else(|| {
                self.holders.push(holder);
                self.holders.len() - 1
            })
        })
    }
}

/// Appends one element of the list of holders or waiters; `index` is its place in that list.
fn write_contender(
    text: &mut String,
    index: usize,
    contender: &Contender<ContenderDetails>,
    holder_index: usize,
    now: Instant,
) {
    let comma = if index == 0 { "" } else { "," };
    let _ =
        write!(text, "{comma}{{\"id\":\"{:032x}\",\"mode\":\"{}\"", contender.claim.bits(), mode_text(contender.mode));
    if let Some(owner) = contender.owner {
        let _ = write!(text, ",\"own\":\"{:032x}\"", owner.bits());
    }
    write_lease(text, contender.ttl, contender.expires_at, now);
    match contender.token {
        Token(0) => {}
        Token(u64::MAX) => {
            let _ = write!(text, ",\"token\":{TOKEN_PLACEHOLDER}");
        }
        Token(token) => {
            let _ = write!(text, ",\"token\":{token}");
        }
    }
    match contender.details.since {
        None => {
            let _ = write!(text, ",\"since\":{NOW_PLACEHOLDER}");
        }
        Some(since) => {
            let _ = write!(text, ",\"since\":{}", to_micros(since));
        }
    }
    if contender.details.is_release_requested {
        text.push_str(",\"asked\":true");
    }
    let _ =
        write!(text, ",\"n\":{},\"in\":\"{}\",\"who\":{holder_index}}}", contender.order, contender.details.client_id);
}

/// The text for a mode: `x` for exclusive, `s` for shared, `n/limit` for permits.
fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permits { n, limit } => format!("{n}/{limit}"),
    }
}

/// Parses the text for a mode.
fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let (n, limit) = text.split_once('/')?;
            Some(Mode::Permits { n: n.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}

/// Parses the text of a `state` column that was read at `now`, on the database's clock. A lease
/// that begins after `now` was written before that clock was set back. It is read as if it began at
/// `now`, so that it lasts no longer than its TTL.
pub(super) fn read(text: &str, now: Instant) -> Result<Content, &'static str> {
    Ok(read_and_correct(text, now)?.0)
}

/// Does what [`read`] does. Also returns whether a lease began after `now`. Then the row must be
/// written again, so that this lease ends at the same time for all clients.
pub(super) fn read_and_correct(text: &str, now: Instant) -> Result<(Content, bool), &'static str> {
    let value: Value = serde_json::from_str(text).map_err(|_| "it is no JSON")?;
    let holders: Option<Vec<Arc<Holder>>> =
        value["who"].as_array().and_then(|rows| rows.iter().map(parse_holder).collect());
    let holders = holders.ok_or("it has no list of processes")?;
    let list = |key: &str| -> Result<Vec<Contender<ContenderDetails>>, &'static str> {
        let contenders = value[key].as_array().ok_or("it has no list of holders or waiters")?;
        contenders
            .iter()
            .map(|value| parse_contender(value, &holders, now).ok_or("a holder or waiter is in an unknown format"))
            .collect()
    };
    let table = LockTable { holders: list("holders")?, waiters: list("waiters")?.into() };
    let listed = value["force_released"].as_array().map_or(&[][..], Vec::as_slice);
    let force_released_claims: Option<ForceReleasedClaims> =
        listed.iter().map(|value| parse_force_released_claim(value, now)).collect();
    let force_released_claims = force_released_claims.ok_or("the note of a force release is in an unknown format")?;
    let begins_in_future = |value: &Value| {
        value["at"].as_i64().is_some_and(|at| instant_from_micros(at) > now.saturating_add(Duration::from_secs(1)))
    };
    let lists = ["holders", "waiters", "force_released"].iter().filter_map(|key| value[*key].as_array());
    let has_future_lease = lists.flatten().any(begins_in_future);
    Ok((Content { table, force_released_claims }, has_future_lease))
}

/// A number that is written as hexadecimal text.
fn parse_hex(value: &Value) -> Option<u128> {
    value.as_str().and_then(|text| u128::from_str_radix(text, 16).ok())
}

/// How long a lease, queue position or note lasts in all, and when it ends.
fn parse_lease(value: &Value, now: Instant) -> Option<(Duration, Instant)> {
    let ttl = Duration::from_micros(value["ttl"].as_u64()?);
    let at = instant_from_micros(value["at"].as_i64()?).min(now);
    Some((ttl, at.saturating_add(ttl)))
}

/// Parses the note of a force-released claim.
fn parse_force_released_claim(value: &Value, now: Instant) -> Option<ForceReleasedClaim> {
    let (ttl, until) = parse_lease(value, now)?;
    Some(ForceReleasedClaim { claim: ClaimId::from_bits(parse_hex(&value["id"])?), ttl, until })
}

/// Parses a process in the list of processes: host, pid, program and description.
fn parse_holder(row: &Value) -> Option<Arc<Holder>> {
    let text = |index: usize| row[index].as_str();
    Some(Arc::new(Holder::new(text(0)?, row[1].as_u64()?.try_into().ok()?, text(2)?, text(3)?)))
}

/// Parses a holder or waiter; `holders` is the list of processes.
fn parse_contender(value: &Value, holders: &[Arc<Holder>], now: Instant) -> Option<Contender<ContenderDetails>> {
    let (ttl, until) = parse_lease(value, now)?;
    Some(Contender {
        claim: ClaimId::from_bits(parse_hex(&value["id"])?),
        owner: if value["own"].is_null() { None } else { Some(Owner::from_bits(parse_hex(&value["own"])?)) },
        mode: parse_mode(value["mode"].as_str()?)?,
        ttl,
        expires_at: until,
        token: Token(value["token"].as_u64().unwrap_or(0)),
        order: value["n"].as_u64()?,
        details: ContenderDetails {
            since: Some(instant_from_micros(value["since"].as_i64()?)),
            client_id: value["in"].as_str()?.into(),
            holder: Arc::clone(holders.get(usize::try_from(value["who"].as_u64()?).ok()?)?),
            is_release_requested: value["asked"].as_bool().unwrap_or_default(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_contender() -> impl Strategy<Value = Contender<ContenderDetails>> {
        let mode = prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1u32..9, 9u32..99).prop_map(|(n, limit)| Mode::Permits { n, limit })
        ];
        let holder = ("\\PC{0,8}", 0u32..9, "\\PC{0,8}", ".{0,12}");
        (
            any::<u128>(),
            any::<Option<u128>>(),
            mode,
            1u64..1 << 40,
            0u64..1 << 40,
            0u64..1 << 62,
            (holder, any::<bool>()),
        )
            .prop_map(|(claim, owner, mode, ttl, at, token, (holder, release_requested))| {
                let ttl = Duration::from_micros(ttl);
                Contender {
                    claim: ClaimId::from_bits(claim),
                    owner: owner.map(Owner::from_bits),
                    mode,
                    ttl,
                    expires_at: instant_from_micros(at as i64).saturating_add(ttl),
                    token: Token(token),
                    order: token,
                    details: ContenderDetails {
                        since: Some(instant_from_micros(at as i64)),
                        client_id: "0123456789abcdef".into(),
                        holder: Arc::new(Holder::new(&holder.0, holder.1, &holder.2, &holder.3)),
                        is_release_requested: release_requested,
                    },
                }
            })
    }

    fn any_force_released_claim() -> impl Strategy<Value = ForceReleasedClaim> {
        (any::<u128>(), 1u64..1 << 40, 0u64..1 << 40).prop_map(|(claim, ttl, at)| {
            let ttl = Duration::from_micros(ttl);
            ForceReleasedClaim {
                claim: ClaimId::from_bits(claim),
                ttl,
                until: instant_from_micros(at as i64).saturating_add(ttl),
            }
        })
    }

    proptest! {
        #[test]
        fn a_state_round_trips(
            holders in prop::collection::vec(any_contender(), 0..4), waiters in prop::collection::vec(any_contender(), 0..4),
            force_released_claims in prop::collection::vec(any_force_released_claim(), 0..4),
        ) {
            let force_released_claims = force_released_claims.into_iter().collect();
            let content = Content { table: LockTable { holders, waiters: waiters.into() }, force_released_claims };
            let now = instant_from_micros(1 << 41);
            let text = write(&content, now);
            prop_assert!(!text.contains([NOW_PLACEHOLDER, TOKEN_PLACEHOLDER]));
            prop_assert_eq!(read(&text, now), Ok(content));
        }

        #[test]
        fn a_force_released_claim_gets_the_statements_time_and_lasts_no_longer_than_its_ttl(
            mut claim in any_force_released_claim(), later in 0i64..1 << 30, back in 0i64..1 << 40,
        ) {
            let (now, at) = (instant_from_micros(1 << 41), (1i64 << 41) + later);
            claim.until = now.saturating_add(claim.ttl);
            let content = Content { force_released_claims: [claim].into_iter().collect(), ..Content::default() };
            let text = write(&content, now).replace(NOW_PLACEHOLDER, &at.to_string());
            let ends = |now: Instant| read(&text, now).unwrap().force_released_claims.iter().next().unwrap().until;
            prop_assert_eq!(ends(instant_from_micros(at)), instant_from_micros(at).saturating_add(claim.ttl));
            let earlier = instant_from_micros(at - back);
            prop_assert_eq!(ends(earlier), earlier.saturating_add(claim.ttl));
        }

        #[test]
        fn a_lease_that_begins_now_gets_the_statements_time(contender in any_contender(), later in 0i64..1 << 30) {
            let now = instant_from_micros(1 << 41);
            let fresh = Contender { expires_at: now.saturating_add(contender.ttl), details: ContenderDetails { since: None, ..contender.details.clone() }, ..contender };
            let table = LockTable { holders: vec![fresh.clone()], waiters: Default::default() };
            let at = (1i64 << 41) + later;
            let text = write(&table.into(), now).replace(NOW_PLACEHOLDER, &at.to_string());
            let read = read(&text, instant_from_micros(at)).unwrap().table;
            prop_assert_eq!(read.holders[0].expires_at, instant_from_micros(at).saturating_add(fresh.ttl));
            prop_assert_eq!(read.holders[0].details.since, Some(instant_from_micros(at)));
        }

        #[test]
        fn a_clock_set_back_makes_no_lease_longer_than_its_ttl(contender in any_contender(), back in 0i64..1 << 40) {
            let written = instant_from_micros(1 << 41);
            let table = LockTable { holders: vec![Contender { expires_at: written.saturating_add(contender.ttl), ..contender }], waiters: Default::default() };
            let ttl = table.holders[0].ttl;
            let text = write(&table.into(), instant_from_micros(0));
            let now = instant_from_micros((1 << 41) - back);
            prop_assert_eq!(read(&text, now).unwrap().table.holders[0].expires_at, now.saturating_add(ttl));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = read(&text, instant_from_micros(0));
        }
    }
}
