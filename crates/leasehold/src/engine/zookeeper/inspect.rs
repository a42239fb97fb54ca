//! Inspection and force release.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, MultiWriteError, MultiWriteResult, Stat};

use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{error, steps, wire};
use crate::claim::{ClaimId, Token};
use crate::engine::{Evicted, LockView, PartyView, Step};
use crate::error::Result;
use crate::logic::fence;
use crate::logic::line::{Line, Stand};
use crate::name::LockName;

/// How many locks are read at the same time.
pub(super) const AT_ONCE: usize = 64;

/// How long the mark of a force release is kept at least, in ms of the servers' clock.
const MARKED_MS: i64 = 3_600_000;

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

/// All locks with a holder or a waiter.
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

/// The nodes of a lock's folder that a force release needs.
struct Found {
    /// The claim's nodes, and the version of each. There are several if its client has replaced an
    /// ended session that the servers still have.
    nodes: Vec<(String, i32)>,
    /// The claim's inspection view, by its first node.
    party: Option<PartyView>,
    /// The tokens of the other holders and of the first waiter; later waiters have higher ones.
    others: Vec<Token>,
}

async fn find(engine: &ZookeeperEngine, session: &Session, folder: &str, line: &Line, id: ClaimId) -> Result<Found> {
    let mut found = Found { nodes: Vec::new(), party: None, others: Vec::new() };
    let (holders, mut waits) = (line.holders(), false);
    for (at, stand) in line.stands().iter().enumerate() {
        let holds = at < holders;
        if waits && stand.claim != id {
            continue;
        }
        let path = format!("{folder}/{}", wire::node(stand));
        match session.client.get_data(&path).await {
            Ok((data, stat)) if stand.claim == id => {
                found.nodes.push((path, stat.version));
                found.party.get_or_insert_with(|| party(stand, &data, &stat, holds));
            }
            Ok((_, stat)) => {
                found.others.push(token(stand, &stat));
                waits |= !holds;
            }
            // It has left meanwhile.
            Err(Cause::NoNode) => {}
            Err(cause) => return Err(engine.failed(cause)),
        }
    }
    Ok(found)
}

