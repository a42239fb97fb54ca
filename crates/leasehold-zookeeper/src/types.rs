//! Data that servers report on nodes and on a session.

use std::fmt;

use crate::error::{Error, Result};
use crate::jute::Reader;

/// The number by which the servers know a session.
///
/// ```
/// use leasehold_zookeeper::SessionId;
///
/// assert_eq!(SessionId(0x1000_0002).to_string(), "0x10000002");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The state of a session.
///
/// ```
/// use leasehold_zookeeper::SessionState;
///
/// assert!(!SessionState::Disconnected.is_terminated());      // the client reconnects
/// assert!(SessionState::Expired.is_terminated());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// There is no connection to a server at present; the client reconnects.
    Disconnected,
    /// A server is connected and responds.
    SyncConnected,
    /// The server refused the login; the session is over.
    AuthFailed,
    /// The session has expired.
    Expired,
    /// The client has closed the session.
    Closed,
}

impl SessionState {
    /// Whether the session is over.
    pub fn is_terminated(self) -> bool {
        matches!(self, Self::AuthFailed | Self::Expired | Self::Closed)
    }

    /// The error of a request in this state.
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Disconnected | Self::SyncConnected => Error::ConnectionLoss,
            Self::AuthFailed => Error::AuthFailed,
            Self::Expired => Error::SessionExpired,
            Self::Closed => Error::ClientClosed,
        }
    }
}

/// What a watch reports.
///
/// ```no_run
/// use leasehold_zookeeper::EventType;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let (names, watcher) = client.list_and_watch_children("/queue").await?;
/// match watcher.changed().await.event_type {
///     EventType::NodeChildrenChanged => println!("no longer {names:?}: list them again"),
///     EventType::Session => println!("the session is over"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The session is over. One-shot watches report no lost connections.
    Session,
    /// The node was created.
    NodeCreated,
    /// The node was deleted.
    NodeDeleted,
    /// The node's data was set.
    NodeDataChanged,
    /// A child of the node was created or deleted.
    NodeChildrenChanged,
}

impl EventType {
    pub(crate) fn from_server(number: i32) -> Result<Self> {
        match number {
            1 => Ok(Self::NodeCreated),
            2 => Ok(Self::NodeDeleted),
            3 => Ok(Self::NodeDataChanged),
            4 => Ok(Self::NodeChildrenChanged),
            _ => Err(Error::Malformed("an event of unknown type")),
        }
    }
}

/// An event of a watch.
///
/// ```no_run
/// use leasehold_zookeeper::WatchedEvent;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let (_, watcher) = client.check_and_watch_stat("/leader").await?;
/// let WatchedEvent { event_type, path, .. } = watcher.changed().await;
/// println!("{path}: {event_type:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedEvent {
    /// What has happened.
    pub event_type: EventType,
    /// The session's state when the event was delivered.
    pub session_state: SessionState,
    /// The path of the node; empty if the session is over.
    pub path: String,
}

/// A server's information on a node, other than its data.
///
/// ```no_run
/// use leasehold_zookeeper::Stat;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let stat: Option<Stat> = client.check_stat("/hosts/web-3").await?;
/// let is_mine = stat.is_some_and(|stat| stat.ephemeral_owner == client.session_id().0);
/// println!("created by this session: {is_mine}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The number of the transaction that created the node.
    pub czxid: i64,
    /// The number of the transaction that last set its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970 by the leader's clock.
    pub ctime: i64,
    /// When its data was last set, in milliseconds since 1970 by the leader's clock.
    pub mtime: i64,
    /// How often its data was set.
    pub version: i32,
    /// How often its list of children has changed.
    pub cversion: i32,
    /// How often its ACL was set.
    pub aversion: i32,
    /// The session whose end deletes the node; 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
    /// The length of its data in bytes.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The number of the transaction that last changed its list of children.
    pub pzxid: i64,
}

impl Stat {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            czxid: reader.long()?,
            mzxid: reader.long()?,
            ctime: reader.long()?,
            mtime: reader.long()?,
            version: reader.int()?,
            cversion: reader.int()?,
            aversion: reader.int()?,
            ephemeral_owner: reader.long()?,
            data_length: reader.int()?,
            num_children: reader.int()?,
            pzxid: reader.long()?,
        })
    }
}
