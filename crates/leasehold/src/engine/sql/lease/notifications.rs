//! PostgreSQL notifications: one connection of each client runs `LISTEN`, and delivers what arrives
//! to the client's claims. They are hints that save time; correctness never depends on them.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::LeaseEngine;
use super::state::instant_from_micros;
use crate::clock::Clock;
use crate::engine::sql::connection::Connection;
use crate::engine::sql::connection_load;
use crate::engine::sql::error::{ErrorClass, Failure};
use crate::engine::sql::pool::Pool;
use crate::engine::sql::pooler::{self, PoolerProbe};
use crate::logic::backoff;
use crate::logic::connections::{self, WaitStrategy};
use crate::types::{ClaimId, FORMAT, LockName, Token};

/// The name of the channel on which the client with this id listens.
pub(super) fn channel(client_id: &str) -> String {
    format!("leasehold_{client_id}")
}

/// A notification: the number of its format, then its kind, claim, token and lock. The statement
/// that sends it adds the time.
pub(super) fn text(kind: char, claim: ClaimId, token: Token, name: impl Display) -> String {
    format!("{FORMAT} {kind} {:032x} {token} {name}", claim.bits())
}

/// Whether the client with this id listens; the id of one that does not begins with `-`.
pub(super) fn can_receive(client_id: &str) -> bool {
    !client_id.starts_with('-')
}

/// After a connection has listened for this long, the next failure is followed by the shortest
/// pause again.
const MIN_LISTEN_TIME: Duration = Duration::from_secs(1);

/// Why listening on a connection ended.
enum ListenEnd {
    /// It broke, or could not be opened.
    ConnectionLost,
    /// The server is short of connections: it refused this one, or the client gave it up.
    ConnectionShortage,
    /// A pooler gives each transaction another session, so no connection can listen.
    TransactionPooler,
}

/// Listens until the engine is dropped, at first on the connection `first` if there is one. If the
/// server is short of connections, gives up the connection, and checks from time to time whether
/// there are enough again.
pub(super) async fn listen(engine: Weak<LeaseEngine>, mut first: Option<Connection>) {
    let mut failures = 0;
    let mut strategy = WaitStrategy::Listen;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (pool, client_id, first_hold) =
            (Arc::clone(&strong.pool), Arc::clone(&strong.client_id), Arc::clone(&strong.first_hold));
        drop(strong);
        let opened = match first.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(&pool.config).await,
        };
        let end = match opened {
            Ok(connection) => {
                let started_at = pool.config.clock.now();
                let end = listen_once(&engine, &pool, &client_id, connection, strategy).await;
                // Only a connection that lasted resets the back-off: a pooler may close each one
                // after its first statement.
                if pool.config.clock.now().duration_since(started_at) >= MIN_LISTEN_TIME {
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
                strategy = WaitStrategy::Poll;
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
            // The client holds a lock now, and needs notifications of force releases.
            () = first_hold.notified(), if matches!(end, ListenEnd::ConnectionShortage) => {}
        }
    }
}

/// Why listening ended with this failure.
fn end_reason(pool: &Pool, failure: &Failure) -> ListenEnd {
    tracing::debug!(?failure, "cannot listen for notifications");
    pool.note_refusal(failure);
    if failure.class(pool.config.dialect) == Some(ErrorClass::TooManyConnections) {
        ListenEnd::ConnectionShortage
    } else {
        ListenEnd::ConnectionLost
    }
}

/// Listens on one connection until it ends, or until the server is short of connections. `strategy`
/// is `Poll` if the client gave up its connection before.
async fn listen_once(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    client_id: &str,
    mut connection: Connection,
    strategy: WaitStrategy,
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
    let end = listen_on(engine, pool, client_id, &mut connection, strategy).await;
    match &end {
        Ok(_) => connection.close().await,
        // No reply may ever come, so the connection is not closed cleanly.
        Err(_) => connection.abort(),
    }
    end
}

