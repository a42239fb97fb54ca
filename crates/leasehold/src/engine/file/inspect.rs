//! What inspection shows of locks in a folder, and the lines of the audit log.

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

/// The view of the lock `name` at `now`, from its table and its latched file.
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

/// The line of the audit log for a force release: the claim, this process as the operator, and the
/// fence token that was advised, if any.
#[allow(clippy::disallowed_methods, reason = "the wall clock is only for people to read")]
pub(super) fn audit_line(name: &LockName, contender: &ContenderView, fence: Option<Token>, reason: &str) -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (holder, operator) = (&contender.holder, Holder::this_process());
    let token = contender.token.map_or_else(|| "waiting".to_owned(), |token| format!("token {token}"));
    let fence = fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string());
    format!(
        "{seconds} lock {name:?}: {}:{} ({:?} {:?}, {}, {token}) force released by {}:{} ({:?}), reason {reason:?}; fence {fence}\n",
        holder.host,
        holder.pid,
        holder.program,
        holder.description,
        contender.mode,
        operator.host,
        operator.pid,
        operator.program
    )
}

/// The names of all locks that have a file and start with `prefix`, in order. If a file is damaged,
/// the lock's name is derived from the file's name.
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

/// The name of the lock that is stored in a file; `None` if the file is damaged.
fn lock_name(locks: &Dir, file: &str) -> Option<LockName> {
    let mut page = vec![0; PAGE_SIZE];
    locks.open(file, OFlags::RDONLY).and_then(|file| file.read_exact_at(&mut page, 0)).ok()?;
    layout::lock_name_in(&page).ok().and_then(|name| LockName::new(name).ok())
}
