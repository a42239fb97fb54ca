//! Formats times, numbers and names for people.

use super::story::Story;
use crate::history::{Nanos, Worker};

/// An instant: `3.214 s`.
pub(crate) fn at(t: Nanos) -> String {
    format!("{}.{:03} s", count(t / 1_000_000_000), t / 1_000_000 % 1_000)
}

/// A duration: `312 ms`, `1.204 s`, `80 µs`.
pub(crate) fn long(t: Nanos) -> String {
    match t {
        0..1_000 => format!("{t} ns"),
        1_000..1_000_000 => format!("{} µs", t / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", t / 1_000_000),
        _ => at(t),
    }
}

/// A number with thousands separators: `12,345`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 grant`, `2 grants`.
pub(crate) fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `worker 3 on lane 1`.
pub(crate) fn who(story: &Story<'_>, worker: Worker) -> String {
    match story.life(worker).lane {
        Some(lane) => format!("worker {worker} on lane {lane}"),
        None => format!("worker {worker}"),
    }
}

/// A sentence about the fault that was active at that time, or the last one before it.
pub(crate) fn fault_at(story: &Story<'_>, t: Nanos) -> String {
    let begun = story.faults.iter().filter(|fault| fault.from <= t);
    match begun.max_by_key(|fault| (fault.until().min(t), fault.from)) {
        None => "No fault had been made before.".to_owned(),
        Some(fault) if fault.until() >= t => {
            format!("Fault {} ({} of {}) was going on.", fault.number, fault.kind, fault.target)
        }
        Some(fault) => {
            let ago = long(t.saturating_sub(fault.until()));
            format!("Fault {} ({} of {}) had ended {ago} before.", fault.number, fault.kind, fault.target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_easy_to_read() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(count).each_ref().map(|s| s.as_str())
        );
        assert_eq!(at(3_214_999_999), "3.214 s");
        assert_eq!(long(312_000_000), "312 ms");
        assert_eq!(long(80_500), "80 µs");
        assert_eq!(long(2_050_000_000), "2.050 s");
        assert_eq!(counted(1, "grant"), "1 grant");
        assert_eq!(counted(2_000, "grant"), "2,000 grants");
    }
}
