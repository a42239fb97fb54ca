use proptest::prelude::*;

use super::*;

/// The first `n` ticks after `from`, in the zone's local time.
fn ticks(expression: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
    let cron = Cron::parse(expression).unwrap().in_zone(zone).unwrap();
    let mut at = Tick::parse(from).unwrap();
    (0..n)
        .map(|_| {
            at = cron.next_after(at).unwrap();
            cron.local(at)
        })
        .collect()
}

/// The ticks in Berlin after the UTC time `from` on the same day, as `HH:MM ZONE` in local time.
fn night(expression: &str, from: &str) -> Vec<String> {
    let day = &from[..10];
    let until = Tick::parse(&format!("{day}T23:00:00Z")).unwrap();
    let cron = Cron::parse(expression).unwrap().in_zone("Europe/Berlin").unwrap();
    let mut at = Tick::parse(from).unwrap();
    let mut seen = Vec::new();
    while let Some(next) = cron.next_after(at).filter(|next| *next < until) {
        seen.push(cron.local(next)[11..16].to_owned() + &cron.local(next)[19..]);
        at = next;
    }
    seen
}

/// 02:00 CEST on the day on which Berlin has 02:00 to 03:00 twice: first in CEST, then in CET.
const AUTUMN: &str = "2026-10-25T00:00:00Z";

#[test]
fn five_fields_six_and_nicknames_are_read() {
    let from = "2026-11-16T00:00:00Z";
    assert_eq!(ticks("*/20 * * * *", "UTC", from, 2), ["2026-11-16 00:20:00 UTC", "2026-11-16 00:40:00 UTC"]);
    assert_eq!(ticks("15 */20 * * * *", "UTC", from, 2), ["2026-11-16 00:00:15 UTC", "2026-11-16 00:20:15 UTC"]);
    assert_eq!(ticks("@daily", "Asia/Tokyo", from, 1), ["2026-11-17 00:00:00 JST"]);
    assert_eq!(ticks("@midnight", "UTC", from, 1), ["2026-11-17 00:00:00 UTC"]);
    assert_eq!(ticks("@every 90s", "UTC", from, 2), ["2026-11-16 00:01:30 UTC", "2026-11-16 00:03:00 UTC"]);
    assert_eq!(ticks("0 9 L * *", "UTC", from, 1), ["2026-11-30 09:00:00 UTC"]);
    assert_eq!(ticks("0 9 15W * *", "UTC", "2026-08-01T00:00:00Z", 1), ["2026-08-14 09:00:00 UTC"]);
    assert_eq!(ticks("0 9 * * 5#2", "UTC", from, 1), ["2026-12-11 09:00:00 UTC"]);
    assert_eq!(ticks("0 9 13 * FRI", "UTC", from, 2), ["2026-11-20 09:00:00 UTC", "2026-11-27 09:00:00 UTC"]);
    assert_eq!(ticks("0 9 13 * +FRI", "UTC", from, 1), ["2027-08-13 09:00:00 UTC"]);
}

#[test]
fn a_fixed_hour_that_does_not_exist_is_due_once_right_after_the_gap() {
    let after_one = "2026-03-29T00:00:00Z";
    assert_eq!(night("30 2 * * *", after_one), ["03:00 CEST"]);
    assert_eq!(night("0,30 2 * * *", after_one), ["03:00 CEST"]);
    assert_eq!(night("0 2,3 * * *", after_one), ["03:00 CEST"], "equal instants are one tick");
    assert_eq!(night("59 1 * * *", after_one), ["01:59 CET"], "times outside the gap do not move");
    assert_eq!(night("30 1 * * *", after_one), ["01:30 CET"]);
    assert_eq!(night("5 3 * * *", after_one), ["03:05 CEST"]);
}

#[test]
fn a_fixed_hour_that_comes_twice_is_due_once() {
    assert_eq!(night("30 2 * * *", AUTUMN), ["02:30 CEST"]);
    assert_eq!(night("0,30 2 * * *", AUTUMN), ["02:30 CEST"]);
    assert_eq!(night("0 1-3 * * *", AUTUMN), ["03:00 CET"]);
    // A search that starts in the second pass finds no tick of it.
    assert_eq!(night("30 2 * * *", "2026-10-25T01:10:00Z"), Vec::<String>::new());
}

