//! Inspection of locks.

use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::dir::Dir;
use super::folder::Folder;
use super::layout::{self, ContenderDetails, PAGE_SIZE, SlotRef};
use super::lock_files::Latch;
use super::{clients, error};
use crate::clock::Instant;
use crate::engine::{ContenderView, LockView};
use crate::logic::table::{Contender, LockTable};
use crate::types::{Holder, LockName, Result, Token};

/// A lock, as its table describes it.
pub(super) fn lock_view(
    folder: &Folder,
    name: &LockName,
    latch: &Latch<'_>,
    table: &LockTable<ContenderDetails>,
    now: Instant,
) -> LockView {
    let show = |contender: &Contender<ContenderDetails>| {
        let text = match &contender.details.slot {
            SlotRef::Slot(index) => latch.description_at(*index),
            SlotRef::New(claim) => claim.options.holder.description.to_string(),
        };
        let holder = clients::read_holder(folder, contender.details.client, &text);
        ContenderView::from_contender(contender, holder, contender.details.since, now)
    };
    LockView {
        holders: table.holders.iter().map(show).collect(),
        waiters: table.waiters.iter().map(show).collect(),
        last_token: Some(Token(latch.0.counters.last)),
        ..LockView::free(name.clone())
    }
}

/// A line of the audit log, for an eviction.
#[allow(clippy::disallowed_methods, reason = "for people to read; nothing is decided by it")]
pub(super) fn audit_line(name: &LockName, contender: &ContenderView, fence: Option<Token>, reason: &str) -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (evicted, operator) = (&contender.holder, Holder::this_process());
    let token = contender.token.map_or_else(|| "waiting".to_owned(), |token| format!("token {token}"));
    let fence = fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string());
    format!(
        "{seconds} lock {name:?}: {}:{} ({:?} {:?}, {}, {token}) evicted by {}:{} ({:?}), reason {reason:?}; fence {fence}\n",
        evicted.host,
        evicted.pid,
        evicted.program,
        evicted.description,
        contender.mode,
        operator.host,
        operator.pid,
        operator.program
    )
}

/// The names of all locks that have a file and start with `prefix`, in order. For a damaged file,
/// the name comes from its file name.
pub(super) fn lock_names(locks: &Dir, prefix: &str) -> Result<Vec<LockName>> {
    let mut names = Vec::new();
    for file in locks.entry_names(usize::MAX).map_err(|e| error::io_error_at(locks.as_path(), "list", e))? {
        let Some(file) = file.to_str().filter(|file| !file.starts_with('.')) else { continue };
        let name = lock_name(locks, file).or_else(|| LockName::new(layout::name_from_file_name(file)).ok());
        names.extend(name.filter(|name| name.as_str().starts_with(prefix)));
    }
    names.sort();
    Ok(names)
}

fn lock_name(locks: &Dir, file: &str) -> Option<LockName> {
    let mut page = vec![0; PAGE_SIZE];
    locks.open(file, OFlags::RDONLY).and_then(|file| file.read_exact_at(&mut page, 0)).ok()?;
    layout::lock_name_in(&page).ok().and_then(|name| LockName::new(name).ok())
}
