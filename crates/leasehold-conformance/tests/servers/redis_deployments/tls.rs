//! `rediss:`: whom we trust, and who we are.

use leasehold::{Error, ErrorKind, Locks, Outcome};
use leasehold_testbed::redis::Redis;

use crate::redis_deployments::deployment::{LONG, Line, client, in_order};

async fn refused(url: &str) -> Error {
    Locks::open(url).await.expect_err("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_by_its_authority() {
    let (redis, other) =
        (Redis::new().tls().start().await.expect("one"), Redis::new().tls().start().await.expect("another"));
    let url = format!("{}?ca={}", redis.server.url(), redis.ca.display());
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut line = Line::default();
    line.join(&two, "a").await;
    assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    assert_eq!(line.served().await.0, in_order(1));
    // The certificate is good for this name, too.
    client(&url.replace("127.0.0.1", "localhost"), LONG).await;

    for url in [redis.server.url(), format!("{}?ca={}", redis.server.url(), other.ca.display())] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("ca=/path"), "it says what to do: {error}");
    }
    let plain = refused(&redis.server.url().replace("rediss:", "redis:")).await;
    assert_eq!(plain.kind(), ErrorKind::Unavailable, "{plain}");
    let missing = refused(&format!("{}?ca=/no/such/file", redis.server.url())).await;
    assert_eq!(missing.kind(), ErrorKind::InvalidUrl, "{missing}");
    assert!(missing.to_string().contains("/no/such/file"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_demand_a_certificate() {
    let redis = Redis::new().tls().demand_certificates().start().await.expect("a server");
    let nobody = format!("{}?ca={}", redis.server.url(), redis.ca.display());
    let error = refused(&nobody).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cert=/path"), "it says what to do: {error}");
    let (cert, key) = (redis.client_certificate.display(), redis.client_key.display());
    let somebody = client(&format!("{nobody}&cert={cert}&cert-key={key}"), LONG).await;
    let held = somebody.mutex("a").lock().await.expect("a lock");
    assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    let broken = refused(&format!("{nobody}&cert={key}&cert-key={cert}")).await;
    assert_eq!(broken.kind(), ErrorKind::InvalidUrl, "the wrong way round: {broken}");
}
