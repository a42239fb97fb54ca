//! A PostgreSQL whose wall clock a test sets.

use std::time::Duration;

use leasehold_testbed::{
    Server, WallClock,
    postgres::{self, Postgres},
};
use tokio::time::Instant;

use super::{client, error_message, single_value};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// By how many seconds the server's clock is ahead of that of `reference`.
async fn clock_offset(server: &Server, reference: &Server) -> f64 {
    let question = "SELECT extract(epoch FROM clock_timestamp())";
    let (theirs, ours) = (single_value(server, question).await, single_value(reference, question).await);
    theirs.parse::<f64>().unwrap() - ours.parse::<f64>().unwrap()
}

#[tokio::test]
async fn the_clock_moves_while_the_server_runs() {
    let clock = WallClock::new().unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let right = postgres::start().await.unwrap();
    for offset in [0_i32, 3600, -7200, 0] {
        clock.set_offset(offset.into()).unwrap();
        let seen = clock_offset(&server, &right).await;
        assert!((seen - f64::from(offset)).abs() < 60.0, "{seen} instead of {offset}");
    }
}

#[tokio::test]
async fn a_lock_timeout_fires_on_time_although_the_clock_is_behind() {
    let clock = WallClock::new().unwrap();
    clock.set_offset(-86_400).unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let (holder, waiter) = (client(&server).await.unwrap(), client(&server).await.unwrap());
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let begin = Instant::now();
    let waiting = waiter.batch_execute("SET lock_timeout = 1000; SELECT pg_advisory_lock(1)");
    let refused = tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap_err();
    assert!(error_message(&refused).contains("lock timeout"), "{refused:?}");
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(900), "{waited:?}");
}
