//! to come
fn main() {}
