//! Whatever is done in whatever order.

use crate::short_leases::repetitions;
use crate::model::ModelComparison;
use crate::test_context::TestContext;

/// Random sequences of operations through two clients, compared with the memory engine step by step.
pub async fn operations_match_the_model(context: &TestContext) {
    let bench = ModelComparison::new(vec![context.open_engine().await, context.open_engine().await]).await;
    if let Some(difference) = bench.find_difference(repetitions(16, 256)) {
        panic!("{difference}");
    }
}
