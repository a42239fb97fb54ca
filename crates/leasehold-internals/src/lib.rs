//! What leasehold's own crates share of the inside of the library.
//!
//! This crate has no stable interface: any release may change or remove any item. Use the crate
//! `leasehold`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub use leasehold::internals::*;
