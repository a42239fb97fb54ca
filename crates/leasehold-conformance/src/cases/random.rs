//! Whatever is done in whatever order.

use crate::brief::times;
use crate::model::Bench;
use crate::world::World;

/// Random sequences of operations through two clients, compared with the memory engine step by step.
pub async fn operations_match_the_model(world: &World) {
    let bench = Bench::new(vec![world.engine().await, world.engine().await]).await;
    if let Some(difference) = bench.find_difference(times(16, 256)) {
        panic!("{difference}");
    }
}
