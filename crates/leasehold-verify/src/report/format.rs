//! Formats numbers, times and names for people.

use crate::history::{FaultKind, Header, RunNanos};
use crate::verdict::{FindingStatus, Guarantee, Recovery, SecondOpinion, Verdict};

/// `1,203`.
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

/// `1 grant`, `312 grants`.
pub(crate) fn format_quantity(n: u64, what: &str) -> String {
    format!("{} {what}{}", format_count(n), if n == 1 { "" } else { "s" })
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

/// A multiple of the TTL: `1.04 TTL`; a plain duration if the TTL is 0.
pub(crate) fn format_in_ttls(nanos: RunNanos, ttl: RunNanos) -> String {
    if ttl == 0 { format_duration(nanos) } else { format!("{:.2} TTL", nanos as f64 / ttl as f64) }
}

fn significant_digits(value: f64) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A guarantee's name.
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
        Guarantee::Eviction => "eviction",
    }
}

/// A guarantee's description.
pub(crate) fn guarantee_description(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Exclusion => "No two hold a lock at once whose modes forbid it.",
        Guarantee::Tokens => "Tokens are unique, and rise in the order of the grants.",
        Guarantee::Reentry => "Who re-enters keeps its token.",
        Guarantee::Permits => "No more permits are out than there are.",
        Guarantee::Fencing => "A fenced register never accepts an old token.",
        Guarantee::Counter => "No increment is lost.",
        Guarantee::Order => "Who was in line first is served first.",
        Guarantee::Ticks => "A tick runs once, again only when its run was lost.",
        Guarantee::Loss => "Who lost a lock knows it before anybody else holds it.",
        Guarantee::Recovery => "The lock can be had again soon after each fault.",
        Guarantee::Leaks => "Nothing is left behind.",
        Guarantee::Deadlines => "Every call ends by its deadline and a second.",
        Guarantee::Load => "Clients of a server that refuses writes do not reconnect again and again.",
        Guarantee::Eviction => "An evicted holder is told soon and fenced off, and no other is.",
    }
}

/// A guarantee's result.
pub(crate) fn status_name(state: FindingStatus) -> &'static str {
    match state {
        FindingStatus::Kept => "kept",
        FindingStatus::Broken => "BROKEN",
        FindingStatus::Untested => "untested",
        FindingStatus::Undecided => "UNDECIDED",
        FindingStatus::Unpromised => "not promised",
    }
}

/// The second checker's result, if it has one.
pub(crate) fn describe_second_opinion(opinion: &SecondOpinion) -> Option<&'static str> {
    match opinion {
        SecondOpinion::None => None,
        SecondOpinion::Agrees => Some("porcupine agrees on the registers"),
        SecondOpinion::Differs => Some("porcupine DIFFERS on the registers: one of the two checkers is wrong"),
        SecondOpinion::Undecided => Some("porcupine reached its limit on the registers"),
    }
}

/// The verdict in a few words.
pub(crate) struct Headline {
    /// Whether the run ended as expected.
    pub(crate) is_expected: bool,
    /// The verdict: `holds`.
    pub(crate) verdict: &'static str,
    /// The rest of the sentence.
    pub(crate) rest: String,
}

/// The verdict in a few words.
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
        Some(what) => format!("the guard was off ({what})"),
        None => "the guard was off".to_owned(),
    };
    let cut = if verdict.complete { "" } else { "; the history has no end" };
    let unpromised = match not_guaranteed(verdict).as_str() {
        "" => String::new(),
        names => format!("; {names} not guaranteed under these faults"),
    };
    let fine = if verdict.header.guard { verdict.has_no_violations() } else { !verdict.is_control_detected() };
    let (word, rest) = match (verdict.header.guard, fine) {
        (true, true) if !verdict.has_evidence() => ("NO EVIDENCE", format!("{did}: no worker acquired a lock")),
        (true, true) if verdict.findings.iter().any(|finding| finding.state == FindingStatus::Undecided) => {
            ("UNDECIDED", format!("{did}, no violation found, but the search reached its limit"))
        }
        (true, true) if verdict.complete => ("holds", format!("{did}, no violation{unpromised}")),
        (true, true) => ("CUT SHORT", format!("{did}, no violation so far, but the history has no end")),
        (true, false) => ("BROKEN", format!("{wrong} in {did}{cut}")),
        (false, false) => ("detected", format!("{off}, and {wrong} in {did} show it{cut}")),
        (false, true) => ("NOT DETECTED", format!("{off}, and {did} do not show it{cut}")),
    };
    Headline { is_expected: verdict.is_as_expected(), verdict: word, rest }
}

