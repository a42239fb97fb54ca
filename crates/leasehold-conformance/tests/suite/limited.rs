//! The suite on a minimal engine: unsupported calls are rejected, and everything else works.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::limited::LimitedEngine;
use leasehold_conformance::{Instance, Subject, suite};

/// The memory engine without queues, modes, owners, inspections and force releases.
struct LimitedMemory;

impl Subject for LimitedMemory {
    async fn instance(&self) -> Instance {
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        Instance::with_url(format!("memory:limited-{}", NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)))
            .with_wrapper(LimitedEngine::wrap)
    }
}

suite!(limited, LimitedMemory);
