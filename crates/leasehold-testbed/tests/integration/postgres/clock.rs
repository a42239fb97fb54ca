//! A PostgreSQL whose wall clock is moved.

use std::time::Duration;

use leasehold_testbed::{
    Server, WallClock,
    postgres::{self, Postgres},
};
use tokio::time::Instant;

use super::{cell, client, words};

const BOUND: Duration = leasehold_testbed::BOUND;

/// Seconds between the server's clock and the right one.
async fn wrong_by(server: &Server, right: &Server) -> f64 {
    let question = "SELECT extract(epoch FROM clock_timestamp())";
    let (theirs, ours) = (cell(server, question).await, cell(right, question).await);
    theirs.parse::<f64>().unwrap() - ours.parse::<f64>().unwrap()
}

#[tokio::test]
async fn the_clock_moves_while_the_server_runs() {
    let clock = WallClock::new().unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let right = postgres::start().await.unwrap();
    for offset in [0_i32, 3600, -7200, 0] {
        clock.move_to(offset.into()).unwrap();
        let seen = wrong_by(&server, &right).await;
        assert!((seen - f64::from(offset)).abs() < 60.0, "{seen} instead of {offset}");
    }
}

#[tokio::test]
async fn a_timeout_comes_in_time_though_the_clock_is_behind() {
    let clock = WallClock::new().unwrap();
    clock.move_to(-86_400).unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let (holder, waiter) = (client(&server).await.unwrap(), client(&server).await.unwrap());
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let begin = Instant::now();
    let waiting = waiter.batch_execute("SET lock_timeout = 1000; SELECT pg_advisory_lock(1)");
    let refused = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap_err();
    assert!(words(&refused).contains("lock timeout"), "{refused:?}");
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(900), "{waited:?}");
}
