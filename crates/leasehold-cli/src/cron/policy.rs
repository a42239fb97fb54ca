//! Parses the policies of a job as users write them.

use leasehold::schedule::{Crash, MOST_BESIDE, MOST_TICKS, Missed, Overlap};

/// Parses `at-most-once`, `retry`, `retry:5`.
pub(crate) fn crash(text: &str) -> Result<Crash, String> {
    let wrong = || "write at-most-once, or retry:3 (3 is how often it may begin)".to_owned();
    match split(text, 3).ok_or_else(wrong)? {
        ("at-most-once", None) => Ok(Crash::AtMostOnce),
        ("retry", Some(attempts)) => Ok(Crash::Retry { attempts }),
        _ => Err(wrong()),
    }
}

/// Parses `skip`, `once`, `all`, `all:5`.
pub(crate) fn missed(text: &str) -> Result<Missed, String> {
    let wrong = || format!("write skip, once, or all:100 (100 is how many are made up for, {MOST_TICKS} at most)");
    match split(text, 100).ok_or_else(wrong)? {
        ("skip", None) => Ok(Missed::Skip),
        ("once", None) => Ok(Missed::Once),
        ("all", Some(limit)) if usize::try_from(limit).is_ok_and(|limit| limit <= MOST_TICKS) => {
            Ok(Missed::All { limit })
        }
        _ => Err(wrong()),
    }
}

/// Parses `skip`, `queue`, `allow`, `allow:5`.
pub(crate) fn overlap(text: &str) -> Result<Overlap, String> {
    let wrong = || format!("write skip, queue, or allow:4 (4 is how many at the same time, {MOST_BESIDE} at most)");
    match split(text, 4).ok_or_else(wrong)? {
        ("skip", None) => Ok(Overlap::Skip),
        ("queue", None) => Ok(Overlap::Queue),
        ("allow", Some(max)) if max <= MOST_BESIDE => Ok(Overlap::Allow { max }),
        _ => Err(wrong()),
    }
}

/// Splits a word from the number after its colon; `default` applies to words that take a number.
/// `None` if the number is invalid.
fn split(text: &str, default: u32) -> Option<(&str, Option<u32>)> {
    match text.split_once(':') {
        Some((word, number)) => Some((word, Some(number.parse().ok().filter(|number| *number > 0)?))),
        None => Some((text, matches!(text, "retry" | "all" | "allow").then_some(default))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_everything_else_is_answered_with_what_to_write() {
        assert_eq!(crash("at-most-once"), Ok(Crash::AtMostOnce));
        assert_eq!(crash("retry"), Ok(Crash::Retry { attempts: 3 }));
        assert_eq!(crash("retry:9"), Ok(Crash::Retry { attempts: 9 }));
        assert_eq!(missed("all:7"), Ok(Missed::All { limit: 7 }));
        assert_eq!(missed("all:1000"), Ok(Missed::All { limit: 1000 }));
        assert_eq!((missed("skip"), missed("once")), (Ok(Missed::Skip), Ok(Missed::Once)));
        assert_eq!((overlap("queue"), overlap("allow:2")), (Ok(Overlap::Queue), Ok(Overlap::Allow { max: 2 })));
        assert_eq!(overlap("allow:64"), Ok(Overlap::Allow { max: MOST_BESIDE }));
        for (wrong, says) in [
            (crash("retry:0").map(drop), "retry:3"),
            (crash("at-most-once:3").map(drop), "at-most-once"),
            (crash("").map(drop), "at-most-once"),
            (missed("all:x").map(drop), "all:100"),
            (missed("once:2").map(drop), "once"),
            (missed("all:1001").map(drop), "1000 at most"),
            (overlap("maybe").map(drop), "queue"),
            (overlap("allow:0").map(drop), "allow:4"),
            (overlap("allow:65").map(drop), "64 at most"),
        ] {
            let error = wrong.unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
