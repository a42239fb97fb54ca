//! `leasehold evict`: forces a holder to release, or a waiter to give up, and prints the result.

mod graceful;

use std::io;

use leasehold::engine::{ContenderView, LockView};
use leasehold::{LockName, Locks, Token};
use rustix::termios::isatty;
use serde::Serialize;

use crate::args::EvictArgs;
use crate::duration::format_duration;
use crate::exit::{self, Failure};
use crate::output::{self, escape_control_chars};
use crate::view::{self, ContenderJson};

/// The output of `evict --json`.
#[derive(Debug, Serialize)]
struct EvictedJson<'a> {
    name: &'a str,
    engine: &'a str,
    evicted: Vec<ContenderJson<'a>>,
    fence_token: Option<u64>,
    reason: Option<&'a str>,
}

/// Force releases the selected claims, or with --graceful requests their release; prints the result
/// and returns the exit code.
pub(crate) async fn evict(mut args: EvictArgs) -> Result<u8, Failure> {
    let name = LockName::new(&args.name)?;
    args.claim = args.claim.as_deref().map(parse_claim_digits).transpose()?;
    let needs_confirmation = !args.yes;
    if needs_confirmation && !isatty(io::stdin()) {
        return Err(Failure::usage(
            "there is no terminal to confirm on: add --yes to force the release without confirmation",
        ));
    }
    let (locks, url) = args.engine.open_read_only().await?;
    let view = locks.inspect(&name).await.map_err(|error| Failure::from(error).with_engine(&url))?;
    let chosen = select_claims(&view, &args);
    if chosen.is_empty() {
        return report_no_match(&args, &view, &url);
    }
    if needs_confirmation && !confirm(&name, &chosen, &url, args.graceful)? {
        output::print_message("nothing was changed");
        return Ok(exit::CONFLICT);
    }
    if args.graceful {
        let result = graceful::evict_gracefully(&locks, &name, &chosen, &args, &url).await;
        locks.close().await?;
        return result;
    }
    let outcome = force_release_all(&locks, &name, &chosen, args.reason.as_deref().unwrap_or_default()).await;
    let (contenders, token) = outcome.map_err(|failure| failure.with_engine(&url))?;
    locks.close().await?;
    if contenders.is_empty() {
        return report_no_match(&args, &view, &url);
    }
    tracing::warn!(%name, evicted = contenders.len(), fence = token.map(|t| t.0), reason = args.reason, "force released");
    let text = if args.output.json {
        let evicted = contenders.iter().map(ContenderJson::new).collect();
        let reason = args.reason.as_deref();
        output::to_json_line(&EvictedJson {
            name: name.as_str(),
            engine: &url,
            evicted,
            fence_token: token.map(|t| t.0),
            reason,
        })
    } else {
        format_evicted(&name, &contenders, token, args.reason.as_deref()) + &format!("engine: {url}\n")
    };
    output::write_stdout(&text)?;
    Ok(0)
}

/// The first digits of a claim that the user gave, perhaps with the `…` that `show` prints after
/// them. None at all would match every holder and waiter.
fn parse_claim_digits(text: &str) -> Result<String, Failure> {
    let digits = text.trim().trim_end_matches(['…', '.']).to_ascii_lowercase();
    let problem = match digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
        true if digits.is_empty() => "--claim is empty and would match every holder and waiter".to_owned(),
        true => return Ok(digits),
        false => format!("--claim {text:?} has other characters than hexadecimal digits"),
    };
    Err(Failure::usage(format!("{problem}: give the first digits of a claim, as `leasehold show` prints them")))
}

/// The claims that --token or --claim selects; without either, all holders.
fn select_claims<'a>(view: &'a LockView, args: &EvictArgs) -> Vec<&'a ContenderView> {
    match (args.token, &args.claim) {
        (Some(token), _) => view.holders.iter().filter(|contender| contender.token == Some(Token(token))).collect(),
        (None, Some(prefix)) => view
            .holders
            .iter()
            .chain(&view.waiters)
            .filter(|contender| view::claim_starts_with(contender.claim, prefix))
            .collect(),
        (None, None) => view.holders.iter().collect(),
    }
}

