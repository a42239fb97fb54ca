//! Errors of the engine.

use super::config::Config;
use crate::types::{Effect, Error, ErrorKind};

/// The engine's name in errors.
pub(super) const NAME: &str = "redlock";

/// Too few nodes did what was asked; `errors` are their errors.
pub(super) fn no_majority(config: &Config, errors: &[Error]) -> Error {
    let quorum = config.quorum;
    let first = errors.first();
    // If all nodes report the same kind, it is the error's kind; mixed kinds mean that there was no
    // majority.
    let kind = first.map(Error::kind).filter(|kind| errors.iter().all(|error| error.kind() == *kind));
    let mut reasons: Vec<String> = errors.iter().map(Error::message_without_location).collect();
    reasons.sort();
    reasons.dedup();
    let message = format!(
        "{} of {} nodes must answer, and {} did not: {}",
        quorum.majority,
        quorum.node_count,
        errors.len().min(quorum.node_count),
        reasons.join("; ")
    );
    let error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), message).at_engine(NAME);
    let unknown = errors.is_empty() || errors.iter().any(|error| error.effect() == Effect::Unknown);
    let error = if unknown { error.effect_unknown() } else { error };
    if errors.is_empty() || errors.iter().any(Error::is_retryable) { error.retryable() } else { error }
}
