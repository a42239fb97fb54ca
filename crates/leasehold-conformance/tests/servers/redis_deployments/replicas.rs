//! `replicas=1`: a grant counts only once a replica has it.

use std::net::SocketAddr;

use leasehold::{ReleaseOutcome, Token};
use leasehold_internals::redis::Stored;
use leasehold_internals::redis::wire::{QueueState, SimpleState};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, client, raw_command, until_waiting, within_bound};

/// A master with a replica, and a URL with `replicas=1`.
pub(super) async fn master_and_replica() -> (Server, Server, String) {
    let master = redis::start().await.expect("a master");
    let replica = redis::replica_of(&master).start().await.expect("a replica");
    let url = format!("{}?replicas=1", master.url());
    (master, replica, url)
}

/// The token of the lock's holder in a server's record, if any.
async fn holder_token(addr: SocketAddr, name: &str) -> Option<Token> {
    match raw_command(addr, &["HGET", &format!("leasehold:l{{{name}}}"), "m"]).await {
        Reply::Nil => None,
        record => {
            let text = record.bytes().expect("a value");
            let (holder, token) = match SimpleState::read(text) {
                Ok(state) => (state.claim, state.token),
                Err(_) => QueueState::read(text).map(|state| (state.first_holder, state.token)).expect("a state"),
            };
            (holder.bits() != 0).then_some(token)
        }
    }
}

/// Waits until the server's record has a holder with a token above `before`.
async fn until_held(addr: SocketAddr, name: &str, before: Option<Token>) -> Token {
    eventually(TEST_TIMEOUT, || async {
        let token = holder_token(addr, name).await;
        token.filter(|token| before < Some(*token)).ok_or(format!("no newer holder: {token:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_counts_once_the_replica_has_it() {
    let (master, mut replica, url) = master_and_replica().await;
    let locks = client(&url, LONG_TTL).await;
    let guard = within_bound("a lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(holder_token(replica.addr(), "a").await, Some(guard.token()));
    replica.pause().expect("a pause");
    let mutex = locks.mutex("b");
    let acquiring = tokio::spawn(async move { mutex.lock().await });
    let token = until_held(master.addr(), "b", None).await;
    assert!(!acquiring.is_finished(), "the master alone is not enough");
    replica.resume().expect("a resumed server");
    let acquired = within_bound("a lock", acquiring).await.expect("no panic").expect("a lock");
    assert_eq!((acquired.token(), holder_token(replica.addr(), "b").await), (token, Some(token)));
    assert_eq!(acquired.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// The next waiter holds the lock only once the replica has the hand-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_waits_for_the_replica() {
    let (master, mut replica, url) = master_and_replica().await;
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    let first = within_bound("a lock", one.mutex("a").lock()).await.expect("a lock");
    let mutex = two.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_waiting(&one, "a", 1).await;
    replica.pause().expect("a pause");
    let before = first.token();
    assert_eq!(
        first.release().await.expect("an answer"),
        ReleaseOutcome::Released,
        "a release does not wait for the replica"
    );
    let token = until_held(master.addr(), "a", Some(before)).await;
    assert!(!waiting.is_finished(), "the master alone is not enough");
    replica.resume().expect("a resumed server");
    let second = within_bound("the next", waiting).await.expect("no panic").expect("a lock");
    assert_eq!((second.token(), holder_token(replica.addr(), "a").await), (token, Some(token)));
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}
