//! What takes many seconds, and variants of what the other modules show.

mod clocks;
mod empty_restarts;
mod eviction;
mod hung_nodes;
mod options;
mod proxied_connections;
mod reentry;
mod review_findings;
mod two_dead_nodes;
