//! Passwords that are read from files instead of the URL, because a URL on a command line is
//! visible to every user of the host. All engines with a login have `password-file=`; PostgreSQL's
//! engine also reads `PGPASSWORD`, `PGPASSFILE` and `~/.pgpass`.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::EngineUrl;
use crate::types::{Error, ErrorKind, Result};

/// How many bytes of a password file are read at most.
const MAX_FILE_SIZE: u64 = 64 * 1024;

/// URL options that name a password file, and the part of the URL that the file's first line
/// replaces.
const SECRET_FILE_OPTIONS: [(&str, Secret); 2] =
    [("password-file", Secret::Password), ("sentinel-password-file", Secret::Option("sentinel-password"))];

/// A part of the URL that a password file replaces.
#[derive(Clone, Copy)]
enum Secret {
    /// The URL's password.
    Password,
    /// The value of this option.
    Option(&'static str),
}

impl EngineUrl {
    /// Reads the password files that the URL names, and puts the passwords in the place of those
    /// options. A PostgreSQL URL without a password gets the one that PostgreSQL's own tools would
    /// use.
    ///
    /// # Errors
    /// `InvalidUrl` if a file cannot be read, or if the URL also has the password itself.
    pub fn read_password_files(mut self) -> Result<Self> {
        if matches!(self.scheme.as_str(), "memory" | "file") {
            return Ok(self);
        }
        for (key, secret) in SECRET_FILE_OPTIONS {
            let Some(path) = self.option(key).map(str::to_owned) else { continue };
            let password = read_password_file(&path, key)?;
            self.options.retain(|(other, _)| other != key);
            match secret {
                Secret::Password if self.password.is_some() => {
                    return Err(invalid_option(format!(
                        "the URL has both a password and {key}=: leave one of them out"
                    )));
                }
                Secret::Password => self.password = Some(password),
                Secret::Option(option) => self.options.push((option.to_owned(), password)),
            }
        }
        if self.scheme == "postgres" && self.password.is_none() {
            self.password = postgres::password(&self);
        }
        Ok(self)
    }

