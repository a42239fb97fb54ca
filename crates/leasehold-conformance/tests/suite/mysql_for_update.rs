//! The suite on `mysql:…?technique=for-update`, on the server of the lease table's suite, each
//! instance with its own tables.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_conformance::{Instance, Subject};

use crate::mysql::shared_server;

/// Tables on a shared server.
struct MySqlForUpdate;

impl Subject for MySqlForUpdate {
    async fn instance(&self) -> Instance {
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        let (server, made) = (shared_server().await, NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed));
        // Each held lock uses its own connection, and one case holds more than a hundred.
        Instance::with_url(format!(
            "{}?technique=for-update&connections=200&connect-timeout=60s&table=for_update{made}",
            server.url()
        ))
    }
}

#[cfg(not(feature = "nightly"))]
leasehold_conformance::essentials!(mysql_for_update, MySqlForUpdate);
#[cfg(feature = "nightly")]
use leasehold_conformance::suite;
#[cfg(feature = "nightly")]
suite!(mysql_for_update, MySqlForUpdate);
