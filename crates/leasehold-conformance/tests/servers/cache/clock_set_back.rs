//! Setting Redis's clock back extends no value, load lease or write mark.

use leasehold_cache::CacheStore;
use leasehold_cache::logic::{LoadedValue, Operation, OperationReply, ReadReply, ReadRequest, WriteRequest};
use leasehold_conformance::test_context::LONG_TTL;
use leasehold_testbed::WallClock;
use leasehold_testbed::redis::Redis;

use crate::cache::fixture::REPLY_TIMEOUT;

const TTL_SECONDS: i64 = LONG_TTL.as_secs() as i64;
/// Far longer than any TTL in this test.
const CLOCK_OFFSET: i64 = -100 * TTL_SECONDS;
const TTL_MICROS: u64 = LONG_TTL.as_micros() as u64;

async fn read_entry(store: &CacheStore, key: &str, lease: u128) -> ReadReply {
    let request =
        ReadRequest { lease, lease_time: TTL_MICROS, keep_for: 4 * TTL_MICROS, stale_for: 0, early_factor: 0 };
    match store.apply(key, Operation::Read(request)).await.expect("an answer") {
        OperationReply::Read(found) => found,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_extends_nothing() {
    let clock = WallClock::new().expect("a clock");
    let server = Redis::new().clock(&clock).start().await.expect("a server");
    let store = CacheStore::open(&server.url(), REPLY_TIMEOUT).await.expect("a store");
    let ReadReply::Load(generation, _) = read_entry(&store, "value", 1).await else { panic!("the cache starts empty") };
    let data = Some(b"1".to_vec());
    let load = LoadedValue {
        lease: 1,
        generation,
        data,
        version: None,
        load_cost: 0,
        fresh_for: TTL_MICROS,
        stale_for: 3 * TTL_MICROS,
    };
    assert_eq!(store.apply("value", Operation::Store(load)).await.expect("an answer"), OperationReply::Stored(Ok(())));
    assert!(matches!(read_entry(&store, "lease", 1).await, ReadReply::Load(..)), "a loader that never returns");
    let begin = WriteRequest { mark: 1, token: 1, mark_time: TTL_MICROS, stale_for: 0, keep_for: 4 * TTL_MICROS };
    let begun = store.apply("mark", Operation::BeginWrite(begin)).await.expect("an answer");
    assert!(matches!(begun, OperationReply::WriteBegun(Ok(_))), "a writer that never returns: {begun:?}");

    clock.set_offset(CLOCK_OFFSET).expect("a moved clock");
    assert!(matches!(read_entry(&store, "value", 2).await, ReadReply::Hit(Some(_))));
    match read_entry(&store, "lease", 2).await {
        ReadReply::Wait(1, left) => assert!(left <= TTL_MICROS, "{left} µs"),
        other => panic!("{other:?}"),
    }
    assert_eq!(read_entry(&store, "mark", 2).await, ReadReply::WriteInProgress);

    clock.set_offset(CLOCK_OFFSET + TTL_SECONDS + 1).expect("a moved clock");
    for key in ["value", "lease", "mark"] {
        let after = read_entry(&store, key, 2).await;
        assert!(matches!(after, ReadReply::Load(of, _) if of >= generation), "{key}: {after:?}");
    }
}