    /// Those password files of this URL that every user of this host can read. The remedy is `chmod
    /// o-r`.
    pub fn world_readable_files(&self) -> Vec<PathBuf> {
        let named = SECRET_FILE_OPTIONS.iter().filter_map(|(key, _)| self.option(key)).map(PathBuf::from);
        named.filter(|path| is_exposed(path)).collect()
    }
}

/// Whether every user of this host can read this file: its own mode allows it, and every user can
/// enter the folders above it.
pub fn is_exposed(path: &Path) -> bool {
    let Ok(canonical) = path.canonicalize() else { return false };
    let file = File::open(&canonical).and_then(|file| file.metadata());
    let mut parents = canonical.ancestors().skip(1);
    file.is_ok_and(|file| is_accessible_to(&file, 0o004))
        && parents.all(|folder| folder.metadata().is_ok_and(|metadata| is_accessible_to(&metadata, 0o001)))
}

fn invalid_option(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// The password in the first line of the file `path`, which the URL option `key` names.
fn read_password_file(path: &str, key: &str) -> Result<String> {
    let text = read(Path::new(path)).map_err(|e| invalid_option(format!("cannot read {key}={path}")).caused_by(e))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(invalid_option(format!("{key}={path} has no password in its first line: write it there")));
    }
    Ok(line.to_owned())
}

/// Reads a file with passwords; logs a warning if every user can read it.
fn read(path: &Path) -> std::io::Result<String> {
    let file = File::open(path)?;
    if is_exposed(path) && is_first_warning(path) {
        let path = path.display();
        tracing::warn!(%path, "every user of this host can read the password in {path}: chmod o-r {path}");
    }
    let mut text = String::new();
    file.take(MAX_FILE_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether this process has not warned of this file yet. An unreachable engine is opened many
/// times, and would repeat the warning.
fn is_first_warning(path: &Path) -> bool {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned())
}

/// Whether the file's mode has any of these permission bits.
#[cfg(unix)]
fn is_accessible_to(metadata: &Metadata, bits: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.mode() & bits != 0
}

#[cfg(not(unix))]
fn is_accessible_to(_: &Metadata, _: u32) -> bool {
    false
}

/// The passwords that PostgreSQL's own tools use for a URL without one.
mod postgres {
    use std::env;
    use std::fs::File;
    use std::path::PathBuf;

    use super::{EngineUrl, is_accessible_to, read};

    /// From `PGPASSWORD`; else from the file that `PGPASSFILE` names, else from `~/.pgpass`.
    pub(super) fn password(url: &EngineUrl) -> Option<String> {
        if let Some(password) = env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
            return Some(password);
        }
        let set = |key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = set("PGPASSFILE").or_else(|| Some(set("HOME")?.join(".pgpass")))?;
        let file = File::open(&path).ok()?;
        if file.metadata().is_ok_and(|metadata| is_accessible_to(&metadata, 0o077)) {
            tracing::warn!(path = %path.display(), "password file ignored, as PostgreSQL's own tools do, because other users can access it: chmod 0600");
            return None;
        }
        find_password(&read(&path).ok()?, url)
    }

    /// Finds the password for this URL in the text of a password file, whose lines are
    /// `host:port:database:user:password`. `*` matches anything, `\` escapes a `:` or `\`, and the
    /// first match counts.
    pub(super) fn find_password(text: &str, url: &EngineUrl) -> Option<String> {
        let (user, database) = (url.user.as_deref()?, url.path.trim_start_matches('/'));
        let hosts = url.hosts.iter().map(|host| match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host.trim_matches(['[', ']']), port),
            _ => (host.trim_matches(['[', ']']), "5432"),
        });
        let lines: Vec<Vec<String>> = text.lines().filter(|line| !line.starts_with('#')).map(split_fields).collect();
        hosts.into_iter().find_map(|(host, port)| {
            let fits = |line: &&Vec<String>| {
                let wanted = [host, port, database, user];
                line.len() == 5 && line.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted)
            };
            lines.iter().find(fits).map(|line| line[4].clone())
        })
    }

    /// The fields of one line, unescaped; the fifth has the rest of the line.
    fn split_fields(line: &str) -> Vec<String> {
        let (mut fields, mut chars) = (vec![String::new()], line.chars());
        while let Some(c) = chars.next() {
            match (c, fields.len()) {
                (':', 1..5) => fields.push(String::new()),
                (c, _) => {
                    let c = if c == '\\' { chars.next().unwrap_or('\\') } else { c };
                    fields.last_mut().into_iter().for_each(|field| field.push(c));
                }
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn read(url: &str) -> Result<EngineUrl> {
        EngineUrl::parse(url)?.read_password_files()
    }

    #[test]
    fn a_password_is_read_from_its_file() {
        let secret = file("hun:ter@2?\nnot this\n");
        let path = secret.path().display();
        for url in ["redis://u@h", "mysql://u@h/d", "zookeeper://u@h/p", "redlock://h1,h2,h3"] {
            let url = read(&format!("{url}?password-file={path}&x=1")).unwrap();
            assert_eq!(url.password.as_deref(), Some("hun:ter@2?"));
            assert_eq!(url.options, [("x".to_owned(), "1".to_owned())]);
            assert!(!format!("{url} {url:?}").contains("ter@2"));
        }
        let url = read(&format!("redis+sentinel://h/m?sentinel-password-file={path}")).unwrap();
        assert_eq!((url.password.as_deref(), url.option("sentinel-password")), (None, Some("hun:ter@2?")));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_every_user_can_read_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let (secret, other) = (file("hunter2\n"), file("hunter3\n"));
        let paths = [secret.path(), other.path()];
        let text = format!(
            "redis+sentinel://h/m?password-file={}&sentinel-password-file={}",
            paths[0].display(),
            paths[1].display()
        );
        let url = EngineUrl::parse(&text).unwrap();
        for (modes, exposed) in [([0o600, 0o640], &paths[..0]), ([0o600, 0o644], &paths[1..]), ([0o604; 2], &paths)] {
            for (path, mode) in paths.iter().zip(modes) {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            assert_eq!(url.world_readable_files(), exposed);
        }
        assert_eq!(
            [is_first_warning(paths[0]), is_first_warning(paths[1]), is_first_warning(paths[0])],
            [true, true, false]
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_in_a_folder_that_others_cannot_enter_is_not_exposed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (inner, link) = (dir.path().join("inner"), file("").path().to_owned());
        std::fs::create_dir(&inner).unwrap();
        let secret = inner.join("secret");
        std::fs::write(&secret, "hunter2\n").unwrap();
        mode(&secret, 0o644);
        // A link from elsewhere opens no folder.
        symlink(&secret, &link).unwrap();
        for (outer, of_inner, is_exposed) in
            [(0o755, 0o755, true), (0o700, 0o755, false), (0o755, 0o750, false), (0o711, 0o711, true)]
        {
            mode(dir.path(), outer);
            mode(&inner, of_inner);
            for path in [&secret, &link] {
                let url = EngineUrl::parse(&format!("redis://u@h?password-file={}", path.display())).unwrap();
                assert_eq!(
                    !url.world_readable_files().is_empty(),
                    is_exposed,
                    "{outer:o} {of_inner:o} {}",
                    path.display()
                );
            }
        }
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn errors_name_the_problem_and_show_no_password() {
        let (secret, empty) = (file("hunter2\n"), file("\n"));
        for (url, expected) in [
            (format!("redis://u:other@h?password-file={}", secret.path().display()), "leave one of them out"),
            (format!("redis://u@h?password-file={}", empty.path().display()), "no password in its first line"),
            ("redis://u@h?password-file=/no/such".to_owned(), "cannot read password-file=/no/such"),
        ] {
            let error = read(&url).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2") && !error.contains("other"), "{error}");
        }
    }

    #[test]
    fn password_files_are_matched_as_postgresql_does() {
        let text = "# host:port:database:user:password\ndb1:5432:shop:app:one\n*:*:shop:app:t\\:w\\\\o\n*:*:*:*:three:3\nbad\n";
        let find = |url: &str| postgres::find_password(text, &EngineUrl::parse(url).unwrap());
        assert_eq!(find("postgres://app@db1/shop").as_deref(), Some("one"));
        assert_eq!(find("postgres://app@db1:5433/shop").as_deref(), Some("t:w\\o"));
        assert_eq!(find("postgres://app@[::1]/other").as_deref(), Some("three:3"));
        assert_eq!(
            postgres::find_password("db2:*:*:*:x", &EngineUrl::parse("postgres://app@db1,db2:7/d").unwrap()).as_deref(),
            Some("x")
        );
        assert_eq!(postgres::find_password("db2:*:*:*:x", &EngineUrl::parse("postgres://app@db1/d").unwrap()), None);
    }
}
