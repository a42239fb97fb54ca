//! A process of our own whose wall clock is moved: only that one moves.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test: what fails here is the finding"
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
/// It may get no time to run for so long.
const CLOCK_TOLERANCE: f64 = 300.0;
/// Set in the process that tells its clocks.
const CHILD_VARIABLE: &str = "LEASEHOLD_TELLS_ITS_CLOCKS";

/// Not a test: the process that the other one starts. For each line it is sent it tells how far its clocks went since it began.
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
    // What the test harness says goes nowhere; what the process says comes on standard output.
    let exe = env::current_exe().unwrap().display().to_string();
    let script = "exec \"$0\" --exact actor_clock::a_process_that_reports_its_clocks --nocapture 2>&1 >/dev/null";
    let mut actor = Actor::spawn(Path::new("/bin/sh"), &["-c", script, &exe], &environment).unwrap();
    reported_clocks(&mut actor).await;
    for moved in [HOUR, -HOUR, 0.0] {
        clock.set_offset(moved as i64).unwrap();
        let told = reported_clocks(&mut actor).await;
        let of = |name: &str| told[name].as_f64().unwrap();
        assert!((of("wall") - moved).abs() < CLOCK_TOLERANCE, "{told} instead of {moved}");
        assert!((0.0..CLOCK_TOLERANCE).contains(&of("monotonic")), "{told} after {moved}");
    }
    let left = format!("/dev/shm/faketime_shm_{}", actor.pid());
    assert!(Path::new(&left).exists(), "this test looks at the wrong thing");
    drop(actor);
    assert!(!Path::new(&left).exists(), "after a drop");
}
