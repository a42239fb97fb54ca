//! The Lua scripts match the specification: the same operations give the same replies.

use leasehold_cache::CacheStore;
use leasehold_cache::logic::{
    CacheEntry, LoadedValue, Operation, OperationReply, ReadReply, ReadRequest, WriteRequest,
};
use proptest::prelude::*;

use crate::cache::fixture::{REPLY_TIMEOUT, redis_server};

/// Durations are zero or effectively infinite, so that the two clocks need not agree.
const FOREVER_MICROS: u64 = 3_600_000_000;

fn zero_or_forever() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 4 => Just(FOREVER_MICROS)]
}

/// Also a duration that is over by the next operation on either clock: it shows whether a value
/// turned stale.
fn short_or_forever() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(1), 2 => zero_or_forever()]
}

fn load_strategy() -> impl Strategy<Value = LoadedValue> {
    let data = prop::option::of(prop::collection::vec(any::<u8>(), 0..4));
    // The generation is an index into those seen so far; `with_generation` replaces it.
    (1u128..4, 0u64..6, data, prop::option::of(0u64..4), 0u64..2, zero_or_forever(), zero_or_forever()).prop_map(
        |(lease, generation, data, version, cost, fresh_for, stale_for)| LoadedValue {
            lease,
            generation,
            data,
            version,
            load_cost: cost * FOREVER_MICROS,
            fresh_for,
            stale_for,
        },
    )
}

fn operation_strategy() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1u128..4, zero_or_forever(), short_or_forever(), 0u64..3).prop_map(|(lease, lease_for, stale_for, early)| {
            Operation::Read(ReadRequest { lease, lease_time: lease_for, keep_for: FOREVER_MICROS, stale_for, early_factor: early * 500 })
        }),
        5 => load_strategy().prop_map(Operation::Store),
        1 => (1u128..4).prop_map(|lease| Operation::GiveUp(lease, "why".into())),
        2 => (0u64..4, zero_or_forever()).prop_map(|(version, stale_for)| Operation::Invalidate(version, stale_for, FOREVER_MICROS)),
        2 => (1u128..4, 0u64..4, zero_or_forever(), zero_or_forever()).prop_map(|(mark, token, mark_for, stale_for)| {
            Operation::BeginWrite(WriteRequest { mark, token, mark_time: mark_for, stale_for, keep_for: FOREVER_MICROS })
        }),
        1 => (1u128..4, zero_or_forever()).prop_map(|(mark, mark_for)| Operation::ExtendWrite(mark, mark_for, FOREVER_MICROS)),
        2 => (1u128..4, prop::option::of(load_strategy())).prop_map(|(mark, load)| Operation::FinishWrite(mark, load, FOREVER_MICROS)),
    ]
}

/// Replaces the generation index with the generation that this side knows under it.
fn with_generation(operation: &Operation, known: &[u64]) -> Operation {
    let replace = |load: &LoadedValue| {
        let generation = known.iter().rev().nth(load.generation as usize).copied().unwrap_or_default();
        LoadedValue { generation, ..load.clone() }
    };
    match operation {
        Operation::Store(load) => Operation::Store(replace(load)),
        Operation::FinishWrite(mark, Some(load), keep) => Operation::FinishWrite(*mark, Some(replace(load)), *keep),
        other => other.clone(),
    }
}

/// Records the generation, which depends on the clock, and clears all times in the reply.
fn without_time(reply: OperationReply, known: &mut Vec<u64>) -> OperationReply {
    let mut note = |generation: u64| {
        // A repeated request returns the same generation.
        if known.last() != Some(&generation) {
            known.push(generation);
        }
        0
    };
    match reply {
        OperationReply::Read(ReadReply::Load(generation, old)) => {
            OperationReply::Read(ReadReply::Load(note(generation), old))
        }
        OperationReply::Read(ReadReply::Early(data, generation)) => {
            OperationReply::Read(ReadReply::Early(data, note(generation)))
        }
        OperationReply::Read(ReadReply::Wait(lease, _)) => OperationReply::Read(ReadReply::Wait(lease, 0)),
        OperationReply::WriteBegun(Ok(generation)) => OperationReply::WriteBegun(Ok(note(generation))),
        other => other,
    }
}

async fn compare_with_model(store: &CacheStore, key: &str, operations: &[Operation]) -> Result<(), TestCaseError> {
    let (mut entry, mut now) = (CacheEntry::default(), 1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (number, step) in operations.iter().enumerate() {
        now += 1;
        let expected = without_time(entry.apply(now, with_generation(step, &ours)), &mut ours);
        let actual = store.apply(key, with_generation(step, &theirs)).await.expect("an answer");
        prop_assert_eq!(
            without_time(actual, &mut theirs),
            expected,
            "step {} of {:?}: {:?}",
            number,
            operations,
            entry
        );
        prop_assert_eq!(ours.len(), theirs.len());
    }
    Ok(())
}

#[test]
fn the_scripts_match_the_specification() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = runtime.block_on(async {
        let url = format!("{}?prefix=scripts:", redis_server().await.url());
        CacheStore::open(&url, REPLY_TIMEOUT).await.expect("a store")
    });
    let cases = if cfg!(feature = "nightly") { 300 } else { 60 };
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let checked = runner.run(&prop::collection::vec(operation_strategy(), 1..40), |steps| {
        let key = format!("case {}", leasehold::ClaimId::random().bits());
        runtime.block_on(compare_with_model(&store, &key, &steps))
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}
