//! Locks in Redis or Valkey.

mod config;
mod connect;
mod error;
