//! Faults of session locks: connections closed in each state, unresponsive connections, server
//! crashes, read-only servers.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests report failures by panicking")]

mod connections;
mod counters;
mod fixture;
mod killed_connections;
#[cfg(feature = "nightly")]
mod nightly;
mod servers;

/// Runs each check on both databases.
macro_rules! on_both {
    ($($check:ident)*) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$check($crate::sql_session_faults::fixture::DatabaseKind::MariaDb).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$check($crate::sql_session_faults::fixture::DatabaseKind::Postgres).await;
            })*
        }
    };
}
use on_both;
