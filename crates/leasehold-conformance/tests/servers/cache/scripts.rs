//! The scripts do what the specification does: the same steps on both, and the same answers.

use leasehold::cache::Store;
use leasehold::logic::cache::{Ask, Begin, Entry, Found, Load, Said, Step};
use proptest::prelude::*;

use crate::cache::site::{ANSWER, redis_server};

/// Times are nothing or for ever: what two clocks say does not matter then.
const EVER: u64 = 3_600_000_000;

fn time() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 4 => Just(EVER)]
}

/// Or so short that it is over at the next step, by either clock: it shows whether a value was made old.
fn short() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(1), 2 => time()]
}

fn load() -> impl Strategy<Value = Load> {
    let data = prop::option::of(prop::collection::vec(any::<u8>(), 0..4));
    // The generation is which of those that were given; the step is rewritten when it is taken.
    (1u128..4, 0u64..6, data, prop::option::of(0u64..4), 0u64..2, time(), time()).prop_map(
        |(lease, generation, data, version, cost, fresh_for, stale_for)| Load {
            lease,
            generation,
            data,
            version,
            cost: cost * EVER,
            fresh_for,
            stale_for,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u128..4, time(), short(), 0u64..3).prop_map(|(lease, lease_for, stale_for, early)| {
            Step::Ask(Ask { lease, lease_for, keep_for: EVER, stale_for, early: early * 500 })
        }),
        5 => load().prop_map(Step::Set),
        1 => (1u128..4).prop_map(|lease| Step::GiveUp(lease, "why".into())),
        2 => (0u64..4, time()).prop_map(|(version, stale_for)| Step::Invalidate(version, stale_for, EVER)),
        2 => (1u128..4, 0u64..4, time(), time()).prop_map(|(mark, token, mark_for, stale_for)| {
            Step::Begin(Begin { mark, token, mark_for, stale_for, keep_for: EVER })
        }),
        1 => (1u128..4, time()).prop_map(|(mark, mark_for)| Step::Extend(mark, mark_for, EVER)),
        2 => (1u128..4, prop::option::of(load())).prop_map(|(mark, load)| Step::Finish(mark, load, EVER)),
    ]
}

/// The step with a generation that this side knows by this number.
fn with_generation(step: &Step, known: &[u64]) -> Step {
    let replace = |load: &Load| {
        let generation = known.iter().rev().nth(load.generation as usize).copied().unwrap_or_default();
        Load { generation, ..load.clone() }
    };
    match step {
        Step::Set(load) => Step::Set(replace(load)),
        Step::Finish(mark, Some(load), keep) => Step::Finish(*mark, Some(replace(load)), *keep),
        other => other.clone(),
    }
}

/// The answer without what the clocks say, which is noted.
fn without_time(said: Said, known: &mut Vec<u64>) -> Said {
    let mut note = |generation: u64| {
        // Asked again, it is the same one.
        if known.last() != Some(&generation) {
            known.push(generation);
        }
        0
    };
    match said {
        Said::Found(Found::Load(generation, old)) => Said::Found(Found::Load(note(generation), old)),
        Said::Found(Found::Early(data, generation)) => Said::Found(Found::Early(data, note(generation))),
        Said::Found(Found::Wait(lease, _)) => Said::Found(Found::Wait(lease, 0)),
        Said::Begun(Ok(generation)) => Said::Begun(Ok(note(generation))),
        other => other,
    }
}

async fn compare(store: &Store, key: &str, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut entry, mut now) = (Entry::default(), 1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (number, step) in steps.iter().enumerate() {
        now += 1;
        let expected = without_time(entry.step(now, with_generation(step, &ours)), &mut ours);
        let said = store.step(key, with_generation(step, &theirs)).await.expect("an answer");
        prop_assert_eq!(without_time(said, &mut theirs), expected, "step {} of {:?}: {:?}", number, steps, entry);
        prop_assert_eq!(ours.len(), theirs.len());
    }
    Ok(())
}

#[test]
fn they_are_what_is_specified() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = runtime.block_on(async {
        let url = format!("{}?prefix=scripts:", redis_server().await.url());
        Store::open(&url, ANSWER).await.expect("a store")
    });
    let cases = if cfg!(feature = "nightly") { 300 } else { 60 };
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let checked = runner.run(&prop::collection::vec(step(), 1..40), |steps| {
        let key = format!("case {}", leasehold::ClaimId::random().bits());
        runtime.block_on(compare(&store, &key, &steps))
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}
