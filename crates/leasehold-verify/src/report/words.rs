//! Formats numbers, times and names for people.

use crate::history::{FaultKind, Header, Nanos};
use crate::verdict::{Promise, Recovered, SecondOpinion, State, Verdict};

/// `1,203`.
pub(crate) fn count(n: u64) -> String {
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
pub(crate) fn many(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A duration with up to three digits: `18 µs`, `312 ms`, `1.2 s`, `2 min 5 s`.
pub(crate) fn span(nanos: Nanos) -> String {
    let n = nanos as f64;
    match nanos {
        0 => "0 s".to_owned(),
        1..=999 => format!("{nanos} ns"),
        1_000..=999_499 => format!("{} µs", figures(n / 1e3)),
        999_500..=999_499_999 => format!("{} ms", figures(n / 1e6)),
        999_500_000..=119_499_999_999 => format!("{} s", figures(n / 1e9)),
        _ => {
            let seconds = nanos / 1_000_000_000 + u64::from(nanos % 1_000_000_000 >= 500_000_000);
            match seconds % 60 {
                0 => format!("{} min", count(seconds / 60)),
                rest => format!("{} min {rest} s", count(seconds / 60)),
            }
        }
    }
}

/// A time in seconds since the start of the run: `1.204 s`.
pub(crate) fn moment(nanos: Nanos) -> String {
    format!("{:.3} s", nanos as f64 / 1e9)
}

/// A multiple of the TTL: `1.04 TTL`; a plain duration if the TTL is 0.
pub(crate) fn ttls(nanos: Nanos, ttl: Nanos) -> String {
    if ttl == 0 { span(nanos) } else { format!("{:.2} TTL", nanos as f64 / ttl as f64) }
}

fn figures(value: f64) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A guarantee's name.
pub(crate) fn promise(promise: Promise) -> &'static str {
    match promise {
        Promise::Exclusion => "exclusion",
        Promise::Tokens => "tokens",
        Promise::Reentry => "reentry",
        Promise::Permits => "permits",
        Promise::Fencing => "fencing",
        Promise::Counter => "counter",
        Promise::Order => "order",
        Promise::Ticks => "ticks",
        Promise::Loss => "loss",
        Promise::Recovery => "recovery",
        Promise::Leaks => "leaks",
        Promise::Deadlines => "deadlines",
        Promise::Load => "load",
        Promise::Eviction => "eviction",
    }
}

/// A guarantee's description.
pub(crate) fn about(promise: Promise) -> &'static str {
    match promise {
        Promise::Exclusion => "No two hold a lock at once whose modes forbid it.",
        Promise::Tokens => "Tokens are unique, and rise in the order of the grants.",
        Promise::Reentry => "Who re-enters keeps its token.",
        Promise::Permits => "No more permits are out than there are.",
        Promise::Fencing => "A fenced register never accepts an old token.",
        Promise::Counter => "No increment is lost.",
        Promise::Order => "Who was in line first is served first.",
        Promise::Ticks => "A tick runs once, again only when its run was lost.",
        Promise::Loss => "Who lost a lock knows it before anybody else holds it.",
        Promise::Recovery => "The lock can be had again soon after each fault.",
        Promise::Leaks => "Nothing is left behind.",
        Promise::Deadlines => "Every call ends by its deadline and a second.",
        Promise::Load => "Clients of a server that refuses writes do not reconnect again and again.",
        Promise::Eviction => "An evicted holder is told soon and fenced off, and no other is.",
    }
}

/// A guarantee's result.
pub(crate) fn state(state: State) -> &'static str {
    match state {
        State::Kept => "kept",
        State::Broken => "BROKEN",
        State::Untested => "untested",
        State::Undecided => "UNDECIDED",
        State::Unpromised => "not promised",
    }
}

