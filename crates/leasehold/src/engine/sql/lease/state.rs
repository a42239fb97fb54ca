//! The text of a row's holders, waiters and evictions: readable for people, and databases can
//! query it.
//!
//! `{"holders":[…],"waiters":[…],"who":[["host",pid,"program","text"],…],"evicted":[…]}`.
//! - A party is
//!   `{"id":"…","mode":"x","own":"…","at":µs,"ttl":µs,"token":n,"since":µs,"in":"…","who":0}`, plus
//!   `"asked":true` where an operator requests its release. It lasts for `ttl` from `at`, when it
//!   last reported on the database's clock.
//! - An eviction is `{"id":"…","at":µs,"ttl":µs}`. Without evictions, the list is left out.
//!
//! The statement that writes the text inserts the time: [`NOW`] stands for it.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::claim::{ClaimId, Holder, Mode, Owner, Token};
use crate::clock::Moment;
use crate::logic::evictions::{Eviction, Evictions};
use crate::logic::table::{Party, Table};

/// Stands for the database's time, in text that is sent to it. JSON has no such character.
pub(in super::super) const NOW: char = '\u{1}';
/// Stands for the token that the statement grants.
pub(in super::super) const TOKEN: char = '\u{2}';

/// What a row has of a party beyond the fields of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Since when it holds or waits, on the database's clock. `None`: since the write to come.
    pub(super) since: Option<Moment>,
    /// The client that it belongs to.
    pub(super) inbox: Arc<str>,
    pub(super) who: Arc<Holder>,
    /// An operator requests its release.
    pub(super) release_requested: bool,
}

/// The parties of a row.
pub(super) type Parties = Table<Note>;

/// What a row states about its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) table: Parties,
    pub(super) evictions: Evictions,
}

impl Content {
    /// Whether nothing of the row is needed any more, except its token.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.evictions.is_empty()
    }
}

impl From<Parties> for Content {
    fn from(table: Parties) -> Self {
        Self { table, evictions: Evictions::default() }
    }
}

/// A moment of the database's clock.
pub(super) fn moment(micros: i64) -> Moment {
    Moment::from_nanos(u64::try_from(micros).unwrap_or(0).saturating_mul(1000))
}

/// A moment of the database's clock, in microseconds.
pub(super) fn micros(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos() / 1000).unwrap_or(i64::MAX)
}

/// Writes the text. The statement supplies the time for a lease that begins `now`.
pub(super) fn write(content: &Content, now: Moment) -> String {
    let Content { table, evictions } = content;
    let mut who = Directory::default();
    let evicted = evictions.iter().count();
    let mut text = String::with_capacity(160 * (table.holders.len() + table.waiters.len()) + 80 * evicted + 64);
    text.push_str("{\"holders\":[");
    for (index, party) in table.holders.iter().enumerate() {
        party_text(&mut text, index, party, who.of(&party.note.who), now);
    }
    text.push_str("],\"waiters\":[");
    for (index, party) in table.waiters.iter().enumerate() {
        party_text(&mut text, index, party, who.of(&party.note.who), now);
    }
    text.push_str("],\"who\":[");
    for (index, holder) in who.all.iter().enumerate() {
        let row = serde_json::to_string(&(&*holder.host, holder.pid, &*holder.program, &*holder.text));
        text.push_str(if index == 0 { "" } else { "," });
        // Texts and a number always make valid JSON.
        text.push_str(&row.unwrap_or_default());
    }
    for (index, Eviction { claim, ttl, until }) in evictions.iter().enumerate() {
        text.push_str(if index == 0 { "],\"evicted\":[" } else { "," });
        let _ = write!(text, "{{\"id\":\"{:032x}\"", claim.bits());
        lease_text(&mut text, *ttl, *until, now);
        text.push('}');
    }
    text.push_str("]}");
    text
}

/// Writes since when a lease, a position or an eviction lasts, and how long.
fn lease_text(text: &mut String, ttl: Duration, until: Moment, now: Moment) {
    // It begins now: the statement supplies the time of the write.
    if until == now.after(ttl) {
        let _ = write!(text, ",\"at\":{NOW},\"ttl\":{}", ttl.as_micros());
    } else {
        let _ = write!(text, ",\"at\":{},\"ttl\":{}", micros(until.before(ttl)), ttl.as_micros());
    }
}

/// Lists each holder description once: the claims of one process mostly share one.
#[derive(Default)]
struct Directory<'a> {
    all: Vec<&'a Holder>,
    known: HashMap<*const Holder, usize>,
}

