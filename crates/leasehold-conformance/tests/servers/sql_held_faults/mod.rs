//! What befalls locks that sessions hold: ends of connections in each state, silent lines, deaths of servers, servers that take no writes.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod counters;
mod ends;
mod lines;
#[cfg(feature = "nightly")]
mod nightly;
mod servers;
mod site;

/// Makes a test of a check for each database.
macro_rules! on_both {
    ($($check:ident)*) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$check($crate::sql_held_faults::site::Kind::MariaDb).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$check($crate::sql_held_faults::site::Kind::Postgres).await;
            })*
        }
    };
}
use on_both;
