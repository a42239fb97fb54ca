//! When a job is due: cron expressions, nicknames and `@every`, in a time zone.
//!
//! The crate `croner` finds the *civil* times that match. This module maps them to instants where
//! clocks are changed, so that every tick is one instant that does not depend on the start of the
//! search.

use std::fmt;
use std::time::Duration;

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::tick::Tick;
use crate::logic::Ticks;
use leasehold::{Error, ErrorKind, Result};

/// A schedule in a time zone; UTC by default.
///
/// Five fields (`minute hour day-of-month month day-of-week`) or six (with seconds first), a
/// nickname (`@hourly`, `@daily` or `@midnight`, `@weekly`, `@monthly`, `@yearly` or `@annually`),
/// or `@every 90s`, which counts from 1970 so that all hosts agree.
///
/// The fields accept `*`, lists, ranges, steps (`*/5`, `10-50/20`), names (`MON`, `JAN`), `L` (last
/// day), `15W` (the weekday nearest to the 15th), `5#2` (the second Friday) and `5#L` (the last
/// one). If both day fields are restricted, either suffices, as in cron; with `+` before the day of
/// the week both must match.
///
/// Where clocks are changed, an expression whose hour field begins with `*` follows elapsed time:
/// the skipped hour has no ticks, and the repeated hour has its ticks twice. All other expressions
/// mean an hour of the day: ticks in the skipped hour are due once, at the first instant after it,
/// and in the repeated hour only the first pass counts.
///
/// ```
/// use leasehold_schedule::{Cron, Tick};
///
/// let cron = Cron::parse("30 2 * * *")?.in_zone("Europe/Berlin")?;
/// let before = Tick::parse("2026-03-28T12:00:00Z").unwrap();
/// let due = cron.next_after(before).unwrap();                      // 02:30 does not exist on that day
/// assert_eq!(due.to_string(), "2026-03-29T01:00:00Z");             // 03:00 in Berlin, the first instant after the gap
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Cron {
    text: String,
    rule: Rule,
    zone: TimeZone,
    zone_name: String,
}

#[derive(Clone)]
enum Rule {
    /// `@every`: ticks are this many seconds apart, counted from 1970.
    Every(i64),
    /// Ticks at the local times that match `pattern`. Where clocks are changed, they follow elapsed
    /// time if `by_elapsed` (the hour field begins with `*`), and otherwise hours of the day.
    Civil { pattern: Box<croner::Cron>, by_elapsed: bool },
}

/// The names of the fields of an expression and their allowed values, from the second to the day of
/// the week.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31, L, 15W"),
    ("month", "1-12 or JAN-DEC"),
    ("day of the week", "0-7 (0 and 7 are Sunday) or SUN-SAT, 5#2, 5#L"),
];

impl Cron {
    /// Parses a cron expression, a nickname or `@every`; the time zone is UTC.
    ///
    /// # Errors
    /// `InvalidOption`, with the wrong field and its allowed values; also for an expression that
    /// never matches.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let rule = match text.strip_prefix('@') {
            Some(nickname) => parse_nickname(text, nickname)?,
            None => parse_civil(text)?,
        };
        let cron = Self { text: text.to_owned(), rule, zone: TimeZone::UTC, zone_name: "UTC".to_owned() };
        // The year 2000 had every date that can exist.
        match cron.next_after(Tick::from_unix(946_684_799)) {
            Some(_) => Ok(cron),
            None => Err(invalid_expression(text, "it never matches: there is no such day")),
        }
    }

    /// The same schedule in a zone of the IANA database: `Europe/Berlin`, `America/New_York`,
    /// `UTC`.
    ///
    /// # Errors
    /// `InvalidOption` if there is no such zone.
    pub fn in_zone(mut self, name: &str) -> Result<Self> {
        let known = TimeZone::get(name).map_err(|_| {
            let what = format!("there is no time zone {name:?}: write one as Europe/Berlin, America/New_York or UTC");
            Error::new(ErrorKind::InvalidOption, what)
        })?;
        name.clone_into(&mut self.zone_name);
        self.zone = known;
        Ok(self)
    }

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name of the time zone, such as `Europe/Berlin`.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// The first tick later than `after`; `None` at the end of the calendar.
    pub fn next_after(&self, after: Tick) -> Option<Tick> {
        self.next(after.unix()).map(Tick::from_unix)
    }

    /// The time between the next two ticks after `after`; `None` if there are fewer than two.
    pub fn period_after(&self, after: Tick) -> Option<Duration> {
        let first = self.next(after.unix())?;
        let second = self.next(first)?;
        Some(Duration::from_secs(u64::try_from(second - first).ok()?))
    }

    /// Formats a tick in the schedule's time zone: `2026-11-16 03:00:00 CET`.
    pub fn local(&self, tick: Tick) -> String {
        let Ok(at) = Timestamp::from_second(tick.unix()) else { return tick.to_string() };
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
    }

    fn next_civil_time(pattern: &croner::Cron, after: civil::DateTime) -> Option<civil::DateTime> {
        pattern.find_next_occurrence(&after, false).ok()
    }

    /// The first tick after `after` if the expression means hours of the day. The mapping from
    /// local times to instants is monotonic, so the search can start at the local time of `after`.
    fn next_by_hour(&self, pattern: &croner::Cron, after: Timestamp) -> Option<Timestamp> {
        let mut civil = self.zone.to_datetime(after);
        loop {
            civil = Self::next_civil_time(pattern, civil)?;
            let at = self.first_instant(civil)?;
            if at > after {
                return Some(at);
            }
        }
    }

    /// The first instant at which a clock shows `civil`; if none does, the first instant after the
    /// gap.
    fn first_instant(&self, civil: civil::DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(civil);
        if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
            // `earlier` is a time before the gap, and the next change of the clock is the gap.
            let before = ambiguous.earlier().ok()?;
            return self.zone.following(before).next().map(|change| change.timestamp());
        }
        ambiguous.earlier().ok()
    }

    /// The first tick after `after` if the expression follows elapsed time. Searches from one
    /// change of the clock to the next, with the UTC offset that applies in between.
    fn next_by_elapsed(&self, pattern: &croner::Cron, after: Timestamp) -> Option<Timestamp> {
        let mut after = after;
        loop {
            let offset = self.zone.to_offset(after);
            let civil = Self::next_civil_time(pattern, offset.to_datetime(after))?;
            let at = offset.to_timestamp(civil).ok()?;
            let Some(change) = self.zone.following(after).next().map(|change| change.timestamp()) else {
                return Some(at);
            };
            if at < change {
                return Some(at);
            }
            // A tick may be due at the very instant of the change: search from one second before
            // it, with the offset that applies from then on.
            let offset = self.zone.to_offset(change);
            let just_before = change.checked_sub(SignedDuration::from_secs(1)).ok()?;
            let civil = Self::next_civil_time(pattern, offset.to_datetime(just_before))?;
            if offset.to_timestamp(civil).ok()? == change {
                return Some(change);
            }
            after = change;
        }
    }
}

