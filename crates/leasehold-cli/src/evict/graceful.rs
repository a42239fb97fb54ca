//! `leasehold evict --graceful`: ask the holders to release, and wait until they have.

use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::engine::PartyView;
use leasehold::{LockName, Locks};
use serde::Serialize;

use super::line;
use crate::args::EvictArgs;
use crate::duration::human;
use crate::exit::{self, Failure};
use crate::output::{self, clean};
use crate::view::PartyJson;

/// How often the request is repeated: it may be lost with a connection. The answer also tells
/// whether the claim still holds.
const AGAIN: Duration = Duration::from_millis(100);

/// How much longer than the leases the command waits: a holder that renewed just before the request
/// holds for a whole TTL.
const SLACK: Duration = Duration::from_secs(5);

/// A holder that was asked.
struct Asked {
    party: PartyView,
    /// When its lease ends, by the last answer.
    ends: Moment,
    /// A holder that does not release gives the claim back so much before the end of its lease.
    margin: Duration,
}

/// What happened to the claims.
#[derive(Default)]
struct Came {
    /// Released before their leases ended.
    released: Vec<PartyView>,
    /// Their leases ended: the work under them may still run.
    lease_ended: Vec<PartyView>,
    /// They are gone, and no release is known: their sessions ended, or they released before they
    /// learned of the request. In JSON they are among `lease_ended`.
    unconfirmed: Vec<PartyView>,
    remaining: Vec<Asked>,
    /// They wait, or are gone.
    not_holding: Vec<PartyView>,
}

#[derive(Debug, Serialize)]
struct CameJson<'a> {
    name: &'a str,
    engine: &'a str,
    released: Vec<PartyJson<'a>>,
    lease_ended: Vec<PartyJson<'a>>,
    remaining: Vec<PartyJson<'a>>,
    not_holding: Vec<PartyJson<'a>>,
    seconds: f64,
    reason: Option<&'a str>,
}

/// Sends each holder a release request, and waits until none of them holds the lock. Waiters are left
/// alone: one that waited at the inspection may hold by now, and must not be forced.
pub(super) async fn evict(
    locks: &Locks,
    name: &LockName,
    chosen: &[&PartyView],
    args: &EvictArgs,
    url: &str,
) -> Result<u8, Failure> {
    let clock = locks.clock();
    let began = clock.now();
    let mut came = Came::default();
    for party in chosen {
        match ask(locks, name, party, args).await.map_err(|error| Failure::from(error).at(url))? {
            Some(asked) => came.remaining.push(asked),
            None => came.not_holding.push((*party).clone()),
        }
    }
    wait(locks, name, args, &mut came).await.map_err(|error| Failure::from(error).at(url))?;
    let took = clock.now().since(began);
    let text = if args.output.json { json(&came, name, url, took, args) } else { text(&came, name, url, took, args) };
    output::out(&text)?;
    let asked = came.released.len() + came.lease_ended.len() + came.unconfirmed.len();
    Ok(if came.remaining.is_empty() && asked > 0 { 0 } else { exit::CONFLICT })
}

async fn ask(locks: &Locks, name: &LockName, party: &PartyView, args: &EvictArgs) -> leasehold::Result<Option<Asked>> {
    let reason = args.reason.as_deref().unwrap_or_default();
    let asked = locks.request_release(name, party.claim, reason).await?;
    let now = locks.clock().now();
    Ok(asked.map(|party| Asked { ends: now.after(party.left), margin: party.left / 50, party }))
}

/// Asks a holder again. If it is gone, the engine knows whether it has released; or the time tells
/// it, as the engine's answers state when the lease ends.
async fn follow(
    locks: &Locks,
    name: &LockName,
    args: &EvictArgs,
    asked: &Asked,
    came: &mut Came,
) -> leasehold::Result<()> {
    if let Some(still) = ask(locks, name, &asked.party, args).await? {
        came.remaining.push(Asked { margin: asked.margin, ..still });
        return Ok(());
    }
    let now = locks.clock().now();
    let gone = match locks.was_released(name, asked.party.claim).await? {
        Some(true) => &mut came.released,
        Some(false) => &mut came.unconfirmed,
        None if now.after(asked.margin) < asked.ends => &mut came.released,
        None => &mut came.lease_ended,
    };
    gone.push(asked.party.clone());
    Ok(())
}

/// Repeats the requests until no claim holds the lock. They stand while the engine is unreachable for
/// a moment.
async fn wait(locks: &Locks, name: &LockName, args: &EvictArgs, came: &mut Came) -> leasehold::Result<()> {
    let clock = locks.clock();
    let Some(last) = came.remaining.iter().map(|asked| asked.ends).max() else { return Ok(()) };
    let left = human(last.since(clock.now()));
    output::say(&format!("asked for the release; waiting until it is released, or its lease ends in {left}"));
    let bound = last.after(SLACK);
    let mut told = false;
    while !came.remaining.is_empty() && clock.now() < bound {
        clock.sleep_until(clock.now().after(AGAIN)).await;
        for asked in std::mem::take(&mut came.remaining) {
            match follow(locks, name, args, &asked, came).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    if !std::mem::replace(&mut told, true) {
                        output::say(&format!("{error}; it was asked, trying again"));
                    }
                    came.remaining.push(asked);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn json(came: &Came, name: &LockName, url: &str, took: Duration, args: &EvictArgs) -> String {
    fn parties(parties: &[PartyView]) -> Vec<PartyJson<'_>> {
        parties.iter().map(PartyJson::new).collect()
    }
    output::json(&CameJson {
        name: name.as_str(),
        engine: url,
        released: parties(&came.released),
        lease_ended: came.lease_ended.iter().chain(&came.unconfirmed).map(PartyJson::new).collect(),
        remaining: came.remaining.iter().map(|asked| PartyJson::new(&asked.party)).collect(),
        not_holding: parties(&came.not_holding),
        seconds: took.as_secs_f64(),
        reason: args.reason.as_deref(),
    })
}

fn text(came: &Came, name: &LockName, url: &str, took: Duration, args: &EvictArgs) -> String {
    let (name, took) = (clean(name.as_str()), human(took));
    let mut text = String::new();
    for party in &came.released {
        text.push_str(&format!("{name} was released after {took}: {}\n", line(party)));
    }
    for party in &came.lease_ended {
        let line = line(party);
        text.push_str(&format!("the lease on {name} ended after {took} without a release: {line}\n"));
        text.push_str("  what it ran under the lock may still run\n");
    }
    for party in &came.unconfirmed {
        let line = line(party);
        text.push_str(&format!("the hold on {name} ended after {took}, and no release is known: {line}\n"));
        text.push_str("  its session ended, and what it ran under the lock may still run; or it released before it learned of the request\n");
    }
    for Asked { party, .. } in &came.remaining {
        text.push_str(&format!("{name} is still held after {took}: {}\n", line(party)));
        text.push_str("  the request did not reach it, or it is an older version; without --graceful it is forced\n");
    }
    for party in &came.not_holding {
        let line = line(party);
        text.push_str(&format!(
            "{name} is not held by {line}\n  only holders are asked; without --graceful a waiter is removed\n"
        ));
    }
    if let Some(reason) = &args.reason {
        text.push_str(&format!("reason: {}\n", clean(reason)));
    }
    text + &format!("engine: {url}\n")
}
