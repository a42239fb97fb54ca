//! What takes many seconds, several database servers, or TLS.

mod connections;
mod servers;
mod tls;
