//! Which session a claim uses.

use std::time::Duration;

use crate::zookeeper_access::fixture::{TTL, admin_client, node_session, open_locks, shared_server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_one_ttl_share_a_session_unless_session_is_own() {
    let server = shared_server().await;
    let admin = admin_client(server, None).await;
    let url = |options: &str| format!("zookeeper://{}/sessions?{options}", server.url());

    let shared = open_locks(&url("")).await;
    let (a, b) = (shared.mutex("a").lock().await.expect("a lock"), shared.mutex("b").lock().await.expect("a lock"));
    let c = shared.mutex("c").ttl(TTL / 2).lock().await.expect("a lock");
    let (of_a, of_b, of_c) = (
        node_session(&admin, "/sessions/a").await,
        node_session(&admin, "/sessions/b").await,
        node_session(&admin, "/sessions/c").await,
    );
    assert_eq!(of_a, of_b, "one TTL, one session");
    assert_ne!(of_a, of_c, "another TTL, another session");
    drop((a, b, c));
    shared.flush().await.expect("all released");

    let own = open_locks(&url("session=own")).await;
    let (a, b) = (own.mutex("a").lock().await.expect("a lock"), own.mutex("b").lock().await.expect("a lock"));
    assert_ne!(
        node_session(&admin, "/sessions/a").await,
        node_session(&admin, "/sessions/b").await,
        "each claim has its own session"
    );
    drop((a, b));
    own.flush().await.expect("all released");

    let fixed = open_locks(&url("session-timeout=300s")).await;
    let a = fixed.mutex("a").ttl(TTL - Duration::from_secs(1)).lock().await.expect("a lock");
    let b = fixed.mutex("b").ttl(TTL).lock().await.expect("a lock");
    assert_eq!(
        node_session(&admin, "/sessions/a").await,
        node_session(&admin, "/sessions/b").await,
        "one session for all"
    );
    assert!(b.remaining() <= Duration::from_secs(300), "a lease exceeds the session timeout: {b:?}");
    drop((a, b));
}
