//! `rediss:`: server and client certificates.

use leasehold::{Error, ErrorKind, Locks, ReleaseOutcome};
use leasehold_testbed::redis::Redis;

use crate::redis_deployments::deployment::{LONG_TTL, WaiterQueue, client, numbers_up_to};

async fn open_refused(url: &str) -> Error {
    Locks::open(url).await.expect_err("access denied")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_by_its_authority() {
    let (redis, other) =
        (Redis::new().tls().start().await.expect("one"), Redis::new().tls().start().await.expect("another"));
    let url = format!("{}?ca={}", redis.server.url(), redis.ca.display());
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, "a").await;
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1));
    // The certificate is valid for this name as well.
    client(&url.replace("127.0.0.1", "localhost"), LONG_TTL).await;

    for url in [redis.server.url(), format!("{}?ca={}", redis.server.url(), other.ca.display())] {
        let error = open_refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("ca=/path"), "the error does not say what to do: {error}");
    }
    let plain = open_refused(&redis.server.url().replace("rediss:", "redis:")).await;
    assert_eq!(plain.kind(), ErrorKind::Unavailable, "{plain}");
    let missing = open_refused(&format!("{}?ca=/no/such/file", redis.server.url())).await;
    assert_eq!(missing.kind(), ErrorKind::InvalidUrl, "{missing}");
    assert!(missing.to_string().contains("/no/such/file"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_demand_a_certificate() {
    let redis = Redis::new().tls().require_client_certificates().start().await.expect("a server");
    let anonymous = format!("{}?ca={}", redis.server.url(), redis.ca.display());
    let error = open_refused(&anonymous).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cert=/path"), "the error does not say what to do: {error}");
    let (cert, key) = (redis.client_certificate.display(), redis.client_key.display());
    let authenticated = client(&format!("{anonymous}&cert={cert}&cert-key={key}"), LONG_TTL).await;
    let held = authenticated.mutex("a").lock().await.expect("a lock");
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    let broken = open_refused(&format!("{anonymous}&cert={key}&cert-key={cert}")).await;
    assert_eq!(broken.kind(), ErrorKind::InvalidUrl, "certificate and key swapped: {broken}");
}
