//! What the check finds, and what it leaves alone.

use super::find_timed_assertions;

#[test]
fn elapsed_time_in_an_assertion_is_found() {
    let direct = "fn a() {\n    assert!(start.elapsed() < TEST_TIMEOUT, \"too slow\");\n}";
    assert_eq!(find_timed_assertions(direct), [(2, "start.elapsed() < TEST_TIMEOUT, \"too slow\"".to_owned())]);
    let named = "let took = start.elapsed();\nassert!(\n  took < TEST_TIMEOUT\n);";
    assert_eq!(find_timed_assertions(named), [(2, "took < TEST_TIMEOUT".to_owned())]);
    assert_eq!(find_timed_assertions("assert!(clock.now().duration_since(start) <= TEST_TIMEOUT);").len(), 1);
    assert_eq!(find_timed_assertions("assert!(clock.now().saturating_duration_since(start) <= LONG);").len(), 1);
}

#[test]
fn a_poll_that_ends_by_the_clock_and_a_reduced_lower_bound_are_found() {
    let watch = "eventually(TEST_TIMEOUT, || async {\n    assert!(held.is_held(), \"{:?}\", start.elapsed());\n    \
                 if start.elapsed() > SESSION * 9 / 4 { Ok(()) } else { Err(\"not yet\") }\n})";
    assert_eq!(find_timed_assertions(watch), [(3, "if start.elapsed() > SESSION * 9 / 4".to_owned())]);
    let since = "if clock.now().duration_since(start) > SESSION { Ok(()) } else { Err(\"not yet\") }";
    assert_eq!(find_timed_assertions(since).len(), 1);
    let shortened = "let least = TTL - Duration::from_millis(50);\nassert!(start.elapsed() >= least, \"{:?}\", x);";
    assert_eq!(find_timed_assertions(shortened).len(), 1);
    assert_eq!(find_timed_assertions("assert!(start.elapsed() >= TTL - SLACK);").len(), 1);
    // A bound in another test.
    let other = "async fn a() {\n let least = x - y;\n}\nasync fn b() {\n assert!(start.elapsed() >= least);\n}";
    assert_eq!(find_timed_assertions(other), []);
}

#[test]
fn only_the_test_that_pauses_the_time_may_assert_it() {
    let late = "    let took = start.elapsed();\n    assert!(took < TEST_TIMEOUT);\n";
    let paused = format!("#[tokio::test(start_paused = true)]\nasync fn paused() {{\n{late}}}\n");
    let beside = format!("/// Not paused.\n#[tokio::test]\nasync fn beside() {{\n{late}}}\n");
    assert_eq!(find_timed_assertions(&paused), []);
    assert_eq!(find_timed_assertions(&(paused.clone() + &beside)), [(10, "took < TEST_TIMEOUT".to_owned())]);
    assert_eq!(find_timed_assertions(&(beside + &paused)).len(), 1);
    let inner = paused.replace('\n', "\n    ");
    assert_eq!(find_timed_assertions(&format!("mod tests {{\n    {inner}\n}}\n")), []);
    let manual = format!("fn manual() {{\n    let hand = ManualClock::new();\n{late}}}\n");
    assert_eq!(find_timed_assertions(&manual), []);
    let running = format!("fn running() {{\n    let hand = ManualClock::running();\n{late}}}\n");
    assert_eq!(find_timed_assertions(&running).len(), 1);
    let built = format!("pub(crate) fn built() {{\n    builder.start_paused(true);\n{late}}}\n");
    assert_eq!(find_timed_assertions(&built), []);
    // A name of another test.
    let other = "fn one() {\n    let took = start.elapsed();\n}\n\nfn two(took: u8) {\n    assert!(took < 3);\n}\n";
    assert_eq!(find_timed_assertions(other), []);
}

#[test]
fn the_time_since_a_moment_is_found_and_the_time_until_a_deadline_is_none() {
    let named = "let waited = clock.now().duration_since(start);\nassert!(waited < WAIT * 2, \"{waited:?}\");";
    assert_eq!(find_timed_assertions(named), [(2, "waited < WAIT * 2, \"{waited:?}\"".to_owned())]);
    for text in [
        "let left = guard.deadline().duration_since(locks.clock().now());\nassert!(left <= TTL);",
        "assert!(deadline.duration_since(now) <= TTL);",
        "let waited = clock.now().duration_since(start);\nassert!(waited >= Duration::from_millis(900));",
    ] {
        assert_eq!(find_timed_assertions(text), [], "{text}");
    }
}

#[test]
fn a_panic_after_a_time_is_found() {
    let direct = "if start.elapsed() > TTL {\n    panic!(\"too slow\");\n}";
    assert_eq!(find_timed_assertions(direct), [(1, "if start.elapsed() > TTL".to_owned())]);
    let named = "let took = clock.now().duration_since(start);\nif took >= TTL { panic!(\"{took:?}\") }";
    assert_eq!(find_timed_assertions(named), [(2, "if took >= TTL".to_owned())]);
    assert_eq!(find_timed_assertions("if start.elapsed() > TEST_TIMEOUT {\n    panic!(\"it hangs\");\n}"), []);
    assert_eq!(find_timed_assertions("if tries > 3 { panic!(\"after {:?}\", start.elapsed()) }"), []);
}

#[test]
fn a_time_in_a_message_and_a_lower_bound_are_allowed() {
    for text in [
        "assert!(done, \"after {:?}\", start.elapsed());",
        "let took = start.elapsed();\nassert!(done, \"after {took:?}\");",
        "let took = start.elapsed();\nprintln!(\"{took:?}\");",
        "if start.elapsed() > LIMIT { return; }",
        "assert!(start.elapsed() >= delay * 2, \"not before\");",
        // An exact duration can only come from a clock that the test controls.
        "assert_eq!(start.elapsed(), TIMEOUT / 3);",
    ] {
        assert_eq!(find_timed_assertions(text), [], "{text}");
    }
}
