//! The error of a request or of a session.

use std::fmt;

/// Why a request, or a session, failed.
///
/// ```no_run
/// use leasehold_zookeeper::Error;
/// # use leasehold_zookeeper::Client;
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// match client.delete("/queue/n-0000000007", None).await {
///     Ok(()) | Err(Error::NoNode) => {}
///     Err(Error::ConnectionLoss) => println!("the server may have deleted it: check"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No server of the list could be reached, and each was tried once.
    NoHosts,
    /// No server opened a session within the session timeout.
    Timeout,
    /// The connection broke before the reply arrived: the server may have executed the request, or
    /// not.
    ConnectionLoss,
    /// The session expired; the servers delete its ephemeral nodes.
    SessionExpired,
    /// The server serves this session over another connection.
    SessionMoved,
    /// The client has closed the session.
    ClientClosed,
    /// The server refused the login, or demands one.
    AuthFailed,
    /// An argument that no server accepts.
    BadArguments(&'static str),
    /// The server sent bytes that the protocol does not allow.
    Malformed(&'static str),
    /// The node, or its parent, does not exist.
    NoNode,
    /// The node exists already.
    NodeExists,
    /// The node has children.
    NotEmpty,
    /// The node has another version than the request requires.
    BadVersion,
    /// The node's ACL does not allow the request to this client.
    NoAuth,
    /// The ACL is empty, malformed, or needs a login.
    InvalidAcl,
    /// An ephemeral node cannot have children.
    NoChildrenForEphemerals,
    /// The server has lost its majority and accepts no writes.
    NotReadOnly,
    /// There is no such watch.
    NoWatcher,
    /// The quota of an ancestor is exceeded.
    QuotaExceeded,
    /// The server is overloaded.
    Throttled,
    /// The server could not parse the request.
    MarshallingError,
    /// The server does not know this request.
    Unimplemented,
    /// A part of a transaction was not tried, because another part failed.
    RuntimeInconsistent,
    /// Another error code of the server.
    Code(i32),
}

impl Error {
    /// The error for a server's code other than 0.
    pub(crate) fn from_code(code: i32) -> Self {
        match code {
            -2 => Self::RuntimeInconsistent,
            -4 => Self::ConnectionLoss,
            -5 => Self::MarshallingError,
            -6 => Self::Unimplemented,
            -8 => Self::BadArguments("the server refuses the arguments"),
            -101 => Self::NoNode,
            -102 => Self::NoAuth,
            -103 => Self::BadVersion,
            -108 => Self::NoChildrenForEphemerals,
            -110 => Self::NodeExists,
            -111 => Self::NotEmpty,
            -112 => Self::SessionExpired,
            -114 => Self::InvalidAcl,
            // The second: the server serves only sessions that have logged in by SASL.
            -115 | -124 => Self::AuthFailed,
            -118 => Self::SessionMoved,
            -119 => Self::NotReadOnly,
            -121 => Self::NoWatcher,
            -125 => Self::QuotaExceeded,
            -127 => Self::Throttled,
            other => Self::Code(other),
        }
    }

    /// Whether this error ends the session.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self, Self::SessionExpired | Self::AuthFailed | Self::ClientClosed)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHosts => "no server could be reached",
            Self::Timeout => "no session was opened in time",
            Self::ConnectionLoss => "the connection was lost",
            Self::SessionExpired => "the session has expired",
            Self::SessionMoved => "the session has moved to another connection",
            Self::ClientClosed => "the client has closed the session",
            Self::AuthFailed => "the login was refused",
            Self::BadArguments(what) => return write!(f, "bad arguments: {what}"),
            Self::Malformed(what) => return write!(f, "the server's reply is malformed: {what}"),
            Self::NoNode => "there is no such node",
            Self::NodeExists => "the node exists already",
            Self::NotEmpty => "the node has children",
            Self::BadVersion => "the node has another version",
            Self::NoAuth => "not authorized by the node's ACL",
            Self::InvalidAcl => "the ACL is invalid",
            Self::NoChildrenForEphemerals => "an ephemeral node cannot have children",
            Self::NotReadOnly => "the server is read-only",
            Self::NoWatcher => "there is no such watch",
            Self::QuotaExceeded => "a quota is exceeded",
            Self::Throttled => "the server is overloaded",
            Self::MarshallingError => "the server could not parse the request",
            Self::Unimplemented => "the server does not know this request",
            Self::RuntimeInconsistent => "another part of the transaction failed",
            Self::Code(code) => return write!(f, "the server returned code {code}"),
        })
    }
}

impl std::error::Error for Error {}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;
