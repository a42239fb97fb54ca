//! The user's own tables and transactions on real servers: fencing inside them, and optimistic
//! updates by version column.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod fence;
mod fence_races;
pub(crate) mod fixture;
mod redis;
mod versioned;
mod versioned_races;

/// Runs each case on both databases.
macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::own_tables::fixture::Postgres::start().await).await;
            })*
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::own_tables::fixture::Mariadb::start().await).await;
            })*
        }
    };
}
use on_both;
