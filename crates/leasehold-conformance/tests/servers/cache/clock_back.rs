//! Redis's clock is set back: what was left of a value, a lease or a mark is left from then on, and no more.

use leasehold::cache::Store;
use leasehold::logic::cache::{Ask, Begin, Found, Load, Said, Step};
use leasehold_conformance::world::LONG;
use leasehold_testbed::WallClock;
use leasehold_testbed::redis::Redis;

use crate::cache::site::ANSWER;

const LASTS: i64 = LONG.as_secs() as i64;
/// Much further than anything lasts.
const BACK: i64 = -100 * LASTS;
const MICROS: u64 = LONG.as_micros() as u64;

async fn found(store: &Store, key: &str, lease: u128) -> Found {
    let ask = Ask { lease, lease_for: MICROS, keep_for: 4 * MICROS, stale_for: 0, early: 0 };
    match store.step(key, Step::Ask(ask)).await.expect("an answer") {
        Said::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_lasts_longer_than_it_should() {
    let clock = WallClock::new().expect("a clock");
    let server = Redis::new().clock(&clock).start().await.expect("a server");
    let store = Store::open(&server.url(), ANSWER).await.expect("a store");
    let Found::Load(generation, _) = found(&store, "value", 1).await else { panic!("nothing is there") };
    let data = Some(b"1".to_vec());
    let load = Load { lease: 1, generation, data, version: None, cost: 0, fresh_for: MICROS, stale_for: 3 * MICROS };
    assert_eq!(store.step("value", Step::Set(load)).await.expect("an answer"), Said::Set(Ok(())));
    assert!(matches!(found(&store, "lease", 1).await, Found::Load(..)), "a loader that is never heard of again");
    let begin = Begin { mark: 1, token: 1, mark_for: MICROS, stale_for: 0, keep_for: 4 * MICROS };
    let begun = store.step("mark", Step::Begin(begin)).await.expect("an answer");
    assert!(matches!(begun, Said::Begun(Ok(_))), "a writer that is never heard of again: {begun:?}");

    clock.move_to(BACK).expect("a moved clock");
    assert!(matches!(found(&store, "value", 2).await, Found::Hit(Some(_))));
    match found(&store, "lease", 2).await {
        Found::Wait(1, left) => assert!(left <= MICROS, "{left} us"),
        other => panic!("{other:?}"),
    }
    assert_eq!(found(&store, "mark", 2).await, Found::Written);

    clock.move_to(BACK + LASTS + 1).expect("a moved clock");
    for key in ["value", "lease", "mark"] {
        let after = found(&store, key, 2).await;
        assert!(matches!(after, Found::Load(of, _) if of >= generation), "{key}: {after:?}");
    }
}
