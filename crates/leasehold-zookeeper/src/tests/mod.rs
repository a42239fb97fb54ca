//! A session against a scripted server, in virtual time.

mod connecting;
mod peer;
mod reconnecting;
mod requests;
#[cfg(feature = "sasl")]
mod sasl;
mod watching;
