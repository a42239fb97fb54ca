//! An actor with a [`WallClock`]: setting it changes the process's wall clock and no other clock.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests report failures by panicking"
)]

use std::{
    env,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use leasehold_testbed::{Actor, WallClock};
use serde_json::{Value, json};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const HOUR: f64 = 3600.0;
/// How many seconds the machine may pause without failing the test.
const CLOCK_TOLERANCE: f64 = 300.0;
/// This environment variable is set in the process that reports its clocks.
const CHILD_VARIABLE: &str = "LEASEHOLD_TELLS_ITS_CLOCKS";

/// No test, but the process that the other test starts. For each line that it receives, it reports
/// how far its clocks have advanced since its start.
#[test]
fn a_process_that_reports_its_clocks() {
    if env::var_os(CHILD_VARIABLE).is_none() {
        return;
    }
    let (wall, began) = (SystemTime::now(), Instant::now());
    for _ in std::io::stdin().lines() {
        let went = match SystemTime::now().duration_since(wall) {
            Ok(ahead) => ahead.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        };
        let line = json!({ "wall": went, "monotonic": began.elapsed().as_secs_f64() });
        eprintln!("{line}");
    }
}

async fn reported_clocks(actor: &mut Actor) -> Value {
    actor.send(&Value::Null).await.unwrap();
    actor.recv_matching(|line| line.is_object(), TEST_TIMEOUT).await.unwrap()
}

#[tokio::test]
async fn only_the_wall_clock_of_a_process_moves() {
    let clock = WallClock::new().unwrap();
    let mut environment = clock.environment();
    environment.push((CHILD_VARIABLE.to_owned(), "1".to_owned()));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // The test harness's own output is discarded; the process's reports are on standard output.
    let exe = env::current_exe().unwrap().display().to_string();
    let script = "exec \"$0\" --exact actor_clock::a_process_that_reports_its_clocks --nocapture 2>&1 >/dev/null";
    let mut actor = Actor::spawn(Path::new("/bin/sh"), &["-c", script, &exe], &environment).unwrap();
    reported_clocks(&mut actor).await;
    for moved in [HOUR, -HOUR, 0.0] {
        clock.set_offset(moved as i64).unwrap();
        let reported = reported_clocks(&mut actor).await;
        let of = |name: &str| reported[name].as_f64().unwrap();
        assert!((of("wall") - moved).abs() < CLOCK_TOLERANCE, "{reported} instead of {moved}");
        assert!((0.0..CLOCK_TOLERANCE).contains(&of("monotonic")), "{reported} after {moved}");
    }
    let left = format!("/dev/shm/faketime_shm_{}", actor.pid());
    assert!(Path::new(&left).exists(), "this test looks at the wrong thing");
    drop(actor);
    assert!(!Path::new(&left).exists(), "after a drop");
}
