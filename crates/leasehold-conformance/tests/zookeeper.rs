//! The suite on `zookeeper:`: one server for all cases, each instance with a folder of its own.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};

/// A folder on a server that all cases share.
struct Zookeeper;

impl Subject for Zookeeper {
    async fn instance(&self) -> Instance {
        static MADE: AtomicU32 = AtomicU32::new(0);
        Instance::at(format!("zookeeper://127.0.0.1:21810/case-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)))
    }
}

suite!(zookeeper, Zookeeper);
