//! What others may see, and putting a claim out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{Error as Cause, MultiWriteError, MultiWriteResult, Stat};

use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{error, steps, wire};
use crate::claim::{ClaimId, Token};
use crate::engine::{Evicted, LockView, PartyView, Step};
use crate::error::Result;
use crate::logic::line::Stand;
use crate::name::LockName;

/// How many locks are looked at together.
pub(super) const AT_ONCE: usize = 64;

/// One lock.
pub(super) async fn one(engine: &ZookeeperEngine, name: &LockName) -> Result<LockView> {
    let session = engine.any_session().await?;
    view(engine, &session, name).await
}

async fn view(engine: &ZookeeperEngine, session: &Session, name: &LockName) -> Result<LockView> {
    let folder = engine.folder(name);
    let line = steps::read_line(engine, session, &folder).await?;
    let found = line.stands().iter().map(|stand| async {
        match session.client.get_data(&format!("{folder}/{}", wire::node(stand))).await {
            Ok((data, stat)) => Ok(Some((data, stat))),
            // It has left meanwhile.
            Err(Cause::NoNode) => Ok(None),
            Err(cause) => Err(engine.failed(cause)),
        }
    });
    let found = try_join_all(found).await?;
    let holders = line.holders();
    let mut view = LockView::free(name.clone());
    for (at, (stand, found)) in line.stands().iter().zip(found).enumerate() {
        let Some((data, stat)) = found else { continue };
        let party = party(stand, &data, &stat, at < holders);
        view.last_token = view.last_token.max(party.token);
        if at < holders { view.holders.push(party) } else { view.waiters.push(party) }
    }
    Ok(view)
}

fn token(stand: &Stand, stat: &Stat) -> Token {
    Token(stand.ride.map_or(stat.czxid.cast_unsigned(), |ride| ride.token))
}

#[allow(
    clippy::disallowed_methods,
    reason = "the server's clock against ours, only for people to read: nothing is decided by it"
)]
fn party(stand: &Stand, data: &[u8], stat: &Stat, holds: bool) -> PartyView {
    let (holder, ttl) = wire::read_record(data);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(stat.ctime.max(0).cast_unsigned()));
    PartyView::new(stand.claim, stand.mode, holds.then(|| token(stand, stat)), holder, age, ttl)
}

/// The names in a folder that begin with `prefix`, in order.
pub(super) async fn names(
    engine: &ZookeeperEngine,
    session: &Session,
    folder: &str,
    prefix: &str,
) -> Result<Vec<LockName>> {
    let (synced, listed) = join(session.client.sync(folder), session.client.list_children(folder)).await;
    let nodes = match synced.and(listed) {
        Ok(nodes) => nodes,
        Err(Cause::NoNode) => return Ok(Vec::new()),
        Err(cause) => return Err(engine.failed(cause)),
    };
    let ours = |node: &String| wire::unescaped(node).filter(|name| name.as_str().starts_with(prefix));
    let mut names: Vec<LockName> = nodes.iter().filter_map(ours).collect();
    names.sort();
    Ok(names)
}

/// All locks that somebody holds or waits for.
pub(super) async fn list(engine: &ZookeeperEngine, prefix: &str) -> Result<Vec<LockView>> {
    let session = engine.any_session().await?;
    let base = if engine.config.base.is_empty() { "/" } else { &engine.config.base };
    let names = names(engine, &session, base, prefix).await?;
    let mut views = Vec::new();
    for some in names.chunks(AT_ONCE) {
        views.extend(try_join_all(some.iter().map(|name| view(engine, &session, name))).await?);
    }
    views.retain(|view| !view.holders.is_empty() || !view.waiters.is_empty());
    Ok(views)
}

/// Deletes a claim's node. The token is above all that were granted, and not above any that will be: that of the first who waits
/// (tokens are in the order of the queue, and nobody who waits has had its turn), or the transaction's own, if nobody does.
pub(super) async fn evict(engine: &ZookeeperEngine, name: &LockName, claim: ClaimId, reason: &str) -> Result<Evicted> {
    let session = engine.any_session().await?;
    let (client, folder) = (&session.client, engine.folder(name));
    loop {
        let (synced, listed) = join(client.sync(&folder), client.get_children(&folder)).await;
        let (nodes, seen) = match synced.and(listed) {
            Ok(found) => found,
            Err(Cause::NoNode) => {
                steps::make_folder(engine, &session, name).await?;
                continue;
            }
            Err(cause) => return Err(engine.failed(cause)),
        };
        let line = steps::line(&session, &folder, &nodes).await.map_err(|cause| engine.failed(cause))?;
        let holders = line.holders();
        let (mut party, mut first) = (None, None);
        for (at, stand) in line.stands().iter().enumerate() {
            if stand.claim != claim && at < holders {
                continue;
            }
            let path = format!("{folder}/{}", wire::node(stand));
            match client.get_data(&path).await {
                Ok((data, stat)) if stand.claim == claim => {
                    party = Some((path, self::party(stand, &data, &stat, at < holders)));
                }
                Ok((_, stat)) => {
                    first = first.or(Some(stat.czxid));
                }
                Err(Cause::NoNode) => {}
                Err(cause) => return Err(engine.failed(cause)),
            }
            if party.is_some() && first.is_some() {
                break;
            }
        }
        let mut all = client.new_multi_writer();
        // Only if nobody has come since the list was read: whoever comes changes the folder.
        let mut added = if first.is_none() {
            all.add_set_data(&folder, name.as_str().as_bytes(), Some(seen.version))
        } else {
            Ok(())
        };
        if let Some((path, _)) = &party {
            added = added.and_then(|()| all.add_delete(path, None));
        }
        added.map_err(|cause| engine.failed(cause))?;
        let zxid = match all.commit().await.as_deref() {
            Ok([MultiWriteResult::SetData { stat }, ..]) => stat.mzxid,
            Ok(_) => first.unwrap_or_default(),
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => continue,
            Err(other) => return Err(engine.failed(error::cause(other.clone()))),
        };
        if party.is_some() {
            tracing::info!(%name, ?claim, reason, "put out");
        }
        return Ok(Evicted::new(party.map(|(_, party)| party), Token(zxid.cast_unsigned())));
    }
}

/// Watches the lock's folder: a claim that comes or goes changes its list of children.
pub(super) async fn watch(engine: &ZookeeperEngine, name: &LockName, patience: Duration) -> Result<Step<()>> {
    let session = engine.any_session().await?;
    let folder = engine.folder(name);
    let event = match session.client.list_and_watch_children(&folder).await {
        Ok((_, watcher)) => watcher,
        Err(Cause::NoNode) => match session.client.check_and_watch_stat(&folder).await {
            // It was made meanwhile.
            Ok((Some(_), _)) => return Ok(Step::ready(Ok(()))),
            Ok((None, watcher)) => watcher,
            Err(cause) => return Err(engine.failed(cause)),
        },
        Err(cause) => return Err(engine.failed(cause)),
    };
    let clock = engine.clock.clone();
    Ok(Step::new(async move {
        let _ = clock.timeout(patience, event.changed()).await;
        Ok(())
    }))
}
