//! Inspection of locks.

use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::dir::Dir;
use super::folder::Folder;
use super::store::Latch;
use super::wire::{self, Note, PAGE, Record};
use super::{clients, error};
use crate::claim::{Holder, Token};
use crate::clock::Moment;
use crate::engine::{LockView, PartyView};
use crate::error::Result;
use crate::logic::table::{Party, Table};
use crate::name::LockName;

/// A lock, as its table stands.
pub(super) fn view(folder: &Folder, name: &LockName, latch: &Latch<'_>, table: &Table<Note>, now: Moment) -> LockView {
    let show = |party: &Party<Note>| {
        let text = match &party.note.record {
            Record::Slot(index) => latch.text(*index),
            Record::New(claim) => claim.terms.holder.text.to_string(),
        };
        let holder = clients::describe(folder, party.note.client, &text);
        PartyView::of(party, holder, party.note.since, now)
    };
    LockView {
        name: name.clone(),
        holders: table.holders.iter().map(show).collect(),
        waiters: table.waiters.iter().map(show).collect(),
        last_token: Some(Token(latch.0.counters.last)),
        trouble: None,
    }
}

/// A line of the audit log, for an eviction.
#[allow(clippy::disallowed_methods, reason = "for people to read; nothing is decided by it")]
pub(super) fn audit_line(name: &LockName, party: &PartyView, fence: Option<Token>, reason: &str) -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (out, by) = (&party.holder, Holder::this_process());
    let token = party.token.map_or_else(|| "waiting".to_owned(), |token| format!("token {token}"));
    let fence = fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string());
    format!(
        "{seconds} lock {name:?}: {}:{} ({:?} {:?}, {}, {token}) evicted by {}:{} ({:?}), reason {reason:?}; fence {fence}\n",
        out.host, out.pid, out.program, out.text, party.mode, by.host, by.pid, by.program
    )
}

/// The names of all locks that have a file and start with `prefix`, in order. The name of a damaged
/// file is taken from its file name.
pub(super) fn names(locks: &Dir, prefix: &str) -> Result<Vec<LockName>> {
    let mut names = Vec::new();
    for file in locks.names(usize::MAX).map_err(|e| error::at(locks.as_path(), "list", e))? {
        let Some(file) = file.to_str().filter(|file| !file.starts_with('.')) else { continue };
        let name = name(locks, file).or_else(|| LockName::new(wire::from_file_name(file)).ok());
        names.extend(name.filter(|name| name.as_str().starts_with(prefix)));
    }
    names.sort();
    Ok(names)
}

fn name(locks: &Dir, file: &str) -> Option<LockName> {
    let mut page = vec![0; PAGE];
    locks.open(file, OFlags::RDONLY).and_then(|file| file.read_exact_at(&mut page, 0)).ok()?;
    wire::name_of(&page).ok().and_then(|name| LockName::new(name).ok())
}
