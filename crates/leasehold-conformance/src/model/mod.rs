//! Random sequences of operations, compared step by step with the memory engine as the model.
//!
//! A [`Plan`] is some claims and what is done with them. It is run on the model and on the subject at the same time; after
//! each step the answers must agree (tokens by their order, not their value), and so must what an inspection shows. A
//! difference is shrunk to the shortest plan that still has it.
//!
//! Besides, what the subject shows is checked against rules that do not come from the model.

mod comparison;
pub mod flawed;
mod plan;
mod rules;
mod step_runner;

pub use self::comparison::{Difference, ModelComparison};
pub use self::plan::{ClaimSpec, Operation, Plan};
