//! Writes that are announced before the commit.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::error::CacheError;
use super::options::micros;
use super::read_through::{ReadThrough, Shared, check_key, unexpected_reply_error};
use super::row::RowState;
use crate::logic::{Operation, OperationReply, WriteRequest};
use leasehold::Guard;
use leasehold::LostReason;
use leasehold::Token;
use leasehold::clock::Instant;
use leasehold::{Effect, Error};
use leasehold_internals::random;

/// A mark on a key, as its writer knows it.
struct Mark<'a> {
    key: &'a str,
    id: u128,
    generation: u64,
    /// The mark is set at least until then, by this process's clock.
    expires_at: Instant,
}

/// A mark that was requested and not confirmed. Dropping this removes the mark if it may be set: no
/// write uses it.
struct MarkGuard<'a> {
    shared: &'a Arc<Shared>,
    key: &'a str,
    mark: u128,
    may_be_set: bool,
}

impl Drop for MarkGuard<'_> {
    fn drop(&mut self) {
        if self.may_be_set
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (shared, key) = (Arc::clone(self.shared), self.key.to_owned());
            let operation = Operation::FinishWrite(self.mark, None, micros(shared.options.max_load_time));
            // The result is ignored: a mark that could not be removed expires.
            drop(runtime.spawn(async move { shared.send_with_retries(&key, operation).await }));
        }
    }
}

