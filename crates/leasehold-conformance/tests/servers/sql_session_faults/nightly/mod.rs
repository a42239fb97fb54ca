//! Slow tests, and tests with several database servers or TLS.

mod connections;
mod servers;
mod tls;
