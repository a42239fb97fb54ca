//! An owner comes again while the servers still have a node of its hold that is over: that is no re-entry, and its token is a new one.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, LossEvent, LossEvents, ReleaseReply};
use leasehold::{Claim, Mode, Owner, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::Proxy;

use crate::zookeeper_faults::fixture::{Fixture, attempt_once, claim};

/// Runs a test with one TTL after the other until a try shows it. `false`: on a busy machine the servers had ended the session, too,
/// before the test looked. A longer session, whose end its client notices earlier, has to show it.
async fn with_a_session(test: impl AsyncFn(Duration) -> bool) {
    for ttl in [5, 10, 20, 40].map(Duration::from_secs) {
        if test(ttl).await {
            return;
        }
    }
    panic!("the servers always ended the session before the test looked");
}

/// An engine whose line can be tampered with.
async fn open_through_proxy(site: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(site.client_addr()).await.expect("a proxy");
    let url = site.url().replace(&site.client_addr().to_string(), &proxy.addr().to_string());
    (leasehold::registry::open(&url, &Clock::system()).await.expect("an engine"), proxy)
}

/// Waits until the session is over for its client. That is told of a claim that it takes with it; which is renewed in vain, so that it is not
/// ended because nobody wants it any more. `also` is asked for meanwhile, as callers do who wait.
async fn until_session_over(engine: &Arc<dyn Engine>, losses: &mut LossEvents, held: &Arc<Claim>, also: &Arc<Claim>) {
    let pause = held.options.ttl / 20;
    let waiting = async {
        loop {
            let pulse = async {
                let renewed = Arc::clone(engine).renew(vec![Arc::clone(held)]);
                let _ = tokio::join!(renewed, Arc::clone(engine).attempt(Arc::clone(also), true));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                told = losses.next() => if told.contains(&LossEvent::Lost(held.id)) { return },
                _ = tokio::time::timeout(pause, pulse) => {}
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("the end of a session");
}

/// Asks until there is an answer.
async fn attempt_until_granted(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Token {
    let asking = async {
        loop {
            match Arc::clone(engine).attempt(Arc::clone(claim), true).await {
                Ok(AcquireReply::Granted(grant)) => return grant.token,
                Ok(AcquireReply::Queued { .. } | AcquireReply::Busy { .. }) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            Clock::system().sleep_until(Clock::system().now().saturating_add(Duration::from_millis(5))).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, asking).await.expect("a grant in time")
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    assert_eq!(Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release"), ReleaseReply::Released);
}

/// The answer to a take is lost, and then the session, for its client alone: the claim does not enter with the node that it left there, which
/// would outlive it.
#[tokio::test]
async fn a_claim_does_not_re_enter_with_its_node_of_an_ended_session() {
    with_a_session(does_not_re_enter_with_its_old_node).await;
}

async fn does_not_re_enter_with_its_old_node(ttl: Duration) -> bool {
    let site = Fixture::new().await;
    let owner = Some(Owner::new());
    let (engine, proxy) = open_through_proxy(&site).await;
    let mut losses = engine.loss_events();
    let other = claim("other", Mode::Exclusive, None, ttl);
    attempt_once(&engine, &other).await.expect("a lock that tells of the session's end");
    proxy.drop_replies(true);
    let first = claim("a", Mode::Exclusive, owner, ttl);
    until_session_over(&engine, &mut losses, &other, &first).await;
    proxy.drop_replies(false);
    if site.nodes("a").await.is_empty() {
        return false;
    }
    assert_eq!(site.nodes("a").await.len(), 1);
    let token = attempt_until_granted(&engine, &first).await;
    let inner = claim("a", Mode::Exclusive, owner, ttl);
    assert_eq!(attempt_until_granted(&engine, &inner).await, token, "a re-entry");
    release(&engine, &inner).await;
    release(&engine, &first).await;
    assert_eq!(site.nodes("a").await, Vec::<String>::new(), "all was given back");
    let next = claim("a", Mode::Exclusive, owner, ttl);
    assert!(attempt_until_granted(&engine, &next).await > token, "the token of a hold that was given back");
    true
}

/// A hold ends with its session, for its client alone; its owner comes again, in whatever mode.
#[tokio::test]
async fn an_owner_whose_session_ended_gets_a_new_token() {
    with_a_session(gets_a_new_token).await;
}

async fn gets_a_new_token(ttl: Duration) -> bool {
    let site = Fixture::new().await;
    let owners = [Some(Owner::new()), Some(Owner::new())];
    let (engine, proxy) = open_through_proxy(&site).await;
    let mut losses = engine.loss_events();
    let (first, reader) = (claim("a", Mode::Exclusive, owners[0], ttl), claim("b", Mode::Shared, owners[1], ttl));
    let tokens =
        (attempt_once(&engine, &first).await.expect("a grant"), attempt_once(&engine, &reader).await.expect("a grant"));
    proxy.drop_replies(true);
    until_session_over(&engine, &mut losses, &first, &reader).await;
    proxy.drop_replies(false);
    let left = (site.nodes("a").await.len(), site.nodes("b").await.len());
    if left != (1, 1) {
        return false;
    }
    let (again, writer) = (claim("a", Mode::Exclusive, owners[0], ttl), claim("b", Mode::Exclusive, owners[1], ttl));
    assert!(attempt_until_granted(&engine, &again).await > tokens.0, "the token of a hold that has ended");
    // It is no upgrade: there is nothing any more to be upgraded.
    assert!(attempt_until_granted(&engine, &writer).await > tokens.1);
    true
}

/// A give-back does not arrive, on a session that lives on; its owner comes again before it is asked for once more.
#[tokio::test]
async fn an_undelivered_release_allows_no_re_entry() {
    with_a_session(allows_no_re_entry).await;
}

async fn allows_no_re_entry(ttl: Duration) -> bool {
    let site = Fixture::new().await;
    let owner = Some(Owner::new());
    let (engine, proxy) = open_through_proxy(&site).await;
    let first = claim("a", Mode::Exclusive, owner, ttl);
    let token = attempt_once(&engine, &first).await.expect("a grant");
    // Nothing passes on the lines that are there, and new ones are not touched.
    [true, false].into_iter().for_each(|older| proxy.silence_half(older));
    let error = Arc::clone(&engine).release(Arc::clone(&first)).await.expect_err("no answer");
    assert!(error.is_retryable(), "{error}");
    if site.nodes("a").await.is_empty() {
        return false;
    }
    let next = claim("a", Mode::Exclusive, owner, ttl);
    assert!(attempt_until_granted(&engine, &next).await > token, "the token of a hold that was given back");
    // Whoever gives back still hears that it was its own.
    release(&engine, &first).await;
    assert_eq!(site.nodes("a").await.len(), 1);
    release(&engine, &next).await;
    true
}
