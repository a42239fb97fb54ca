//! `leasehold evict --graceful`: asks the holders to release, and waits until they have.

use std::time::Duration;

use leasehold::engine::PartyView;
use leasehold::{LockName, Locks};

use super::{EvictedJson, line};
use crate::args::EvictArgs;
use crate::duration::human;
use crate::exit::{self, Failure};
use crate::output::{self, clean};
use crate::view::PartyJson;

/// How often the request is repeated: it may be lost with a connection.
const AGAIN: Duration = Duration::from_millis(500);

/// Sends each holder a release request, and waits until none of them holds the lock. A holder that
/// receives the request loses the lock at its deadline at the latest. One that holds it longer did
/// not receive the request, or did not understand it.
pub(super) async fn evict(
    locks: &Locks,
    name: &LockName,
    chosen: &[&PartyView],
    args: &EvictArgs,
    url: &str,
) -> Result<u8, Failure> {
    let reason = args.reason.as_deref().unwrap_or_default();
    let clock = locks.clock();
    let began = clock.now();
    let mut waits = Vec::new();
    // Waiters hold nothing, so they are evicted without a wait.
    for party in chosen.iter().filter(|party| party.token.is_none()) {
        locks.evict_because(name, party.claim, reason).await.map_err(|error| Failure::from(error).at(url))?;
    }
    let mut remaining: Vec<PartyView> = Vec::new();
    for party in chosen.iter().filter(|party| party.token.is_some()) {
        let asked = locks.request_release(name, party.claim, reason).await;
        if let Some(holder) = asked.map_err(|error| Failure::from(error).at(url))? {
            waits.push(holder.left);
            remaining.push(holder);
        }
    }
    // A lease that was just renewed lasts for a TTL; `left` may be slightly less.
    let longest = waits.into_iter().max().unwrap_or_default();
    let bound = began.after(longest + longest / 2 + Duration::from_secs(5));
    if !remaining.is_empty() {
        output::say(&format!(
            "asked for the release; waiting until it is released, or its lease ends in {}",
            human(longest)
        ));
    }
    while !remaining.is_empty() && clock.now() < bound {
        clock.sleep_until(clock.now().after(AGAIN)).await;
        let mut still = Vec::new();
        for party in remaining {
            let asked = locks.request_release(name, party.claim, reason).await;
            still.extend(asked.map_err(|error| Failure::from(error).at(url))?);
        }
        remaining = still;
    }
    let gone: Vec<&PartyView> =
        chosen.iter().copied().filter(|party| remaining.iter().all(|other| other.claim != party.claim)).collect();
    let took = human(clock.now().since(began));
    let text = if args.output.json {
        output::json(&EvictedJson {
            name: name.as_str(),
            engine: url,
            evicted: gone.into_iter().map(PartyJson::new).collect(),
            remaining: remaining.iter().map(PartyJson::new).collect(),
            fence_token: None,
            reason: args.reason.as_deref(),
        })
    } else {
        let name = clean(name.as_str());
        let mut text = String::new();
        for party in gone {
            text.push_str(&format!("released {name} within {took}: {}\n", line(party)));
        }
        for party in &remaining {
            text.push_str(&format!(
                "still holds {name} after {took}: {}\n  it did not hear of the request (an older version?); \
                 `leasehold evict` without --graceful forces it\n",
                line(party)
            ));
        }
        text + &format!("engine: {url}\n")
    };
    output::out(&text)?;
    Ok(if remaining.is_empty() { 0 } else { exit::CONFLICT })
}
