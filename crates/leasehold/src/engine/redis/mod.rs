//! Locks in Redis or Valkey.

mod config;
mod connect;
pub(crate) mod doctor;
mod error;
