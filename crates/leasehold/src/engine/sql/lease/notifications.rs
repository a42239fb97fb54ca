//! Notifications: `LISTEN` on one connection to PostgreSQL, and their delivery to our claims. They
//! are hints that save time; correctness never depends on them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::LeaseEngine;
use super::state::instant_from_micros;
use crate::engine::sql::connection::Connection;
use crate::engine::sql::connection_load;
use crate::engine::sql::error::{ErrorClass, Failure};
use crate::engine::sql::pool::Pool;
use crate::engine::sql::pooler::{self, PoolerProbe};
use crate::logic::backoff;
use crate::logic::connections::{self, WaitStrategy};
use crate::types::{ClaimId, LockName, Token};

/// The channel on which a client listens.
pub(super) fn channel(inbox: &str) -> String {
    format!("leasehold_{inbox}")
}

/// The inbox of a client that listens has no `-` before it.
pub(super) fn can_receive(inbox: &str) -> bool {
    !inbox.starts_with('-')
}

/// A connection that listened this long was a success: the back-off restarts from its shortest
/// pause.
const MIN_LISTEN_TIME: Duration = Duration::from_secs(1);

/// How a listening connection ended.
enum ListenEnd {
    /// It broke, or could not be opened.
    ConnectionLost,
    /// The server is short of connections: ours was given up, or refused.
    ConnectionShortage,
    /// A pooler gives each transaction another session: no connection can listen.
    TransactionPooler,
}

/// Listens as long as the engine lives, on `first` if there is one already. If the server is short
/// of connections, the client gives its own up and checks now and then whether there are more.
pub(super) async fn listen(engine: Weak<LeaseEngine>, mut first: Option<Connection>) {
    let mut failures = 0;
    let mut wake = WaitStrategy::Listen;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (pool, inbox, holds) =
            (Arc::clone(&strong.pool), Arc::clone(&strong.client_id), Arc::clone(&strong.first_hold));
        drop(strong);
        let opened = match first.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(&pool.config).await,
        };
        let end = match opened {
            Ok(connection) => {
                let began = pool.config.clock.now();
                let end = listen_once(&engine, &pool, &inbox, connection, wake).await;
                // Only a connection that lasted resets the back-off: a pooler may cut each one
                // after its first statement.
                if pool.config.clock.now().duration_since(began) >= MIN_LISTEN_TIME {
                    failures = 0;
                }
                end.unwrap_or_else(|failure| end_reason(&pool, &failure))
            }
            Err(failure) => end_reason(&pool, &failure),
        };
        let Some(strong) = engine.upgrade() else { return };
        if !strong.is_unsubscribed() {
            strong.set_unsubscribed(true);
        }
        drop(strong);
        let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let pause = match end {
            ListenEnd::TransactionPooler => return,
            ListenEnd::ConnectionShortage => {
                wake = WaitStrategy::Poll;
                pool.set_shortage(true);
                connection_load::check_pause()
            }
            ListenEnd::ConnectionLost => {
                backoff::pause(failures, Duration::from_millis(20), Duration::from_secs(1), random_bits)
            }
        };
        failures += 1;
        tokio::select! {
            () = pool.config.clock.sleep(pause) => {}
            // A holder needs notifications of force releases.
            () = holds.notified(), if matches!(end, ListenEnd::ConnectionShortage) => {}
        }
    }
}

fn end_reason(pool: &Pool, failure: &Failure) -> ListenEnd {
    tracing::debug!(?failure, "cannot listen");
    pool.note_refusal(failure);
    if failure.class(pool.config.dialect) == Some(ErrorClass::TooManyConnections) {
        ListenEnd::ConnectionShortage
    } else {
        ListenEnd::ConnectionLost
    }
}

/// Listens on one connection until it ends, or until the server needs it.
async fn listen_once(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    inbox: &str,
    mut connection: Connection,
    wake: WaitStrategy,
) -> Result<ListenEnd, Failure> {
    if !pool.has_own_sessions() {
        let PoolerProbe { first, second, has_transaction_pooler: pooled } =
            pooler::probe_with(connection, &pool.config).await?;
        connection = first;
        match second {
            Some(second) => second.close().await,
            None => {
                connection.close().await;
                return Ok(ListenEnd::ConnectionShortage);
            }
        }
        if pooled {
            connection.close().await;
            return Ok(ListenEnd::TransactionPooler);
        }
        pool.mark_own_sessions();
    }
    if !has_enough_connections(engine, &mut connection, wake).await? {
        connection.close().await;
        return Ok(ListenEnd::ConnectionShortage);
    }
    connection.execute_batch(&format!("LISTEN \"{}\"", channel(inbox))).await?;
    pool.set_shortage(false);
    deliver_notifications(engine, connection).await
}

/// Whether the server has enough connections for one that listens.
async fn has_enough_connections(
    engine: &Weak<LeaseEngine>,
    connection: &mut Connection,
    now: WaitStrategy,
) -> Result<bool, Failure> {
    let load = connection_load::query_postgres(connection).await?;
    let holds = engine.upgrade().is_some_and(|engine| engine.is_holder());
    Ok(connections::next_strategy(now, Some(load), holds) == WaitStrategy::Listen)
}

/// Delivers the notifications of one connection, until it ends or is given up.
async fn deliver_notifications(engine: &Weak<LeaseEngine>, mut connection: Connection) -> Result<ListenEnd, Failure> {
    let Some(mut notifications) = connection.take_notifications() else { return Ok(ListenEnd::ConnectionLost) };
    // Looking at the rows finds what was sent before we listened.
    let Some(clock) = engine.upgrade().map(|engine| {
        engine.set_unsubscribed(false);
        engine.clock.clone()
    }) else {
        return Ok(ListenEnd::ConnectionLost);
    };
    let mut check_at = connection_load::next_check(&clock);
    loop {
        tokio::select! {
            text = notifications.recv() => {
                let (Some(text), Some(engine)) = (text, engine.upgrade()) else { return Ok(ListenEnd::ConnectionLost) };
                engine.handle_notification(&text);
            }
            () = clock.sleep_until(check_at) => {
                check_at = connection_load::next_check(&clock);
                if !has_enough_connections(engine, &mut connection, WaitStrategy::Listen).await? {
                    connection.close().await;
                    return Ok(ListenEnd::ConnectionShortage);
                }
            }
        }
    }
}

impl LeaseEngine {
    /// Handles one notification: `g <claim> <token> <name> <µs>` for a grant, `e <claim> 0 <name>
    /// <µs>` for a force release, `l …` for the first waiter that must look, `r …` for a holder
    /// that is asked for a release.
    fn handle_notification(&self, text: &str) {
        let read = || {
            let mut words = text.splitn(4, ' ');
            let kind = words.next()?;
            let claim = u128::from_str_radix(words.next()?, 16).ok().map(ClaimId::from_bits)?;
            let token = Token(words.next()?.parse().ok()?);
            let (name, at) = words.next()?.rsplit_once(' ')?;
            Some((kind, claim, token, LockName::new(name).ok()?, instant_from_micros(at.parse().ok()?)))
        };
        match read() {
            Some(("g", claim, token, name, at)) => self.on_grant_notification(&name, claim, token, at),
            Some(("e", claim, _, name, _)) => {
                self.on_change_notification(&name, claim);
                self.losses.report_lost(claim);
            }
            Some(("r", claim, ..)) => self.losses.report_release_request(claim),
            Some(("l", claim, _, name, _)) => self.on_change_notification(&name, claim),
            _ => tracing::warn!(text, "a message in an unknown format"),
        }
    }
}
