//! Formats times, numbers and names in the descriptions of violations.

use super::timeline::Timeline;
use crate::history::{RunNanos, WorkerId};

/// A time since the start of the run: `3.214 s`.
pub(crate) fn format_time(t: RunNanos) -> String {
    format!("{}.{:03} s", format_count(t / 1_000_000_000), t / 1_000_000 % 1_000)
}

/// A duration: `312 ms`, `1.204 s`, `80 µs`.
pub(crate) fn format_duration(t: RunNanos) -> String {
    match t {
        0..1_000 => format!("{t} ns"),
        1_000..1_000_000 => format!("{} µs", t / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", t / 1_000_000),
        _ => format_time(t),
    }
}

/// A number with thousands separators: `12,345`.
pub(crate) fn format_count(n: u64) -> String {
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

/// A number with its noun, which gets an `s` unless `n` is 1: `1 grant`, `2 grants`.
pub(crate) fn format_quantity(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_count(n), if n == 1 { "" } else { "s" })
}

/// A worker with its lane, if it is known: `worker 3 on lane 1`.
pub(crate) fn format_worker(timeline: &Timeline<'_>, worker: WorkerId) -> String {
    match timeline.lifetime(worker).lane {
        Some(lane) => format!("worker {worker} on lane {lane}"),
        None => format!("worker {worker}"),
    }
}

/// A sentence about the fault that was active at time `t`, or the last one before it.
pub(crate) fn describe_fault_at(timeline: &Timeline<'_>, t: RunNanos) -> String {
    let begun = timeline.faults.iter().filter(|fault| fault.from <= t);
    match begun.max_by_key(|fault| (fault.effective_end().min(t), fault.from)) {
        None => "No fault had begun before.".to_owned(),
        Some(fault) if fault.effective_end() >= t => {
            format!("Fault {} ({} of {}) was active.", fault.number, fault.kind, fault.target)
        }
        Some(fault) => {
            let ago = format_duration(t.saturating_sub(fault.effective_end()));
            format!("Fault {} ({} of {}) had ended {ago} before.", fault.number, fault.kind, fault.target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_formatted_for_people() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(format_count).each_ref().map(|s| s.as_str())
        );
        assert_eq!(format_time(3_214_999_999), "3.214 s");
        assert_eq!(format_duration(312_000_000), "312 ms");
        assert_eq!(format_duration(80_500), "80 µs");
        assert_eq!(format_duration(2_050_000_000), "2.050 s");
        assert_eq!(format_quantity(1, "grant"), "1 grant");
        assert_eq!(format_quantity(2_000, "grant"), "2,000 grants");
    }
}