/// The guarantees that the engine does not give under this run's faults.
fn not_guaranteed(verdict: &Verdict) -> String {
    let of = verdict.findings.iter().filter(|finding| finding.state == FindingStatus::Unpromised);
    join_names(&of.map(|finding| guarantee_name(finding.promise)).collect::<Vec<_>>())
}

/// The requested faults that did not happen, if any.
pub(crate) fn describe_missing_faults(verdict: &Verdict) -> Option<String> {
    let happened = |kind: &FaultKind| verdict.recovered.iter().any(|one| one.kind == *kind);
    let missing: Vec<&str> =
        verdict.header.faults.iter().filter(|kind| !happened(kind)).map(|kind| kind.as_str()).collect();
    (!missing.is_empty()).then(|| format!("There was no time for {}.", join_names(&missing)))
}

/// The verdict in a sentence, with the guarantees that it concerns.
pub(crate) fn summary(verdict: &Verdict) -> String {
    let all = |state: FindingStatus| {
        let of = verdict.findings.iter().filter(move |finding| finding.state == state);
        join_names(&of.map(|finding| guarantee_name(finding.promise)).collect::<Vec<_>>())
    };
    let (kept, broken) = (all(FindingStatus::Kept), all(FindingStatus::Broken));
    let wrong = format_quantity(verdict.violations_in_all, "violation");
    let broken = if broken.is_empty() { String::new() } else { format!(": {broken} did not hold") };
    let off = match &verdict.header.control {
        Some(what) => format!("The guard was off ({what})"),
        None => "The guard was off".to_owned(),
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
    let unpromised = match not_guaranteed(verdict).as_str() {
        "" => String::new(),
        names => format!(" Not guaranteed under these faults, and only counted: {names}."),
    };
    format!("{sentence}.{unpromised}{cut}")
}

/// `a, b and c`.
fn join_names(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// The recovery from a fault.
pub(crate) struct RecoveryText {
    /// Whether it was within its bound; `None`: not decidable.
    pub(crate) is_within_bound: Option<bool>,
    /// The recovery time: `1.04 TTL`, `never`, `nobody asked`.
    pub(crate) time: String,
    /// The bound.
    pub(crate) bound: String,
    /// A remark: `all workers after 1.4 TTL`.
    pub(crate) remark: Option<String>,
}

/// Describes the recovery from a fault.
pub(crate) fn describe_recovery(recovery: &Recovery, ttl: RunNanos) -> RecoveryText {
    let bound = format_in_ttls(recovery.bound, ttl);
    let (within, took) = match recovery.recovery_time() {
        Some(took) if recovery.late => (Some(false), format_in_ttls(took, ttl)),
        // Over the bound without a violation: workers did not request the lock all the time, or
        // another fault interfered.
        Some(took) => ((took <= recovery.bound).then_some(true), format_in_ttls(took, ttl)),
        None if recovery.late => (Some(false), "never".to_owned()),
        None if recovery.asked => (None, "not seen".to_owned()),
        None => (None, "nobody asked".to_owned()),
    };
    let everybody =
        recovery.recovery_time_of_all_workers().map(|took| format!("all workers after {}", format_in_ttls(took, ttl)));
    let meanwhile =
        recovery.time_to_grant_elsewhere().map(|took| format!("granted {} after it began", format_in_ttls(took, ttl)));
    let more = [everybody, meanwhile].into_iter().flatten().collect::<Vec<_>>().join("; ");
    RecoveryText { is_within_bound: within, time: took, bound, remark: Some(more).filter(|more| !more.is_empty()) }
}

/// The command that repeats the run: the original command line, if the history contains it.
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