#[test]
fn intervals_follow_elapsed_time() {
    let spring = night("7 * * * *", "2026-03-29T00:00:00Z");
    assert_eq!(spring[..3], ["01:07 CET", "03:07 CEST", "04:07 CEST"]);
    let autumn = night("7 * * * *", AUTUMN);
    assert_eq!(autumn[..3], ["02:07 CEST", "02:07 CET", "03:07 CET"]);
    let at_the_change = night("*/30 * * * *", "2026-03-29T00:15:00Z");
    assert_eq!(at_the_change[..3], ["01:30 CET", "03:00 CEST", "03:30 CEST"]);
}

#[test]
fn other_zones_change_their_clocks_at_other_times() {
    // In São Paulo, midnight did not exist on that day.
    let brazil = ticks("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", 2);
    assert_eq!(brazil, ["2018-11-04 01:00:00 -02", "2018-11-05 00:00:00 -02"]);
    // On Lord Howe Island, clocks change by half an hour.
    let howe = ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", 2);
    assert_eq!(howe, ["2026-10-04 02:30:00 +11", "2026-10-05 02:15:00 +11"]);
    // Samoa skipped the whole of 30 December 2011.
    let samoa = ticks("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", 2);
    assert_eq!(samoa, ["2011-12-31 00:00:00 +14", "2011-12-31 12:00:00 +14"]);
}

#[test]
fn an_invalid_field_is_named_in_the_error() {
    for (text, expected) in [
        ("61 * * * *", "field 1 (minute) is \"61\", but it accepts 0-59"),
        ("0 0 * * * FOO", "field 6 (day of the week)"),
        ("0 25 * * *", "field 2 (hour) is \"25\""),
        ("5/10 * * * *", "field 1 (minute)"),
        ("* * * *", "it has 4 fields, and 5 are needed"),
        ("* * * * * * *", "it has 7 fields"),
        ("", "it has 0 fields"),
        ("@fortnightly", "there is no such nickname: write @hourly"),
        ("@reboot", "reboot at different times"),
        ("@every 5 parsecs", "@every 90s"),
        ("@every 0s", "from 1s to 366d"),
        ("@daily 5", "a nickname has no further fields"),
        ("0 0 30 2 *", "there is no such day"),
    ] {
        let error = Cron::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains(expected), "{text:?}: {error}");
    }
    let error = Cron::parse("@daily").unwrap().in_zone("Mars/Olympus").unwrap_err().to_string();
    assert!(error.contains("no time zone \"Mars/Olympus\"") && error.contains("Europe/Berlin"), "{error}");
}

fn expressions() -> impl Strategy<Value = String> {
    let minute = prop_oneof![Just("*/15"), Just("0"), Just("30"), Just("0,59"), Just("7-50/9"), Just("*")];
    let hour = prop_oneof![Just("*"), Just("2"), Just("1-3"), Just("*/2"), Just("0"), Just("23,0,1"), Just("3")];
    (minute, hour).prop_map(|(minute, hour)| format!("{minute} {hour} * * *"))
}

proptest! {
    /// The ticks are a set: the next one does not depend on where the search starts.
    #[test]
    fn the_same_ticks_are_found_from_any_start(
        expression in expressions(),
        (zone, change) in prop_oneof![
            Just(("Europe/Berlin", "2026-03-29T01:00:00Z")), Just(("Europe/Berlin", "2026-10-25T01:00:00Z")),
            Just(("Australia/Lord_Howe", "2026-10-03T15:30:00Z")), Just(("Australia/Lord_Howe", "2026-04-04T15:00:00Z")),
            Just(("America/Sao_Paulo", "2018-11-04T03:00:00Z")), Just(("UTC", "2026-10-25T01:00:00Z")),
        ],
        offset in -30_000i64..30_000,
        later in 0i64..20_000,
    ) {
        let cron = Cron::parse(&expression).unwrap().in_zone(zone).unwrap();
        let from = Tick::parse(change).unwrap().unix() + offset;
        let next = cron.next(from).unwrap();
        prop_assert!(next > from);
        let between = from + later % (next - from);
        prop_assert_eq!(cron.next(between), Some(next), "from {} and {}", from, between);
    }
}
