//! Which engine a URL opens, and the errors of other URLs.

use leasehold::{ErrorKind, Locks};

use crate::library::time::open_with_long_ttl;

/// The error of opening a URL that must not open.
async fn open_error(url: &str) -> leasehold::Error {
    match Locks::open(url).await {
        Ok(locks) => panic!("{url} was opened: {locks:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_those_that_exist() {
    let error = open_error("etcetera://host").await;
    assert_eq!(error.kind(), ErrorKind::UnknownScheme);
    for known in ["etcetera:", "memory:", "file:"] {
        assert!(error.to_string().contains(known), "{error}");
    }
    assert!(!error.is_retryable());
}

#[cfg(not(feature = "file"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off_names_the_feature() {
    let error = open_error("file:///tmp/locks").await;
    assert_eq!(error.kind(), ErrorKind::FeatureDisabled);
    assert!(error.to_string().contains("-F file"), "{error}");
    let entries = leasehold::registry::entries();
    assert!(entries.iter().any(|entry| entry.scheme == "file" && entry.capabilities.is_none()));
}

#[tokio::test]
async fn an_invalid_url_is_refused_with_the_reason() {
    for (url, expected) in [
        ("", "no scheme"),
        ("memory", "no scheme"),
        (":x", "no scheme"),
        ("me mory:", "no scheme"),
        ("memory:%f", "two hexadecimal digits"),
        ("memory:%ff", "not UTF-8"),
    ] {
        let error = open_error(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}: {error}");
        assert!(error.to_string().contains(expected), "{url}: {error}");
    }
}

#[tokio::test]
async fn an_option_that_the_engine_does_not_know_is_refused() {
    let error = open_error("memory:?size=3").await;
    assert_eq!(error.kind(), ErrorKind::InvalidUrl);
    assert!(error.to_string().contains("size"), "{error}");
}

#[tokio::test]
async fn a_memory_url_with_a_host_is_refused_rather_than_silently_private() {
    // `memory://shared` looks like the shared `memory:shared`; two clients of it would not exclude
    // each other.
    assert_eq!(open_error("memory://shared").await.kind(), ErrorKind::InvalidUrl);
}

#[tokio::test]
async fn a_named_memory_engine_is_shared_and_an_unnamed_one_is_not() {
    let url = "memory:open-rs";
    let (one, two) = (open_with_long_ttl(url).await, open_with_long_ttl(url).await);
    let guard = one.mutex("a").lock().await.unwrap();
    assert!(two.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(one.url(), url);
    let unnamed = open_with_long_ttl("memory:").await;
    assert!(unnamed.mutex("a").try_lock().await.unwrap().is_some());
    drop(guard);
}

#[test]
fn public_types_are_send_and_sync() {
    fn assert_send_sync<T: Send + Sync + 'static>() {}
    fn assert_send<T: Send>(_: &T) {}
    assert_send_sync::<Locks>();
    assert_send_sync::<leasehold::Guard>();
    assert_send_sync::<leasehold::LeaseWatcher>();
    assert_send_sync::<leasehold::MultiLockGuard>();
    assert_send_sync::<leasehold::Error>();
    assert_send_sync::<leasehold::blocking::Locks>();
    assert_send_sync::<leasehold::blocking::Guard>();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let locks = runtime.block_on(Locks::open("memory:")).unwrap();
    assert_send(&locks.mutex("a").lock());
    assert_send(&locks.multi_lock(["a"]).lock());
    assert_send(&locks.flush());
}
