//! Tests the text report word for word.

use leasehold_verify::history::FaultKind;
use leasehold_verify::report::text::verdict as text;
use leasehold_verify::verdict::{Finding, FindingStatus, Guarantee, Recovery, Totals, Verdict, Violation};

use crate::report::sample::{MS, Scenario, TTL, sample_history};

/// A verdict without violations, with three findings and three faults.
fn verdict() -> Verdict {
    let (_, mut verdict) = sample_history(Scenario::default());
    let finding = |guarantee, state, checked, broken, figure: &str| {
        let figure = figure.to_owned();
        Finding { guarantee, state, checked, broken, figure }
    };
    verdict.counts = Totals { calls: 1_203, grants: 312, faults: 6, lasted: 30_000 * MS, ..Totals::default() };
    verdict.findings = vec![
        finding(
            Guarantee::Exclusion,
            FindingStatus::Kept,
            1_311,
            0,
            "at least 0.4 ms between two holds that follow each other, with 3 faults in between",
        ),
        finding(Guarantee::Reentry, FindingStatus::Untested, 0, 0, ""),
        finding(Guarantee::Recovery, FindingStatus::Kept, 6, 0, "at most 1.04 TTL after a kill"),
    ];
    let one = Recovery {
        fault: 1,
        kind: FaultKind::Kill,
        target: "worker 3".to_owned(),
        from: 2_105 * MS,
        to: Some(2_105 * MS),
        counted_from: 2_105 * MS,
        granted: Some(2_105 * MS + TTL * 26 / 25),
        bound: TTL * 3 / 2,
        was_requested: true,
        late: false,
        served: None,
        granted_during_fault: None,
        granted_to_all: None,
    };
    let lost = Recovery {
        fault: 2,
        kind: FaultKind::LostReply,
        target: "the server".to_owned(),
        to: Some(2_917 * MS),
        granted: None,
        was_requested: false,
        ..one.clone()
    };
    let never = Recovery {
        fault: 3,
        kind: FaultKind::Wipe,
        target: "node 1 of 5".to_owned(),
        to: None,
        granted: None,
        late: true,
        served: Some(2_205 * MS),
        granted_during_fault: Some(2_105 * MS + TTL / 2),
        ..one.clone()
    };
    verdict.header.faults = vec![FaultKind::Kill, FaultKind::LostReply, FaultKind::Wipe];
    verdict.recovered = vec![one, lost, never];
    verdict
}

fn violation(title: &str) -> Violation {
    Violation {
        guarantee: Guarantee::Exclusion,
        from: 1_204 * MS,
        to: 1_516 * MS,
        workers: vec![3, 5],
        ops: vec![],
        title: title.to_owned(),
        details: "Worker 3 held \"a\" with token 17 and its deadline was 312 ms away when worker 5 was granted it with token 18. Fault 2 (stop worker 3) was active.".to_owned(),
        is_time_bound: false,
    }
}

/// A verdict with this many violations, of which at most 20 are described.
fn broken_verdict(violation_count: u64) -> Verdict {
    let mut verdict = verdict();
    verdict.findings[0].state = FindingStatus::Broken;
    verdict.violations = (0..violation_count.min(20)).map(|_| violation("two held \"a\" for 312 ms")).collect();
    verdict.violations_in_all = violation_count;
    verdict
}

