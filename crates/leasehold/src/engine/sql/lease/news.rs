//! Messages: PostgreSQL's `LISTEN` on one connection, handed out inside. They are hints that save time; nothing rests on them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::LeaseEngine;
use super::state::moment;
use crate::claim::{ClaimId, Token};
use crate::engine::sql::link::Link;
use crate::logic::backoff;
use crate::name::LockName;

/// The channel on which a client hears.
pub(super) fn channel(inbox: &str) -> String {
    format!("leasehold_{inbox}")
}

/// The inbox of a client that listens has nothing before it.
pub(super) fn listens(inbox: &str) -> bool {
    !inbox.starts_with('-')
}

/// Listens as long as the engine lives.
pub(super) async fn listen(engine: Weak<LeaseEngine>) {
    let mut failures = 0;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (pool, inbox) = (Arc::clone(&strong.pool), Arc::clone(&strong.inbox));
        drop(strong);
        match Link::open(&pool.config).await {
            Ok(mut link) => {
                if link.script(&format!("LISTEN \"{}\"", channel(&inbox))).await.is_ok() {
                    failures = 0;
                    hear(&engine, link).await;
                }
            }
            Err(failure) => tracing::debug!(?failure, "cannot listen"),
        }
        let Some(strong) = engine.upgrade() else { return };
        strong.deaf(true);
        drop(strong);
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let pause = backoff::pause(failures, Duration::from_millis(20), Duration::from_secs(1), dice);
        pool.config.clock.sleep(pause).await;
        failures += 1;
    }
}

/// Hands out what is heard on one connection, until it ends.
async fn hear(engine: &Weak<LeaseEngine>, mut link: Link) {
    let Some(mut news) = link.news() else { return };
    // Whatever was said before we listened is found by looking.
    if let Some(engine) = engine.upgrade() {
        engine.deaf(false);
    }
    while let Some(text) = news.recv().await {
        let Some(engine) = engine.upgrade() else { return };
        engine.heard(&text);
    }
}

impl LeaseEngine {
    /// One message: `g <claim> <token> <name> <µs>` for a grant, `e <claim> 0 <name> <µs>` for an eviction, `l …` for a claim that is
    /// next in line and shall look.
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
            Some(("l", claim, _, name, _)) => self.look_again(&name, claim),
            _ => tracing::warn!(text, "a message that is not understood"),
        }
    }
}
