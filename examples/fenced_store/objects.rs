//! A store like S3: whole objects with metadata, and one condition, `If-Match`. It does not know
//! tokens, but can be fenced.
//!
//! The object's metadata has the token, so every reader sees the last writer's. A writer with a
//! lower token gives up. Otherwise it puts the object with its own token, and with `If-Match` and
//! the tag of what it has read. If another client has written since, that fails, and the metadata
//! (`HEAD`) shows which one.
//!
//! | event | consequence |
//! |---|---|
//! | a newer holder has written before our read | the object has a higher token: we are stale |
//! | a newer holder has written since our read | 412, and `HEAD` shows a higher token: we are stale |
//! | a stale holder has written since our read | 412, and `HEAD` shows a lower token: read again |

use leasehold::Token;
use leasehold::fence::StaleToken;

use crate::common::Failure;
use crate::store::{ReadValue, Store, StoreFuture, WriteResult};

/// The response 412.
struct PreconditionFailed;

/// One object of a bucket.
#[derive(Default)]
pub(crate) struct StoredObject {
    body: String,
    tag: u64,
    /// The metadata `leasehold-token`.
    token: Token,
}

impl StoredObject {
    /// The service's side of `PUT`, with or without `If-Match`.
    fn put(&mut self, body: String, token: Token, if_match: Option<u64>) -> Result<(), PreconditionFailed> {
        if if_match.is_some_and(|tag| tag != self.tag) {
            return Err(PreconditionFailed);
        }
        *self = Self { body, tag: self.tag + 1, token };
        Ok(())
    }

    /// The writer's side.
    fn put_fenced(&mut self, body: String, seen: ReadValue, token: Token) -> Result<WriteResult, Failure> {
        if seen.token > token {
            return Ok(Err(StaleToken { token, highest: seen.token }));
        }
        match self.put(body, token, Some(seen.tag)) {
            Ok(()) => Ok(Ok(())),
            Err(PreconditionFailed) if self.token > token => Ok(Err(StaleToken { token, highest: self.token })),
            Err(PreconditionFailed) => Err("a stale holder has written since: read again".into()),
        }
    }
}

impl Store for StoredObject {
    fn name(&self) -> &'static str {
        "the bucket"
    }

    fn read(&mut self) -> StoreFuture<'_, ReadValue> {
        Box::pin(async { Ok(ReadValue { units: self.body.parse()?, tag: self.tag, token: self.token }) })
    }

    fn write(&mut self, units: i64, seen: ReadValue, token: Option<Token>) -> StoreFuture<'_, WriteResult> {
        let body = units.to_string();
        Box::pin(async move {
            match token {
                Some(token) => self.put_fenced(body, seen, token),
                None => Ok(Ok(self.put(body, Token(0), None).map_err(|PreconditionFailed| "there was none")?)),
            }
        })
    }

    fn clear(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
