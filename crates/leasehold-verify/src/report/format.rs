//! Formats numbers, times, names and verdicts for the reports.

use crate::history::{FaultKind, Header, RunNanos};
use crate::verdict::{FindingStatus, Guarantee, Recovery, SecondOpinion, Verdict};

/// A number with thousands separators: `1,203`.
pub(crate) fn format_count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its noun, which gets an `s` unless `n` is 1: `1 grant`, `312 grants`.
pub(crate) fn format_quantity(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_count(n), if n == 1 { "" } else { "s" })
}

/// A duration with up to three digits: `18 µs`, `312 ms`, `1.2 s`, `2 min 5 s`.
pub(crate) fn format_duration(nanos: RunNanos) -> String {
    let n = nanos as f64;
    match nanos {
        0 => "0 s".to_owned(),
        1..=999 => format!("{nanos} ns"),
        1_000..=999_499 => format!("{} µs", significant_digits(n / 1e3)),
        999_500..=999_499_999 => format!("{} ms", significant_digits(n / 1e6)),
        999_500_000..=119_499_999_999 => format!("{} s", significant_digits(n / 1e9)),
        _ => {
            let seconds = nanos / 1_000_000_000 + u64::from(nanos % 1_000_000_000 >= 500_000_000);
            match seconds % 60 {
                0 => format!("{} min", format_count(seconds / 60)),
                rest => format!("{} min {rest} s", format_count(seconds / 60)),
            }
        }
    }
}

/// A time in seconds since the start of the run: `1.204 s`.
pub(crate) fn format_time(nanos: RunNanos) -> String {
    format!("{:.3} s", nanos as f64 / 1e9)
}

/// A duration as a multiple of the TTL: `1.04 TTL`; in seconds if the TTL is 0.
pub(crate) fn format_in_ttls(nanos: RunNanos, ttl: RunNanos) -> String {
    if ttl == 0 { format_duration(nanos) } else { format!("{:.2} TTL", nanos as f64 / ttl as f64) }
}

/// A number with three significant digits, without trailing zeros: `4.2`, `312`.
fn significant_digits(value: f64) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A guarantee's name in tables, such as `exclusion`.
pub(crate) fn guarantee_name(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Exclusion => "exclusion",
        Guarantee::Tokens => "tokens",
        Guarantee::Reentry => "reentry",
        Guarantee::Permits => "permits",
        Guarantee::Fencing => "fencing",
        Guarantee::Counter => "counter",
        Guarantee::Order => "order",
        Guarantee::Ticks => "ticks",
        Guarantee::Loss => "loss",
        Guarantee::Recovery => "recovery",
        Guarantee::Leaks => "leaks",
        Guarantee::Deadlines => "deadlines",
        Guarantee::Load => "load",
        Guarantee::ForceRelease => "force release",
    }
}

/// A guarantee in one sentence, for tables.
pub(crate) fn guarantee_description(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Exclusion => "No two holders with conflicting modes hold a lock at once.",
        Guarantee::Tokens => "Tokens are unique, and rise in the order of the grants.",
        Guarantee::Reentry => "An owner that re-enters its lock keeps its token.",
        Guarantee::Permits => "Holders never have more permits than the limit.",
        Guarantee::Fencing => "A fenced register never accepts an old token.",
        Guarantee::Counter => "No increment is lost.",
        Guarantee::Order => "The waiter that joined the queue first is granted the lock first.",
        Guarantee::Ticks => "A tick runs once, and again only if that run was lost.",
        Guarantee::Loss => "A holder is notified of a loss before another holder is granted the lock.",
        Guarantee::Recovery => "The lock is granted again within a time bound after each fault.",
        Guarantee::Leaks => "No lock is held or awaited after all workers have ended.",
        Guarantee::Deadlines => "Every call ends at most a second after its deadline.",
        Guarantee::Load => "Clients of a server that refuses writes do not reconnect in a tight loop.",
        Guarantee::ForceRelease => {
            "A force-released holder is notified within a time bound and fenced off, and no other holder is."
        }
    }
}

/// The name of a guarantee's result in tables; results that fail the run are in capitals.
pub(crate) fn status_name(state: FindingStatus) -> &'static str {
    match state {
        FindingStatus::Kept => "kept",
        FindingStatus::Broken => "BROKEN",
        FindingStatus::Untested => "untested",
        FindingStatus::Undecided => "UNDECIDED",
        FindingStatus::NotGuaranteed => "not guaranteed",
    }
}

