//! The suite on `postgres:`, the lease table: one server for all cases, each instance with its own
//! table.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject, suite};
use leasehold_testbed::Server;
use tokio::sync::OnceCell;

/// The server of all suites on this database. The techniques that hold a lock by a connection need
/// many connections.
pub(crate) async fn shared_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    let postgres = || leasehold_testbed::postgres::Postgres::new().setting("max_connections", "600");
    SERVER.get_or_init(|| async { postgres().start().await.expect("a server") }).await
}

/// A table on a shared server.
struct Postgres;

impl Subject for Postgres {
    async fn instance(&self) -> Instance {
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        let server = shared_server().await;
        Instance::with_url(format!(
            "{}?table=case{}&connect-timeout=60s",
            server.url(),
            NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

suite!(postgres, Postgres);
