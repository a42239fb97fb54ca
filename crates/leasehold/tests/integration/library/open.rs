//! Opening: which engine a URL opens, and the errors of other URLs.

use leasehold::{ErrorKind, Locks};

use crate::library::time::lasting;

async fn refusal(url: &str) -> leasehold::Error {
    match Locks::open(url).await {
        Ok(locks) => panic!("{url} was opened: {locks:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_those_that_exist() {
    let error = refusal("etcetera://host").await;
    assert_eq!(error.kind(), ErrorKind::UnknownScheme);
    for known in ["etcetera:", "memory:", "file:"] {
        assert!(error.to_string().contains(known), "{error}");
    }
    assert!(!error.is_retryable());
}

#[cfg(not(feature = "file"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off_names_the_feature() {
    let error = refusal("file:///tmp/locks").await;
    assert_eq!(error.kind(), ErrorKind::FeatureDisabled);
    assert!(error.to_string().contains("-F file"), "{error}");
    let entries = leasehold::engine::entries();
    assert!(entries.iter().any(|entry| entry.scheme == "file" && entry.capabilities.is_none()));
}

#[tokio::test]
async fn a_url_that_cannot_be_read_is_refused_with_the_reason() {
    for (url, says) in [
        ("", "no scheme"),
        ("memory", "no scheme"),
        (":x", "no scheme"),
        ("me mory:", "no scheme"),
        ("memory:%f", "two hexadecimal digits"),
        ("memory:%ff", "not UTF-8"),
    ] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn an_option_that_the_engine_does_not_know_is_refused() {
    let error = refusal("memory:?size=3").await;
    assert_eq!(error.kind(), ErrorKind::InvalidUrl);
    assert!(error.to_string().contains("size"), "{error}");
}

#[tokio::test]
async fn a_memory_url_with_a_host_is_refused_rather_than_silently_private() {
    // `memory://shared` looks like the shared `memory:shared`; two clients of it would not exclude each other.
    assert_eq!(refusal("memory://shared").await.kind(), ErrorKind::InvalidUrl);
}

#[tokio::test]
async fn a_named_memory_engine_is_shared_and_an_unnamed_one_is_not() {
    let url = "memory:open-rs";
    let (one, two) = (lasting(url).await, lasting(url).await);
    let guard = one.mutex("a").lock().await.unwrap();
    assert!(two.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(one.url(), url);
    let apart = lasting("memory:").await;
    assert!(apart.mutex("a").try_lock().await.unwrap().is_some());
    drop(guard);
}

#[test]
fn everything_may_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    fn moves<T: Send>(_: &T) {}
    crosses::<Locks>();
    crosses::<leasehold::Guard>();
    crosses::<leasehold::Watch>();
    crosses::<leasehold::AllGuard>();
    crosses::<leasehold::Error>();
    crosses::<leasehold::blocking::Locks>();
    crosses::<leasehold::blocking::Guard>();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let locks = runtime.block_on(Locks::open("memory:")).unwrap();
    moves(&locks.mutex("a").lock());
    moves(&locks.all(["a"]).lock());
    moves(&locks.settle());
}