impl<'a> Directory<'a> {
    fn of(&mut self, who: &'a Arc<Holder>) -> usize {
        *self.known.entry(Arc::as_ptr(who)).or_insert_with(|| {
            self.all.iter().position(|other| **other == **who).unwrap_or_else(|| {
                self.all.push(who);
                self.all.len() - 1
            })
        })
    }
}

fn party_text(text: &mut String, index: usize, party: &Party<Note>, who: usize, now: Moment) {
    let comma = if index == 0 { "" } else { "," };
    let _ = write!(text, "{comma}{{\"id\":\"{:032x}\",\"mode\":\"{}\"", party.claim.bits(), mode_text(party.mode));
    if let Some(owner) = party.owner {
        let _ = write!(text, ",\"own\":\"{:032x}\"", owner.bits());
    }
    lease_text(text, party.ttl, party.until, now);
    match party.token {
        Token(0) => {}
        Token(u64::MAX) => {
            let _ = write!(text, ",\"token\":{TOKEN}");
        }
        Token(token) => {
            let _ = write!(text, ",\"token\":{token}");
        }
    }
    match party.note.since {
        None => {
            let _ = write!(text, ",\"since\":{NOW}");
        }
        Some(since) => {
            let _ = write!(text, ",\"since\":{}", micros(since));
        }
    }
    if party.note.release_requested {
        text.push_str(",\"asked\":true");
    }
    let _ = write!(text, ",\"n\":{},\"in\":\"{}\",\"who\":{who}}}", party.place, party.note.inbox);
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permits { n, limit } => format!("{n}/{limit}"),
    }
}

fn mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let (n, limit) = text.split_once('/')?;
            Some(Mode::Permits { n: n.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}

/// Parses the text, at `now` on the database's clock. A lease that begins in the future was written
/// before that clock was set back. It begins now instead, so that it lasts at most its TTL from
/// here.
pub(super) fn read(text: &str, now: Moment) -> Result<Content, &'static str> {
    Ok(read_and_heal(text, now)?.0)
}

/// The same, and whether the clock was set back. The result must then be written, so that such a
/// lease begins now for others, too.
pub(super) fn read_and_heal(text: &str, now: Moment) -> Result<(Content, bool), &'static str> {
    let value: Value = serde_json::from_str(text).map_err(|_| "no JSON")?;
    let who: Option<Vec<Arc<Holder>>> = value["who"].as_array().and_then(|rows| rows.iter().map(holder).collect());
    let who = who.ok_or("no list of who they are")?;
    let list = |key: &str| -> Result<Vec<Party<Note>>, &'static str> {
        let parties = value[key].as_array().ok_or("no list of parties")?;
        parties.iter().map(|value| party(value, &who, now).ok_or("a party is not understood")).collect()
    };
    let table = Table { holders: list("holders")?, waiters: list("waiters")?.into() };
    let evicted = value["evicted"].as_array().map_or(&[][..], Vec::as_slice);
    let evictions: Option<Evictions> = evicted.iter().map(|value| eviction(value, now)).collect();
    let evictions = evictions.ok_or("an eviction is not understood")?;
    let is_ahead =
        |value: &Value| value["at"].as_i64().is_some_and(|at| moment(at) > now.after(Duration::from_secs(1)));
    let lists = ["holders", "waiters", "evicted"].iter().filter_map(|key| value[*key].as_array());
    let healed = lists.flatten().any(is_ahead);
    Ok((Content { table, evictions }, healed))
}

fn hex(value: &Value) -> Option<u128> {
    value.as_str().and_then(|text| u128::from_str_radix(text, 16).ok())
}

/// How long a lease, a position or an eviction lasts, and until when.
fn lease(value: &Value, now: Moment) -> Option<(Duration, Moment)> {
    let ttl = Duration::from_micros(value["ttl"].as_u64()?);
    let at = moment(value["at"].as_i64()?).min(now);
    Some((ttl, at.after(ttl)))
}

fn eviction(value: &Value, now: Moment) -> Option<Eviction> {
    let (ttl, until) = lease(value, now)?;
    Some(Eviction { claim: ClaimId::from_bits(hex(&value["id"])?), ttl, until })
}

fn holder(row: &Value) -> Option<Arc<Holder>> {
    let text = |index: usize| row[index].as_str();
    Some(Arc::new(Holder::new(text(0)?, row[1].as_u64()?.try_into().ok()?, text(2)?, text(3)?)))
}

