//! The interface of a store, and a table in this process.

use std::pin::Pin;

use leasehold::Token;
use leasehold::fence::{Fence, StaleToken};

use crate::common::Failure;

pub(crate) type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;
pub(crate) type WriteResult = Result<(), StaleToken>;

/// The result of a read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadValue {
    pub(crate) units: i64,
    /// The version that was read, and the token of its writer, if the store has them.
    pub(crate) tag: u64,
    pub(crate) token: Token,
}

/// A store of one number: the units in stock.
pub(crate) trait Store: Send {
    fn name(&self) -> &'static str;

    fn read(&mut self) -> StoreFuture<'_, ReadValue>;

    /// Writes a number derived from `seen`, unless the token is older than one seen before. Without
    /// a token, the last writer wins.
    fn write(&mut self, units: i64, seen: ReadValue, token: Option<Token>) -> StoreFuture<'_, WriteResult>;

    /// Removes the store.
    fn clear(&mut self) -> StoreFuture<'_, ()>;
}

/// A table in this process: the check and the write are one step, because no other task runs in
/// between.
#[derive(Default)]
pub(crate) struct Table {
    fence: Fence,
    units: i64,
}

impl Store for Table {
    fn name(&self) -> &'static str {
        "the table"
    }

    fn write(&mut self, units: i64, _: ReadValue, token: Option<Token>) -> StoreFuture<'_, WriteResult> {
        let admitted = token.map_or(Ok(()), |token| self.fence.admit("stock", token));
        if admitted.is_ok() {
            self.units = units;
        }
        Box::pin(async move { Ok(admitted) })
    }

    fn read(&mut self) -> StoreFuture<'_, ReadValue> {
        let units = self.units;
        Box::pin(async move { Ok(ReadValue { units, ..ReadValue::default() }) })
    }

    fn clear(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
