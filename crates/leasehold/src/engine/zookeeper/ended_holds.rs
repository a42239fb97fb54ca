//! Ended holds of ours whose nodes the servers still have. Their owner must not re-enter with them:
//! it would get the token of a hold that has ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::claim_registry::{ClaimEntry, ClaimRegistry};
use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{steps, wire};
use crate::logic::node_queue::{NodeId, NodeQueue};
use crate::types::{ClaimId, Result};

/// How many ended sessions are remembered: the servers have ended older ones long ago.
const MAX_PAST_SESSIONS: usize = 1024;

/// The sessions that this client has had, by the servers' numbers for them.
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

    /// Whether this was a session of ours that has ended for us: only the servers may still have
    /// it.
    fn has_ended(&self, number: i64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(one, session)| *one == number && is_session_over(session))
    }
}

/// Whether no claim relies on a session any more. After a refused login, a session is over before
/// the deadlines of its claims.
fn is_session_over(session: &Weak<Session>) -> bool {
    session.upgrade().is_none_or(|session| session.is_over() && session.now() >= session.deadline())
}

/// Deletes the node of a claim, on the session of this number, if its hold was ours and has ended.
/// `true`: it had, and is deleted.
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
    // Noted before the deletion: a release that runs at this moment then reports that the node
    // existed.
    ending.iter().for_each(|other| other.mark_node_deleted());
    steps::delete(&entry.session, path).await.map_err(|cause| engine.request_error(cause))?;
    Ok(true)
}

/// Deletes the nodes of the same owner's ended holds. `true`: there was one.
pub(super) async fn delete_ended_holds(
    engine: &ZookeeperEngine,
    entry: &ClaimEntry,
    queue: &NodeQueue,
    id: NodeId,
) -> Result<bool> {
    let owner = queue.find(id).and_then(|node| node.owner);
    let mut swept = false;
    for node in queue.nodes().iter().filter(|node| owner.is_some() && node.owner == owner && node.id() != id) {
        let path = format!("{}/{}", entry.folder, wire::node_name(node));
        let stat = entry.session.client.check_stat(&path).await.map_err(|cause| engine.request_error(cause))?;
        if let Some(stat) = stat {
            swept |= delete_ended_hold(engine, entry, (node.claim, stat.ephemeral_owner), &path).await?;
        }
    }
    Ok(swept)
}

/// How many times a claim's late nodes are searched for, a quarter of the session's timeout apart.
const LATE_NODE_CHECKS: u32 = 8;

/// Deletes late nodes of a claim that has left. A create that was never answered may have been
/// delayed, and arrive after the claim was found to have no node and got another one. Its session
/// lives, so no other client would ever delete that node.
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
                tracing::debug!(%cause, "could not search for late nodes of a released claim");
            }
            // Dropped, so that the session can end in between.
            drop((registry, session));
            clock.sleep_until(until).await;
        }
    });
}

async fn delete_late_nodes_once(
    registry: &ClaimRegistry,
    session: &Session,
    folder: &str,
    claim: ClaimId,
) -> std::result::Result<(), leasehold_zookeeper::Error> {
    for node in steps::list_claim_nodes(session, folder, claim).await? {
        // The claim exists again: it has a node that may not be in this list.
        if registry.find(claim).is_some() {
            return Ok(());
        }
        if steps::delete(session, &format!("{folder}/{node}")).await? {
            tracing::debug!(node, "deleted a node that was created after its claim was released");
        }
    }
    Ok(())
}
