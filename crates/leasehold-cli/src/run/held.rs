//! Which locks the `leasehold run`s around us hold: those are re-entered, and no others. An owner that was simply handed down
//! would let two commands inside one lock enter a second one together.

use std::fmt::Write;

use leasehold::Owner;

/// Where a command finds what those around it hold: `owner:engine:name`, comma-separated, with escapes.
const HELD: &str = "LEASEHOLD_HELD";

/// What the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    held: String,
    owner: Option<String>,
}

impl Around {
    pub(super) fn read() -> Self {
        let set = |key| std::env::var(key).ok().filter(|value| !value.is_empty());
        Self { held: set(HELD).unwrap_or_default(), owner: set("LEASEHOLD_OWNER") }
    }

    /// Who we are for a lock: whoever around us holds it; whoever the environment says, if nobody around us holds anything;
    /// else a new owner. Without `LEASEHOLD_OWNER` we are a stranger everywhere.
    pub(super) fn owner(&self, engine: &str, name: &str) -> Owner {
        let Some(given) = &self.owner else { return Owner::new() };
        let lock = lock(engine, name);
        let held = self.held.split(',').filter_map(|entry| entry.split_once(':')).find(|(_, held)| *held == lock);
        let given = Some(given.as_str()).filter(|_| self.held.is_empty());
        match held.map(|(owner, _)| owner).or(given).map(str::parse) {
            Some(Ok(owner)) => owner,
            _ => Owner::new(),
        }
    }

    /// Whether somebody around us holds it.
    pub(super) fn holds(&self, engine: &str, name: &str) -> bool {
        let lock = lock(engine, name);
        self.held.split(',').filter_map(|entry| entry.split_once(':')).any(|(_, held)| held == lock)
    }

    /// The variable for a command that runs under this lock, too.
    pub(super) fn with(&self, owner: Owner, engine: &str, name: &str) -> (&'static str, String) {
        let entry = format!("{owner}:{}", lock(engine, name));
        let known = self.held.split(',').any(|held| held == entry);
        let all = [self.held.as_str(), if known { "" } else { &entry }];
        (HELD, all.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(","))
    }
}

fn lock(engine: &str, name: &str) -> String {
    format!("{}:{}", escape(engine), escape(name))
}

fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-_./".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(held: &str, owner: Option<&str>) -> Around {
        Around { held: held.into(), owner: owner.map(Into::into) }
    }

    #[test]
    fn only_what_is_held_around_us_is_re_entered() {
        let (one, two) = (Owner::new(), Owner::new());
        let (_, held) = Around::default().with(one, "file:", "a,b:c");
        let (_, held) = around(&held, None).with(two, "file:", "b");
        let inside = around(&held, Some(&two.to_string()));
        assert_eq!(inside.owner("file:", "a,b:c"), one);
        assert_eq!(inside.owner("file:", "b"), two);
        let other = inside.owner("file:", "c");
        assert!(other != one && other != two);
        assert!(inside.owner("file:///elsewhere", "a,b:c") != one, "another engine is another lock");
        assert_eq!(inside.with(two, "file:", "b").1, held, "nobody is named twice");
        assert!(around(&held, None).owner("file:", "b") != two, "without an owner one is a stranger");
    }

    #[test]
    fn an_owner_can_be_given_by_hand() {
        assert_eq!(around("", Some("me")).owner("file:", "a"), Owner::named("me"));
    }
}
