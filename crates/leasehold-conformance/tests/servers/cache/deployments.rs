//! Every step there is, as a user who may do little.

use std::sync::Arc;

use leasehold::Token;
use leasehold_cache::ReadThrough;
use leasehold_cache::strategy::{InvalidateAfterCommit, Strategy};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use leasehold_testbed::{Server, eventually, try_eventually};

use crate::cache::fixture::{LONG_TTL, PausePoint, REPLY_TIMEOUT, TestTable, expect_text, read, spawn_read, write};

/// Every step there is, by two clients of this deployment.
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
    // One that fails is told to nobody, and the next one loads.
    let failed = one.get_or_load("k", || async { Err::<Option<String>, _>("down") }).await;
    assert!(failed.is_err());
    assert_eq!(read(&b, &db).await, "v3");
    // That there is nothing is known to both afterwards.
    let before = one.stats().loads + two.stats().loads;
    for cache in [&two, &one, &two] {
        let nothing = || async { Ok::<Option<String>, &str>(None) };
        assert_eq!(cache.get_or_load("nobody", nothing).await.expect("an answer"), None);
    }
    assert_eq!(one.stats().loads + two.stats().loads - before, 1);
}

/// Makes a user with these rules.
async fn create_user(server: &Server, rules: &str) {
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">secret"].into_iter();
    let words: Vec<&str> = words.chain(rules.split(' ')).collect();
    assert_eq!(command(server, &words).await, Reply::Simple("OK".to_owned()));
}

async fn command(server: &Server, words: &[&str]) -> Reply {
    let mut hand = RespClient::connect(server.addr()).await.expect("a connection");
    hand.command(words).await.expect("an answer")
}

/// The line of docs/cache.md is enough, and each word of it is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_permissions_are_sufficient_and_necessary() {
    let page = include_str!("../../../../../docs/cache.md");
    let (_, rest) = page.split_once("The user in Redis needs `").expect("a line");
    let (rules, _) = rest.split_once('`').expect("its end");
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
        let went = check_each_permission(&url).await;
        // What was refused inside a script may have been after its answer was clear.
        let refused = format!("{:?}", command(&server, &["ACL", "LOG"]).await);
        let missed = refused.contains(&format!("{:?}", left_out.trim_start_matches('+')));
        assert!(went.is_err() || missed, "without {left_out} all went well");
    }
}

/// Whether the steps that ask for each permission go well.
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
        // One waits by then, unless it may not: that ends it, and all of this.
        let waits = || async { if cache.stats().waits > 0 { Ok(()) } else { Err("it does not wait") } };
        let waits = try_eventually("a waiter", TEST_TIMEOUT, waits).await.map_err(|error| say(&error));
        gate.add_permits(2);
        waits
    };
    tokio::try_join!(read(), read(), open)?;
    let before = cache.stats();
    cache.invalidate(&key).await.map_err(|error| say(&error))?;
    if before.waits == 1 && before.loads == 1 { Ok(()) } else { Err(format!("{before:?}")) }
}
