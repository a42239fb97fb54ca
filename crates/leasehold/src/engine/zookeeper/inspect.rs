//! Inspection and force release.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, MultiWriteError, MultiWriteResult, Stat};

use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{error, steps, wire};
use crate::engine::{ContenderView, ForceReleaseOutcome, LockView, Step};
use crate::logic::fence;
use crate::logic::node_queue::{ClaimState, NodeQueue, QueueNode, WatchTarget};
use crate::types::{ClaimId, LockName, Result, Token};

/// How many locks are read at the same time.
pub(super) const MAX_CONCURRENT: usize = 64;

/// How long the mark of a force release is kept at least, in ms of the servers' clock.
const MARK_RETENTION_MILLIS: i64 = 3_600_000;

/// One lock.
pub(super) async fn inspect_lock(engine: &ZookeeperEngine, name: &LockName) -> Result<LockView> {
    let session = engine.any_session().await?;
    view(engine, &session, name).await
}

async fn view(engine: &ZookeeperEngine, session: &Session, name: &LockName) -> Result<LockView> {
    let folder = engine.folder(name);
    let queue = match steps::read_queue(engine, session, &folder).await {
        Ok(queue) => queue,
        Err(error) if error.is_bad_record() => {
            let damage = Some(error.message_without_location());
            return Ok(LockView { damage, ..LockView::free(name.clone()) });
        }
        Err(error) => return Err(error),
    };
    let found = queue.nodes().iter().map(|node| async {
        match session.client.get_data(&format!("{folder}/{}", wire::node_name(node))).await {
            Ok((data, stat)) => Ok(Some((data, stat))),
            // It has left since the list was read.
            Err(Cause::NoNode) => Ok(None),
            Err(cause) => Err(engine.request_error(cause)),
        }
    });
    let found = try_join_all(found).await?;
    let holders = queue.holder_count();
    let mut view = LockView::free(name.clone());
    for (at, (node, found)) in queue.nodes().iter().zip(found).enumerate() {
        let Some((data, stat)) = found else { continue };
        let contender_view = to_contender_view(node, &data, &stat, at < holders);
        view.last_token = view.last_token.max(contender_view.token);
        if at < holders { view.holders.push(contender_view) } else { view.waiters.push(contender_view) }
    }
    Ok(view)
}

fn token(node: &QueueNode, stat: &Stat) -> Token {
    Token(node.reentry.map_or(stat.czxid.cast_unsigned(), |reentry| reentry.token))
}

#[allow(
    clippy::disallowed_methods,
    reason = "the server's clock against this process's, only displayed, never used for a decision"
)]
fn to_contender_view(node: &QueueNode, data: &[u8], stat: &Stat, holds: bool) -> ContenderView {
    let (holder, ttl) = wire::parse_holder_data(data);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(stat.ctime.max(0).cast_unsigned()));
    ContenderView::new(node.claim, node.mode, holds.then(|| token(node, stat)), holder, age, ttl)
}

/// The names in a folder that begin with `prefix`, in order.
pub(super) async fn list_names(
    engine: &ZookeeperEngine,
    session: &Session,
    folder: &str,
    prefix: &str,
) -> Result<Vec<LockName>> {
    let (synced, listed) = join(session.client.sync(folder), session.client.list_children(folder)).await;
    let nodes = match synced.and(listed) {
        Ok(nodes) => nodes,
        Err(Cause::NoNode) => return Ok(Vec::new()),
        Err(cause) => return Err(engine.request_error(cause)),
    };
    let is_match = |node: &String| wire::unescape_name(node).filter(|name| name.as_str().starts_with(prefix));
    let mut names: Vec<LockName> = nodes.iter().filter_map(is_match).collect();
    names.sort();
    Ok(names)
}

