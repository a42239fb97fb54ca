//! ZooKeeper alone, with TLS, with users, and as an ensemble whose members die and are partitioned.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod ensemble;
mod session;
mod single_server;
mod tls;