/// Whether porcupine, the second checker, agrees, in words; `None`: it did not run.
pub(crate) fn describe_second_opinion(opinion: &SecondOpinion) -> Option<&'static str> {
    match opinion {
        SecondOpinion::None => None,
        SecondOpinion::Agrees => Some("porcupine agrees on the registers"),
        SecondOpinion::Differs => Some("porcupine DIFFERS on the registers: one of the two checkers is wrong"),
        SecondOpinion::Undecided => {
            Some("a checker reached its limit on the registers: porcupine does not confirm the result")
        }
    }
}

/// The first line of a report.
pub(crate) struct Headline {
    /// Whether the run ended as expected.
    pub(crate) is_expected: bool,
    /// The verdict in one or two words: `holds`, `BROKEN`, `NOT DETECTED`.
    pub(crate) verdict: &'static str,
    /// What follows the colon: the number of calls, faults and violations.
    pub(crate) rest: String,
}

/// Builds the first line of a report.
pub(crate) fn headline(verdict: &Verdict) -> Headline {
    let counts = &verdict.counts;
    let did = format!(
        "{}, {}, {}",
        format_quantity(counts.calls, "call"),
        format_quantity(counts.grants, "grant"),
        format_quantity(counts.faults, "fault")
    );
    let wrong = format_quantity(verdict.violations_in_all, "violation");
    let off = match &verdict.header.control {
        Some(safeguard) => format!("a safeguard was off ({safeguard})"),
        None => "a safeguard was off".to_owned(),
    };
    let cut = if verdict.complete { "" } else { "; the history has no end" };
    let exceptions = match not_guaranteed(verdict).as_str() {
        "" => String::new(),
        names => format!("; {names} not guaranteed under these faults"),
    };
    let fine = if verdict.header.guard { verdict.has_no_violations() } else { !verdict.is_control_detected() };
    let (word, rest) = match (verdict.header.guard, fine) {
        (true, true) if !verdict.has_evidence() => ("NO EVIDENCE", format!("{did}: no worker acquired a lock")),
        (true, true) if verdict.findings.iter().any(|finding| finding.state == FindingStatus::Undecided) => {
            ("UNDECIDED", format!("{did}, no violation found, but the search reached its limit"))
        }
        (true, true) if verdict.complete => ("holds", format!("{did}, no violation{exceptions}")),
        (true, true) => ("CUT SHORT", format!("{did}, no violation so far, but the history has no end")),
        (true, false) => ("BROKEN", format!("{wrong} in {did}{cut}")),
        (false, false) => ("detected", format!("{off}, and {wrong} in {did} show it{cut}")),
        (false, true) => ("NOT DETECTED", format!("{off}, and {did} do not show it{cut}")),
    };
    Headline { is_expected: verdict.is_as_expected(), verdict: word, rest }
}

/// The names of the guarantees that the engine does not give under this run's faults; empty: none.
fn not_guaranteed(verdict: &Verdict) -> String {
    let of = verdict.findings.iter().filter(|finding| finding.state == FindingStatus::NotGuaranteed);
    join_names(&of.map(|finding| guarantee_name(finding.guarantee)).collect::<Vec<_>>())
}

/// Names the requested kinds of faults for which the run had no time; `None`: all of them happened.
pub(crate) fn describe_missing_faults(verdict: &Verdict) -> Option<String> {
    let happened = |kind: &FaultKind| verdict.recovered.iter().any(|one| one.kind == *kind);
    let missing: Vec<&str> =
        verdict.header.faults.iter().filter(|kind| !happened(kind)).map(|kind| kind.as_str()).collect();
    (!missing.is_empty()).then(|| format!("There was no time for {}.", join_names(&missing)))
}

/// The verdict in a sentence that names the broken guarantees, or those that held.
pub(crate) fn summary(verdict: &Verdict) -> String {
    let all = |state: FindingStatus| {
        let of = verdict.findings.iter().filter(move |finding| finding.state == state);
        join_names(&of.map(|finding| guarantee_name(finding.guarantee)).collect::<Vec<_>>())
    };
    let (kept, broken) = (all(FindingStatus::Kept), all(FindingStatus::Broken));
    let wrong = format_quantity(verdict.violations_in_all, "violation");
    let broken = if broken.is_empty() { String::new() } else { format!(": {broken} did not hold") };
    let off = match &verdict.header.control {
        Some(safeguard) => format!("A safeguard was off ({safeguard})"),
        None => "A safeguard was off".to_owned(),
    };
    let cut = if verdict.complete { "" } else { " The history has no end: it shows only the events until then." };
    let fine = if verdict.header.guard { verdict.has_no_violations() } else { !verdict.is_control_detected() };
    let sentence = match (verdict.header.guard, fine) {
        (true, true) if kept.is_empty() => "No violation, but no guarantee was tested".to_owned(),
        (true, true) => {
            let were = if kept.contains(" and ") { "were" } else { "was" };
            format!("No violation: {kept} {were} tested and held")
        }
        (true, false) => format!("{wrong}{broken}"),
        (false, false) => format!("{off}, and {wrong} show it{broken}"),
        (false, true) => {
            format!("{off}, and no violation shows it: the checker would miss such a violation elsewhere, too")
        }
    };
    let exceptions = match not_guaranteed(verdict).as_str() {
        "" => String::new(),
        names => format!(" Not guaranteed under these faults, and only counted: {names}."),
    };
    format!("{sentence}.{exceptions}{cut}")
}

