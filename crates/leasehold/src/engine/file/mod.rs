//! `file:` — locks between the processes of one host, kept in a folder. It needs no server and no
//! installation.
//!
//! `file:` is the user's own folder (`/var/lib/leasehold` for root, else
//! `$XDG_STATE_HOME/leasehold` or `~/.local/state/leasehold`); `file:///dir` names one.
//! `?mode=0770` shares the folder with its group; `&group=NAME` names another group. The folder
//! must be on a local file system.
//!
//! # Files in the folder
//! | path | content |
//! |---|---|
//! | `locks/NAME` | one file per lock: the token counter, then one slot per holder and waiter |
//! | `clients/ID` | one file per client (an opened engine), locked by its process with `flock` until the process ends |
//! | `clients/ID.socket` | the client's datagram socket, to which others send notifications |
//! | `records/NAME` | one file per record, replaced as a whole; `.floor`: every new record has a version above this one |
//! | `floor` | every new lock file starts with tokens above this one |
//! | `audit.log` | one line per force release |
//! | `clock` | the boot, and the time namespace, in which the folder is used |
//!
//! # Permissions
//! A folder without `mode=` is private: it and everything in it must belong to this user. In a
//! shared folder, any member of the group can replace any entry. So the engine opens everything
//! relative to directory handles and follows no links. It trusts only files with a single name, and
//! sets modes and groups by handle, only on what this process has just made. See `dir.rs` and
//! `permissions.rs`.
//!
//! # A step
//! Every step on a lock is one critical section under `flock` on the lock's file. That `flock` is
//! called the *latch*; a process holds it for microseconds. The process reads the file and applies
//! one operation of the same [`LockTable`](crate::logic::table::LockTable) that the memory engine
//! uses. Then it writes the changes, unlocks the file, and notifies the clients of the claims that
//! were granted. The holder of the lock does not hold the latch: its claim has a slot in the file,
//! and the `flock` on its client's own file proves that its process is alive.
//!
//! The kernel releases the `flock` on a client's file when that client's process dies. Another
//! client, whose claim the dead client's claim blocks, detects that and removes the dead claim.
//! Each waiter watches the one client ahead of it with inotify
//! ([`wait_queue`](crate::logic::wait_queue)); the first waiter for permits watches all holders.
//! The kernel reports the close of the client's file, also after SIGKILL.
//!
//! A notification only means "check again": its sender may have been stopped after it left the
//! lock's file, and a grant that it made may be over. If a notification or an inotify event is
//! missed, the waiter's own heartbeat (every third of a TTL) and its timer at the end of the
//! holder's lease find the same change. Both are only hints.
//!
//! # The order of writes
//! If all changes of a step are in one page, the engine writes them with one `pwrite`, which a kill
//! cannot split. Otherwise it writes first the slots that become free, then the counter, then the
//! slots that are filled. So, wherever the process dies:
//!
//! | dies after | state that other processes find |
//! |---|---|
//! | no write | the lock as before; the dead client's claims are removed later |
//! | freed slots | free places without a holder; the death itself triggers the next step, which serves the queue |
//! | raised counter | a token without a grant: skipped |
//! | filled slots | the step is complete; a granted waiter without a notification finds its grant by its own check |
//!
//! # Tokens
//! The counter is raised in the file before a slot shows the token. It is in the page cache, which
//! outlives the process. Against a loss of power, tokens are *reserved* 4096 at a time. The intent
//! is written and synced (`fdatasync`), and only then does the file allow these tokens to be
//! granted, so no process grants a token that may not be on disk. After a reboot (the file stores
//! the boot in which it was written) counting starts after the intent. So 4095 of 4096 grants cost
//! no disk write, and no token repeats.
//!
//! # Files of free locks
//! A process that has made 128 lock files sweeps: it removes the files of the free locks that were
//! unused for the longest time, until 256 are left. First it raises the number in `floor` above all
//! their tokens and syncs that file. Then it unlinks each file under its own latch, if the lock is
//! still free and has used no token above the floor. A process that waited for the latch finds the
//! file unlinked and makes a new one, whose tokens start above the floor.
//!
//! # Failures
//! | event | consequence |
//! |---|---|
//! | holder killed | lock freed at once: the first waiter's watch fires |
//! | holder stopped past its TTL | its lease expires on the common clock; it learns of that when it resumes |
//! | process killed between two system calls | see the order of writes |
//! | process stopped inside a step | other processes cannot enter that lock's file until it resumes or is killed, and get an error with that reason |
//! | process stopped after a step, before it notifies | the waiter finds its grant by its own check; a late notification makes it check once more |
//! | reply lost | impossible: there is no server, and a step is a function call |
//! | disk full | an error before any grant; held locks can still be renewed and released in place |
//! | file damaged | refused, with the file's name; the file stays as it is |
//! | folder removed or replaced while in use | holders learn of it at their next renewal; the next other step opens the folder now at the path (`session.rs`) |
//! | reboot | all claims are void; tokens continue above the reservation |

mod clients;
#[doc(hidden)]
pub mod config;
mod dir;
mod engine;
mod error;
mod file_watcher;
#[doc(hidden)]
pub mod folder;
mod inspect;
mod layout;
mod lock_files;
mod permissions;
mod records;
mod session;
mod step;
mod wakeups;

#[cfg(test)]
mod maintenance_tests;
#[cfg(test)]
mod permission_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::config::{FolderLocation, folder_location};
pub use self::engine::FileEngine;

use super::{Capabilities, Expiry, Fairness, Fencing, Reach};
use crate::logic::lease::Drift;

/// Capabilities of `file:`.
pub const CAPABILITIES: Capabilities = Capabilities {
    reach: Reach::Host,
    shared: true,
    permits: true,
    reentrancy: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    expiry: Expiry::LeaseOrProcessDeath,
    inspection: true,
    force_release: true,
    records: true,
    min_ttl: Duration::from_millis(20),
    max_ttl: Duration::from_secs(366 * 24 * 3600),
    uses_local_clock: true,
    drift: Drift::SAME_CLOCK,
    tolerates: "the death of any process, and reboots",
    fails_when: "on network file systems (those known are refused), and while its folder is removed under it",
    ..Capabilities::exclusive_only("file")
};
