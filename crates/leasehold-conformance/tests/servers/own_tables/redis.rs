//! The Redis fence: one script, on a single server and on a cluster.

use leasehold::Token;
use leasehold::fence::StaleToken;
use leasehold::fence::redis::{SCRIPT, admit, fence_key, set_if_newer};
use leasehold_testbed::redis::{self, Reply, RespClient};

async fn connect(url: &str) -> ::redis::aio::MultiplexedConnection {
    let client = ::redis::Client::open(url).expect("a URL");
    client.get_multiplexed_async_connection().await.expect("a connection")
}

#[tokio::test]
async fn tokens_never_decrease_and_are_compared_as_integers() {
    let mut conn = connect(&crate::redis_faults::fixture::server().await.url()).await;
    let huge = 1 << 53;
    for (token, seen) in [
        (9, None),
        (9, None),
        (8, Some(9)),
        (10, None),
        (9, Some(10)),
        (huge + 1, None),
        (huge, Some(huge + 1)),
        (u64::MAX, None),
        (u64::MAX - 1, Some(u64::MAX)),
    ] {
        let stale =
            admit(&mut conn, "fenced stock", Token(token)).await.err().map(|error| error.stale_token().expect("stale"));
        assert_eq!(stale, seen.map(|seen| StaleToken { token: Token(token), highest: Token(seen) }));
    }
    admit(&mut conn, "other fenced stock", Token(1)).await.expect("each key has its own fence");
}

#[tokio::test]
async fn a_value_is_written_with_the_token_check_or_not_at_all() {
    let server = redis::start().await.expect("a Redis");
    let (mut conn, mut raw) =
        (connect(&server.url()).await, RespClient::connect(server.addr()).await.expect("a connection"));
    set_if_newer(&mut conn, "stock", Token(2), "new").await.expect("set");
    set_if_newer(&mut conn, "stock", Token(1), "old").await.expect_err("stale");
    admit(&mut conn, "stock", Token(1)).await.expect_err("one fence for both");
    assert_eq!(raw.command(&["GET", "stock"]).await.expect("read"), Reply::Bulk("new".into()));
    raw.command(&["SCRIPT", "FLUSH"]).await.expect("flushed");
    set_if_newer(&mut conn, "stock", Token(2), [0, 7, 10]).await.expect("the same token again, with arbitrary bytes");
    assert_eq!(raw.command(&["GET", "stock"]).await.expect("read"), Reply::Bulk("\0\u{7}\n".into()));
    // How other Redis clients call the script.
    let stale = raw.command(&["EVAL", SCRIPT, "2", &fence_key("stock"), "stock", "1", "older"]).await.expect("ran");
    assert_eq!(stale, Reply::Bulk("2".into()));
}

/// Only the node that owns the key runs the script; the others redirect to it.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_a_cluster_the_fence_is_on_the_node_of_its_key() {
    let cluster = redis::Cluster::start(3, 0).await.expect("a cluster");
    for key in ["stock", "stock:42", "{order 7}:stock", "a{b", "ä"] {
        let mut taken = 0;
        for node in cluster.nodes() {
            let mut conn = connect(&format!("redis://{}", node.addr())).await;
            match set_if_newer(&mut conn, key, Token(5), "x").await {
                Ok(()) => {
                    taken += 1;
                    set_if_newer(&mut conn, key, Token(4), "y").await.expect_err("stale");
                }
                Err(error) => assert!(format!("{error:?}").to_lowercase().contains("moved"), "{key}: {error:?}"),
            }
        }
        assert_eq!(taken, 1, "{key}");
    }
}
