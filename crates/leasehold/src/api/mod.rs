//! What a program uses: [`Locks`](locks::Locks) and the primitives that it makes.

pub(crate) mod connect;
pub(crate) mod election;
pub(crate) mod locks;
pub(crate) mod multi_lock;
pub(crate) mod primitives;
pub(crate) mod records;
pub(crate) mod request;