fn first_line(verdict: &Verdict) -> String {
    text(verdict, 200, false).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_verdict_is_the_first_line() {
    let mut one = verdict();
    assert_eq!(first_line(&one), "holds: 1,203 calls, 312 grants, 6 faults, no violation");
    one.complete = false;
    assert_eq!(
        first_line(&one),
        "CUT SHORT: 1,203 calls, 312 grants, 6 faults, no violation so far, but the history has no end"
    );
    let mut two = broken_verdict(2);
    assert_eq!(first_line(&two), "BROKEN: 2 violations in 1,203 calls, 312 grants, 6 faults");
    two.header.guard = false;
    two.header.control = Some("the register refuses nothing".to_owned());
    assert_eq!(
        first_line(&two),
        "detected: a safeguard was off (the register refuses nothing), and 2 violations in 1,203 calls, 312 grants, 6 faults show it"
    );
    let mut none = verdict();
    none.header.guard = false;
    assert_eq!(
        first_line(&none),
        "NOT DETECTED: a safeguard was off, and 1,203 calls, 312 grants, 6 faults do not show it"
    );
}

#[test]
fn the_report_fits_eighty_columns() {
    let expected = "\
BROKEN: 1 violation in 1,203 calls, 312 grants, 6 faults
redis at redis://127.0.0.1:6379 (Redis 7.0.15): fenced, seed 7, TTL 1.5 s, 5
lanes, 30 s; porcupine agrees on the registers

guarantee  state     checked  figure
exclusion  BROKEN      1,311  at least 0.4 ms between two holds that follow each
                              other, with 3 faults in between
reentry    untested        0
recovery   kept            6  at most 1.04 TTL after a kill

fault         recovered     at most  target
1 kill        1.04 TTL     1.50 TTL  worker 3 at 2.105 s
2 lost-reply  no requests  1.50 TTL  the server at 2.105 s, for 812 ms
3 wipe        never        1.50 TTL  node 1 of 5 at 2.105 s, to the end; granted
                                     0.50 TTL after it began

1. exclusion: two held \"a\" for 312 ms
   1.204 s to 1.516 s, workers 3 and 5
   Worker 3 held \"a\" with token 17 and its deadline was 312 ms away when worker
   5 was granted it with token 18. Fault 2 (stop worker 3) was active.
";
    assert_eq!(text(&broken_verdict(1), 80, false), expected);
}

#[test]
fn the_report_uses_a_hundred_and_twenty_columns() {
    let expected = "\
holds: 1,203 calls, 312 grants, 6 faults, no violation
redis at redis://127.0.0.1:6379 (Redis 7.0.15): fenced, seed 7, TTL 1.5 s, 5 lanes, 30 s; porcupine agrees on the
registers

guarantee  state     checked  figure
exclusion  kept        1,311  at least 0.4 ms between two holds that follow each other, with 3 faults in between
reentry    untested        0
recovery   kept            6  at most 1.04 TTL after a kill

fault         recovered     at most  target
1 kill        1.04 TTL     1.50 TTL  worker 3 at 2.105 s
2 lost-reply  no requests  1.50 TTL  the server at 2.105 s, for 812 ms
3 wipe        never        1.50 TTL  node 1 of 5 at 2.105 s, to the end; granted 0.50 TTL after it began
";
    assert_eq!(text(&verdict(), 120, false), expected);
}

#[test]
fn the_first_five_violations_are_printed_in_full() {
    let lines = text(&broken_verdict(22), 80, false);
    assert!(lines.contains("\n5. exclusion: ") && !lines.contains("\n6. ") && lines.ends_with("\nand 17 more\n"));
    assert!(!text(&broken_verdict(5), 80, false).contains(" more"));
}

#[test]
fn no_line_exceeds_the_width_and_foreign_text_is_escaped() {
    let mut verdict = broken_verdict(7);
    verdict.header.url = format!("redis://{}", "漢字x".repeat(60));
    verdict.recovered[0].target = "a\u{1b}[2Jb\nc".to_owned();
    verdict.violations[0].title = format!("two held {}", "lock".repeat(40));
    verdict.findings[0].figure = "\u{202e}figure".to_owned();
    for width in [12, 20, 33, 40, 54, 80, 120, 300] {
        let lines = text(&verdict, width, false);
        assert!(!lines.contains('\u{1b}') && !lines.contains('\u{202e}'));
        for line in lines.lines() {
            let columns: usize = line.chars().map(|c| if "漢字".contains(c) { 2 } else { 1 }).sum();
            assert!(columns <= width, "{columns} columns at {width}: {line}");
            assert_eq!(line, line.trim_end());
        }
    }
}

#[test]
fn colour_only_adds_escape_codes() {
    for verdict in [verdict(), broken_verdict(9)] {
        let mut painted = text(&verdict, 80, true);
        assert!(painted.contains("\u{1b}[1;31m") && painted.contains("\u{1b}[0m"));
        while let Some(from) = painted.find('\u{1b}') {
            let to = from + painted[from..].find('m').expect("its end");
            painted.replace_range(from..=to, "");
        }
        let trim = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        assert_eq!(trim(&painted), trim(&text(&verdict, 80, false)));
    }
}

#[test]
fn faults_that_did_not_happen_are_named() {
    let mut verdict = verdict();
    assert!(!text(&verdict, 80, false).contains("no time"));
    verdict.header.faults.extend([FaultKind::Clock, FaultKind::Evict]);
    let report = text(&verdict, 80, false);
    assert!(report.contains("There was no time for clock and evict.\n"), "{report}");
}

#[test]
fn an_undecided_verdict_does_not_pass() {
    let mut verdict = verdict();
    verdict.violations.clear();
    verdict.violations_in_all = 0;
    verdict.complete = true;
    let finding = |guarantee, state| Finding { guarantee, state, checked: 10, broken: 0, figure: String::new() };
    verdict.findings = vec![finding(Guarantee::Exclusion, FindingStatus::Kept)];
    assert!(verdict.is_as_expected());
    verdict.findings.push(finding(Guarantee::Fencing, FindingStatus::Undecided));
    assert!(!verdict.is_as_expected());
    let report = text(&verdict, 80, false);
    assert!(report.starts_with("UNDECIDED: "), "{report}");
}
