//! Holds of ours that have ended while the servers still have their nodes: their owner does not enter with them again, since it would get
//! the token of what is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::engine::ZookeeperEngine;
use super::seats::{Seat, Seats};
use super::session::Session;
use super::{steps, wire};
use crate::claim::ClaimId;
use crate::error::Result;
use crate::logic::line::{Id, Line};

/// How many sessions are remembered, besides those that live: the servers have let older ones go long ago.
const REMEMBERED: usize = 1024;

/// The sessions that this client has had, by the servers' numbers for them.
#[derive(Debug, Default)]
pub(super) struct Past(Mutex<VecDeque<(i64, Weak<Session>)>>);

impl Past {
    /// One has been opened.
    pub(super) fn note(&self, session: &Arc<Session>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED
            && let Some(oldest) = all.iter().position(|(_, session)| is_past(session))
        {
            all.remove(oldest);
        }
        all.push_back((session.client.session_id().0, Arc::downgrade(session)));
    }

    /// Whether this was one of ours, and is over: only the servers may still have it.
    fn has(&self, number: i64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(one, session)| *one == number && is_past(session))
    }
}

/// Whether nobody relies on a session any more. If a login was refused, it is over earlier than what was promised of it.
fn is_past(session: &Weak<Session>) -> bool {
    session.upgrade().is_none_or(|session| session.is_over() && session.now() >= session.until())
}

/// Takes out the node of a claim, on the session of this number, if its hold was ours and has ended. `true`: it has, and is out.
pub(super) async fn take_out(
    engine: &ZookeeperEngine,
    seat: &Seat,
    (claim, number): (ClaimId, i64),
    path: &str,
) -> Result<bool> {
    let ending = engine.seats.find(claim).filter(|other| other.is_ending());
    if ending.is_none() && !engine.past.has(number) {
        return Ok(false);
    }
    // Before it is gone: whoever gives it back just now hears that it was there.
    ending.iter().for_each(|other| other.note_taken_out());
    steps::delete(&seat.session, path).await.map_err(|cause| engine.failed(cause))?;
    Ok(true)
}

/// Takes out what is in the line of the same owner's holds that have ended. `true`: something was.
pub(super) async fn sweep(engine: &ZookeeperEngine, seat: &Seat, line: &Line, id: Id) -> Result<bool> {
    let owner = line.find(id).and_then(|stand| stand.owner);
    let mut swept = false;
    for stand in line.stands().iter().filter(|stand| owner.is_some() && stand.owner == owner && stand.id() != id) {
        let path = format!("{}/{}", seat.folder, wire::node(stand));
        let stat = seat.session.client.check_stat(&path).await.map_err(|cause| engine.failed(cause))?;
        if let Some(stat) = stat {
            swept |= take_out(engine, seat, (stand.claim, stat.ephemeral_owner), &path).await?;
        }
    }
    Ok(swept)
}

/// How often nodes of a claim that has left are looked for, in a quarter of the session's timeout each.
const LOOKS: u32 = 8;

/// Takes out what comes late of a claim that has left: a request for a node that was never answered may have been held back on its way, and
/// arrive after the claim was found to have none, and got another. Its session lives, so nobody else would ever take it out.
pub(super) fn sweep_late(seats: &Arc<Seats>, seat: &Seat) {
    let (seats, session) = (Arc::downgrade(seats), Arc::downgrade(&seat.session));
    let (claim, folder) = (seat.claim, seat.folder.clone());
    tokio::spawn(async move {
        for _ in 0..LOOKS {
            let (Some(seats), Some(session)) = (seats.upgrade(), session.upgrade()) else { return };
            if session.is_over() {
                return;
            }
            let (until, clock) = (session.now().after(session.timeout / 4), session.clock().clone());
            if let Err(cause) = take_out_late(&seats, &session, &folder, claim).await {
                tracing::debug!(%cause, "what a claim may have left behind could not be looked for");
            }
            // Nobody is kept from ending the session meanwhile.
            drop((seats, session));
            clock.sleep_until(until).await;
        }
    });
}

async fn take_out_late(
    seats: &Seats,
    session: &Session,
    folder: &str,
    claim: ClaimId,
) -> std::result::Result<(), leasehold_zookeeper::Error> {
    for node in steps::nodes_of(session, folder, claim).await? {
        // Whoever has come again since has a node that may not be in this list.
        if seats.find(claim).is_some() {
            return Ok(());
        }
        if steps::delete(session, &format!("{folder}/{node}")).await? {
            tracing::debug!(node, "came when its claim had left");
        }
    }
    Ok(())
}
