//! `leasehold evict --graceful`: requests a release from the holders, and waits for it.

use std::time::Duration;

use leasehold::clock::Instant;
use leasehold::engine::ContenderView;
use leasehold::{LockName, Locks};
use serde::Serialize;

use super::describe_contender;
use crate::args::EvictArgs;
use crate::duration::format_duration;
use crate::exit::{self, Failure};
use crate::output::{self, escape_control_chars};
use crate::view::ContenderJson;

/// The request is repeated, because it may be lost with a connection. The reply also shows whether
/// the claim still holds.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);

/// How much longer than the leases the command waits: a holder that renewed just before the request
/// holds for a whole TTL.
const EXTRA_WAIT: Duration = Duration::from_secs(5);

/// A holder whose release was requested, and that still holds the lock.
struct RequestedHolder {
    contender: ContenderView,
    /// When its lease ends, by the last reply.
    expires_at: Instant,
    /// A client releases a claim this long before its lease ends, if its holder has not done so. A
    /// claim that is gone earlier was released by its holder.
    early_release_margin: Duration,
}

/// What happened to each claim whose release was requested.
#[derive(Default)]
struct GracefulOutcome {
    /// Holders that released before their leases ended.
    released: Vec<ContenderView>,
    /// Holders whose leases ended: their work may still run.
    lease_ended: Vec<ContenderView>,
    /// Claims that are gone without a known release: their sessions ended, or they released before
    /// they learned of the request. In JSON they are among `lease_ended`.
    unconfirmed: Vec<ContenderView>,
    /// Holders that still hold the lock.
    remaining: Vec<RequestedHolder>,
    /// Claims that did not hold the lock at the request: waiters, and those that were gone.
    not_holding: Vec<ContenderView>,
}

/// The output of `evict --graceful --json`.
#[derive(Debug, Serialize)]
struct GracefulOutcomeJson<'a> {
    name: &'a str,
    engine: &'a str,
    released: Vec<ContenderJson<'a>>,
    lease_ended: Vec<ContenderJson<'a>>,
    remaining: Vec<ContenderJson<'a>>,
    not_holding: Vec<ContenderJson<'a>>,
    /// How long the command waited.
    seconds: f64,
    reason: Option<&'a str>,
}

/// Sends each holder a release request, and waits until none of them holds the lock. Waiters are left
/// alone: one that waited at the inspection may hold by now, and must not be forced.
pub(super) async fn evict_gracefully(
    locks: &Locks,
    name: &LockName,
    selected: &[&ContenderView],
    args: &EvictArgs,
    url: &str,
) -> Result<u8, Failure> {
    let clock = locks.clock();
    let began = clock.now();
    let mut outcome = GracefulOutcome::default();
    for contender in selected {
        match request_release(locks, name, contender, args)
            .await
            .map_err(|error| Failure::from(error).with_engine(url))?
        {
            Some(holder) => outcome.remaining.push(holder),
            None => outcome.not_holding.push((*contender).clone()),
        }
    }
    wait_for_release(locks, name, args, &mut outcome).await.map_err(|error| Failure::from(error).with_engine(url))?;
    let took = clock.now().duration_since(began);
    let text = if args.output.json {
        to_json(&outcome, name, url, took, args)
    } else {
        format_outcome(&outcome, name, url, took, args)
    };
    output::write_stdout(&text)?;
    let ended = outcome.released.len() + outcome.lease_ended.len() + outcome.unconfirmed.len();
    Ok(if outcome.remaining.is_empty() && ended > 0 { 0 } else { exit::CONFLICT })
}

/// Requests the release of a claim; `None` if it does not hold the lock.
async fn request_release(
    locks: &Locks,
    name: &LockName,
    contender: &ContenderView,
    args: &EvictArgs,
) -> leasehold::Result<Option<RequestedHolder>> {
    let reason = args.reason.as_deref().unwrap_or_default();
    let view = locks.request_release(name, contender.claim, reason).await?;
    let now = locks.clock().now();
    Ok(view.map(|contender| RequestedHolder {
        expires_at: now.saturating_add(contender.remaining),
        early_release_margin: contender.remaining / 50,
        contender,
    }))
}