impl ReadThrough {
    /// Writes under a lock: calls `commit` with the token of `guard`. `commit` returns the
    /// [state of the row](RowState), which is then in the cache.
    ///
    /// The key is marked *before* the commit: until the write is over, reads go to the loader, and
    /// no value is accepted. So a writer that dies after its commit leaves no stale value: its mark
    /// expires, and the cached value with it. A writer with an older token than an earlier writer
    /// may not even begin.
    ///
    /// An error of `commit` does not prove that the write did not happen: the database may still
    /// apply a COMMIT whose reply is lost. The key therefore stays marked for
    /// [`max_write_time`](super::Builder::max_write_time), or until the next writer is done. If the
    /// write certainly did not and will not happen, let `commit` return `Ok(RowState::Unknown)` and
    /// return your error in another way: reads then use the cache again at once.
    ///
    /// # Errors
    /// [`CacheError::Superseded`], [`CacheError::Lost`] and [`CacheError::Unavailable`]: the write
    /// did not happen. This holds for every [`OutagePolicy`](super::OutagePolicy): a write that
    /// cannot be announced does not happen. [`CacheError::Commit`]: the error of `commit`.
    /// [`CacheError::MarkExpired`]: the write happened.
    ///
    /// # Cancellation safety
    /// If this is dropped, `commit` is dropped, too, and it is unknown how far it came: the mark
    /// stays until it expires.
    pub async fn write_through<F, Fut, N, E>(&self, key: &str, guard: &Guard, commit: F) -> Result<(), CacheError>
    where
        F: FnOnce(Token) -> Fut,
        Fut: Future<Output = Result<N, E>>,
        N: Into<RowState>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        if !guard.is_held() {
            let error = guard.lost_error(guard.lost_reason().unwrap_or(LostReason::Expired));
            return Err(CacheError::Lost(Arc::new(error)));
        }
        self.write_with(key, guard.token(), commit).await
    }

    /// As [`write_through`](Self::write_through), with a token from another source than a guard. It
    /// must number the writers of this key in rising order.
    ///
    /// # Errors
    /// As [`write_through`](Self::write_through).
    ///
    /// # Cancellation safety
    /// As [`write_through`](Self::write_through).
    pub async fn write_with<F, Fut, N, E>(&self, key: &str, token: Token, commit: F) -> Result<(), CacheError>
    where
        F: FnOnce(Token) -> Fut,
        Fut: Future<Output = Result<N, E>>,
        N: Into<RowState>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        check_key(key)?;
        let mut mark = self.set_mark(key, token).await?;
        let start = self.shared.clock.now();
        let committed = tokio::select! {
            biased;
            committed = commit(token) => committed,
            never = self.renew_mark(&mut mark) => match never {},
        };
        let now = match committed {
            Ok(now) => now.into(),
            Err(error) => {
                self.restore_mark(&mark, token).await;
                return Err(CacheError::Commit(CacheError::cause(error)));
            }
        };
        let ended = self.shared.clock.now();
        match self.finish_write(&mark, now, ended.duration_since(start)).await {
            Ok(()) => Ok(()),
            // The mark was set at the commit, and no value is accepted while it is. When it
            // expires, the cached value goes with it: reads stay correct, and are only slower until
            // then.
            Err(error) if ended < mark.expires_at => {
                tracing::debug!(%error, key, "the store did not respond after a write: the mark will expire");
                Ok(())
            }
            Err(error) => Err(CacheError::MarkExpired(Arc::new(error))),
        }
    }

    fn max_write_time(&self) -> Duration {
        self.shared.options.max_write_time
    }

    fn write_request(&self, mark: u128, token: Token) -> WriteRequest {
        let options = &self.shared.options;
        WriteRequest {
            mark,
            token: token.0,
            mark_time: micros(options.max_write_time),
            stale_for: options.stale_micros(),
            keep_for: micros(options.max_load_time),
        }
    }

    /// Marks the key; `Superseded` if a writer with a higher token came first.
    async fn set_mark<'a>(&self, key: &'a str, token: Token) -> Result<Mark<'a>, CacheError> {
        let (shared, id) = (&self.shared, random::unique_id());
        let sent = shared.clock.now();
        // Created before the request: a caller that is cancelled or times out before the reply may
        // have marked the key.
        let mut requested_mark = MarkGuard { shared, key, mark: id, may_be_set: true };
        let answer = shared.store.apply(key, Operation::BeginWrite(self.write_request(id, token))).await;
        requested_mark.may_be_set = answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
        match answer {
            Ok(OperationReply::WriteBegun(Ok(generation))) => {
                Ok(Mark { key, id, generation, expires_at: sent.saturating_add(self.max_write_time()) })
            }
            Ok(OperationReply::WriteBegun(Err(seen))) => Err(CacheError::Superseded { token, newest: Token(seen) }),
            Ok(_) => Err(unexpected_reply_error()),
            Err(error) => Err(CacheError::unavailable(error)),
        }
    }

    /// Marks the key again after a failed commit, because the write may still take effect; the mark
    /// then expires. If the mark had expired, a value that a reader stored since is dropped.
    async fn restore_mark(&self, mark: &Mark<'_>, token: Token) {
        let shared = &self.shared;
        let again = shared.send_with_retries(mark.key, Operation::BeginWrite(self.write_request(mark.id, token))).await;
        // A writer with a higher token came first. Its value may be outdated once the database has
        // applied this write.
        let restored = match again {
            Ok(OperationReply::WriteBegun(Err(_))) => shared.send_with_retries(mark.key, shared.invalidation(0)).await,
            other => other,
        };
        if let Err(error) = restored {
            tracing::warn!(%error, key = mark.key, "the key could not be marked after a failed write: its cached value may be stale until its TTL ends");
        }
    }

    /// Renews the mark until this future is dropped.
    async fn renew_mark(&self, mark: &mut Mark<'_>) -> Infallible {
        loop {
            self.shared.clock.sleep(self.max_write_time() / 3).await;
            self.extend_mark(mark).await;
        }
    }

    /// Renews the mark once; an error of the store is ignored, because the next renewal follows
    /// soon.
    async fn extend_mark(&self, mark: &mut Mark<'_>) {
        let (sent, time) = (self.shared.clock.now(), self.max_write_time());
        let operation = Operation::ExtendWrite(mark.id, micros(time), micros(self.shared.options.max_load_time));
        if let Ok(OperationReply::WriteExtended(true)) = self.shared.store.apply(mark.key, operation).await {
            mark.expires_at = sent.saturating_add(time);
        }
    }

    /// Removes the mark and stores the new state of the row. `cost`: how long the write took.
    async fn finish_write(&self, mark: &Mark<'_>, row_state: RowState, cost: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let row = match row_state {
            RowState::Present(row) => Some(Some(row)),
            RowState::Absent => Some(None),
            RowState::Unknown => None,
        };
        let load = row.map(|row| shared.loaded_value(mark.id, mark.generation, row, cost));
        let operation = Operation::FinishWrite(mark.id, load, micros(shared.options.max_load_time));
        // Sending it twice is harmless: only the value is then not in the cache.
        shared.send_with_retries(mark.key, operation).await.map(drop)
    }
}
