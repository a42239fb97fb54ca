//! `file:` — locks between the processes of one host, kept in a folder. Nothing to install, nothing that runs.
//!
//! `file:` is the user's own folder (`/var/lib/leasehold` for root, else `$XDG_STATE_HOME/leasehold` or
//! `~/.local/state/leasehold`); `file:///dir` is that one. `?mode=0770` shares the folder with its group, `&group=` with another. The
//! folder must be on a local file system.
//!
//! # What is in the folder
//! | path | what it is |
//! |---|---|
//! | `locks/NAME` | one file per lock: the token counter, then one slot per holder and waiter |
//! | `clients/ID` | one file per client (an opened engine), locked by its process with `flock` as long as that lives |
//! | `clients/ID.bell` | the client's datagram socket: others ring it |
//! | `records/NAME` | one file per record, replaced whole; `.floor`: no record that is made from now on has a version up to this one |
//! | `floor` | no lock file that is made from now on may use a token up to this one |
//! | `audit.log` | a line per eviction |
//! | `clock` | under which boot, and in which time namespace, the folder is used |
//!
//! # Who may use it
//! A folder without `mode=` is private: it and all in it must be ours. In a shared one any member of the group can replace any entry, so
//! everything is opened relative to directory handles and through no link, only files of one name are files of ours, and modes and groups
//! are set by handle on what this process has just made. See `dir.rs` and `sharing.rs`.
//!
//! # A step
//! Every step on a lock is one critical section under `flock` on the lock's file (the *latch*, held for microseconds):
//! read the file, apply one step of the same [`Table`](crate::logic::table::Table) that the memory engine has, write what
//! changed, let go, ring the bells of those who were granted. A claim's holder does not keep the latch: it has a slot that says
//! so, and its client's file proves that its process lives.
//!
//! A client that dies drops its `flock`; whoever is blocked by one of its claims sees that, and takes the claim out. Each waiter
//! watches the one client ahead of it ([`queue`](crate::logic::queue); the next in line for permits all holders) with inotify: the
//! kernel reports the close of the client's file, also after SIGKILL. A bell says "look", and nothing is believed on its word: whoever rings may have stood
//! still after it left the lock's file, and what it granted may be over. Should a bell or an event be missed, the waiter's own heartbeat (every third of a
//! TTL) and its timer at the holder's lease end find the same: both are only hints.
//!
//! # The order of writes
//! What a step changes in one page is written with one `pwrite`, which a kill cannot split. Otherwise: first the slots that
//! become free, then the counter, then the slots that are taken. So, wherever the process dies:
//!
//! | dies after | what others find |
//! |---|---|
//! | nothing written | the lock as before; the dead client's claims are taken out |
//! | slots freed | nobody has the freed places; the queue is served by the next step, which the death itself wakes |
//! | counter raised | a token that nobody got: skipped |
//! | slots taken | the step is done; a granted waiter whose bell was not rung finds out by its own look |
//!
//! # Tokens
//! The counter is raised in the file before a slot shows the token, and lives in the page cache, which outlives the process.
//! For the loss of power, tokens are *reserved* 4096 at a time: the intent is written and synced (`fdatasync`), and only then does the
//! file say that they may be granted, so that nobody grants what may not be on disk. After a reboot (the file says under
//! which boot it was written) counting starts after the intent. So 4095 of 4096 grants cost no disk write, and no token
//! comes twice.
//!
//! # Files of free locks
//! A process that has made 128 lock files sweeps: the files of free locks that were not used for longest go, until 256 are left. The folder's
//! floor is raised above all their tokens and synced; then each is unlinked under its own latch, if it is still free and has used no
//! token above the floor. Who waited for the latch finds the file unlinked and makes a new one, which reads the floor inside its latch.
//!
//! # Failures
//! | failure | answer |
//! |---|---|
//! | holder killed | freed at once: the first waiter's watch fires |
//! | holder stopped past its TTL | its lease ends on the common clock; it knows so when it goes on |
//! | killed between two system calls | see the order of writes |
//! | stopped inside a step | others cannot enter that lock's file until it goes on or is killed: they get an error that says so |
//! | stopped after a step, before it rings | the waiter finds its grant by its own look; a late ring makes it look once more |
//! | reply lost | there is none to lose: the step is a function call |
//! | disk full | an error before anything is granted; held locks can still be renewed and released in place |
//! | file damaged | refused, with the file's name; nothing is overwritten |
//! | folder removed or replaced while in use | holders are told at the next renewal; the next other step opens what is at the path now (`session.rs`) |
//! | reboot | all claims are void, tokens go on above the reservation |

mod bells;
mod clients;
mod config;
mod dir;
pub(crate) mod doctor;
mod engine;
mod error;
mod folder;
mod inspect;
mod records;
mod session;
mod sharing;
mod step;
mod store;
mod watch;
mod wire;

#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upkeep_tests;

use std::time::Duration;

pub use self::config::{Place, place};
pub use self::engine::FileEngine;

use super::{Capabilities, Expiry, Fairness, Fencing, Reach};
use crate::logic::lease::Drift;

/// What the engine can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    reach: Reach::Host,
    shared: true,
    permits: true,
    reentry: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    expiry: Expiry::LeaseOrDeath,
    inspection: true,
    eviction: true,
    records: true,
    min_ttl: Duration::from_millis(20),
    max_ttl: Duration::from_secs(366 * 24 * 3600),
    same_clock: true,
    drift: Drift::SAME_CLOCK,
    survives: "the death of any process, and reboots",
    breaks: "on network file systems (those known are refused), and while its folder is removed under it",
    ..Capabilities::exclusive_only("file")
};