/// Joins names as in a sentence: `a, b and c`.
fn join_names(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// One fault's recovery, in words for a table.
pub(crate) struct RecoveryText {
    /// Whether the lock was granted within the bound; `None`: the run does not show it.
    pub(crate) is_within_bound: Option<bool>,
    /// The time until the lock was granted: `1.04 TTL`, `never`, `no requests`.
    pub(crate) time: String,
    /// The longest allowed time: `1.50 TTL`.
    pub(crate) bound: String,
    /// More about the recovery: `all workers after 1.40 TTL`; `None`: nothing.
    pub(crate) remark: Option<String>,
}

/// Describes how soon the lock was granted again after a fault; times are multiples of `ttl`.
pub(crate) fn describe_recovery(recovery: &Recovery, ttl: RunNanos) -> RecoveryText {
    let bound = format_in_ttls(recovery.bound, ttl);
    let (within, took) = match recovery.recovery_time() {
        Some(took) if recovery.late => (Some(false), format_in_ttls(took, ttl)),
        // Over the bound without a violation: workers did not request the lock all the time, or
        // another fault interfered.
        Some(took) => ((took <= recovery.bound).then_some(true), format_in_ttls(took, ttl)),
        None if recovery.late => (Some(false), "never".to_owned()),
        None if recovery.was_requested => (None, "not seen".to_owned()),
        None => (None, "no requests".to_owned()),
    };
    let granted_to_all =
        recovery.recovery_time_of_all_workers().map(|took| format!("all workers after {}", format_in_ttls(took, ttl)));
    let granted_during_fault =
        recovery.time_to_grant_elsewhere().map(|took| format!("granted {} after it began", format_in_ttls(took, ttl)));
    let more = [granted_to_all, granted_during_fault].into_iter().flatten().collect::<Vec<_>>().join("; ");
    RecoveryText { is_within_bound: within, time: took, bound, remark: Some(more).filter(|more| !more.is_empty()) }
}

/// The command that repeats the run: from the header's notes, or built from the header's fields.
pub(crate) fn repeat_command(header: &Header) -> String {
    if let Some(command) = header.notes.get("command") {
        return command.clone();
    }
    let mut words = vec![
        "leasehold verify".to_owned(),
        format!("--engine {}", shell_quoted(&header.url)),
        format!("--workload {}", header.workload),
    ];
    if !header.faults.is_empty() {
        words.push(format!("--faults {}", header.faults.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(",")));
    }
    words.push(format!("--ttl {}", format_duration(header.ttl).replace(' ', "")));
    words.push(format!("--workers {}", header.lanes));
    words.push(format!("--seed {}", header.seed));
    if !header.guard {
        words.push("--guard off".to_owned());
    }
    words.join(" ")
}

/// Quotes a word for a POSIX shell, if it needs quotes.
fn shell_quoted(word: &str) -> String {
    let simple = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(simple) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_formatted() {
        assert_eq!([0, 12, 999, 1_000, 1_234_567].map(format_count), ["0", "12", "999", "1,000", "1,234,567"]);
        let times = [0, 7, 18_000, 4_200_000, 312_400_000, 999_900_000, 1_204_000_000, 30_000_000_000, 125_000_000_000];
        let words = ["0 s", "7 ns", "18 µs", "4.2 ms", "312 ms", "1 s", "1.2 s", "30 s", "2 min 5 s"];
        assert_eq!(times.map(format_duration), words);
        assert_eq!(format_duration(u64::MAX), "307,445,734 min 34 s");
        assert_eq!(format_in_ttls(1_040, 1_000), "1.04 TTL");
        assert_eq!(format_in_ttls(1_500_000_000, 0), "1.5 s");
    }

    #[test]
    fn shell_arguments_are_quoted() {
        assert_eq!(shell_quoted("redis://127.0.0.1:6379"), "redis://127.0.0.1:6379");
        assert_eq!(shell_quoted("file:///a b"), "'file:///a b'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }
}
