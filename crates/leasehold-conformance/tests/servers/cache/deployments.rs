//! Every cache operation, run by a Redis user with minimal permissions.

use std::sync::Arc;

use leasehold::Token;
use leasehold_cache::ReadThrough;
use leasehold_cache::strategy::{InvalidateAfterCommit, Strategy};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use leasehold_testbed::{Server, eventually, try_eventually};

use crate::cache::fixture::{LONG_TTL, PausePoint, REPLY_TIMEOUT, TestTable, expect_text, read, spawn_read, write};

/// Runs every cache operation with two clients of this deployment.
pub(super) async fn check_every_operation(url: &str) {
    let open = async || {
        let builder = ReadThrough::builder()
            .ttl(LONG_TTL)
            .negative_ttl(LONG_TTL)
            .load_lease(LONG_TTL)
            .max_load_time(LONG_TTL)
            .early_reload(0.0);
        builder.timeout(REPLY_TIMEOUT).open(url).await.expect("a cache")
    };
    let (db, one, two) = (TestTable::new().await, open().await, open().await);
    let [a, b] = [one.clone(), two.clone()].map(|cache| Arc::new(InvalidateAfterCommit(cache)) as Arc<dyn Strategy>);
    let gate = db.pause_next_at(PausePoint::Loaded);
    let loads = spawn_read(&a, &db);
    gate.wait_reached().await;
    let waits = spawn_read(&b, &db);
    eventually(TEST_TIMEOUT, || async { if two.stats().waits == 1 { Ok(()) } else { Err("not yet") } }).await;
    gate.open();
    for reader in [loads, waits] {
        assert_eq!(reader.await.expect("a reader"), "v1");
    }
    assert_eq!(one.stats().loads + two.stats().loads, 1);
    write(&a, &db, "v2").await;
    assert_eq!(read(&b, &db).await, "v2");
    two.write_with("k", Token(1), |_| async {
        db.write_directly("v3").await;
        assert_eq!(expect_text(Ok(Some(read(&a, &db).await.into_bytes()))), "v3");
        Ok::<_, std::io::Error>(())
    })
    .await
    .expect("written");
    // A failed load is not cached; the next reader loads.
    let failed = one.get_or_load("k", || async { Err::<Option<String>, _>("down") }).await;
    assert!(failed.is_err());
    assert_eq!(read(&b, &db).await, "v3");
    // Both clients get "not found" from the cache.
    let before = one.stats().loads + two.stats().loads;
    for cache in [&two, &one, &two] {
        let nothing = || async { Ok::<Option<String>, &str>(None) };
        assert_eq!(cache.get_or_load("absent", nothing).await.expect("an answer"), None);
    }
    assert_eq!(one.stats().loads + two.stats().loads - before, 1);
}

/// Creates a user with these ACL rules.
async fn create_user(server: &Server, rules: &str) {
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">secret"].into_iter();
    let words: Vec<&str> = words.chain(rules.split(' ')).collect();
    assert_eq!(command(server, &words).await, Reply::Simple("OK".to_owned()));
}

async fn command(server: &Server, words: &[&str]) -> Reply {
    let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
    raw.command(words).await.expect("an answer")
}

/// The ACL rules in docs/cache.md are sufficient, and each one is necessary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_permissions_are_sufficient_and_necessary() {
    let page = include_str!("../../../../../docs/cache.md");
    let (_, rest) = page.split_once("The user in Redis needs `").expect("the ACL rules in docs/cache.md");
    let (rules, _) = rest.split_once('`').expect("the end of the ACL rules");
    let server = Redis::new().start().await.expect("a server");
    let url = format!("redis://app:secret@127.0.0.1:{}/", server.addr().port());
    create_user(&server, rules).await;
    check_every_operation(&url).await;
    for left_out in rules.split(' ') {
        let fewer: Vec<&str> = rules.split(' ').filter(|word| *word != left_out).collect();
        create_user(&server, &fewer.join(" ")).await;
        // As after a restart.
        command(&server, &["SCRIPT", "FLUSH"]).await;
        command(&server, &["ACL", "LOG", "RESET"]).await;
        let result = check_each_permission(&url).await;
        // A script may hit a denied command after it has computed its reply; the ACL log shows
        // this.
        let refused = format!("{:?}", command(&server, &["ACL", "LOG"]).await);
        let missed = refused.contains(&format!("{:?}", left_out.trim_start_matches('+')));
        assert!(result.is_err() || missed, "all operations succeeded without {left_out}");
    }
}

/// Returns the first error of the operations that together need every permission.
async fn check_each_permission(url: &str) -> Result<(), String> {
    let say = |error: &dyn std::error::Error| error.to_string();
    let closed = ReadThrough::builder().on_outage(leasehold_cache::OutagePolicy::FailClosed).timeout(REPLY_TIMEOUT);
    let key = format!("k{}", leasehold::ClaimId::random().bits());
    let cache = closed.open(url).await.map_err(|error| say(&error))?;
    let gate = tokio::sync::Semaphore::new(0);
    let slow = || async {
        gate.acquire().await.expect("a gate").forget();
        Ok::<_, std::io::Error>(Some("v"))
    };
    let read = async || cache.get_or_load(&key, slow).await.map(drop).map_err(|error| say(&error));
    let open = async {
        // One of the two readers waits here, unless a missing permission makes it fail.
        let waits = || async { if cache.stats().waits > 0 { Ok(()) } else { Err("no waiter so far") } };
        let waits = try_eventually("a waiter", TEST_TIMEOUT, waits).await.map_err(|error| say(&error));
        gate.add_permits(2);
        waits
    };
    tokio::try_join!(read(), read(), open)?;
    let before = cache.stats();
    cache.invalidate(&key).await.map_err(|error| say(&error))?;
    if before.waits == 1 && before.loads == 1 { Ok(()) } else { Err(format!("{before:?}")) }
}
