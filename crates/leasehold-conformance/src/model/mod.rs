//! Random sequences of operations, compared step by step with the memory engine as the model.
//!
//! A [`Plan`] is a list of claims and operations on them. It runs on the model and the subject at
//! the same time. After each step the results must agree (tokens by order, not by value), and so
//! must the inspections. A difference is shrunk to the shortest plan that still shows it.
//!
//! The subject's inspections are also checked against rules that do not depend on the model.

mod comparison;
pub mod flawed;
mod plan;
mod rules;
mod step_runner;

pub use self::comparison::{Difference, ModelComparison};
pub use self::plan::{ClaimSpec, Operation, Plan};
