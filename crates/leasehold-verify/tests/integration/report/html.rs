//! Tests the HTML page and the SVG picture.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leasehold_verify::history::{Call, Event, Mode, Outcome, WorkerState};
use leasehold_verify::report::svg::{Size, timeline};
use leasehold_verify::report::{html, json};
use leasehold_verify::verdict::{FindingStatus, Guarantee, Verdict};

use crate::report::markup::tags;
use crate::report::sample::{MS, Scenario, sample_history};

/// Writes the page for a history, and checks that it is well-formed and loads nothing. Also saves
/// it to the target folder, to look at.
fn checked_page(name: &str, events: &[Event], verdict: &Verdict) -> String {
    let page = html::page(events, verdict);
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html")), &page).expect("a file");
    let all = tags(&page);
    for tag in &all {
        // Without the quoted values, the names of the attributes are left.
        let names: String = tag.split('"').step_by(2).collect();
        for name in names.split_whitespace().skip(1) {
            assert!(!name.starts_with("src") && !name.starts_with("on"), "{tag}");
        }
        let name = names.split([' ', '/']).next().unwrap_or_default();
        assert!(!["link", "img", "iframe", "object", "embed", "use", "image"].contains(&name), "{tag}");
        assert!(!tag.contains("href=") || tag.contains("href=\"#"), "{tag}");
        assert!(
            !tag.contains("http") || tag.contains("xmlns=\"http://www.w3.org/2000/svg\"") || tag.contains("http-equiv"),
            "{tag}"
        );
    }
    assert!(!page.contains("url(http") && !page.contains("@import"));
    page
}

/// Draws the picture of a history, and checks that it is well-formed. Also saves it to the target
/// folder, to look at.
fn checked_picture(name: &str, events: &[Event], verdict: &Verdict, size: Size) -> String {
    let picture = timeline(events, verdict, size);
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.svg")), &picture).expect("a file");
    tags(&picture);
    picture
}

/// A scenario in which one lock is granted twice.
fn broken_scenario() -> Scenario {
    Scenario { double_grants: vec![15], ..Scenario::default() }
}

#[test]
fn the_page_of_a_passing_run_shows_the_verdict() {
    let (events, verdict) = sample_history(Scenario::default());
    let page = checked_page("holds", &events, &verdict);
    assert!(page.contains("</svg>Holds</h1>"), "the verdict");
    assert!(page.contains("<header class=\"good\">"));
    let pieces = [
        "redis://127.0.0.1:6379",
        "Redis 7.0.15",
        "holders write to a register that refuses old tokens",
        "2026-08-02 09:14:05 UTC",
        "leasehold verify --engine redis://127.0.0.1:6379 --workload fenced --faults kill,stop,crash --ttl 1.5s --workers 5 --seed 7",
        "every write with an old token was refused",
        "A second opinion: porcupine agrees",
        "<dt>stale writes refused</dt>",
        "0.82 TTL <small>of at most 1.50 TTL</small>",
        "class=\"bound\"",
        "crash the server",
    ];
    let found = pieces.map(|piece| (piece, page.contains(piece)));
    assert!(found.iter().all(|(_, there)| *there), "{found:#?}");
    assert!(!page.contains("<aside>"), "no violations");
}

#[test]
fn a_picture_shows_each_mark() {
    let (events, verdict) = sample_history(broken_scenario());
    let picture = checked_picture("timeline", &events, &verdict, Size::default());
    let one = |class: &str| picture.matches(&format!("class=\"{class}")).count();
    assert_eq!(one("dead"), 2, "a cross where a worker was killed, and in the legend");
    assert_eq!(one("born"), 6, "five workers, and the successor of one");
    assert_eq!(one("lost"), 3, "two learned of a loss; and the legend");
    assert_eq!(one("refused"), 2, "a stale write was refused; and the legend");
    assert_eq!(one("past"), 3, "two were past their deadlines; and the legend");
    assert_eq!(one("tail"), 2, "the lease of a killed worker; and the legend");
    assert_eq!(one("token"), 24, "bars that are wide enough show their tokens");
    assert_eq!(one("badge"), 2, "two violations, far enough from each other");
    assert!(one("wait") > 20 && one("ok") > 20 && one("flag\"") >= 3);
    for words in
        ["worker 6", "lane 4", ">crash the server<", ">stop<", ">kill<", "prefers-color-scheme", "its deadline passed"]
    {
        assert!(picture.contains(words), "{words}");
    }
}

