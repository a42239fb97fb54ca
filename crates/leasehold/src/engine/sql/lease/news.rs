//! Notifications: `LISTEN` on one connection to PostgreSQL, and their delivery to our claims. They
//! are hints that save time; correctness never depends on them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::LeaseEngine;
use super::state::moment;
use crate::claim::{ClaimId, Token};
use crate::engine::sql::error::{Failure, Meaning};
use crate::engine::sql::link::Link;
use crate::engine::sql::load;
use crate::engine::sql::pool::Pool;
use crate::engine::sql::pooler::{self, Probed};
use crate::logic::backoff;
use crate::logic::connections::{self, Wake};
use crate::name::LockName;

/// The channel on which a client listens.
pub(super) fn channel(inbox: &str) -> String {
    format!("leasehold_{inbox}")
}

/// The inbox of a client that listens has no `-` before it.
pub(super) fn listens(inbox: &str) -> bool {
    !inbox.starts_with('-')
}

/// A connection that listened this long was a success: the back-off restarts from its shortest
/// pause.
const LASTED: Duration = Duration::from_secs(1);

/// How a listening connection ended.
enum End {
    /// It broke, or could not be opened.
    Broken,
    /// The server is short of connections: ours was given up, or refused.
    Short,
    /// A pooler gives each transaction another session: no connection can listen.
    Pooled,
}

/// Listens as long as the engine lives, on `first` if there is one already. If the server is short
/// of connections, the client gives its own up and checks now and then whether there are more.
pub(super) async fn listen(engine: Weak<LeaseEngine>, mut first: Option<Link>) {
    let mut failures = 0;
    let mut wake = Wake::Listen;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (pool, inbox, holds) = (Arc::clone(&strong.pool), Arc::clone(&strong.inbox), Arc::clone(&strong.holds));
        drop(strong);
        let opened = match first.take() {
            Some(link) => Ok(link),
            None => Link::open(&pool.config).await,
        };
        let end = match opened {
            Ok(link) => {
                let began = pool.config.clock.now();
                let end = converse(&engine, &pool, &inbox, link, wake).await;
                // Only a connection that lasted resets the back-off: a pooler may cut each one
                // after its first statement.
                if pool.config.clock.now().since(began) >= LASTED {
                    failures = 0;
                }
                end.unwrap_or_else(|failure| end_of(&pool, &failure))
            }
            Err(failure) => end_of(&pool, &failure),
        };
        let Some(strong) = engine.upgrade() else { return };
        if !strong.is_deaf() {
            strong.deaf(true);
        }
        drop(strong);
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let pause = match end {
            End::Pooled => return,
            End::Short => {
                wake = Wake::Poll;
                pool.set_short(true);
                load::pause()
            }
            End::Broken => backoff::pause(failures, Duration::from_millis(20), Duration::from_secs(1), dice),
        };
        failures += 1;
        tokio::select! {
            () = pool.config.clock.sleep(pause) => {}
            // A holder needs notifications of force releases.
            () = holds.notified(), if matches!(end, End::Short) => {}
        }
    }
}

fn end_of(pool: &Pool, failure: &Failure) -> End {
    tracing::debug!(?failure, "cannot listen");
    pool.note_refusal(failure);
    if failure.meaning(pool.config.dialect) == Some(Meaning::Crowded) { End::Short } else { End::Broken }
}

/// Listens on one connection until it ends, or until the server needs it.
async fn converse(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    inbox: &str,
    mut link: Link,
    wake: Wake,
) -> Result<End, Failure> {
    if !pool.has_own_sessions() {
        let Probed { first, second, pooled } = pooler::probe_beside(link, &pool.config).await?;
        link = first;
        match second {
            Some(second) => second.close().await,
            None => {
                link.close().await;
                return Ok(End::Short);
            }
        }
        if pooled {
            link.close().await;
            return Ok(End::Pooled);
        }
        pool.own_sessions();
    }
    if !stays(engine, &mut link, wake).await? {
        link.close().await;
        return Ok(End::Short);
    }
    link.script(&format!("LISTEN \"{}\"", channel(inbox))).await?;
    pool.set_short(false);
    hear(engine, link).await
}

/// Whether the server has enough connections for one that listens.
async fn stays(engine: &Weak<LeaseEngine>, link: &mut Link, now: Wake) -> Result<bool, Failure> {
    let load = load::postgres(link).await?;
    let holds = engine.upgrade().is_some_and(|engine| engine.is_holder());
    Ok(connections::wake(now, Some(load), holds) == Wake::Listen)
}

/// Delivers the notifications of one connection, until it ends or is given up.
async fn hear(engine: &Weak<LeaseEngine>, mut link: Link) -> Result<End, Failure> {
    let Some(mut news) = link.news() else { return Ok(End::Broken) };
    // Looking at the rows finds what was sent before we listened.
    let Some(clock) = engine.upgrade().map(|engine| {
        engine.deaf(false);
        engine.clock.clone()
    }) else {
        return Ok(End::Broken);
    };
    let mut check_at = load::next_check(&clock);
    loop {
        tokio::select! {
            text = news.recv() => {
                let (Some(text), Some(engine)) = (text, engine.upgrade()) else { return Ok(End::Broken) };
                engine.heard(&text);
            }
            () = clock.sleep_until(check_at) => {
                check_at = load::next_check(&clock);
                if !stays(engine, &mut link, Wake::Listen).await? {
                    link.close().await;
                    return Ok(End::Short);
                }
            }
        }
    }
}

impl LeaseEngine {
    /// Handles one notification: `g <claim> <token> <name> <µs>` for a grant, `e <claim> 0 <name>
    /// <µs>` for a force release, `l …` for the first waiter that must look, `r …` for a holder
    /// that is asked for a release.
    fn heard(&self, text: &str) {
        let read = || {
            let mut words = text.splitn(4, ' ');
            let kind = words.next()?;
            let claim = u128::from_str_radix(words.next()?, 16).ok().map(ClaimId::from_bits)?;
            let token = Token(words.next()?.parse().ok()?);
            let (name, at) = words.next()?.rsplit_once(' ')?;
            Some((kind, claim, token, LockName::new(name).ok()?, moment(at.parse().ok()?)))
        };
        match read() {
            Some(("g", claim, token, name, at)) => self.told(&name, claim, token, at),
            Some(("e", claim, _, name, _)) => {
                self.look_again(&name, claim);
                self.losses.post(claim);
            }
            Some(("r", claim, ..)) => self.losses.request_release(claim),
            Some(("l", claim, _, name, _)) => self.look_again(&name, claim),
            _ => tracing::warn!(text, "a message that is not understood"),
        }
    }
}
