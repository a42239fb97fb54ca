//! The comparison with the model: on a clock moved by hand, and on engines that are known to be wrong.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Engine;
use leasehold_conformance::brief::times;
use leasehold_conformance::model::wrong::{Flaw, Wrong};
use leasehold_conformance::model::{Bench, Difference};

async fn memory(clock: Clock) -> Arc<dyn Engine> {
    leasehold::engine::open("memory:", &clock).await.expect("the memory engine")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_engine_keeps_the_rules_while_time_passes() {
    let bench = Bench::on_a_hand_moved_clock(memory).await;
    if let Some(difference) = bench.find_difference(times(300, 20_000)) {
        panic!("{difference}");
    }
}

/// Searches a flawed engine, and checks that the finding can be read.
async fn find(flaw: Flaw) -> Difference {
    let wrong = Wrong::wrap(memory(Clock::system()).await, flaw);
    let bench = Bench::new(vec![wrong]).await.patience(Duration::from_millis(5));
    let found = bench.find_difference(500).unwrap_or_else(|| panic!("{flaw:?} was not found"));
    println!("{found}");
    let text = found.to_string();
    assert!(text.lines().count() < 30, "readable at a glance: {text}");
    assert!(text.contains(" wants ") && text.contains("  1. "), "the claims and the steps are named: {text}");
    assert!(text.contains("LEASEHOLD_SEED="), "it can be replayed: {text}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_repeats_tokens_is_found_out() {
    let found = find(Flaw::RepeatsTokens).await;
    assert!(found.plan.ops.len() <= 4, "take, give back (or be evicted), take: {found}");
    // After a release the same token comes again; after an eviction one below the fence.
    assert!(found.story.contains("token 1 after token ") && found.story.contains("a higher one"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_ignores_the_order_is_found_out() {
    let found = find(Flaw::IgnoresOrder).await;
    assert!(found.plan.ops.len() <= 5, "one holds, two wait, one leaves: {found}");
    assert!(found.story.contains("releases"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_keeps_what_is_released_is_found_out() {
    let found = find(Flaw::KeepsWhatIsReleased).await;
    assert!(found.plan.ops.len() <= 3, "take, give back: {found}");
    assert!(found.story.contains("says the model; the engine: held by "), "{found}");
}
