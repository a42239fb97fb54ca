//! `replicas=1`: a grant counts when a replica has it, and only then.

use std::net::SocketAddr;

use leasehold::{Outcome, Token};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_deployments::deployment::{BOUND, LONG, client, raw, soon, text, until_waiting};

/// A master and its replica, and a URL that asks for it.
pub(super) async fn pair() -> (Server, Server, String) {
    let master = redis::start().await.expect("a master");
    let replica = redis::replica_of(&master).start().await.expect("a replica");
    let url = format!("{}?replicas=1", master.url());
    (master, replica, url)
}

/// The token of the lock's holder in a server's record, or nothing if it knows of none.
async fn holder(addr: SocketAddr, name: &str) -> Option<Token> {
    match raw(addr, &["HGET", &format!("leasehold:l{{{name}}}"), "m"]).await {
        Reply::Nil => None,
        record => {
            let record = text(record);
            let token = record[1..17].parse().expect("a token");
            (!record.starts_with('F')).then_some(Token(token))
        }
    }
}

/// Waits until the server's record says that somebody holds the lock, other than by this token.
async fn until_held(addr: SocketAddr, name: &str, before: Option<Token>) -> Token {
    eventually(BOUND, || async {
        let token = holder(addr, name).await;
        token.filter(|token| before < Some(*token)).ok_or(format!("nobody holds it, {token:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_had_when_the_replica_has_it() {
    let (master, mut replica, url) = pair().await;
    let locks = client(&url, LONG).await;
    let guard = soon("a lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(holder(replica.addr(), "a").await, Some(guard.token()));
    replica.pause().expect("a pause");
    let mutex = locks.mutex("b");
    let taking = tokio::spawn(async move { mutex.lock().await });
    let token = until_held(master.addr(), "b", None).await;
    assert!(!taking.is_finished(), "the master alone is not enough");
    replica.resume().expect("it goes on");
    let taken = soon("a lock", taking).await.expect("no panic").expect("a lock");
    assert_eq!((taken.token(), holder(replica.addr(), "b").await), (token, Some(token)));
    assert_eq!(taken.release().await.expect("an answer"), Outcome::Released);
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// The lock is handed to whoever is next, who has it when the replica knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_handed_over_waits_for_the_replica() {
    let (master, mut replica, url) = pair().await;
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    let first = soon("a lock", one.mutex("a").lock()).await.expect("a lock");
    let mutex = two.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_waiting(&one, "a", 1).await;
    replica.pause().expect("a pause");
    let before = first.token();
    assert_eq!(first.release().await.expect("an answer"), Outcome::Released, "giving back waits for nobody");
    let token = until_held(master.addr(), "a", Some(before)).await;
    assert!(!waiting.is_finished(), "the master alone is not enough");
    replica.resume().expect("it goes on");
    let second = soon("the next", waiting).await.expect("no panic").expect("a lock");
    assert_eq!((second.token(), holder(replica.addr(), "a").await), (token, Some(token)));
    assert_eq!(second.release().await.expect("an answer"), Outcome::Released);
}