/// The bars of a picture's holds: each with its row, left end and right end.
fn hold_bars(picture: &str) -> Vec<(String, f64, f64)> {
    let number = |tag: &str, name: &str| -> String {
        let from = tag.find(name).expect("the attribute") + name.len();
        tag[from..].split('"').next().expect("a value").to_owned()
    };
    let bars =
        tags(picture).into_iter().filter(|tag| tag.starts_with("rect class=\"hold") && tag.contains("height=\"16\""));
    bars.map(|tag| {
        let x: f64 = number(&tag, " x=\"").parse().expect("a number");
        let width: f64 = number(&tag, " width=\"").parse().expect("a number");
        (number(&tag, " y=\""), x, x + width)
    })
    .collect()
}

/// The number of pairs of bars that overlap by more than a rounded pixel.
fn count_overlaps(picture: &str) -> usize {
    let bars = hold_bars(picture);
    let pairs = bars.iter().enumerate().flat_map(|(at, one)| bars[at + 1..].iter().map(move |other| (one, other)));
    pairs.filter(|(one, other)| one.1.max(other.1) + 0.5 < one.2.min(other.2)).count()
}

#[test]
fn hold_bars_of_one_lock_overlap_only_where_two_held_it() {
    let size = Size { width: 4_000, legend: false, ..Size::default() };
    let (events, verdict) = sample_history(Scenario::default());
    let held = timeline(&events, &verdict, size);
    assert_eq!((hold_bars(&held).len(), count_overlaps(&held)), (24, 0));
    let (events, verdict) = sample_history(broken_scenario());
    assert!(count_overlaps(&timeline(&events, &verdict, size)) > 0);
}

#[test]
fn the_page_of_a_broken_run_lists_the_violations() {
    let (events, verdict) = sample_history(broken_scenario());
    let page = checked_page("broken", &events, &verdict);
    assert!(page.contains("</svg>Broken</h1>") && page.contains("<header class=\"bad\">"));
    assert!(page.contains("<h2>2 violations</h2>"));
    assert!(page.contains("href=\"#violation=2\"") && page.contains("two held &quot;orders&quot; for"));
    assert!(page.contains("was active.</p>"), "its words");
    assert!(page.contains("<tr class=\"broken\"><th scope=\"row\">exclusion"));
}

#[test]
fn a_negative_control_must_be_detected() {
    let (events, mut verdict) = sample_history(broken_scenario());
    verdict.header.guard = false;
    verdict.header.control = Some("the register <refuses> nothing".to_owned());
    let found = checked_page("control", &events, &verdict);
    assert!(found.contains("</svg>Detected</h1>") && found.contains("<header class=\"good\">"));
    assert!(found.contains("A safeguard was off (the register &lt;refuses&gt; nothing), and 2 violations"));
    // Violations of other guarantees than the one that must be broken do not count.
    verdict.header.must_break = vec![Guarantee::Leaks];
    let other = checked_page("control-other", &events, &verdict);
    assert!(other.contains("</svg>Not detected</h1>") && other.contains("<header class=\"bad\">"));
    verdict.header.must_break.clear();
    verdict.violations.clear();
    verdict.violations_in_all = 0;
    for finding in verdict.findings.iter_mut().filter(|finding| finding.state == FindingStatus::Broken) {
        finding.state = FindingStatus::Kept;
    }
    let not = checked_page("control-not", &events, &verdict);
    assert!(not.contains("</svg>Not detected</h1>") && not.contains("<header class=\"bad\">"));
}