/// All locks with a holder or a waiter.
pub(super) async fn list_locks(engine: &ZookeeperEngine, prefix: &str) -> Result<Vec<LockView>> {
    let session = engine.any_session().await?;
    let base = if engine.config.base.is_empty() { "/" } else { &engine.config.base };
    let names = list_names(engine, &session, base, prefix).await?;
    let mut views = Vec::new();
    for some in names.chunks(MAX_CONCURRENT) {
        views.extend(try_join_all(some.iter().map(|name| view(engine, &session, name))).await?);
    }
    views.retain(|view| !view.holders.is_empty() || !view.waiters.is_empty() || view.damage.is_some());
    Ok(views)
}

/// The nodes of a lock's folder that a force release needs.
struct ForceReleaseNodes {
    /// The claim's nodes, and the version of each. There are several if its client has replaced an
    /// ended session that the servers still have.
    nodes: Vec<(String, i32)>,
    /// The claim's inspection view, by its first node; the token is the highest of its nodes. Its
    /// client may still use any of them: the one that it keeps depends on which session has ended.
    contender_view: Option<ContenderView>,
    /// The tokens of the other holders and of the first waiter; later waiters have higher ones.
    others: Vec<Token>,
}

async fn find_nodes(
    engine: &ZookeeperEngine,
    session: &Session,
    folder: &str,
    queue: &NodeQueue,
    id: ClaimId,
) -> Result<ForceReleaseNodes> {
    let mut found = ForceReleaseNodes { nodes: Vec::new(), contender_view: None, others: Vec::new() };
    let (holders, mut waits) = (queue.holder_count(), false);
    for (at, node) in queue.nodes().iter().enumerate() {
        let holds = at < holders;
        if waits && node.claim != id {
            continue;
        }
        let path = format!("{folder}/{}", wire::node_name(node));
        match session.client.get_data(&path).await {
            Ok((data, stat)) if node.claim == id => {
                found.nodes.push((path, stat.version));
                let contender_view =
                    found.contender_view.get_or_insert_with(|| to_contender_view(node, &data, &stat, holds));
                if holds {
                    contender_view.token = contender_view.token.max(Some(token(node, &stat)));
                }
            }
            Ok((_, stat)) => {
                found.others.push(token(node, &stat));
                waits |= !holds;
            }
            // It has left since the list was read.
            Err(Cause::NoNode) => {}
            Err(cause) => return Err(engine.request_error(cause)),
        }
    }
    Ok(found)
}

/// The nodes that a claim watches while it waits: path, data and version of each. A waiter that is
/// not next watches only the claim ahead, and not its own node.
async fn watched_nodes(
    engine: &ZookeeperEngine,
    session: &Session,
    folder: &str,
    queue: &NodeQueue,
    id: ClaimId,
) -> Result<Vec<(String, Vec<u8>, i32)>> {
    let mut watched = Vec::new();
    for node in queue.nodes().iter().filter(|node| node.claim == id) {
        let ClaimState::Waiting { watch: WatchTarget::Node(target), .. } = queue.state_of(node.id(), false) else {
            continue;
        };
        let Some(target) = queue.find(target).filter(|target| target.claim != id) else { continue };
        let path = format!("{folder}/{}", wire::node_name(target));
        match session.client.get_data(&path).await {
            Ok((data, stat)) => watched.push((path, data, stat.version)),
            // It has left, which notifies the waiter as well.
            Err(Cause::NoNode) => {}
            Err(cause) => return Err(engine.request_error(cause)),
        }
    }
    Ok(watched)
}

