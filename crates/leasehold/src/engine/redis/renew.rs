//! Renews leases: on their own, or in bundles.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;

use super::bundles::{Bundle, FEWEST, Turn};
use super::engine::{RedisEngine, seconds};
use super::link::Live;
use super::{error, wire};
use crate::claim::{Claim, Mode};
use crate::clock::Moment;
use crate::engine::Renewal;
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::{self as rules, Validity};

/// One lease of a batch: its index in the answer, its claim and its key.
struct Lease {
    at: usize,
    claim: Arc<Claim>,
    key: String,
}

/// Leases that one script can renew; with a `ttl` they may become a bundle.
struct Group {
    slot: Option<u16>,
    ttl: Option<Duration>,
    leases: Vec<Lease>,
}

/// Renews a batch; one answer per claim, in order.
pub(super) async fn renew(engine: &RedisEngine, claims: Vec<Arc<Claim>>) -> Result<Vec<Renewal>> {
    let mut answers = vec![Renewal::Unknown; claims.len()];
    let leases = claims.into_iter().enumerate().map(|(at, claim)| {
        let key = engine.key(claim.name());
        engine.nodes.renews(&key, &claim);
        Lease { at, key, claim }
    });
    let leases = if engine.can_bundle() {
        let (loose, failed) = bundled(engine, leases.collect(), &mut answers).await;
        match failed {
            Some(error) if loose.is_empty() && all_unknown(&answers) => return Err(error),
            Some(error) => tracing::warn!(%error, "some leases could not be renewed; trying again"),
            None => {}
        }
        loose
    } else {
        leases.collect()
    };
    let groups = groups(engine, leases);
    let only_one = groups.len() == 1;
    // A slot may be moving to a server that hangs: it must not delay the answers of the others.
    let most = rules::renewal_timeout(groups.iter().flat_map(|group| &group.leases).map(|lease| lease.claim.terms.ttl));
    let bounded = |group| async move {
        match only_one {
            true => extend(engine, group).await,
            false => engine.clock.timeout(most, extend(engine, group)).await.unwrap_or_else(|_| Err(no_answer(most))),
        }
    };
    let extended = join_all(groups.iter().map(bounded)).await;
    for (group, extended) in groups.iter().zip(extended) {
        match extended {
            Ok(some) => group.leases.iter().zip(some).for_each(|(lease, answer)| answers[lease.at] = answer),
            Err(error) if only_one && all_unknown(&answers) => return Err(error),
            Err(error) => tracing::warn!(%error, "some leases could not be renewed; trying again"),
        }
    }
    Ok(answers)
}

fn no_answer(most: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {most:?}")).retryable().effect_unknown()
}

fn all_unknown(answers: &[Renewal]) -> bool {
    answers.iter().all(|answer| *answer == Renewal::Unknown)
}

/// Renews the leases that are in bundles; returns those that are not, or not any more.
async fn bundled(engine: &RedisEngine, leases: Vec<Lease>, answers: &mut [Renewal]) -> (Vec<Lease>, Option<Error>) {
    let now = engine.clock.now();
    let (mut loose, mut tied, mut due) = (Vec::new(), Vec::new(), Vec::new());
    let mut stale: Vec<Arc<Bundle>> = Vec::new();
    for lease in leases {
        match engine.ears.bundles.find(&lease.claim, now) {
            None => loose.push(lease),
            Some((bundle, turn)) => {
                if (turn == Turn::InDoubt || !bundle.is_fresh(now))
                    && !stale.iter().any(|known| Arc::ptr_eq(known, &bundle))
                {
                    stale.push(Arc::clone(&bundle));
                }
                if turn != Turn::Later {
                    due.push(tied.len());
                }
                tied.push((lease, bundle));
            }
        }
    }
    let asked: Vec<_> = due.iter().map(|at| &tied[*at]).collect();
    let (beaten, found) = futures_util::future::join(beat(engine, &stale), look(engine, &asked)).await;
    let failed = beaten.err().or(found.as_ref().err().map(|error| Error::new(error.kind(), error.said()).retryable()));
    // A lease that was due for its own check, and was not checked after all, must not be renewed by
    // its bundle alone.
    let unasked = if found.is_err() { due.clone() } else { Vec::new() };
    let found = found.unwrap_or_default();
    let mut marks = due.into_iter().zip(found).peekable();
    for (at, (lease, bundle)) in tied.into_iter().enumerate() {
        let mark = marks.next_if(|(of, _)| *of == at).map(|(_, mark)| mark);
        match mark {
            // The lease is not in its bundle as expected: it is renewed on its own.
            Some(b'0') => {
                engine.ears.bundles.forget(lease.claim.id);
                bundle.give_up();
                loose.push(lease);
            }
            _ if bundle.is_broken() => {
                engine.ears.bundles.forget(lease.claim.id);
                loose.push(lease);
            }
            mark => {
                if mark.is_some() {
                    engine.ears.bundles.seen(lease.claim.id, now);
                }
                if bundle.is_fresh(now) && unasked.binary_search(&at).is_err() {
                    answers[lease.at] = Renewal::Renewed(Validity::Until(bundle.renewed().after(bundle.ttl)));
                }
            }
        }
    }
    (loose, failed)
}

