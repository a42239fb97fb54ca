//! Slow tests, and more variants of the other modules.

mod clocks;
mod empty_restarts;
mod force_release;
mod hung_nodes;
mod options;
mod proxied_connections;
mod reentry;
mod review_findings;
mod two_dead_nodes;
