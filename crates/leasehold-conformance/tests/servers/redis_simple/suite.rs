//! The suite, on `protocol=simple`.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};

use super::server;

/// A prefix on the server.
struct Simple;

impl Subject for Simple {
    async fn instance(&self) -> Instance {
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let (url, made) = (server().await.url(), NEXT_PREFIX.fetch_add(1, Ordering::Relaxed));
        Instance::with_url(format!("{url}?protocol=simple&prefix=case-{made}:"))
    }
}

suite!(redis_simple, Simple);