/// Force releases a claim: deletes its nodes. If the claim does not exist, nothing changes.
///
/// **The token.** A waiter has its token from the moment when it joined the queue, so a fresh
/// number would refuse that waiter later. The advised token lies strictly between the released
/// holder's and the lowest of the others: the other holders' and the first waiter's. A resource
/// refuses a token that it has seen without an owner, or with another's, so the first waiter's own
/// number would refuse that waiter. Tokens are numbers of transactions, each used once. So the
/// number before the first waiter's is free, unless it is the released holder's. In that case no
/// number lies between, and none is advised ([`fence::advice`]). Without other claims, the token is
/// the number of the transaction that force releases: every later claim has a higher one.
///
/// The deletion names the versions of the nodes that were read: an owner that re-enters meanwhile
/// changes it, and stays with the same token.
pub(super) async fn evict(engine: &ZookeeperEngine, name: &LockName, claim: ClaimId, reason: &str) -> Result<Evicted> {
    let session = engine.any_session().await?;
    let (client, folder) = (&session.client, engine.folder(name));
    // Whether a mark exists already.
    let mut marked = false;
    loop {
        let (synced, listed) = join(client.sync(&folder), client.get_children(&folder)).await;
        let (nodes, seen) = match synced.and(listed) {
            Ok(found) => found,
            Err(Cause::NoNode) => return Ok(Evicted::new(None, None)),
            Err(cause) => return Err(engine.failed(cause)),
        };
        let line = steps::line(&session, &folder, &nodes).await.map_err(|cause| engine.failed(cause))?;
        let Found { nodes, party, others } = find(engine, &session, &folder, &line, claim).await?;
        let Some(party) = party else { return Ok(Evicted::new(None, None)) };
        let mut all = client.new_multi_writer();
        let mut added = nodes.iter().try_for_each(|(path, version)| all.add_delete(path, Some(*version)));
        if !marked {
            let persistent = CreateMode::Persistent.with_acls(engine.config.access.acls());
            added = added.and_then(|()| all.add_create(&engine.mark(claim), reason.as_bytes(), &persistent));
        }
        // Only if no claim was added since the list was read: a new claim changes the folder.
        if others.is_empty() {
            added = added.and_then(|()| all.add_set_data(&folder, name.as_str().as_bytes(), Some(seen.version)));
        }
        added.map_err(|cause| engine.failed(cause))?;
        let fresh = match all.commit().await.as_deref() {
            Ok([.., MultiWriteResult::SetData { stat }]) => Token(stat.mzxid.cast_unsigned()),
            Ok(_) => Token::default(),
            Err(MultiWriteError::OperationFailed { index, source: Cause::NodeExists }) if *index == nodes.len() => {
                marked = true;
                continue;
            }
            Err(MultiWriteError::OperationFailed { index, source: Cause::NoNode })
                if *index == nodes.len() && !marked =>
            {
                steps::make_persistent(engine, &session, &engine.marks()).await?;
                continue;
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => continue,
            Err(other) => return Err(engine.failed(error::cause(other.clone()))),
        };
        tracing::info!(%name, ?claim, reason, "evicted");
        sweep(engine, &session, &engine.mark(claim)).await;
        let advised = fence::advice(party.token, others, fresh);
        return Ok(Evicted::new(Some(party), advised));
    }
}

/// Requests that a holder releases its claim: a line in its node's data, which its client watches.
pub(super) async fn request_release(
    engine: &ZookeeperEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<Option<PartyView>> {
    let session = engine.any_session().await?;
    let (client, folder) = (&session.client, engine.folder(name));
    loop {
        let line = steps::read_line(engine, &session, &folder).await?;
        let holders = line.stands().iter().take(line.holders());
        let Some(stand) = holders.into_iter().find(|stand| stand.claim == claim) else { return Ok(None) };
        let path = format!("{folder}/{}", wire::node(stand));
        let (mut data, stat) = match client.get_data(&path).await {
            Ok(found) => found,
            Err(Cause::NoNode) => return Ok(None),
            Err(cause) => return Err(engine.failed(cause)),
        };
        let holder = party(stand, &data, &stat, true);
        if !wire::is_release_requested(&data) {
            data.extend_from_slice(wire::RELEASE_REQUESTED.as_bytes());
            match client.set_data(&path, &data, Some(stat.version)).await {
                Ok(_) => {}
                Err(Cause::NoNode) => return Ok(None),
                // Its client has written to the node meanwhile: try again over the new version.
                Err(Cause::BadVersion) => continue,
                Err(cause) => return Err(engine.failed(cause)),
            }
        }
        tracing::info!(%name, ?claim, reason, "release requested");
        return Ok(Some(holder));
    }
}

/// Whether a claim whose node is gone was force released: the same transaction created a mark, so
/// the session that saw the one sees the other. The mark stays until the claim is released: the
/// answer may be lost.
pub(super) async fn was_evicted(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) -> Result<bool> {
    let mark = session.client.check_stat(&engine.mark(claim)).await;
    Ok(mark.map_err(|cause| engine.failed(cause))?.is_some())
}

/// Deletes a claim's mark. A later force release deletes what this leaves.
pub(super) async fn delete_mark(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) {
    if let Err(cause) = session.client.delete(&engine.mark(claim), None).await {
        tracing::debug!(%cause, ?claim, "the mark of an eviction stays");
    }
}

/// Notes that a claim is released because an operator asked for it: its node's end does not tell a
/// release from the end of its session. If that fails, no release is known, and nothing else.
pub(super) async fn note_release(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) {
    let persistent = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let path = engine.release_note(claim);
    let mut noted = session.client.create(&path, b"", &persistent).await.map(drop);
    if matches!(noted, Err(Cause::NoNode)) && steps::make_persistent(engine, session, &engine.marks()).await.is_ok() {
        noted = session.client.create(&path, b"", &persistent).await.map(drop);
    }
    if let Err(cause) = noted {
        tracing::debug!(%cause, ?claim, "a release on request could not be noted");
    }
}

/// Whether a claim was released after an operator asked for it. Deletes the note of that.
pub(super) async fn was_released(engine: &ZookeeperEngine, claim: ClaimId) -> Result<bool> {
    let session = engine.any_session().await?;
    let (client, note) = (&session.client, engine.release_note(claim));
    let (synced, found) = join(client.sync(&note), client.check_stat(&note)).await;
    let noted = synced.and(found).map_err(|cause| engine.failed(cause))?.is_some();
    if noted && let Err(cause) = client.delete(&note, None).await {
        tracing::debug!(%cause, ?claim, "the note of a release stays");
    }
    Ok(noted)
}

/// Deletes marks and notes that are much older than this one: their waiters and operators are gone.
/// The next one retries what fails here.
pub(super) async fn sweep(engine: &ZookeeperEngine, session: &Session, latest: &str) {
    let client = &session.client;
    let made = async |path: &str| client.check_stat(path).await.ok().flatten().map(|stat| stat.ctime);
    let (Some(latest), Ok(marks)) = (made(latest).await, client.list_children(&engine.marks()).await) else {
        return;
    };
    for mark in marks.iter().take(AT_ONCE) {
        let path = format!("{}/{mark}", engine.marks());
        if made(&path).await.is_some_and(|at| latest - at > MARKED_MS) {
            let _ = client.delete(&path, None).await;
        }
    }
}

/// Watches the lock's folder: a claim that comes or goes changes its list of children.
pub(super) async fn watch(engine: &ZookeeperEngine, name: &LockName, patience: Duration) -> Result<Step<()>> {
    let session = engine.any_session().await?;
    let folder = engine.folder(name);
    let event = match session.client.list_and_watch_children(&folder).await {
        Ok((_, watcher)) => watcher,
        Err(Cause::NoNode) => match session.client.check_and_watch_stat(&folder).await {
            // The folder was created meanwhile.
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