#[test]
fn foreign_text_is_escaped() {
    let evil = "</script><script>alert(1)</script><!-- \"'&\u{0}\u{1b}[31m\u{202e}".to_owned();
    let scenario = Scenario {
        locks: vec![evil.clone(), "b".to_owned()],
        error: evil.clone(),
        double_grants: vec![5],
        ..Scenario::default()
    };
    let (mut events, mut verdict) = sample_history(scenario);
    for event in &mut events {
        match event {
            Event::FaultBegin { target, .. } => target.clone_from(&evil),
            Event::FaultEnd { note, .. } => note.clone_from(&evil),
            Event::Lost { reason, .. } => reason.clone_from(&evil),
            _ => {}
        }
    }
    let header = &mut verdict.header;
    for text in [&mut header.url, &mut header.engine, &mut header.leasehold, &mut header.started] {
        text.clone_from(&evil);
    }
    header.versions = vec![evil.clone()];
    header.notes.insert(evil.clone(), evil.clone());
    header.control = Some(evil.clone());
    verdict.findings[0].figure.clone_from(&evil);
    verdict.violations[0].details.clone_from(&evil);
    verdict.violations[0].title.clone_from(&evil);
    verdict.recovered[0].target.clone_from(&evil);
    for guard in [true, false] {
        verdict.header.guard = guard;
        let page = checked_page("hostile", &events, &verdict);
        assert_eq!(page.matches("</script").count(), 2, "the data and the script");
        assert_eq!(page.matches("<script").count(), 2);
        assert!(!page.contains("<!--") && !page.contains('\u{1b}') && !page.contains('\u{0}'));
        assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)") && page.contains("\\u003c/script\\u003e"));
        let picture = checked_picture("hostile", &events, &verdict, Size::default());
        assert!(!picture.contains("<script") && !picture.contains('\u{1b}') && !picture.contains('\u{202e}'));
    }
    let data = page_data(&html::page(&events, &verdict));
    assert_eq!(data["locks"][0], evil.as_str(), "and the script reads the original");
}

/// The data block, as the script reads it.
fn page_data(page: &str) -> serde_json::Value {
    let start = "<script type=\"application/json\" id=\"data\">";
    let from = page.find(start).expect("the data") + start.len();
    let to = page[from..].find("</script>").expect("its end");
    serde_json::from_str(&page[from..from + to]).expect("JSON")
}

#[test]
fn a_page_of_ten_thousand_operations_is_small() {
    let scenario = Scenario {
        grants: 3_400,
        hold_time: 5 * MS,
        killed_grants: vec![300, 900, 1_700],
        stopped_grants: vec![1_200, 2_500],
        crashes: vec![(3_000 * MS, 3_800 * MS), (15_000 * MS, 15_500 * MS)],
        ..Scenario::default()
    };
    let (events, verdict) = sample_history(scenario);
    assert!(verdict.counts.calls >= 10_000, "{}", verdict.counts.calls);
    let page = checked_page("large", &events, &verdict);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let picture = checked_picture("large", &events, &verdict, Size::default());
    assert!(picture.len() < 1_000_000, "bars narrower than a pixel are merged: {} bytes", picture.len());
    let spans = &page_data(&page)["spans"];
    assert_eq!(spans.as_array().map(Vec::len), Some(3_409));
    assert!(page.contains("\"9007199254740995\""), "a token that a script would round is text");
}

/// A page draws at most as many calls as a browser can handle, and states that it leaves some out.
#[test]
fn a_very_long_run_is_drawn_partially() {
    let scenario = Scenario { grants: 45_000, hold_time: 3 * MS, killed_grants: vec![30_000], ..Scenario::default() };
    let (events, verdict) = sample_history(scenario);
    let page = checked_page("very-long", &events, &verdict);
    let data = page_data(&page);
    let spans = data["spans"].as_array().cloned().unwrap_or_default();
    assert!((10_000..=21_000).contains(&spans.len()), "{} calls are drawn", spans.len());
    assert!(spans.iter().any(|span| span[12] == 1), "the call of the worker that was killed");
    assert!(page.contains(" are drawn: all that failed"), "the page states it");
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
}

/// All violations are listed beside the picture, even if only some of the calls are drawn.
#[test]
fn a_very_long_broken_run_lists_its_violations_beside_the_picture() {
    let scenario = Scenario { grants: 45_000, hold_time: 3 * MS, ..broken_scenario() };
    let (events, verdict) = sample_history(scenario);
    assert!(!verdict.violations.is_empty());
    let page = checked_page("very-long-broken", &events, &verdict);
    let stage = &page[page.find("class=\"stage beside\"").expect("two columns")..];
    let note = stage.find("are drawn: all that failed").expect("the note");
    let aside = stage.find("<aside>").expect("the violations");
    let (chart, rest) = stage[..aside].rsplit_once("</div>").expect("the picture's end");
    assert!(note < chart.len() && rest.trim().is_empty(), "the note belongs to the picture: {rest}");
}