/// Renews bundles.
async fn beat(engine: &RedisEngine, bundles: &[Arc<Bundle>]) -> Result<()> {
    if bundles.is_empty() {
        return Ok(());
    }
    let fill = |command: &mut Cmd, live: &Live| {
        for bundle in bundles {
            command.arg(&bundle.key);
        }
        for bundle in bundles {
            command.arg(bundle.ttl.as_micros() as u64).arg(format!("{:010}", bundle.leases()));
            command.arg(seconds(bundle.ttl) + engine.retention);
        }
        command.arg(wire::short_run(&live.run));
    };
    let sent = engine.clock.now();
    let (answer, live) = engine.nodes.script(None, &engine.scripts.beat, bundles.len(), &fill).await?;
    let marks = wire::bytes(&answer).filter(|marks| marks.len() == bundles.len());
    let marks = marks.ok_or_else(|| error::odd(&live.address, &answer))?;
    engine.replicated(&live.address).await?;
    for (bundle, mark) in bundles.iter().zip(marks) {
        if *mark == b'1' { bundle.extend(sent) } else { bundle.give_up() }
    }
    Ok(())
}

/// Checks whether leases are in their bundles.
async fn look(engine: &RedisEngine, leases: &[&(Lease, Arc<Bundle>)]) -> Result<Vec<u8>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let longest = leases.iter().map(|(lease, _)| seconds(lease.claim.terms.ttl)).max().unwrap_or_default();
    let fill = |command: &mut Cmd, _: &Live| {
        for (lease, _) in leases {
            command.arg(&lease.key);
        }
        // The next check is more than a TTL away, and by then the lease may have been renewed for
        // one more TTL.
        command.arg(longest * 3);
        for (lease, bundle) in leases {
            command.arg(wire::in_bundle(lease.claim.id, &bundle.key));
        }
    };
    let (answer, live) = engine.nodes.script(None, &engine.scripts.seen, leases.len(), &fill).await?;
    let marks = wire::bytes(&answer).filter(|marks| marks.len() == leases.len());
    Ok(marks.ok_or_else(|| error::odd(&live.address, &answer))?.to_vec())
}

/// Groups leases by what one script can renew.
fn groups(engine: &RedisEngine, leases: Vec<Lease>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for lease in leases {
        let slot = engine.nodes.slot(&lease.key);
        let tie = engine.can_bundle() && lease.claim.terms.mode == Mode::Exclusive;
        let ttl = tie.then_some(lease.claim.terms.ttl);
        match groups.iter_mut().find(|group| (group.slot, group.ttl) == (slot, ttl)) {
            Some(group) => group.leases.push(lease),
            None => groups.push(Group { slot, ttl, leases: vec![lease] }),
        }
    }
    groups
}

/// Renews a group. Locks of a slot that is moving may be on two nodes: then each is renewed by a
/// request of its own.
async fn extend(engine: &RedisEngine, group: &Group) -> Result<Vec<Renewal>> {
    let leases: Vec<&Lease> = group.leases.iter().collect();
    match extend_all(engine, &leases, group.slot, group.ttl).await {
        Err(error) if leases.len() > 1 && error::is_split(&error) => {
            let each = leases.chunks(1).map(|one| extend_all(engine, one, group.slot, group.ttl));
            let answer = |extended: Result<Vec<Renewal>>| match extended.as_deref() {
                Ok([answer]) => *answer,
                _ => Renewal::Unknown,
            };
            Ok(join_all(each).await.into_iter().map(answer).collect())
        }
        other => other,
    }
}

/// Renews leases with one script; many of one kind become a bundle.
async fn extend_all(
    engine: &RedisEngine,
    leases: &[&Lease],
    slot: Option<u16>,
    ttl: Option<Duration>,
) -> Result<Vec<Renewal>> {
    let bundle = match ttl {
        Some(ttl) if leases.len() >= FEWEST => Some(engine.new_bundle(ttl)),
        _ => None,
    };
    let key = bundle.as_ref().map_or("", |bundle| &bundle.key);
    let sent = engine.clock.now();
    let (marks, live) = ask(engine, leases, slot, key).await?;
    let replicated = match engine.replicated(&live.address).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "renewed, but not extended");
            false
        }
    };
    if let Some(bundle) = &bundle {
        let joined = leases.iter().zip(&marks).filter(|(_, mark)| **mark == b'2');
        engine.ears.bundles.join(bundle, joined.map(|(lease, _)| &lease.claim), sent);
        // Without the replicas the renewal does not count: the next round repeats it.
        if replicated {
            bundle.extend(sent);
        }
    }
    let renewal = |(mark, lease): (&u8, &&Lease)| match mark {
        b'1' | b'2' if replicated => Renewal::Renewed(until(sent, lease)),
        b'1' | b'2' => Renewal::Held,
        _ => Renewal::Lost,
    };
    Ok(marks.iter().zip(leases).map(renewal).collect())
}

fn until(sent: Moment, lease: &Lease) -> Validity {
    Validity::Until(sent.after(lease.claim.terms.ttl))
}

/// Runs the script; one mark for each lease.
async fn ask(engine: &RedisEngine, leases: &[&Lease], slot: Option<u16>, bundle: &str) -> Result<(Vec<u8>, Live)> {
    let longest = leases.iter().map(|lease| seconds(lease.claim.terms.ttl)).max().unwrap_or_default();
    let keys: Vec<&str> = leases.iter().map(|lease| &*lease.key).collect();
    let then = |command: &mut Cmd| {
        command.arg("").arg(bundle).arg(engine.retention).arg(longest);
        for lease in leases {
            command.arg(&lease.claim.id.bits().to_be_bytes());
        }
    };
    let (answer, live) = engine.script(slot, |scripts| &scripts.renew, &keys, &then).await?;
    let marks = wire::bytes(&answer).filter(|marks| marks.len() == leases.len());
    let marks = marks.ok_or_else(|| error::odd(&live.address, &answer))?.to_vec();
    Ok((marks, live))
}
