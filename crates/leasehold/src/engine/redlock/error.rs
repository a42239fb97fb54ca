//! What went wrong, in the library's words.

use std::time::Duration;

use super::config::Config;
use crate::error::{Error, ErrorKind};

/// The engine's name in errors.
pub(super) const NAME: &str = "redlock";

/// Too few nodes did what was asked of them, and this is what they said.
pub(super) fn too_few(config: &Config, said: &[Error]) -> Error {
    let quorum = config.quorum;
    let first = said.first();
    // If all say the same, that is what is wrong; a mixture is no majority.
    let kind = first.map(Error::kind).filter(|kind| said.iter().all(|error| error.kind() == *kind));
    let mut reasons: Vec<String> = said.iter().map(Error::said).collect();
    reasons.sort();
    reasons.dedup();
    let message = format!(
        "{} of {} nodes must answer, and {} did not: {}",
        quorum.needed,
        quorum.nodes,
        said.len(),
        reasons.join("; ")
    );
    let error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), message).at_engine(NAME).effect_unknown();
    if said.is_empty() || said.iter().any(Error::is_retryable) { error.retryable() } else { error }
}

/// Too many nodes have restarted.
pub(super) fn abstaining(config: &Config, left: Option<Duration>) -> Error {
    let left = left.unwrap_or_default();
    let message = format!(
        "so many of the {} nodes have restarted that there is no majority; they abstain for another {left:.1?}, the longest lease",
        config.quorum.nodes
    );
    Error::new(ErrorKind::Unavailable, message).at_engine(NAME).retryable()
}

/// There is no queue.
pub(super) fn no_queue() -> Error {
    let message = "has no queue: an order over several nodes could block for ever";
    Error::new(ErrorKind::Unsupported, message).at_engine(NAME)
}
