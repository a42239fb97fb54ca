//! Parses the policies of a job as users write them.

use leasehold_schedule::{Crash, MAX_CONCURRENT_RUNS, MAX_TICKS, Missed, Overlap};

/// Parses a crash policy: `at-most-once`, `retry` (3 starts in all) or `retry:5`.
pub(crate) fn parse_crash(text: &str) -> Result<Crash, String> {
    let usage_error = || "write at-most-once, or retry:3 (3 is the number of starts)".to_owned();
    match split_word_and_number(text, 3).ok_or_else(usage_error)? {
        ("at-most-once", None) => Ok(Crash::AtMostOnce),
        ("retry", Some(attempts)) => Ok(Crash::Retry { attempts }),
        _ => Err(usage_error()),
    }
}

/// Parses a policy for missed ticks: `skip`, `once`, `all` (the last 100) or `all:5`.
pub(crate) fn parse_missed(text: &str) -> Result<Missed, String> {
    let usage_error =
        || format!("write skip, once, or all:100 (100 is the number of ticks to make up for, {MAX_TICKS} at most)");
    match split_word_and_number(text, 100).ok_or_else(usage_error)? {
        ("skip", None) => Ok(Missed::Skip),
        ("once", None) => Ok(Missed::Once),
        ("all", Some(limit)) if usize::try_from(limit).is_ok_and(|limit| limit <= MAX_TICKS) => {
            Ok(Missed::All { limit })
        }
        _ => Err(usage_error()),
    }
}

/// Parses a policy for overlapping runs: `skip`, `queue`, `allow` (4 at a time) or `allow:5`.
pub(crate) fn parse_overlap(text: &str) -> Result<Overlap, String> {
    let usage_error =
        || format!("write skip, queue, or allow:4 (4 is the number of concurrent runs, {MAX_CONCURRENT_RUNS} at most)");
    match split_word_and_number(text, 4).ok_or_else(usage_error)? {
        ("skip", None) => Ok(Overlap::Skip),
        ("queue", None) => Ok(Overlap::Queue),
        ("allow", Some(max)) if max <= MAX_CONCURRENT_RUNS => Ok(Overlap::Allow { max }),
        _ => Err(usage_error()),
    }
}

/// Splits a word from the number after its colon; `default` applies to words that take a number.
/// `None` if the number is invalid.
fn split_word_and_number(text: &str, default: u32) -> Option<(&str, Option<u32>)> {
    match text.split_once(':') {
        Some((word, number)) => Some((word, Some(number.parse().ok().filter(|number| *number > 0)?))),
        None => Some((text, matches!(text, "retry" | "all" | "allow").then_some(default))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_and_invalid_ones_refused_with_the_allowed_values() {
        assert_eq!(parse_crash("at-most-once"), Ok(Crash::AtMostOnce));
        assert_eq!(parse_crash("retry"), Ok(Crash::Retry { attempts: 3 }));
        assert_eq!(parse_crash("retry:9"), Ok(Crash::Retry { attempts: 9 }));
        assert_eq!(parse_missed("all:7"), Ok(Missed::All { limit: 7 }));
        assert_eq!(parse_missed("all:1000"), Ok(Missed::All { limit: 1000 }));
        assert_eq!((parse_missed("skip"), parse_missed("once")), (Ok(Missed::Skip), Ok(Missed::Once)));
        assert_eq!(
            (parse_overlap("queue"), parse_overlap("allow:2")),
            (Ok(Overlap::Queue), Ok(Overlap::Allow { max: 2 }))
        );
        assert_eq!(parse_overlap("allow:64"), Ok(Overlap::Allow { max: MAX_CONCURRENT_RUNS }));
        for (wrong, message) in [
            (parse_crash("retry:0").map(drop), "retry:3"),
            (parse_crash("at-most-once:3").map(drop), "at-most-once"),
            (parse_crash("").map(drop), "at-most-once"),
            (parse_missed("all:x").map(drop), "all:100"),
            (parse_missed("once:2").map(drop), "once"),
            (parse_missed("all:1001").map(drop), "1000 at most"),
            (parse_overlap("maybe").map(drop), "queue"),
            (parse_overlap("allow:0").map(drop), "allow:4"),
            (parse_overlap("allow:65").map(drop), "64 at most"),
        ] {
            let error = wrong.unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
