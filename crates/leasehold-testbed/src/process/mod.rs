//! Real servers, each on its own port in its own folder, that never outlive the test.
//!
//! A [`ServerSpec`] says how one kind of server is started; [`Server`] starts it, waits until it
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
mod process_tree;
mod server;
mod server_instance;
mod server_spec;
mod spawner;
mod template;
mod user;
mod workspace;

pub(crate) use child::Child;
pub use disk::Disk;
pub(crate) use listener::is_listening;
pub use rustix::process::Signal;
pub use server::{Data, Server};
pub use server_spec::{Binary, InitStep, Probe, ServerSpec};
pub(crate) use template::DataTemplate;
pub use workspace::Workspace;
pub(crate) use workspace::reserve_port;
