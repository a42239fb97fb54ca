//! ZooKeeper alone, with TLS, with users, and as an ensemble that loses and cuts off its members.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod ensemble;
mod session;
mod single_server;
mod tls;
