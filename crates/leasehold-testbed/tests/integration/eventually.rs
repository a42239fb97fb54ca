//! `eventually` waits for its condition, at most until its bound, and reports the last observation.

use std::{
    cell::Cell,
    future::{pending, ready},
    time::Duration,
};

use leasehold_testbed::{Error, eventually, try_eventually};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_value_is_returned_as_soon_as_the_condition_holds() {
    let calls = Cell::new(0);
    let fourth = eventually(LONG, || {
        calls.set(calls.get() + 1);
        ready(if calls.get() == 4 { Ok(calls.get()) } else { Err("not yet") })
    });
    assert_eq!(fourth.await, 4);
    assert_eq!(calls.get(), 4);
}

#[tokio::test]
async fn a_condition_is_checked_at_least_once() {
    let now = try_eventually("now", Duration::ZERO, || ready(Ok::<_, String>(1)));
    assert_eq!(now.await.unwrap(), 1);
}

#[tokio::test]
async fn the_error_names_the_condition_and_its_last_observation() {
    let calls = Cell::new(0);
    let never = try_eventually("spring", Duration::from_secs(1), || {
        calls.set(calls.get() + 1);
        ready(Err::<(), _>(format!("snow {}", calls.get())))
    });
    let Err(Error::TimedOut { awaited, observed: seen, .. }) = never.await else { panic!("spring came") };
    assert_eq!(awaited, "spring");
    assert_eq!(seen, format!("snow {}", calls.get()));
    assert!(calls.get() > 2, "it was checked again and again");
}

#[tokio::test]
async fn a_hanging_check_is_ended_at_the_timeout() {
    let hanging = try_eventually("spring", SHORT, pending::<Result<(), String>>);
    let message = hanging.await.unwrap_err().to_string();
    assert!(message.contains("did not finish"), "{message}");
}

#[test]
fn the_panic_names_the_line_of_the_test() {
    let line = line!() + 2;
    let panicked = std::panic::catch_unwind(|| {
        let never = eventually(SHORT, || ready(Err::<(), _>("snow")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(never);
    });
    let message = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains(&format!("eventually.rs:{line}:")), "{message}");
    assert!(message.contains("snow"), "{message}");
}
