//! Tokens of `redlock:` where the nodes have forgotten them.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

use leasehold::{Locks, Owner};
use leasehold_testbed::redis::{Independent, Resp};

/// After every node has forgotten everything, tokens go on from the clock: with a guess, and in the second round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_nodes_that_forgot_everything() {
    let servers = Independent::start(3).await.expect("servers");
    for (options, owner) in [("", None), ("", Some(Owner::new())), ("?second-round=always", None)] {
        let locks = Locks::open(&format!("{}{options}", servers.url())).await.expect("locks");
        let mut last = None;
        for round in 0..5 {
            let mutex = locks.mutex("a");
            let mutex = match &owner {
                Some(owner) => mutex.owner(owner),
                None => mutex,
            };
            let guard = mutex.lock().await.expect("a lock");
            assert!(last < Some(guard.token()), "{options} {owner:?} {round}: {last:?}, then {:?}", guard.token());
            last = Some(guard.token());
            let _ = guard.release().await.expect("a release");
            for server in servers.servers() {
                let mut asker = Resp::connect(server.addr()).await.expect("a connection");
                let _ = asker.command(&["FLUSHALL"]).await.expect("an answer");
            }
        }
        // What comes from a clock is far above what is counted.
        assert!(last.expect("a token").0 > 1_000_000_000_000_000, "{last:?}");
    }
}
