//! Lock names, validated when they are made.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use super::{Error, ErrorKind};

/// The longest [lock name](LockName), in bytes.
pub const MAX_NAME: usize = 512;

/// The name of a lock or a record: 1 to 512 bytes of UTF-8 without control characters. Cheap to
/// clone.
///
/// ```
/// use leasehold::LockName;
///
/// assert_eq!(LockName::new("stock:42")?.as_str(), "stock:42");
/// assert!(LockName::new("two\nlines").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct LockName {
    text: Arc<str>,
    /// The hash of `text` with [`HASH_SEED`]; stored because lookups are frequent.
    hash: u64,
}

/// Random for each process, because untrusted users may choose the names.
static HASH_SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl LockName {
    /// A lock name from this text, if it follows the rules.
    ///
    /// # Errors
    /// `InvalidName`, with the rule that the text breaks, and where.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidName, message));
        if name.is_empty() {
            return refuse("a lock name needs at least one character".into());
        }
        if name.len() > MAX_NAME {
            return refuse(format!(
                "a lock name has at most {MAX_NAME} bytes, and this one ({:.20}…) has {}",
                name.escape_debug().to_string(),
                name.len()
            ));
        }
        if let Some((at, found)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return refuse(format!(
                "a lock name has no control characters, and {name:?} has U+{:04X} at byte {at}",
                u32::from(found)
            ));
        }
        Ok(Self { text: name.into(), hash: HASH_SEED.hash_one(name) })
    }

    /// The text from which the name was made.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text) || (self.hash == other.hash && self.text == other.text)
    }
}

impl Eq for LockName {}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_within_the_bounds_is_accepted() {
        for name in ["a", "stock:42", "../../etc/passwd", "ключ 🔑", &"x".repeat(512)] {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_broken_rule() {
        for (name, expected) in [
            ("", "at least one"),
            ("a\nb", "U+000A at byte 1"),
            ("a\u{85}", "U+0085"),
            (&"x".repeat(513), "at most 512 bytes"),
            (&"é".repeat(257), "has 514"),
        ] {
            let error = LockName::new(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
