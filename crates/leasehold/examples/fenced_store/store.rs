//! The interface of a store, and a table in this process.

use std::pin::Pin;

use leasehold::Token;
use leasehold::fence::{Fence, Stale};

use crate::common::Failure;

pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;
pub(crate) type Written = Result<(), Stale>;

/// The result of a read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) units: i64,
    /// The version that was read, and the token of its writer, if the store has them.
    pub(crate) tag: u64,
    pub(crate) token: Token,
}

/// A store of one number.
pub(crate) trait Store: Send {
    fn name(&self) -> &'static str;

    fn read(&mut self) -> Answer<'_, Seen>;

    /// Writes a number derived from `seen`, unless the token is older than one seen before. Without
    /// a token, the last writer wins.
    fn write(&mut self, units: i64, seen: Seen, token: Option<Token>) -> Answer<'_, Written>;

    /// Removes the store.
    fn clear(&mut self) -> Answer<'_, ()>;
}

/// A table in this process: the check and the write are one step, because nothing runs in between.
#[derive(Default)]
pub(crate) struct Table {
    fence: Fence,
    units: i64,
}

impl Store for Table {
    fn name(&self) -> &'static str {
        "the table"
    }

    fn write(&mut self, units: i64, _: Seen, token: Option<Token>) -> Answer<'_, Written> {
        let admitted = token.map_or(Ok(()), |token| self.fence.admit("stock", token));
        if admitted.is_ok() {
            self.units = units;
        }
        Box::pin(async move { Ok(admitted) })
    }

    fn read(&mut self) -> Answer<'_, Seen> {
        let units = self.units;
        Box::pin(async move { Ok(Seen { units, ..Seen::default() }) })
    }

    fn clear(&mut self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