/// Repeats the request to a holder, and adds it to the matching list of `outcome`. If its claim is
/// gone, the engine may know whether it was released. Otherwise the time decides: a claim that is
/// gone before its lease ends was released.
async fn repeat_request(
    locks: &Locks,
    name: &LockName,
    args: &EvictArgs,
    holder: &RequestedHolder,
    outcome: &mut GracefulOutcome,
) -> leasehold::Result<()> {
    if let Some(still) = request_release(locks, name, &holder.contender, args).await? {
        outcome.remaining.push(RequestedHolder { early_release_margin: holder.early_release_margin, ..still });
        return Ok(());
    }
    let now = locks.clock().now();
    let list = match locks.was_released(name, holder.contender.claim).await? {
        Some(true) => &mut outcome.released,
        Some(false) => &mut outcome.unconfirmed,
        None if now.saturating_add(holder.early_release_margin) < holder.expires_at => &mut outcome.released,
        None => &mut outcome.lease_ended,
    };
    list.push(holder.contender.clone());
    Ok(())
}

/// Repeats the requests until no claim holds the lock. Requests stay in effect while the engine is
/// briefly unreachable.
async fn wait_for_release(
    locks: &Locks,
    name: &LockName,
    args: &EvictArgs,
    outcome: &mut GracefulOutcome,
) -> leasehold::Result<()> {
    let clock = locks.clock();
    let Some(last) = outcome.remaining.iter().map(|holder| holder.expires_at).max() else { return Ok(()) };
    let left = format_duration(last.duration_since(clock.now()));
    output::print_message(&format!(
        "requested a release; waiting until the lock is released, or its lease ends in {left}"
    ));
    let bound = last.saturating_add(EXTRA_WAIT);
    let mut is_reported = false;
    while !outcome.remaining.is_empty() && clock.now() < bound {
        clock.sleep_until(clock.now().saturating_add(REPEAT_INTERVAL)).await;
        for holder in std::mem::take(&mut outcome.remaining) {
            match repeat_request(locks, name, args, &holder, outcome).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    if !std::mem::replace(&mut is_reported, true) {
                        output::print_message(&format!("{error}; the release was requested before, retrying"));
                    }
                    outcome.remaining.push(holder);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn to_json(outcome: &GracefulOutcome, name: &LockName, url: &str, elapsed: Duration, args: &EvictArgs) -> String {
    fn contenders_to_json(contenders: &[ContenderView]) -> Vec<ContenderJson<'_>> {
        contenders.iter().map(ContenderJson::new).collect()
    }
    output::to_json_line(&GracefulOutcomeJson {
        name: name.as_str(),
        engine: url,
        released: contenders_to_json(&outcome.released),
        lease_ended: outcome.lease_ended.iter().chain(&outcome.unconfirmed).map(ContenderJson::new).collect(),
        remaining: outcome.remaining.iter().map(|holder| ContenderJson::new(&holder.contender)).collect(),
        not_holding: contenders_to_json(&outcome.not_holding),
        seconds: elapsed.as_secs_f64(),
        reason: args.reason.as_deref(),
    })
}

/// The result of `evict --graceful` for people.
fn format_outcome(
    outcome: &GracefulOutcome,
    name: &LockName,
    url: &str,
    elapsed: Duration,
    args: &EvictArgs,
) -> String {
    let (name, took) = (escape_control_chars(name.as_str()), format_duration(elapsed));
    let mut text = String::new();
    for contender in &outcome.released {
        text.push_str(&format!("{name} was released after {took}: {}\n", describe_contender(contender)));
    }
    for contender in &outcome.lease_ended {
        let line = describe_contender(contender);
        text.push_str(&format!("the lease on {name} ended after {took} without a release: {line}\n"));
        text.push_str("  its work under the lock may still run\n");
    }
    for contender in &outcome.unconfirmed {
        let line = describe_contender(contender);
        text.push_str(&format!("the hold on {name} ended after {took}, and no release is known: {line}\n"));
        text.push_str("  either its session ended, and its work under the lock may still run; or it released before the request arrived\n");
    }
    for RequestedHolder { contender, .. } in &outcome.remaining {
        text.push_str(&format!("{name} is still held after {took}: {}\n", describe_contender(contender)));
        text.push_str("  it did not receive the request, or its version does not support it; without --graceful the release is forced\n");
    }
    for contender in &outcome.not_holding {
        let line = describe_contender(contender);
        text.push_str(&format!(
            "{name} is not held by {line}\n  --graceful applies to holders only; without it, a waiter is removed from the queue\n"
        ));
    }
    if let Some(reason) = &args.reason {
        text.push_str(&format!("reason: {}\n", escape_control_chars(reason)));
    }
    text + &format!("engine: {url}\n")
}
