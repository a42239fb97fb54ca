//! Holds that have ended in this client while the servers still have their nodes. Another claim of
//! the same owner must not re-enter with such a node, because it would get the token of a hold that
//! has ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::claim_registry::{ClaimEntry, ClaimRegistry};
use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{steps, wire};
use crate::logic::node_queue::{NodeId, NodeQueue};
use crate::types::{ClaimId, Result};

/// How many sessions are remembered. The servers have ended older ones long ago.
const MAX_PAST_SESSIONS: usize = 1024;

/// The sessions that this client has or had, each with the servers' number for it.
#[derive(Debug, Default)]
pub(super) struct PastSessions(Mutex<VecDeque<(i64, Weak<Session>)>>);

impl PastSessions {
    /// Adds a new session.
    pub(super) fn add(&self, session: &Arc<Session>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_PAST_SESSIONS
            && let Some(oldest) = all.iter().position(|(_, session)| is_session_over(session))
        {
            all.remove(oldest);
        }
        all.push_back((session.client.session_id().0, Arc::downgrade(session)));
    }

    /// Whether the session with this number was this client's and is over for this client, though
    /// the servers may still have it.
    fn has_ended(&self, number: i64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(other, session)| *other == number && is_session_over(session))
    }
}

/// Whether a session is over and the deadlines of its claims have passed. (After a refused login, a
/// session is over before that.)
fn is_session_over(session: &Weak<Session>) -> bool {
    session.upgrade().is_none_or(|session| session.is_over() && session.now() >= session.deadline())
}

/// Deletes the node at `path` if it belongs to a hold that has ended in this client; `true` if it
/// did so. The pair is the node's claim and the number of the session that created it.
pub(super) async fn delete_ended_hold(
    engine: &ZookeeperEngine,
    entry: &ClaimEntry,
    (claim, number): (ClaimId, i64),
    path: &str,
) -> Result<bool> {
    let ending = engine.claims.find(claim).filter(|other| other.is_ending());
    if ending.is_none() && !engine.past_sessions.has_ended(number) {
        return Ok(false);
    }
    // Noted before the deletion, so that a release which runs at this moment reports that the node
    // existed.
    ending.iter().for_each(|other| other.mark_node_deleted());
    steps::delete(&entry.session, path).await.map_err(|cause| engine.request_error(cause))?;
    Ok(true)
}

/// Deletes the nodes of ended holds of the owner of `id`; `true` if there was one.
pub(super) async fn delete_ended_holds(
    engine: &ZookeeperEngine,
    entry: &ClaimEntry,
    queue: &NodeQueue,
    id: NodeId,
) -> Result<bool> {
    let owner = queue.find(id).and_then(|node| node.owner);
    let mut has_deleted = false;
    for node in queue.nodes().iter().filter(|node| owner.is_some() && node.owner == owner && node.id() != id) {
        let path = format!("{}/{}", entry.folder, wire::node_name(node));
        let stat = entry.session.client.check_stat(&path).await.map_err(|cause| engine.request_error(cause))?;
        if let Some(stat) = stat {
            has_deleted |= delete_ended_hold(engine, entry, (node.claim, stat.ephemeral_owner), &path).await?;
        }
    }
    Ok(has_deleted)
}

/// How many times late nodes of a claim are searched for. The pauses are a quarter of the session's
/// timeout.
const LATE_NODE_CHECKS: u32 = 8;

/// Starts to delete late nodes of a claim that has ended, in the background. A request to create a
/// node that was never answered may have been delayed, and may arrive now. The session still
/// exists, so without this the node would stay, and no other client would delete it.
pub(super) fn delete_late_nodes(registry: &Arc<ClaimRegistry>, entry: &ClaimEntry) {
    let (registry, session) = (Arc::downgrade(registry), Arc::downgrade(&entry.session));
    let (claim, folder) = (entry.claim, entry.folder.clone());
    tokio::spawn(async move {
        for _ in 0..LATE_NODE_CHECKS {
            let (Some(registry), Some(session)) = (registry.upgrade(), session.upgrade()) else { return };
            if session.is_over() {
                return;
            }
            let (until, clock) = (session.now().saturating_add(session.timeout / 4), session.clock().clone());
            if let Err(cause) = delete_late_nodes_once(&registry, &session, &folder, claim).await {
                tracing::debug!(%cause, "could not search for late nodes of a released claim; trying again");
            }
            // Dropped, so that the session can end in between.
            drop((registry, session));
            clock.sleep_until(until).await;
        }
    });
}

/// Deletes the nodes that a claim has now, unless the claim exists again.
async fn delete_late_nodes_once(
    registry: &ClaimRegistry,
    session: &Session,
    folder: &str,
    claim: ClaimId,
) -> std::result::Result<(), leasehold_zookeeper::Error> {
    for node in steps::list_claim_nodes(session, folder, claim).await? {
        // The claim exists again, and its nodes are its own.
        if registry.find(claim).is_some() {
            return Ok(());
        }
        if steps::delete(session, &format!("{folder}/{node}")).await? {
            tracing::debug!(node, "deleted a node that was created after its claim was released");
        }
    }
    Ok(())
}
