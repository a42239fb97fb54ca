//! Real servers, each on its own port in its own folder, which end with the test.
//!
//! A [`ServerSpec`] defines how one kind of server is started. [`Server`] starts it, waits until it
//! responds, and kills, pauses and restarts it. Three guarantees hold for every test:
//!
//! - It ends. Dropping the [`Server`] kills it, also during a panic. The kernel kills it when the
//!   test process dies for any reason.
//! - It is the test's own. Its port stays reserved from before the start until the drop. It counts
//!   as ready only when the started process listens there. Signals go only to children that have
//!   not been reaped, whose process ids cannot be reused.
//! - It is real: the installed binary, its real files, its real exit.
//!
//! A killed test process leaves its servers' folders in the temporary folder.

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
