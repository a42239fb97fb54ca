//! The comparison with the model, on a manual clock and on engines with known flaws.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Engine;
use leasehold_conformance::model::flawed::{Flaw, FlawedEngine};
use leasehold_conformance::model::{Difference, ModelComparison};
use leasehold_conformance::short_leases::repetitions;

async fn open_memory(clock: Clock) -> Arc<dyn Engine> {
    leasehold::registry::open("memory:", &clock).await.expect("the memory engine")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_engine_satisfies_the_rules_while_time_passes() {
    let comparison = ModelComparison::with_manual_clock(open_memory).await;
    if let Some(difference) = comparison.find_difference(repetitions(300, 20_000)) {
        panic!("{difference}");
    }
}

/// Finds a difference in a flawed engine, and checks that the report is readable.
async fn find_flaw(flaw: Flaw) -> Difference {
    let wrong = FlawedEngine::wrap(open_memory(Clock::system()).await, flaw);
    let comparison = ModelComparison::new(vec![wrong]).await.with_grant_timeout(Duration::from_millis(5));
    let found = comparison.find_difference(500).unwrap_or_else(|| panic!("{flaw:?} was not detected"));
    println!("{found}");
    let text = found.to_string();
    assert!(text.lines().count() < 30, "too long: {text}");
    assert!(text.contains(" wants ") && text.contains("  1. "), "the report names the claims and the steps: {text}");
    assert!(text.contains("LEASEHOLD_SEED="), "the report can be replayed: {text}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_repeats_tokens_is_detected() {
    let found = find_flaw(Flaw::RepeatsTokens).await;
    assert!(found.plan.operations.len() <= 4, "acquire, release or force-release, acquire: {found}");
    // After a release the same token is repeated; after a force release, one below the fence token.
    assert!(found.timeline.contains("token 1 after token ") && found.timeline.contains("a higher one"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_ignores_the_order_is_detected() {
    let found = find_flaw(Flaw::IgnoresOrder).await;
    assert!(found.plan.operations.len() <= 5, "one claim holds, two wait, one leaves: {found}");
    assert!(found.timeline.contains("releases"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_ignores_releases_is_detected() {
    let found = find_flaw(Flaw::IgnoresReleases).await;
    assert!(found.plan.operations.len() <= 3, "acquire, release: {found}");
    assert!(found.timeline.contains("says the model; the engine: held by "), "{found}");
}
