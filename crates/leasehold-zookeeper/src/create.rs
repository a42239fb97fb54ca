//! Options of a new node.

use std::fmt;

use crate::acl::Acls;

/// The lifetime of a node, and whether the server numbers it.
///
/// ```no_run
/// use leasehold_zookeeper::{Acls, CreateMode};
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
/// client.create("/hosts/web-3", b"", &options).await?;       // deleted when the session ends
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// The node exists until a client deletes it.
    Persistent,
    /// The node exists until a client deletes it; the server appends a number to its name.
    PersistentSequential,
    /// The node exists until the session that created it ends.
    Ephemeral,
    /// The node exists until the session that created it ends; the server appends a number to its
    /// name.
    EphemeralSequential,
    /// The node exists until some time after its last child was deleted.
    Container,
}

impl CreateMode {
    /// The options of a node with this lifetime and these access rules.
    pub const fn with_acls(self, acls: Acls<'_>) -> CreateOptions<'_> {
        CreateOptions { mode: self, acls }
    }

    /// The protocol's number for this mode.
    pub(crate) fn flags(self) -> i32 {
        match self {
            Self::Persistent => 0,
            Self::Ephemeral => 1,
            Self::PersistentSequential => 2,
            Self::EphemeralSequential => 3,
            Self::Container => 4,
        }
    }

    pub(crate) fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential)
    }
}

/// Everything about a new node except its path and data.
///
/// ```no_run
/// use leasehold_zookeeper::{Acls, CreateMode, CreateOptions};
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// const FOLDER: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
/// client.mkdir("/app/locks", &FOLDER).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions<'a> {
    pub(crate) mode: CreateMode,
    pub(crate) acls: Acls<'a>,
}

/// The number that the server appended to the name of a node, displayed as in the name; -1 for a
/// node that the server did not number.
///
/// ```no_run
/// use leasehold_zookeeper::{Acls, CreateMode};
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
/// let (_, sequence) = client.create("/queue/n-", b"", &options).await?;
/// println!("/queue/n-{sequence} is number {}", sequence.into_i64());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreateSequence(pub(crate) i64);

impl CreateSequence {
    /// The number; -1 for a node that the server did not number.
    pub fn into_i64(self) -> i64 {
        self.0
    }

    /// Parses the digits at the end of a node's path; `None` if they are not a number.
    pub(crate) fn read(digits: &str) -> Option<Self> {
        digits.parse().ok().map(Self)
    }
}

impl fmt::Display for CreateSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_shown_as_in_the_name() {
        for name in ["0000000000", "0000000042", "2147483647", "-000000005", "-2147483648"] {
            assert_eq!(CreateSequence::read(name).unwrap().to_string(), name);
        }
        assert_eq!(CreateSequence::read("x"), None);
    }
}
