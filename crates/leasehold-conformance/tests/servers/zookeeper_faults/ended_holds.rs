//! An owner queues again while the servers still have a node of its ended hold: that is not a
//! re-entry, and its token is new.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, LossEvent, LossEvents, ReleaseReply};
use leasehold::{Claim, Mode, Owner, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::Proxy;

use crate::zookeeper_faults::fixture::{Fixture, attempt_once, claim};

/// Runs a test with growing TTLs until it succeeds. `false` means that the servers had ended the
/// session before the test checked, as on a busy machine. A client detects the end of a longer
/// session earlier.
async fn with_a_session(test: impl AsyncFn(Duration) -> bool) {
    for ttl in [5, 10, 20, 40].map(Duration::from_secs) {
        if test(ttl).await {
            return;
        }
    }
    panic!("the servers always ended the session before the test checked");
}

/// An engine behind a proxy.
async fn open_through_proxy(fixture: &Fixture) -> (Arc<dyn Engine>, Proxy) {
    let proxy = Proxy::start(fixture.client_addr()).await.expect("a proxy");
    let url = fixture.url().replace(&fixture.client_addr().to_string(), &proxy.addr().to_string());
    (leasehold::registry::open(&url, &Clock::system()).await.expect("an engine"), proxy)
}

/// Waits until the client considers the session expired and reports `held` as lost. `held` is
/// renewed meanwhile, so that its session is not closed as unused; `also` is attempted, as by
/// waiting callers.
async fn until_session_ended(engine: &Arc<dyn Engine>, losses: &mut LossEvents, held: &Arc<Claim>, also: &Arc<Claim>) {
    let pause = held.options.ttl / 20;
    let waiting = async {
        loop {
            let pulse = async {
                let renewed = Arc::clone(engine).renew(vec![Arc::clone(held)]);
                let _ = tokio::join!(renewed, Arc::clone(engine).attempt(Arc::clone(also), true));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                events = losses.next() => if events.contains(&LossEvent::Lost(held.id)) { return },
                _ = tokio::time::timeout(pause, pulse) => {}
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("the end of a session");
}

/// Retries until the claim is granted.
async fn attempt_until_granted(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Token {
    let attempts = async {
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
    tokio::time::timeout(TEST_TIMEOUT, attempts).await.expect("a grant in time")
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    assert_eq!(Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release"), ReleaseReply::Released);
}

/// The reply to an acquire is lost, and then the client considers the session expired: the claim
/// must not use the node that it left there.
#[tokio::test]
async fn a_claim_does_not_re_enter_with_its_node_of_an_ended_session() {
    with_a_session(does_not_re_enter_with_its_old_node).await;
}

async fn does_not_re_enter_with_its_old_node(ttl: Duration) -> bool {
    let fixture = Fixture::new().await;
    let owner = Some(Owner::new());
    let (engine, proxy) = open_through_proxy(&fixture).await;
    let mut losses = engine.loss_events();
    let other = claim("other", Mode::Exclusive, None, ttl);
    attempt_once(&engine, &other).await.expect("a lock that reports the session's end");
    proxy.drop_replies(true);
    let first = claim("a", Mode::Exclusive, owner, ttl);
    until_session_ended(&engine, &mut losses, &other, &first).await;
    proxy.drop_replies(false);
    if fixture.nodes("a").await.is_empty() {
        return false;
    }
    assert_eq!(fixture.nodes("a").await.len(), 1);
    let token = attempt_until_granted(&engine, &first).await;
    let inner = claim("a", Mode::Exclusive, owner, ttl);
    assert_eq!(attempt_until_granted(&engine, &inner).await, token, "a re-entry");
    release(&engine, &inner).await;
    release(&engine, &first).await;
    assert_eq!(fixture.nodes("a").await, Vec::<String>::new(), "all released");
    let next = claim("a", Mode::Exclusive, owner, ttl);
    assert!(attempt_until_granted(&engine, &next).await > token, "the token of a released hold");
    true
}

/// The client considers a hold's session expired; the owner acquires again, in any mode.
#[tokio::test]
async fn an_owner_whose_session_ended_gets_a_new_token() {
    with_a_session(gets_a_new_token).await;
}

async fn gets_a_new_token(ttl: Duration) -> bool {
    let fixture = Fixture::new().await;
    let owners = [Some(Owner::new()), Some(Owner::new())];
    let (engine, proxy) = open_through_proxy(&fixture).await;
    let mut losses = engine.loss_events();
    let (first, reader) = (claim("a", Mode::Exclusive, owners[0], ttl), claim("b", Mode::Shared, owners[1], ttl));
    let tokens =
        (attempt_once(&engine, &first).await.expect("a grant"), attempt_once(&engine, &reader).await.expect("a grant"));
    proxy.drop_replies(true);
    until_session_ended(&engine, &mut losses, &first, &reader).await;
    proxy.drop_replies(false);
    let left = (fixture.nodes("a").await.len(), fixture.nodes("b").await.len());
    if left != (1, 1) {
        return false;
    }
    let (again, writer) = (claim("a", Mode::Exclusive, owners[0], ttl), claim("b", Mode::Exclusive, owners[1], ttl));
    assert!(attempt_until_granted(&engine, &again).await > tokens.0, "the token of an ended hold");
    // It is not an upgrade: there is no hold left.
    assert!(attempt_until_granted(&engine, &writer).await > tokens.1);
    true
}

/// A release does not arrive, on a session that lives on; the owner acquires again before the
/// release is retried.
#[tokio::test]
async fn an_undelivered_release_allows_no_re_entry() {
    with_a_session(allows_no_re_entry).await;
}

async fn allows_no_re_entry(ttl: Duration) -> bool {
    let fixture = Fixture::new().await;
    let owner = Some(Owner::new());
    let (engine, proxy) = open_through_proxy(&fixture).await;
    let first = claim("a", Mode::Exclusive, owner, ttl);
    let token = attempt_once(&engine, &first).await.expect("a grant");
    // Existing connections deliver nothing; new ones work.
    [true, false].into_iter().for_each(|older| proxy.silence_half(older));
    let error = Arc::clone(&engine).release(Arc::clone(&first)).await.expect_err("no answer");
    assert!(error.is_retryable(), "{error}");
    if fixture.nodes("a").await.is_empty() {
        return false;
    }
    let next = claim("a", Mode::Exclusive, owner, ttl);
    assert!(attempt_until_granted(&engine, &next).await > token, "the token of a released hold");
    // The retried release still reports success.
    release(&engine, &first).await;
    assert_eq!(fixture.nodes("a").await.len(), 1);
    release(&engine, &next).await;
    true
}
