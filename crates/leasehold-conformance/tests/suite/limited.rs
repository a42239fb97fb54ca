//! The suite on an engine that can do next to nothing: what it cannot do is refused, and the rest holds.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::limited::LimitedEngine;
use leasehold_conformance::{Instance, Subject, suite};

/// The memory engine without queue, modes, owners, inspection and eviction.
struct LimitedMemory;

impl Subject for LimitedMemory {
    async fn instance(&self) -> Instance {
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        Instance::with_url(format!("memory:limited-{}", NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)))
            .with_wrapper(LimitedEngine::wrap)
    }
}

suite!(limited, LimitedMemory);
