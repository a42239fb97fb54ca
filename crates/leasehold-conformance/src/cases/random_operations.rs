//! Random operations in random order.

use crate::model::ModelComparison;
use crate::short_leases::repetitions;
use crate::test_context::TestContext;

/// Runs random sequences of operations through two clients and compares them with the memory engine
/// step by step.
pub async fn operations_match_the_model(context: &TestContext) {
    let comparison = ModelComparison::new(vec![context.open_engine().await, context.open_engine().await]).await;
    if let Some(difference) = comparison.find_difference(repetitions(16, 256)) {
        panic!("{difference}");
    }
}