/// The second checker's result, if it has one.
pub(crate) fn second_opinion(opinion: &SecondOpinion) -> Option<&'static str> {
    match opinion {
        SecondOpinion::None => None,
        SecondOpinion::Agrees => Some("porcupine agrees on the registers"),
        SecondOpinion::Differs => Some("porcupine DIFFERS on the registers: one of the two checkers is wrong"),
        SecondOpinion::Undecided => Some("porcupine came to no end on the registers"),
    }
}

/// The verdict in a few words.
pub(crate) struct Headline {
    /// Whether the run ended as expected.
    pub(crate) good: bool,
    /// The verdict: `holds`.
    pub(crate) word: &'static str,
    /// The rest of the sentence.
    pub(crate) rest: String,
}

/// The verdict in a few words.
pub(crate) fn headline(verdict: &Verdict) -> Headline {
    let counts = &verdict.counts;
    let did =
        format!("{}, {}, {}", many(counts.calls, "call"), many(counts.grants, "grant"), many(counts.faults, "fault"));
    let wrong = many(verdict.violations_in_all, "violation");
    let off = match &verdict.header.control {
        Some(what) => format!("the guard was off ({what})"),
        None => "the guard was off".to_owned(),
    };
    let cut = if verdict.complete { "" } else { "; the history has no end" };
    let unpromised = match unpromised(verdict).as_str() {
        "" => String::new(),
        names => format!("; {names} not promised under these faults"),
    };
    let fine = if verdict.header.guard { verdict.holds() } else { !verdict.found_out() };
    let (word, rest) = match (verdict.header.guard, fine) {
        (true, true) if !verdict.shows_something() => ("NOTHING SHOWN", format!("{did}: nobody got a lock")),
        (true, true) if verdict.findings.iter().any(|finding| finding.state == State::Undecided) => {
            ("UNDECIDED", format!("{did}, no violation found, but the search came to no end"))
        }
        (true, true) if verdict.complete => ("holds", format!("{did}, no violation{unpromised}")),
        (true, true) => ("CUT SHORT", format!("{did}, no violation so far, but the history has no end")),
        (true, false) => ("BROKEN", format!("{wrong} in {did}{cut}")),
        (false, false) => ("found out", format!("{off}, and {wrong} in {did} show it{cut}")),
        (false, true) => ("NOT FOUND OUT", format!("{off}, and {did} do not show it{cut}")),
    };
    Headline { good: verdict.as_expected(), word, rest }
}

/// The guarantees that the engine does not give under this run's faults.
fn unpromised(verdict: &Verdict) -> String {
    let of = verdict.findings.iter().filter(|finding| finding.state == State::Unpromised);
    listed(&of.map(|finding| promise(finding.promise)).collect::<Vec<_>>())
}

/// The requested faults that did not happen, if any.
pub(crate) fn left_out(verdict: &Verdict) -> Option<String> {
    let came = |kind: &FaultKind| verdict.recovered.iter().any(|one| one.kind == *kind);
    let missing: Vec<&str> =
        verdict.header.faults.iter().filter(|kind| !came(kind)).map(|kind| kind.as_str()).collect();
    (!missing.is_empty()).then(|| format!("There was no time for {}.", listed(&missing)))
}

/// The verdict in a sentence, with the guarantees that it concerns.
pub(crate) fn lead(verdict: &Verdict) -> String {
    let all = |state: State| {
        let of = verdict.findings.iter().filter(move |finding| finding.state == state);
        listed(&of.map(|finding| promise(finding.promise)).collect::<Vec<_>>())
    };
    let (kept, broken) = (all(State::Kept), all(State::Broken));
    let wrong = many(verdict.violations_in_all, "violation");
    let broken = if broken.is_empty() { String::new() } else { format!(": {broken} did not hold") };
    let off = match &verdict.header.control {
        Some(what) => format!("The guard was off ({what})"),
        None => "The guard was off".to_owned(),
    };
    let cut = if verdict.complete { "" } else { " The history has no end: it shows only what was seen until then." };
    let fine = if verdict.header.guard { verdict.holds() } else { !verdict.found_out() };
    let sentence = match (verdict.header.guard, fine) {
        (true, true) if kept.is_empty() => "No violation, but nothing was put to the test".to_owned(),
        (true, true) => {
            let were = if kept.contains(" and ") { "were" } else { "was" };
            format!("No violation: {kept} {were} put to the test and held")
        }
        (true, false) => format!("{wrong}{broken}"),
        (false, false) => format!("{off}, and {wrong} show it{broken}"),
        (false, true) => format!("{off}, and nothing shows it: what found no fault here would find none elsewhere"),
    };
    let unpromised = match unpromised(verdict).as_str() {
        "" => String::new(),
        names => format!(" What is not promised under these faults was only counted: {names}."),
    };
    format!("{sentence}.{unpromised}{cut}")
}

