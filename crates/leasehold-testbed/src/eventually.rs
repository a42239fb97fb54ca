//! Waits for a condition instead of sleeping for a fixed time.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Error, Result};

/// The time limit of every wait in the testbed. Only a failing test waits this long.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The first pause between two checks; each further one is half as long again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Checks `condition` until it returns `Ok`, and panics at the caller's line if `bound` passes
/// first.
///
/// `Err` is the observation; the panic message contains the last one. A check that hangs is
/// cancelled at the bound. The condition is checked at least once, for any bound.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::{sync::atomic::{AtomicU32, Ordering}, time::Duration};
/// use leasehold_testbed::eventually;
///
/// let calls = AtomicU32::new(0);
/// let third = eventually(Duration::from_secs(5), || async {
///     match calls.fetch_add(1, Ordering::Relaxed) {
///         2 => Ok("done"),
///         n => Err(format!("call {n}")),
///     }
/// })
/// .await;
/// assert_eq!(third, "done");
/// # }
/// ```
///
/// # Panics
///
/// When the condition does not hold within `bound`.
#[track_caller]
pub fn eventually<T, E, F, C>(bound: Duration, condition: C) -> impl Future<Output = T>
where
    C: FnMut() -> F,
    F: Future<Output = std::result::Result<T, E>>,
    E: Display,
{
    let caller = Location::caller();
    async move {
        match try_eventually("condition", bound, condition).await {
            Ok(value) => value,
            Err(error) => panic!("{caller}: {error}"),
        }
    }
}

/// Like [`eventually()`], with an error instead of a panic; `awaited` names the condition in it.
///
/// # Errors
///
/// [`Error::TimedOut`], with the last check's observation.
pub async fn try_eventually<T, E, F, C>(awaited: &str, bound: Duration, mut condition: C) -> Result<T>
where
    C: FnMut() -> F,
    F: Future<Output = std::result::Result<T, E>>,
    E: Display,
{
    let deadline = Instant::now() + bound;
    let mut pause = FIRST_PAUSE;
    let mut seen = None;
    loop {
        match timeout_at(deadline, condition()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => seen = Some(error.to_string()),
            Err(_) => seen = Some(describe_hung_check(seen)),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut { awaited: awaited.to_owned(), bound, observed: seen.unwrap_or_default() });
        }
        sleep(pause.min(left)).await;
        pause = (pause + pause / 2).min(LONGEST_PAUSE);
    }
}

/// The observation of a check that was cancelled at the deadline; `before` is that of the last
/// check that finished.
fn describe_hung_check(before: Option<String>) -> String {
    match before {
        Some(before) => format!("{before}; then a check that did not finish"),
        None => "a check that did not finish".to_owned(),
    }
}
