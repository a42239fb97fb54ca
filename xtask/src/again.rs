//! Tests that ran out of time beside others, and what comes of them alone.

/// What a wait says when its bound has passed; an assertion never says so.
const LATE: &str = "; seen instead: ";

/// What a call says that must succeed and does not, because a server was silent for too long.
const UNANSWERED: &str = ": Error(Inner { kind: Unavailable";
const SILENT: &str = " did not answer in time";

/// So often they must pass alone, each time.
pub(crate) const TIMES: u32 = 3;

/// The tests that failed in a program, if each of them failed for no other reason than that something did not happen in time. On a machine that
/// is busy with other tests that is no verdict yet.
pub(crate) fn out_of_time(log: &str) -> Option<Vec<&str>> {
    let (_, failures) = log.split_once("\nfailures:\n")?;
    let (printed, names) = failures.split_once("\nfailures:\n")?;
    let names: Vec<_> = names.lines().map_while(|line| line.strip_prefix("    ")).collect();
    let ran_out = |name: &&str| {
        let from = printed.split_once(&format!("---- {name} stdout ----\n")).map(|(_, from)| from);
        let own = from.map(|from| from.split_once("\n---- ").map_or(from, |(own, _)| own)).unwrap_or_default();
        // What the panic itself says, not what was printed before it.
        let mut panics = own.split(" panicked at ").skip(1);
        let says = panics.next().and_then(|panic| panic.lines().nth(1)).unwrap_or_default();
        panics.next().is_none() && (says.contains(LATE) || says.contains(UNANSWERED) && says.contains(SILENT))
    };
    (!names.is_empty() && names.iter().all(ran_out)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::out_of_time;

    /// What a test program prints: each failed test with its panics.
    fn log(failed: &[(&str, &[&str])]) -> String {
        let panic = |words: &&str| format!("\nthread 'x' (7) panicked at src/eventually.rs:50:27:\n{words}\n");
        let printed = |(name, panics): &(&str, &[&str])| {
            format!("---- {name} stdout ----\n{}\n\n", panics.iter().map(panic).collect::<String>())
        };
        let names: String = failed.iter().map(|(name, _)| format!("    {name}\n")).collect();
        let printed: String = failed.iter().map(printed).collect();
        format!("running 3 tests\n\nfailures:\n\n{printed}\nfailures:\n{names}\ntest result: FAILED. 1 passed\n")
    }

    const LATE: &str = "tests/a.rs:3:1: no condition within 20s; seen instead: [3, 0]";
    const SILENT: &str =
        "a lock: Error(Inner { kind: Unavailable, message: \"redis://127.0.0.1:6379/ did not answer in time\" })";
    const OTHER: &str = "20 errors: [\"redis://127.0.0.1:6379/ did not answer in time\"]";
    const WRONG: &str = "assertion failed: two hold it";

    #[test]
    fn only_what_ran_out_of_time_is_run_again() {
        assert_eq!(out_of_time(&log(&[("a::b", &[LATE])])), Some(vec!["a::b"]));
        assert_eq!(out_of_time(&log(&[("a::b", &[LATE]), ("c", &[SILENT])])), Some(vec!["a::b", "c"]));
    }

    #[test]
    fn what_was_wrong_once_is_wrong() {
        assert_eq!(out_of_time(&log(&[("a::b", &[WRONG])])), None);
        assert_eq!(out_of_time(&log(&[("a::b", &[LATE]), ("c", &[WRONG])])), None);
        assert_eq!(out_of_time(&log(&[("c", &[WRONG]), ("a::b", &[LATE])])), None);
        assert_eq!(out_of_time(&log(&[("a", &[OTHER])])), None);
        // In the same test, too.
        assert_eq!(out_of_time(&log(&[("a", &[LATE, WRONG])])), None);
    }

    #[test]
    fn a_program_that_did_not_come_to_its_end_is_not_run_again() {
        assert_eq!(out_of_time("running 3 tests\n"), None);
        assert_eq!(out_of_time(""), None);
        assert_eq!(out_of_time(&log(&[])), None);
    }
}