/// Prints that no claim matches the options; returns the exit code.
fn report_no_match(args: &EvictArgs, view: &LockView, engine: &str) -> Result<u8, Failure> {
    if args.output.json {
        let reason = args.reason.as_deref();
        let name = &args.name;
        output::write_stdout(&output::to_json_line(&EvictedJson {
            name,
            engine,
            evicted: vec![],
            fence_token: None,
            reason,
        }))?;
    } else {
        let why = if view.holders.is_empty() { "the lock has no holder" } else { "no holder matches the options" };
        output::print_message(&format!("{} on {engine}: {why}; nothing was changed", args.name));
    }
    Ok(exit::CONFLICT)
}

/// Prints the selected claims, and asks the user whether to continue; `false` for any answer but
/// yes.
fn confirm(name: &LockName, selected: &[&ContenderView], url: &str, graceful: bool) -> Result<bool, Failure> {
    output::write_stderr(&format!("on {url}:\n"));
    for contender in selected {
        output::write_stderr(&format!("{}\n", describe_contender(contender)));
    }
    let target = if selected.len() == 1 { "it".to_owned() } else { format!("these {}", selected.len()) };
    let name = escape_control_chars(name.as_str());
    output::write_stderr(&match graceful {
        true => format!("Ask {target} to release {name}? [y/N] "),
        false => format!("Force {target} to release {name}? [y/N] "),
    });
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("cannot read the answer", error))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Force releases each claim, the lowest tokens first. Returns the claims that had not ended
/// before, and the fence token that refuses them and no remaining holder; `None` if there is no
/// such token.
async fn force_release_all(
    locks: &Locks,
    name: &LockName,
    selected: &[&ContenderView],
    reason: &str,
) -> Result<(Vec<ContenderView>, Option<Token>), Failure> {
    let mut chosen = selected.to_vec();
    chosen.sort_by_key(|contender| contender.token);
    let (mut gone, mut token, mut highest) = (Vec::new(), None, None);
    for contender in chosen {
        let evicted = locks.force_release_with_reason(name, contender.claim, reason).await?;
        if let Some(contender) = evicted.contender {
            // An earlier fence token does not refuse this holder.
            highest = highest.max(contender.token);
            token = evicted.fence_token.or(token);
            gone.push(contender);
        }
    }
    Ok((gone, token.filter(|token| Some(*token) > highest)))
}

/// The result of a force release for people; `token` is the fence token, if there is one.
fn format_evicted(name: &LockName, evicted: &[ContenderView], token: Option<Token>, reason: Option<&str>) -> String {
    let mut text = String::new();
    let name = escape_control_chars(name.as_str());
    for contender in evicted {
        text.push_str(&format!("evicted from {name}: {}\n", describe_contender(contender)));
    }
    if let Some(token) = token {
        text.push_str(&format!(
            "fence token {token}: write it to the resource that the lock protects, which then refuses the evicted holder, and no other\n"
        ));
    } else if evicted.iter().any(|contender| contender.token.is_some()) {
        text.push_str("no fence token: any token would also refuse a remaining holder, or the next one\n");
    }
    if let Some(reason) = reason {
        text.push_str(&format!("reason: {}\n", escape_control_chars(reason)));
    }
    text
}

/// A holder or waiter in one line:
/// `web1:4711 (./send-messages), exclusive, token 41, held for 12s`.
fn describe_contender(contender: &ContenderView) -> String {
    let (what, since) = if contender.token.is_some() { ("token", "held") } else { ("no token", "waited") };
    let token = contender.token.map(|token| format!(" {token}")).unwrap_or_default();
    let (process, doing, age) =
        (view::format_process(contender), view::format_activity(contender), format_duration(contender.age));
    format!("{process} ({doing}), {}, {what}{token}, {since} for {age}", contender.mode)
}