impl Ticks for Cron {
    fn next(&self, after: i64) -> Option<i64> {
        match &self.rule {
            Rule::Every(seconds) => after.div_euclid(*seconds).checked_add(1)?.checked_mul(*seconds),
            Rule::Civil { pattern, by_elapsed } => {
                let after = Timestamp::from_second(after).ok()?;
                let next = match by_elapsed {
                    true => self.next_by_elapsed(pattern, after),
                    false => self.next_by_hour(pattern, after),
                };
                next.map(Timestamp::as_second)
            }
        }
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({:?}, {})", self.text, self.zone_name)
    }
}

fn invalid_expression(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("the schedule {text:?} cannot be used: {why}"))
}

fn parse_nickname(text: &str, nickname: &str) -> Result<Rule> {
    let (word, rest) = nickname.split_once(char::is_whitespace).unwrap_or((nickname, ""));
    let word = word.to_ascii_lowercase();
    let fields = match word.as_str() {
        "every" => return parse_every(text, rest.trim()),
        _ if !rest.trim().is_empty() => return Err(invalid_expression(text, "a nickname has no further fields")),
        "yearly" | "annually" => "0 0 1 1 *",
        "monthly" => "0 0 1 * *",
        "weekly" => "0 0 * * 0",
        "daily" | "midnight" => "0 0 * * *",
        "hourly" => "0 * * * *",
        "reboot" => {
            return Err(invalid_expression(text, "nodes reboot at different times, so it names no common tick"));
        }
        _ => {
            let known = "@hourly, @daily (@midnight), @weekly, @monthly, @yearly (@annually) or @every 90s";
            return Err(invalid_expression(text, &format!("there is no such nickname: write {known}")));
        }
    };
    parse_civil(fields)
}

fn parse_every(text: &str, length: &str) -> Result<Rule> {
    let digits = length.find(|c: char| !c.is_ascii_digit()).unwrap_or(length.len());
    let (number, unit) = length.split_at(digits);
    let each = match unit.trim() {
        "s" | "" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    match number.parse::<i64>().ok().and_then(|number| number.checked_mul(each)) {
        Some(seconds) if (1..=366 * 86_400).contains(&seconds) => Ok(Rule::Every(seconds)),
        _ => Err(invalid_expression(text, "@every needs a duration from 1s to 366d: @every 90s, @every 5m, @every 2h")),
    }
}

fn parse_civil(text: &str) -> Result<Rule> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let hour = match fields.len() {
        5 => fields[1],
        6 => fields[2],
        n => {
            let why = format!(
                "it has {n} field{}, and 5 are needed (minute hour day month weekday), or 6 with seconds first",
                if n == 1 { "" } else { "s" }
            );
            return Err(invalid_expression(text, &why));
        }
    };
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    match parser.parse(&fields.join(" ")) {
        Ok(pattern) => Ok(Rule::Civil { pattern: Box::new(pattern), by_elapsed: hour.starts_with(['*', '?']) }),
        Err(error) => Err(invalid_expression(text, &find_invalid_field(&parser, &fields, &error.to_string()))),
    }
}

/// An error text that names the wrong field: the first that cannot be parsed when all others are
/// `*`. `otherwise` if each field can be parsed alone.
fn find_invalid_field(parser: &CronParser, fields: &[&str], otherwise: &str) -> String {
    let names = &FIELDS[FIELDS.len() - fields.len()..];
    for (index, (field, (name, allowed))) in fields.iter().zip(names).enumerate() {
        let mut alone = vec!["*"; fields.len()];
        alone[index] = field;
        if let Err(error) = parser.parse(&alone.join(" ")) {
            let detail = error.to_string();
            let detail = detail.rsplit_once(": ").map_or(detail.as_str(), |(_, last)| last);
            return format!(
                "field {} ({name}) is {field:?}, but it accepts {allowed}, `*`, a list, a range or a step as */5 ({})",
                index + 1,
                detail.trim_end_matches('.')
            );
        }
    }
    otherwise.to_owned()
}

#[cfg(test)]
#[path = "cron_tests.rs"]
mod tests;
