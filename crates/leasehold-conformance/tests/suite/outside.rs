//! The suite on an engine of another crate, which the library knows only by its registered scheme.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::{Instance, Subject, suite};

/// The engine of `examples/engine`.
struct Outside;

impl Subject for Outside {
    async fn instance(&self) -> Instance {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let url = format!("map:outside-{}", MADE.fetch_add(1, Ordering::Relaxed));
        Instance::with_url(url).opened_by(|url, clock| Box::pin(leasehold_example_engine::open(url, clock)))
    }
}

suite!(outside, Outside);

/// A client opens a registered scheme by its URL, as any other engine.
#[tokio::test]
async fn a_registered_scheme_is_opened_by_its_url() {
    let open = || Locks::builder().register("MAP", leasehold_example_engine::open).open("map:registered");
    let (locks, other) = (open().await.expect("the engine"), open().await.expect("the engine"));
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(guard.release().await.expect("an answer"), leasehold::ReleaseOutcome::Released);
    let next = other.mutex("a").lock().await.expect("a lock");
    assert_eq!((next.token().0, other.url()), (2, "map:registered".to_owned()));

    let error = Locks::open("map:registered").await.expect_err("the scheme is not registered here");
    assert_eq!(error.kind(), ErrorKind::UnknownScheme);
    let builder = Locks::builder().register("map", leasehold_example_engine::open);
    let error = builder.open("map:registered?size=3").await.expect_err("no such option");
    assert_eq!(error.kind(), ErrorKind::InvalidUrl);
}
