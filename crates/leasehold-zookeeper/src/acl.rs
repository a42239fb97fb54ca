//! Access control lists of nodes.

use std::borrow::Cow;
use std::ops::BitOr;

use crate::error::Result;
use crate::jute::{Reader, Writer};

/// A set of operations that an access rule allows on a node.
///
/// ```
/// use leasehold_zookeeper::Permission;
///
/// let allowed = Permission::READ | Permission::CREATE;
/// assert!(allowed.has(Permission::READ) && !allowed.has(Permission::DELETE));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission(i32);

impl Permission {
    /// No operation.
    pub const NONE: Self = Self(0);
    /// Reading its data, and listing its children.
    pub const READ: Self = Self(1);
    /// Setting its data.
    pub const WRITE: Self = Self(2);
    /// Creating children.
    pub const CREATE: Self = Self(4);
    /// Deleting children.
    pub const DELETE: Self = Self(8);
    /// Setting its ACL.
    pub const ADMIN: Self = Self(16);
    /// All operations.
    pub const ALL: Self = Self(31);

    /// Whether this allows all operations that `other` allows.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Permission {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One access rule: which operations it allows to which users.
///
/// ```
/// use leasehold_zookeeper::{Acl, Permission};
///
/// let readers = Acl::new(Permission::READ, "world", "anyone");
/// assert_eq!((readers.scheme(), readers.id()), ("world", "anyone"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    permission: Permission,
    scheme: Cow<'static, str>,
    id: Cow<'static, str>,
}

impl Acl {
    /// A rule for the users that `scheme` and `id` name: `world` with `anyone`, `digest` with
    /// `user:hash`, `auth` with an empty id for the creator of the node.
    pub fn new(permission: Permission, scheme: impl Into<String>, id: impl Into<String>) -> Self {
        Self { permission, scheme: Cow::Owned(scheme.into()), id: Cow::Owned(id.into()) }
    }

    /// The same rule as [`new`](Self::new) makes, for use in a constant.
    pub const fn new_const(permission: Permission, scheme: &'static str, id: &'static str) -> Self {
        Self { permission, scheme: Cow::Borrowed(scheme), id: Cow::Borrowed(id) }
    }

    /// The operations that the rule allows.
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// The scheme, which gives the meaning of the id.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The id of the users to whom the rule applies.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let permission = Permission(reader.int()?);
        Ok(Self::new(permission, reader.text()?, reader.text()?))
    }
}

static ANYONE_ALL: [Acl; 1] = [Acl::new_const(Permission::ALL, "world", "anyone")];
static ANYONE_READ: [Acl; 1] = [Acl::new_const(Permission::READ, "world", "anyone")];
static CREATOR_ALL: [Acl; 1] = [Acl::new_const(Permission::ALL, "auth", "")];

/// All access rules of a node.
///
/// ```
/// use leasehold_zookeeper::{Acl, Acls, CreateMode, Permission};
///
/// // The creator may do everything, and all other clients may read.
/// let rules =
///     [Acl::new(Permission::ALL, "auth", ""), Acl::new(Permission::READ, "world", "anyone")];
/// let options = CreateMode::Persistent.with_acls(Acls::new(&rules));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acls<'a>(&'a [Acl]);

impl<'a> Acls<'a> {
    /// A node with these access rules; a server refuses an empty list.
    pub const fn new(acls: &'a [Acl]) -> Self {
        Self(acls)
    }

    pub(crate) fn write(self, writer: &mut Writer) {
        writer.count(self.0.len());
        for acl in self.0 {
            writer.int(acl.permission.0);
            writer.text(&acl.scheme);
            writer.text(&acl.id);
        }
    }
}

impl Acls<'static> {
    /// Every client may do everything.
    pub const fn anyone_all() -> Self {
        Self(&ANYONE_ALL)
    }

    /// Every client may read, and no user has other permissions.
    pub const fn anyone_read() -> Self {
        Self(&ANYONE_READ)
    }

    /// The user that creates the node may do everything; it must have logged in.
    pub const fn creator_all() -> Self {
        Self(&CREATOR_ALL)
    }
}
