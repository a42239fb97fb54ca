//! Writes that are announced before they are made.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::error::CacheError;
use super::options::micros;
use super::read_through::{ReadThrough, Shared, check, odd};
use super::row::Now;
use crate::claim::Token;
use crate::clock::Moment;
use crate::error::{Effect, Error};
use crate::guard::Guard;
use crate::lease::LostReason;
use crate::logic::cache::{Begin, Said, Step};
use crate::random;

/// A mark on a key, as its writer knows it.
struct Mark<'a> {
    key: &'a str,
    id: u128,
    generation: u64,
    /// The mark is set at least until then: counted from before the request.
    until: Moment,
}

/// A requested mark whose state is unknown. It is removed when this is dropped, since nothing will
/// be written under it.
struct Asked<'a> {
    shared: &'a Arc<Shared>,
    key: &'a str,
    mark: u128,
    open: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.open
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (shared, key) = (Arc::clone(self.shared), self.key.to_owned());
            let step = Step::Finish(self.mark, None, micros(shared.options.longest_load));
            // The result is ignored: a mark that could not be removed expires.
            drop(runtime.spawn(async move { shared.insist(&key, step).await }));
        }
    }
}

impl ReadThrough {
    /// Writes under a lock: calls `commit` with the token of `guard`. `commit` returns the state of
    /// the row [now](Now), which is then in the cache.
    ///
    /// The key is marked *before* the commit: until the write is over, reads go to the loader, and
    /// no value is accepted. So a writer that dies after its commit leaves nothing stale: its mark
    /// expires, and the cached value with it. A writer with an older token than an earlier writer
    /// may not even begin.
    ///
    /// An error of `commit` does not mean that nothing was written: the database may still apply a
    /// COMMIT whose reply is lost. The key therefore stays marked for
    /// [`longest_write`](super::Builder::longest_write), or until the next writer is done. If you
    /// know that nothing was or will be written, let `commit` return `Ok(Now::Unknown)` and keep
    /// your error elsewhere: reads use the cache again at once.
    ///
    /// # Errors
    /// [`CacheError::Superseded`], [`CacheError::Lost`] and [`CacheError::Unavailable`]: nothing
    /// was written. This holds for every [`Outage`](super::Outage) option: a write that cannot be
    /// announced is not made. [`CacheError::Commit`]: the error of `commit`.
    /// [`CacheError::Unsettled`]: it was written.
    ///
    /// # Cancellation safety
    /// If this is dropped, `commit` is dropped, too, and it is unknown how far it came: the mark
    /// stays until it expires.
    pub async fn write_through<F, Fut, N, E>(&self, key: &str, guard: &Guard, commit: F) -> Result<(), CacheError>
    where
        F: FnOnce(Token) -> Fut,
        Fut: Future<Output = Result<N, E>>,
        N: Into<Now>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        if !guard.is_held() {
            let error = guard.lost_error(guard.lost_reason().unwrap_or(LostReason::Expired));
            return Err(CacheError::Lost(Arc::new(error)));
        }
        self.write_with(key, guard.token(), commit).await
    }

    /// The same with a token from another source, which must number the writers of this key in
    /// rising order.
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
        N: Into<Now>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        check(key)?;
        let mut mark = self.begin(key, token).await?;
        let start = self.shared.clock.now();
        let committed = tokio::select! {
            biased;
            committed = commit(token) => committed,
            never = self.renew(&mut mark) => match never {},
        };
        let now = match committed {
            Ok(now) => now.into(),
            Err(error) => {
                self.doubt(&mark, token).await;
                return Err(CacheError::Commit(CacheError::cause(error)));
            }
        };
        let ended = self.shared.clock.now();
        match self.finish(&mark, now, ended.since(start)).await {
            Ok(()) => Ok(()),
            // The mark was set at the commit, and no value is accepted while it is. When it
            // expires, the cached value goes with it: reads stay correct, and are only slower until
            // then.
            Err(error) if ended < mark.until => {
                tracing::debug!(%error, key, "the cache could not be told of a write: the mark ends by itself");
                Ok(())
            }
            Err(error) => Err(CacheError::Unsettled(Arc::new(error))),
        }
    }

    fn longest_write(&self) -> Duration {
        self.shared.options.longest_write
    }

    fn announced(&self, mark: u128, token: Token) -> Begin {
        let options = &self.shared.options;
        Begin {
            mark,
            token: token.0,
            mark_for: micros(options.longest_write),
            stale_for: options.stale(),
            keep_for: micros(options.longest_load),
        }
    }

    async fn begin<'a>(&self, key: &'a str, token: Token) -> Result<Mark<'a>, CacheError> {
        let (shared, id) = (&self.shared, random::unique());
        let sent = shared.clock.now();
        // Created before the request, as for a lease: a caller that is cancelled or times out
        // before the reply may have marked the key.
        let mut asked = Asked { shared, key, mark: id, open: true };
        let answer = shared.store.step(key, Step::Begin(self.announced(id, token))).await;
        asked.open = answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
        match answer {
            Ok(Said::Begun(Ok(generation))) => {
                Ok(Mark { key, id, generation, until: sent.after(self.longest_write()) })
            }
            Ok(Said::Begun(Err(seen))) => Err(CacheError::Superseded { token, seen: Token(seen) }),
            Ok(_) => Err(odd()),
            Err(error) => Err(CacheError::unavailable(error)),
        }
    }

    /// It is unknown whether the write took, or will take, effect. The mark is set again and left
    /// to expire. If it had expired, a value that a reader stored since is dropped, too.
    async fn doubt(&self, mark: &Mark<'_>, token: Token) {
        let shared = &self.shared;
        let again = shared.insist(mark.key, Step::Begin(self.announced(mark.id, token))).await;
        // A newer writer came first. Its value may be outdated once the database is done.
        let told = match again {
            Ok(Said::Begun(Err(_))) => shared.insist(mark.key, shared.forget(0)).await,
            other => other,
        };
        if let Err(error) = told {
            tracing::warn!(%error, key = mark.key, "the cache could not be told of a write that failed");
        }
    }

    /// Renews the mark while the writer is at work.
    async fn renew(&self, mark: &mut Mark<'_>) -> Infallible {
        loop {
            self.shared.clock.sleep(self.longest_write() / 3).await;
            self.extend(mark).await;
        }
    }

    async fn extend(&self, mark: &mut Mark<'_>) {
        let (sent, time) = (self.shared.clock.now(), self.longest_write());
        let step = Step::Extend(mark.id, micros(time), micros(self.shared.options.longest_load));
        if let Ok(Said::Extended(true)) = self.shared.store.step(mark.key, step).await {
            mark.until = sent.after(time);
        }
    }

    async fn finish(&self, mark: &Mark<'_>, now: Now, cost: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let row = match now {
            Now::Is(row) => Some(Some(row)),
            Now::Nothing => Some(None),
            Now::Unknown => None,
        };
        let load = row.map(|row| shared.load(mark.id, mark.generation, row, cost));
        let step = Step::Finish(mark.id, load, micros(shared.options.longest_load));
        // Sending it twice is harmless: only the value is then not in the cache.
        shared.insist(mark.key, step).await.map(drop)
    }
}
