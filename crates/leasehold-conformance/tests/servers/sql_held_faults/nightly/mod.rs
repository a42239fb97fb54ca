//! What takes many seconds, several database servers, or TLS.

mod lines;
mod secret;
mod servers;
