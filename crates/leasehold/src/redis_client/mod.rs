//! Redis, as the engines `redis:` and `redlock:`, the fence and the cache use it: the settings in a
//! URL, connections to one server, to the elected master and to a cluster, scripts, the names of
//! keys, and the encoding of claims and messages.
//!
//! A [`Link`] keeps one connection to one server: it reconnects after growing pauses, and tells its
//! [`LinkListener`] of every message, connection and disconnection. [`Nodes`] has the links to all
//! servers of a URL, and sends a script to the node of its key.

mod config;
pub mod connect;
mod contender;
pub mod error;
pub mod keys;
mod layout;
mod link;
mod nodes;
mod script;
mod sentinel;
mod transport;
pub mod values;

pub use self::config::{Address, Config, Login, Protocol, Tls, Topology};
pub use self::contender::{
    Contender, ForceReleased, Granted, Message, Recheck, ReleaseRequested, StoredContender, StoredHolder,
    encode_contender,
};
pub use self::layout::{Field, FieldType, Layout, Nested, Rest, Stored, expand, layout};
pub use self::link::{Link, LinkListener, LiveConnection, Target};
pub use self::nodes::{LinkFactory, Nodes, parse_slots};
pub use self::script::{CachedScript, Epoch, RUN_DIGITS, lua, short_run};
#[cfg(test)]
pub use self::transport::Dialer;
pub use self::transport::Transport;
pub use self::values::Reader;
