//! What befalls locks that sessions hold: ends of connections in each state, silent lines, deaths of servers, servers that take no writes.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod connections;
mod counters;
mod fixture;
mod killed_connections;
#[cfg(feature = "nightly")]
mod nightly;
mod servers;

/// Makes a test of a check for each database.
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
