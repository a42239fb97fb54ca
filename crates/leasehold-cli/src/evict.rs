//! `leasehold evict`: forces a holder to release, or a waiter to give up, and prints the result.

mod graceful;

use std::io;

use leasehold::engine::{LockView, PartyView};
use leasehold::{LockName, Locks, Token};
use rustix::termios::isatty;
use serde::Serialize;

use crate::args::EvictArgs;
use crate::duration::human;
use crate::exit::{self, Failure};
use crate::output::{self, clean};
use crate::view::{self, PartyJson};

#[derive(Debug, Serialize)]
struct EvictedJson<'a> {
    name: &'a str,
    engine: &'a str,
    evicted: Vec<PartyJson<'a>>,
    fence_token: Option<u64>,
    reason: Option<&'a str>,
}

pub(crate) async fn evict(args: EvictArgs) -> Result<u8, Failure> {
    let name = LockName::new(&args.name)?;
    if args.claim.as_deref().is_some_and(|claim| claim.trim().is_empty()) {
        let message = "--claim is empty, and would mean every holder and waiter: name the beginning of one, as `leasehold show` has it";
        return Err(Failure::usage(message));
    }
    let asking = !args.yes;
    if asking && !isatty(io::stdin()) {
        return Err(Failure::usage("there is no terminal to ask on: say --yes to evict without being asked"));
    }
    let (locks, url) = args.engine.open_to_look().await?;
    let view = locks.inspect(&name).await.map_err(|error| Failure::from(error).at(&url))?;
    let chosen = choose(&view, &args);
    if chosen.is_empty() {
        return nobody(&args, &view, &url);
    }
    if asking && !confirmed(&name, &chosen, &url, args.graceful)? {
        output::say("nothing was changed");
        return Ok(exit::CONFLICT);
    }
    if args.graceful {
        let result = graceful::evict(&locks, &name, &chosen, &args, &url).await;
        locks.close().await?;
        return result;
    }
    let put_out = put_out(&locks, &name, &chosen, args.reason.as_deref().unwrap_or_default()).await;
    let (gone, token) = put_out.map_err(|failure| failure.at(&url))?;
    locks.close().await?;
    if gone.is_empty() {
        return nobody(&args, &view, &url);
    }
    tracing::warn!(%name, evicted = gone.len(), fence = token.map(|t| t.0), reason = args.reason, "evicted");
    let text = if args.output.json {
        let evicted = gone.iter().map(PartyJson::new).collect();
        let reason = args.reason.as_deref();
        output::json(&EvictedJson {
            name: name.as_str(),
            engine: &url,
            evicted,
            fence_token: token.map(|t| t.0),
            reason,
        })
    } else {
        evicted_text(&name, &gone, token, args.reason.as_deref()) + &format!("engine: {url}\n")
    };
    output::out(&text)?;
    Ok(0)
}

/// The claims that the options select: all holders by default.
fn choose<'a>(view: &'a LockView, args: &EvictArgs) -> Vec<&'a PartyView> {
    match (args.token, &args.claim) {
        (Some(token), _) => view.holders.iter().filter(|party| party.token == Some(Token(token))).collect(),
        (None, Some(prefix)) => view
            .holders
            .iter()
            .chain(&view.waiters)
            .filter(|party| view::claim_starts_with(party.claim, prefix))
            .collect(),
        (None, None) => view.holders.iter().collect(),
    }
}

fn nobody(args: &EvictArgs, view: &LockView, engine: &str) -> Result<u8, Failure> {
    if args.output.json {
        let reason = args.reason.as_deref();
        let name = &args.name;
        output::out(&output::json(&EvictedJson { name, engine, evicted: vec![], fence_token: None, reason }))?;
    } else {
        let such = if view.holders.is_empty() { "nobody holds it" } else { "nobody who holds it is meant by this" };
        output::say(&format!("{} on {engine}: {such}; nothing was changed", args.name));
    }
    Ok(exit::CONFLICT)
}

fn confirmed(name: &LockName, chosen: &[&PartyView], url: &str, graceful: bool) -> Result<bool, Failure> {
    output::err(&format!("on {url}:\n"));
    for party in chosen {
        output::err(&format!("{}\n", line(party)));
    }
    let who = if chosen.len() == 1 { "it".to_owned() } else { format!("these {}", chosen.len()) };
    let name = clean(name.as_str());
    output::err(&match graceful {
        true => format!("Ask {who} to release {name}? [y/N] "),
        false => format!("Force {who} to release {name}? [y/N] "),
    });
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("cannot read the answer", error))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Evicts each claim. Those that ended before their eviction are left out of the answer. The lowest
/// tokens go first: the last fence token then refuses all evicted holders, and none of those that
/// stay.
async fn put_out(
    locks: &Locks,
    name: &LockName,
    chosen: &[&PartyView],
    reason: &str,
) -> Result<(Vec<PartyView>, Option<Token>), Failure> {
    let mut chosen = chosen.to_vec();
    chosen.sort_by_key(|party| party.token);
    let (mut gone, mut token, mut highest) = (Vec::new(), None, None);
    for party in chosen {
        let evicted = locks.evict_because(name, party.claim, reason).await?;
        if let Some(party) = evicted.party {
            // An earlier fence token does not refuse this holder.
            highest = highest.max(party.token);
            token = evicted.token.or(token);
            gone.push(party);
        }
    }
    Ok((gone, token.filter(|token| Some(*token) > highest)))
}

fn evicted_text(name: &LockName, gone: &[PartyView], token: Option<Token>, reason: Option<&str>) -> String {
    let mut text = String::new();
    let name = clean(name.as_str());
    for party in gone {
        text.push_str(&format!("evicted from {name}: {}\n", line(party)));
    }
    if let Some(token) = token {
        text.push_str(&format!(
            "fence token {token}: write it to what the lock protects; it refuses who was evicted, and nobody else\n"
        ));
    } else if gone.iter().any(|party| party.token.is_some()) {
        text.push_str("no fence token: any number would also refuse a holder that stays, or the next one\n");
    }
    if let Some(reason) = reason {
        text.push_str(&format!("reason: {}\n", clean(reason)));
    }
    text
}

fn line(party: &PartyView) -> String {
    let (what, since) = if party.token.is_some() { ("token", "held") } else { ("no token", "waited") };
    let token = party.token.map(|token| format!(" {token}")).unwrap_or_default();
    let (process, doing, age) = (view::process(party), view::doing(party), human(party.age));
    format!("{process} ({doing}), {}, {what}{token}, {since} for {age}", party.mode)
}
