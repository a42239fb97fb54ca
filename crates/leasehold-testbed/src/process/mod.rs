//! Real servers, each on its own port in its own folder, that never outlive the test.
//!
//! A [`Recipe`] says how one kind of server is started; [`Server`] starts it, waits until it
//! answers, and kills, pauses and restarts it. Three things hold whatever the test does:
//!
//! - It ends. Dropping the [`Server`] kills it, also while a panic unwinds; and the kernel kills it
//!   when the test process itself dies, however it dies.
//! - It is ours. A port stays reserved from before the start until the drop, the server counts as
//!   ready only when the process that we started is the one listening there, and signals go only
//!   to children that have not been waited for, whose process ids can belong to nobody else.
//! - It is real: the installed binary, its real files, its real exit.
//!
//! A test process that is killed leaves its servers' folders behind in the temporary folder,
//! since nobody is left to remove them.

mod child;
mod disk;
mod listener;
mod place;
mod recipe;
mod server;
mod site;
mod spawner;
mod template;
mod tree;
mod user;

pub(crate) use child::Child;
pub use disk::Disk;
pub(crate) use listener::is_heard;
pub use place::Place;
pub(crate) use place::reserve;
pub use recipe::{Binary, Probe, Recipe, Step};
pub use rustix::process::Signal;
pub use server::{Data, Server};
pub(crate) use template::Template;
