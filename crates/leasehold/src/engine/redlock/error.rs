//! Errors of the engine.

use super::config::Config;
use crate::error::{Effect, Error, ErrorKind};

/// The engine's name in errors.
pub(super) const NAME: &str = "redlock";

/// Too few nodes did what was asked; `said` are their errors.
pub(super) fn too_few(config: &Config, said: &[Error]) -> Error {
    let quorum = config.quorum;
    let first = said.first();
    // If all nodes report the same kind, it is the error's kind; mixed kinds mean that there was no
    // majority.
    let kind = first.map(Error::kind).filter(|kind| said.iter().all(|error| error.kind() == *kind));
    let mut reasons: Vec<String> = said.iter().map(Error::said).collect();
    reasons.sort();
    reasons.dedup();
    let message = format!(
        "{} of {} nodes must answer, and {} did not: {}",
        quorum.needed,
        quorum.nodes,
        said.len().min(quorum.nodes),
        reasons.join("; ")
    );
    let error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), message).at_engine(NAME);
    let unknown = said.is_empty() || said.iter().any(|error| error.effect() == Effect::Unknown);
    let error = if unknown { error.effect_unknown() } else { error };
    if said.is_empty() || said.iter().any(Error::is_retryable) { error.retryable() } else { error }
}
