//! The suite on `postgres:`, the lease table.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};

/// A table on a server that all cases share.
struct Postgres;

impl Subject for Postgres {
    async fn instance(&self) -> Instance {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let url = std::env::var("TRY_POSTGRES").expect("a server");
        Instance::at(format!("{url}?table=t{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)))
    }
}

suite!(postgres, Postgres);
