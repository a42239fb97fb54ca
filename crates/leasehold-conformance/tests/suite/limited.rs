//! The suite on an engine that can do next to nothing: what it cannot do is refused, and the rest holds.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::limited::Limited;
use leasehold_conformance::{Instance, Subject, suite};

/// The memory engine without queue, modes, owners, inspection and eviction.
struct Least;

impl Subject for Least {
    async fn instance(&self) -> Instance {
        static MADE: AtomicU32 = AtomicU32::new(0);
        Instance::at(format!("memory:limited-{}", MADE.fetch_add(1, Ordering::Relaxed))).wrapped(Limited::wrap)
    }
}

suite!(limited, Least);