#[test]
fn several_locks_are_distinguishable() {
    let locks: Vec<String> = ["orders", "stock", "mail", "nightly"].map(str::to_owned).into();
    let (mut events, verdict) = sample_history(Scenario { grants: 90, locks, ..Scenario::default() });
    for (at, event) in events.iter_mut().enumerate() {
        if let Event::Begin { call: Call::Lock { mode, .. }, .. } = event
            && at % 4 == 0
        {
            *mode = Mode::Permits { n: 2, limit: 5 };
        }
    }
    let page = checked_page("locks", &events, &verdict);
    assert!(page.contains("<option value=\"3\">nightly</option>") && page.contains("2 of 5 permits"));
    assert!(page.contains("class=\"hold l3\"") && page.contains("holds nightly"));
}

/// The events of a worker with concurrent calls: it re-enters a lock, runs a tick, and one call
/// never ends.
fn concurrent_calls() -> Vec<Event> {
    let begin = |t: u64, op, call| Event::Begin { t: t * MS, worker: 1, op, due: None, call };
    let end = |t: u64, op, outcome| Event::End { t: t * MS, op, outcome };
    let owner = Some("me".to_owned());
    let lock =
        |lock: &str| Call::Lock { lock: lock.to_owned(), mode: Mode::Exclusive, owner: owner.clone(), waits: true };
    let granted = |token| Outcome::Granted { token, deadline: 9_000 * MS };
    vec![
        Event::Worker { t: 0, worker: 1, state: WorkerState::Started { lane: 0, pid: 7 } },
        begin(10, 1, lock("a")),
        end(20, 1, granted(u64::MAX)),
        begin(100, 2, lock("a")),
        end(110, 2, granted(u64::MAX)),
        begin(200, 3, Call::Tick { job: "nightly".to_owned(), tick: 1_700_000_000, attempt: 2, token: 5, once: false }),
        end(600, 3, Outcome::Done),
        begin(650, 4, Call::Release { hold: 2 }),
        end(660, 4, Outcome::Released),
        begin(700, 5, Call::Release { hold: 1 }),
        end(710, 5, Outcome::Unknown { error: "no answer".to_owned() }),
        begin(720, 6, lock("b")),
        Event::Done { t: 1_000 * MS },
    ]
}

#[test]
fn concurrent_calls_are_on_separate_rows() {
    let (_, verdict) = sample_history(Scenario::default());
    let events = concurrent_calls();
    let page = checked_page("rows", &events, &verdict);
    let rows: BTreeSet<String> = hold_bars(&timeline(&events, &verdict, Size { legend: false, ..Size::default() }))
        .into_iter()
        .map(|(row, ..)| row)
        .collect();
    assert_eq!(rows.len(), 3, "a hold, its re-entry, and a tick");
    for words in ["18446744073709551615", "tick 1700000000, attempt 2", "owner me", "release failed: no answer"] {
        assert!(page.contains(words), "{words}");
    }
    let spans = page_data(&page)["spans"].as_array().cloned().unwrap_or_default();
    let open = spans.iter().find(|span| span[2] == 2).expect("the call that never ends");
    assert_eq!((open[5].is_null(), open[8].as_u64()), (true, Some(1_000 * MS)), "it waits to the end of the run");
}

#[test]
fn a_truncated_or_empty_history_gives_a_page() {
    let (events, verdict) = sample_history(Scenario::default());
    for keep in (0..events.len()).step_by(7) {
        tags(&html::page(&events[..keep], &verdict));
    }
    let mut back = events.clone();
    back.reverse();
    assert!(html::page(&back, &verdict) == html::page(&events, &verdict), "the order is that of the times");
    let late = [Event::Done { t: u64::MAX }];
    tags(&html::page(&late, &verdict));
    checked_page("empty", &[], &verdict);
}

#[test]
fn json_is_the_verdict() {
    let (_, verdict) = sample_history(broken_scenario());
    let text = json(&verdict);
    assert!(text.ends_with("}\n") && text.contains("\n  \"complete\": true"));
    assert_eq!(serde_json::from_str::<Verdict>(&text).expect("a verdict"), verdict);
}