/// Force releases a claim: deletes its nodes, and writes what a waiter watches once more, which
/// notifies it. Has no effect if the claim does not exist.
///
/// **The token.** A waiter has its token from the moment when it joined the queue, so a fresh
/// number would refuse that waiter later. The advised token lies strictly between the released
/// holder's and the lowest of the others: the other holders' and the first waiter's. A resource
/// refuses a token that it has seen without an owner, or with another's, so the first waiter's own
/// number would refuse that waiter. Tokens are numbers of transactions, each used once. So the
/// number before the first waiter's is free, unless it is the released holder's. In that case no
/// number lies between, and none is advised ([`fence::force_release_token`]). Without other claims,
/// the token is the number of the transaction that force releases: every later claim has a higher
/// one.
///
/// The deletion names the versions of the nodes that were read: an owner that re-enters in between
/// changes the version, and keeps the lock with the same token.
pub(super) async fn force_release(
    engine: &ZookeeperEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<ForceReleaseOutcome> {
    let session = engine.any_session().await?;
    let (client, folder) = (&session.client, engine.folder(name));
    // Whether a mark exists already; and whether a waiter's watched node can be written.
    let (mut marked, mut can_notify) = (false, true);
    loop {
        let (synced, listed) = join(client.sync(&folder), client.get_children(&folder)).await;
        let (nodes, seen) = match synced.and(listed) {
            Ok(found) => found,
            Err(Cause::NoNode) => return Ok(ForceReleaseOutcome::new(None, None)),
            Err(cause) => return Err(engine.request_error(cause)),
        };
        let queue = steps::build_queue(engine, &session, &folder, &nodes).await?;
        let ForceReleaseNodes { nodes, contender_view, others } =
            find_nodes(engine, &session, &folder, &queue, claim).await?;
        let Some(contender_view) = contender_view else { return Ok(ForceReleaseOutcome::new(None, None)) };
        let mut all = client.new_multi_writer();
        let mut added = nodes.iter().try_for_each(|(path, version)| all.add_delete(path, Some(*version)));
        if !marked {
            let persistent = CreateMode::Persistent.with_acls(engine.config.access.acls());
            added = added.and_then(|()| all.add_create(&engine.mark_path(claim), reason.as_bytes(), &persistent));
        }
        let watched =
            if can_notify { watched_nodes(engine, &session, &folder, &queue, claim).await? } else { Vec::new() };
        for (path, data, version) in &watched {
            added = added.and_then(|()| all.add_set_data(path, data, Some(*version)));
        }
        // Only if no claim was added since the list was read: a new claim changes the folder.
        if others.is_empty() {
            added = added.and_then(|()| all.add_set_data(&folder, name.as_str().as_bytes(), Some(seen.version)));
        }
        added.map_err(|cause| engine.request_error(cause))?;
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
                steps::create_persistent(engine, &session, &engine.marks_folder()).await?;
                continue;
            }
            // The ACL of that node permits only its own login to write: the waiter learns with its
            // next heartbeat.
            Err(MultiWriteError::OperationFailed { index, source: Cause::NoAuth })
                if *index >= nodes.len() + usize::from(!marked) && !watched.is_empty() =>
            {
                can_notify = false;
                continue;
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => continue,
            Err(other) => return Err(engine.request_error(error::into_cause(other.clone()))),
        };
        tracing::info!(%name, ?claim, reason, "force released");
        delete_old_marks(engine, &session, &engine.mark_path(claim)).await;
        let force_release_token = fence::force_release_token(contender_view.token, others, fresh);
        return Ok(ForceReleaseOutcome::new(Some(contender_view), force_release_token));
    }
}

/// Requests that a holder releases its claim: a line in its node's data, which its client watches.
pub(super) async fn request_release(
    engine: &ZookeeperEngine,
    name: &LockName,
    claim: ClaimId,
    reason: &str,
) -> Result<Option<ContenderView>> {
    let session = engine.any_session().await?;
    let (client, folder) = (&session.client, engine.folder(name));
    loop {
        let queue = steps::read_queue(engine, &session, &folder).await?;
        let holders = queue.nodes().iter().take(queue.holder_count());
        let Some(node) = holders.into_iter().find(|node| node.claim == claim) else { return Ok(None) };
        let path = format!("{folder}/{}", wire::node_name(node));
        let (mut data, stat) = match client.get_data(&path).await {
            Ok(found) => found,
            Err(Cause::NoNode) => return Ok(None),
            Err(cause) => return Err(engine.request_error(cause)),
        };
        let holder = to_contender_view(node, &data, &stat, true);
        if !wire::is_release_requested(&data) {
            data.extend_from_slice(wire::RELEASE_REQUESTED_LINE.as_bytes());
            match client.set_data(&path, &data, Some(stat.version)).await {
                Ok(_) => {}
                Err(Cause::NoNode) => return Ok(None),
                // Its client has written to the node in between: try again over the new version.
                Err(Cause::BadVersion) => continue,
                Err(cause) => return Err(engine.request_error(cause)),
            }
        }
        tracing::info!(%name, ?claim, reason, "release requested");
        return Ok(Some(holder));
    }
}