/// The same, on a connection with a session of its own, which the caller closes.
async fn listen_on(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    client_id: &str,
    connection: &mut Connection,
    strategy: WaitStrategy,
) -> Result<ListenEnd, Failure> {
    if !has_enough_connections(engine, pool, connection, strategy).await? {
        return Ok(ListenEnd::ConnectionShortage);
    }
    let listen = format!("LISTEN \"{}\"", channel(client_id));
    within_timeout(engine, pool, connection.execute_batch(&listen)).await?;
    pool.set_shortage(false);
    deliver_notifications(engine, pool, connection).await
}

/// How often the client looks whether its listening connection is due for a check.
const DUE_INTERVAL: Duration = Duration::from_millis(500);

/// Returns when the listening connection is due for a check: as often as the server's load must be
/// known, and once in a third of the shortest TTL. A firewall, or a proxy before a server that lost
/// its power, may have dropped the connection without closing it. So a client whose notifications no
/// longer arrive knows within about two thirds of that TTL.
async fn wait_for_check(engine: &Weak<LeaseEngine>, clock: &Clock) {
    let (since, pause) = (clock.now(), connection_load::check_pause());
    loop {
        // A claim with a shorter TTL may have come.
        let interval = engine.upgrade().map_or(pause, |engine| pause.min(engine.shortest_ttl() / 3));
        let passed = clock.now().duration_since(since);
        if passed >= interval {
            return;
        }
        clock.sleep((interval - passed).min(DUE_INTERVAL)).await;
    }
}

/// Bounds a statement on the listening connection.
async fn within_timeout<T>(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    statement: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let timeout = engine.upgrade().map_or(pool.config.connect_timeout, |engine| engine.reply_timeout());
    pool.config.clock.timeout(timeout, statement).await.unwrap_or_else(|_| Err(Failure::timed_out(timeout)))
}

/// Whether the server has enough connections left for one that listens. `current` is the strategy
/// until now: a client that polls resumes listening only if there are clearly enough.
async fn has_enough_connections(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    connection: &mut Connection,
    current: WaitStrategy,
) -> Result<bool, Failure> {
    let load = within_timeout(engine, pool, connection_load::query_postgres(connection)).await?;
    pool.note_usage(load);
    let is_holder = engine.upgrade().is_some_and(|engine| engine.is_holder());
    Ok(connections::next_strategy(current, Some(load), is_holder) == WaitStrategy::Listen)
}

/// Delivers the notifications that arrive on a connection, until it ends or is given up.
async fn deliver_notifications(
    engine: &Weak<LeaseEngine>,
    pool: &Pool,
    connection: &mut Connection,
) -> Result<ListenEnd, Failure> {
    let Some(mut notifications) = connection.take_notifications() else { return Ok(ListenEnd::ConnectionLost) };
    // Makes all waiters read their rows: notifications before the `LISTEN` were lost.
    let Some(clock) = engine.upgrade().map(|engine| {
        engine.set_unsubscribed(false);
        engine.clock.clone()
    }) else {
        return Ok(ListenEnd::ConnectionLost);
    };
    loop {
        let mut check = std::pin::pin!(async {
            wait_for_check(engine, &clock).await;
            has_enough_connections(engine, pool, connection, WaitStrategy::Listen).await
        });
        let has_enough = loop {
            tokio::select! {
                text = notifications.recv() => {
                    let (Some(text), Some(engine)) = (text, engine.upgrade()) else {
                        return Ok(ListenEnd::ConnectionLost);
                    };
                    engine.handle_notification(&text);
                }
                has_enough = &mut check => break has_enough?,
            }
        };
        if !has_enough {
            return Ok(ListenEnd::ConnectionShortage);
        }
    }
}

impl LeaseEngine {
    /// Handles one notification: a letter, the claim, a token, the lock's name, and the database's
    /// time in microseconds, separated by spaces. The letter is `g` for a grant, `e` for a force
    /// release, `l` if the first waiter must read the row, and `r` for a release request. The token
    /// is 0 except for `g`.
    fn handle_notification(&self, text: &str) {
        let read = || {
            let mut words = text.splitn(5, ' ');
            let _ours = words.next().filter(|format| format.parse() == Ok(FORMAT))?;
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
            _ => tracing::warn!(text, "ignored a notification in an unknown format"),
        }
    }
}
