//! The same without async.