/// Whether a claim whose node was deleted was force released: the same transaction created a mark,
/// so the session that saw the one sees the other. The mark stays until the claim is released: the
/// answer may be lost.
pub(super) async fn was_force_released(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) -> Result<bool> {
    let mark = session.client.check_stat(&engine.mark_path(claim)).await;
    Ok(mark.map_err(|cause| engine.request_error(cause))?.is_some())
}

/// Deletes a claim's mark. A later force release deletes what this leaves.
pub(super) async fn delete_mark(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) {
    if let Err(cause) = session.client.delete(&engine.mark_path(claim), None).await {
        tracing::debug!(%cause, ?claim, "the mark of a force release could not be deleted");
    }
}

/// Notes that a claim is released because an operator requested it: the end of its node does not
/// show whether it was released or its session ended. If that fails, the release stays unknown,
/// with no other effect.
pub(super) async fn note_release(engine: &ZookeeperEngine, session: &Session, claim: ClaimId) {
    let persistent = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let path = engine.release_note(claim);
    let mut noted = session.client.create(&path, b"", &persistent).await.map(drop);
    if matches!(noted, Err(Cause::NoNode))
        && steps::create_persistent(engine, session, &engine.marks_folder()).await.is_ok()
    {
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
    let noted = synced.and(found).map_err(|cause| engine.request_error(cause))?.is_some();
    if noted && let Err(cause) = client.delete(&note, None).await {
        tracing::debug!(%cause, ?claim, "the note of a release could not be deleted");
    }
    Ok(noted)
}

/// Deletes marks and notes that are much older than this one: their waiters and operators have
/// left. The next one retries after a failure here.
pub(super) async fn delete_old_marks(engine: &ZookeeperEngine, session: &Session, latest: &str) {
    let client = &session.client;
    let created_at = async |path: &str| client.check_stat(path).await.ok().flatten().map(|stat| stat.ctime);
    let (Some(latest), Ok(marks)) = (created_at(latest).await, client.list_children(&engine.marks_folder()).await)
    else {
        return;
    };
    for mark in marks.iter().take(MAX_CONCURRENT) {
        let path = format!("{}/{mark}", engine.marks_folder());
        if created_at(&path).await.is_some_and(|at| latest - at > MARK_RETENTION_MILLIS) {
            let _ = client.delete(&path, None).await;
        }
    }
}

/// Watches the lock's folder: a claim that comes or goes changes its list of children.
pub(super) async fn watch(engine: &ZookeeperEngine, name: &LockName, timeout: Duration) -> Result<Step<()>> {
    let session = engine.any_session().await?;
    let folder = engine.folder(name);
    let event = match session.client.list_and_watch_children(&folder).await {
        Ok((_, watcher)) => watcher,
        Err(Cause::NoNode) => match session.client.check_and_watch_stat(&folder).await {
            // The folder was created meanwhile.
            Ok((Some(_), _)) => return Ok(Step::ready(Ok(()))),
            Ok((None, watcher)) => watcher,
            Err(cause) => return Err(engine.request_error(cause)),
        },
        Err(cause) => return Err(engine.request_error(cause)),
    };
    let clock = engine.clock.clone();
    Ok(Step::new(async move {
        let _ = clock.timeout(timeout, event.changed()).await;
        Ok(())
    }))
}
