//! Programs that start while their engine is briefly unreachable, for example during a server
//! restart.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::{Data, Server, eventually, mariadb, postgres, redis, zookeeper};

/// Opens an engine whose server starts only after the first attempt has failed.
async fn check_open_waits_for_restart(mut server: Server, url: String) {
    server.kill().expect("a dead server");
    let reports = Arc::new(AtomicUsize::new(0));
    let error = Locks::open(&url).await.expect_err("one attempt by default");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{url}: {error}");
    let opening = tokio::spawn({
        let (url, reports) = (url.clone(), Arc::clone(&reports));
        let note = move |_: &leasehold::Error| {
            reports.fetch_add(1, Ordering::SeqCst);
        };
        let builder = Locks::builder().ttl(LONG_TTL).connect_timeout(TEST_TIMEOUT).on_unreachable(note);
        async move { builder.open(&url).await }
    });
    eventually(TEST_TIMEOUT, || async {
        if reports.load(Ordering::SeqCst) > 0 { Ok(()) } else { Err("no attempt was made") }
    })
    .await;
    server.restart(Data::Keep).await.expect("a server");
    let locks = opening.await.expect("no panic").unwrap_or_else(|error| panic!("{url}: {error}"));
    assert!(locks.mutex("a").lock().await.expect("a lock").is_held(), "{url}");
    assert_eq!(reports.load(Ordering::SeqCst), 1, "{url}: reported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_waits_for_a_redis_that_restarts() {
    let server = redis::start().await.expect("a server");
    let url = server.url();
    check_open_waits_for_restart(server, url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_waits_for_a_database_that_restarts() {
    for server in [mariadb::start().await.expect("a server"), postgres::start().await.expect("a server")] {
        let url = server.url();
        check_open_waits_for_restart(server, url).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_waits_for_a_zookeeper_that_restarts() {
    let server = zookeeper::start().await.expect("a server");
    let url = format!("zookeeper://{}", server.url());
    check_open_waits_for_restart(server, url).await;
}

/// Errors that a retry cannot fix are returned at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_errors_are_returned_at_once() {
    let server = postgres::start().await.expect("a server");
    for (url, kind) in [
        (server.url().replace(":password@", ":wrong@"), ErrorKind::Denied),
        (server.url().replace("/test", "/nowhere"), ErrorKind::InvalidUrl),
        ("redis://h?tecnique=row".to_owned(), ErrorKind::InvalidUrl),
    ] {
        let again = |error: &leasehold::Error| panic!("retried: {error}");
        let builder = Locks::builder().connect_timeout(Duration::MAX).on_unreachable(again);
        let error = builder.open(&url).await.expect_err("the URL is wrong");
        assert_eq!(error.kind(), kind, "{url}: {error}");
    }
}