fn party(value: &Value, who: &[Arc<Holder>], now: Moment) -> Option<Party<Note>> {
    let (ttl, until) = lease(value, now)?;
    Some(Party {
        claim: ClaimId::from_bits(hex(&value["id"])?),
        owner: if value["own"].is_null() { None } else { Some(Owner::from_bits(hex(&value["own"])?)) },
        mode: mode(value["mode"].as_str()?)?,
        ttl,
        until,
        token: Token(value["token"].as_u64().unwrap_or(0)),
        place: value["n"].as_u64()?,
        note: Note {
            since: Some(moment(value["since"].as_i64()?)),
            inbox: value["in"].as_str()?.into(),
            who: Arc::clone(who.get(usize::try_from(value["who"].as_u64()?).ok()?)?),
            release_requested: value["asked"].as_bool().unwrap_or_default(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_party() -> impl Strategy<Value = Party<Note>> {
        let mode = prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1u32..9, 9u32..99).prop_map(|(n, limit)| Mode::Permits { n, limit })
        ];
        let who = ("\\PC{0,8}", 0u32..9, "\\PC{0,8}", ".{0,12}");
        (any::<u128>(), any::<Option<u128>>(), mode, 1u64..1 << 40, 0u64..1 << 40, 0u64..1 << 62, (who, any::<bool>()))
            .prop_map(|(claim, owner, mode, ttl, at, token, (who, release_requested))| {
                let ttl = Duration::from_micros(ttl);
                Party {
                    claim: ClaimId::from_bits(claim),
                    owner: owner.map(Owner::from_bits),
                    mode,
                    ttl,
                    until: moment(at as i64).after(ttl),
                    token: Token(token),
                    place: token,
                    note: Note {
                        since: Some(moment(at as i64)),
                        inbox: "0123456789abcdef".into(),
                        who: Arc::new(Holder::new(&who.0, who.1, &who.2, &who.3)),
                        release_requested,
                    },
                }
            })
    }

    fn any_eviction() -> impl Strategy<Value = Eviction> {
        (any::<u128>(), 1u64..1 << 40, 0u64..1 << 40).prop_map(|(claim, ttl, at)| {
            let ttl = Duration::from_micros(ttl);
            Eviction { claim: ClaimId::from_bits(claim), ttl, until: moment(at as i64).after(ttl) }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            holders in prop::collection::vec(any_party(), 0..4), waiters in prop::collection::vec(any_party(), 0..4),
            evictions in prop::collection::vec(any_eviction(), 0..4),
        ) {
            let evictions = evictions.into_iter().collect();
            let content = Content { table: Table { holders, waiters: waiters.into() }, evictions };
            let now = moment(1 << 41);
            let text = write(&content, now);
            prop_assert!(!text.contains([NOW, TOKEN]));
            prop_assert_eq!(read(&text, now), Ok(content));
        }

        #[test]
        fn an_eviction_gets_the_statements_time_and_lasts_no_longer_than_its_ttl(
            mut eviction in any_eviction(), later in 0i64..1 << 30, back in 0i64..1 << 40,
        ) {
            let (now, at) = (moment(1 << 41), (1i64 << 41) + later);
            eviction.until = now.after(eviction.ttl);
            let content = Content { evictions: [eviction].into_iter().collect(), ..Content::default() };
            let text = write(&content, now).replace(NOW, &at.to_string());
            let ends = |now: Moment| read(&text, now).unwrap().evictions.iter().next().unwrap().until;
            prop_assert_eq!(ends(moment(at)), moment(at).after(eviction.ttl));
            let earlier = moment(at - back);
            prop_assert_eq!(ends(earlier), earlier.after(eviction.ttl));
        }

        #[test]
        fn a_lease_that_begins_now_gets_the_statements_time(party in any_party(), later in 0i64..1 << 30) {
            let now = moment(1 << 41);
            let fresh = Party { until: now.after(party.ttl), note: Note { since: None, ..party.note.clone() }, ..party };
            let table = Table { holders: vec![fresh.clone()], waiters: Default::default() };
            let at = (1i64 << 41) + later;
            let text = write(&table.into(), now).replace(NOW, &at.to_string());
            let read = read(&text, moment(at)).unwrap().table;
            prop_assert_eq!(read.holders[0].until, moment(at).after(fresh.ttl));
            prop_assert_eq!(read.holders[0].note.since, Some(moment(at)));
        }

        #[test]
        fn a_clock_set_back_makes_no_lease_longer_than_its_ttl(party in any_party(), back in 0i64..1 << 40) {
            let written = moment(1 << 41);
            let table = Table { holders: vec![Party { until: written.after(party.ttl), ..party }], waiters: Default::default() };
            let ttl = table.holders[0].ttl;
            let text = write(&table.into(), moment(0));
            let now = moment((1 << 41) - back);
            prop_assert_eq!(read(&text, now).unwrap().table.holders[0].until, now.after(ttl));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = read(&text, moment(0));
        }
    }
}