/// `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// The recovery from a fault.
pub(crate) struct Recovery {
    /// Whether it was within its bound; `None`: not decidable.
    pub(crate) within: Option<bool>,
    /// The recovery time: `1.04 TTL`, `never`, `nobody asked`.
    pub(crate) took: String,
    /// The bound.
    pub(crate) bound: String,
    /// A remark: `everybody after 1.4 TTL`.
    pub(crate) more: Option<String>,
}

/// Describes the recovery from a fault.
pub(crate) fn recovery(one: &Recovered, ttl: Nanos) -> Recovery {
    let bound = ttls(one.bound, ttl);
    let (within, took) = match one.took() {
        Some(took) if one.late => (Some(false), ttls(took, ttl)),
        // Over the bound, but no violation: not all workers requested the lock all the time, or
        // another fault interfered.
        Some(took) => ((took <= one.bound).then_some(true), ttls(took, ttl)),
        None if one.late => (Some(false), "never".to_owned()),
        None if one.asked => (None, "not seen".to_owned()),
        None => (None, "nobody asked".to_owned()),
    };
    let everybody = one.took_everybody().map(|took| format!("everybody after {}", ttls(took, ttl)));
    let meanwhile = one.took_meanwhile().map(|took| format!("granted {} after it began", ttls(took, ttl)));
    let more = [everybody, meanwhile].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Recovery { within, took, bound, more: Some(more).filter(|more| !more.is_empty()) }
}

/// The command that repeats the run: as it was called, if the history has it.
pub(crate) fn command(header: &Header) -> String {
    if let Some(command) = header.notes.get("command") {
        return command.clone();
    }
    let mut words = vec![
        "leasehold verify".to_owned(),
        format!("--engine {}", quoted(&header.url)),
        format!("--workload {}", header.workload),
    ];
    if !header.faults.is_empty() {
        words.push(format!("--faults {}", header.faults.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(",")));
    }
    words.push(format!("--ttl {}", span(header.ttl).replace(' ', "")));
    words.push(format!("--workers {}", header.lanes));
    words.push(format!("--seed {}", header.seed));
    if !header.guard {
        words.push("--guard off".to_owned());
    }
    words.join(" ")
}

fn quoted(word: &str) -> String {
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
    fn numbers_and_times() {
        assert_eq!([0, 12, 999, 1_000, 1_234_567].map(count), ["0", "12", "999", "1,000", "1,234,567"]);
        let times = [0, 7, 18_000, 4_200_000, 312_400_000, 999_900_000, 1_204_000_000, 30_000_000_000, 125_000_000_000];
        let words = ["0 s", "7 ns", "18 µs", "4.2 ms", "312 ms", "1 s", "1.2 s", "30 s", "2 min 5 s"];
        assert_eq!(times.map(span), words);
        assert_eq!(span(u64::MAX), "307,445,734 min 34 s");
        assert_eq!(ttls(1_040, 1_000), "1.04 TTL");
        assert_eq!(ttls(1_500_000_000, 0), "1.5 s");
    }

    #[test]
    fn a_word_for_the_shell() {
        assert_eq!(quoted("redis://127.0.0.1:6379"), "redis://127.0.0.1:6379");
        assert_eq!(quoted("file:///a b"), "'file:///a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
