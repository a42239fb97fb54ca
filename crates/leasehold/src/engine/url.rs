//! Parses engine URLs: `scheme:path` or `scheme://user:password@h1:1,h2:2/path?option=value`. They
//! may have several hosts, which general URL parsers do not support.

use std::fmt;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
use std::time::Duration;

use crate::types::{Error, ErrorKind, Result};

/// Schemes whose URL lists full addresses instead of hosts, as in `redlock://u:p@h1:1/0,h2:2`.
const ADDRESS_LIST_SCHEMES: [&str; 1] = ["redlock"];

/// A parsed URL. `Debug` and `Display` hide the password and the values of options that look like
/// secrets.
///
/// ```
/// use leasehold::engine::EngineUrl;
///
/// let url = EngineUrl::parse("redis://app:secret@db1,db2/0?strict=yes")?;
/// assert_eq!((url.scheme.as_str(), url.hosts.len(), url.path.as_str()), ("redis", 2, "/0"));
/// assert!(!url.to_string().contains("secret"));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineUrl {
    /// The part before the first colon, in lower case.
    pub scheme: String,
    /// The user name, %-decoded; `None` if it is missing or empty.
    pub user: Option<String>,
    /// The password, %-decoded.
    pub password: Option<String>,
    /// The hosts as written, each with its port if it has one. `redlock:` has full addresses here.
    pub hosts: Vec<String>,
    /// The path, %-decoded, with its leading slash if it has one; empty if there is no path.
    pub path: String,
    /// Names and values of the options, %-decoded, in the order of the URL.
    pub options: Vec<(String, String)>,
}

impl EngineUrl {
    /// Parses a URL; does not check that an engine with this scheme exists.
    ///
    /// # Errors
    /// `InvalidUrl`, which describes the problem and never shows a password.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(suggestion) = suggest_url(text) {
            return Err(invalid_url(format!("{text:?} is no engine URL; did you mean `{suggestion}`?")));
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| {
            invalid_url(format!(
                "{text:?} has no scheme; an engine URL is like `redis://{text}` or `file:///var/lib/locks`"
            ))
        })?;
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_valid)
        {
            return Err(invalid_url(format!(
                "{scheme:?} is no scheme: it begins with a letter and has letters, digits, `+`, `-` and `.`"
            )));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if ADDRESS_LIST_SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) {
            return Self::parse_addresses(scheme, rest, query);
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or((rest, ""), |at| rest.split_at(at)),
            None => ("", rest),
        };
        // Errors quote what is parsed as a host, a path or an option below: it must not be a part
        // of a password.
        let key_of_first = query.split('=').next().unwrap_or_default();
        if !authority.is_empty() && !authority.contains('@') && (path.contains('@') || key_of_first.contains('@')) {
            return Err(invalid_url("a `/` or `?` in a user or a password is written as %2F or %3F".into()));
        }
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(percent_decode(password)?)),
            None => (login, None),
        };
        Ok(Self {
            scheme: canonical_scheme(scheme),
            user: (!user.is_empty()).then(|| percent_decode(user)).transpose()?,
            password,
            hosts: hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect(),
            path: percent_decode(path)?,
            options: query.split('&').filter(|pair| !pair.is_empty()).map(parse_option).collect::<Result<_>>()?,
        })
    }

    /// Parses a URL whose hosts are full addresses: each may have its own scheme, login and path,
    /// which its engine parses.
    fn parse_addresses(scheme: &str, rest: &str, query: &str) -> Result<Self> {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        // An option whose name has an `@` is the rest of a password with a `?` in it.
        if query.split('=').next().is_some_and(|key| key.contains('@')) {
            return Err(invalid_url("a `/` or `?` in a user or a password is written as %2F or %3F".into()));
        }
        // Errors quote what is parsed as a host: it must not be half of a password with a comma in
        // it.
        let is_host = |part: &str| {
            let port =
                part.rsplit_once(']').map_or(part, |(_, port)| port).split_once(':').map_or("", |(_, port)| port);
            part.contains(['@', '/']) || port.bytes().all(|byte| byte.is_ascii_digit())
        };
        if rest.contains('@') && !rest.split(',').all(is_host) {
            return Err(invalid_url("a `,` in a user or a password is written as %2C".into()));
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            hosts: rest.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            path: String::new(),
            options: query.split('&').filter(|pair| !pair.is_empty()).map(parse_option).collect::<Result<_>>()?,
        })
    }

    /// Returns an error if the URL has an option that is not in `known`.
    ///
    /// # Errors
    /// `InvalidUrl`, which names the option and lists the known ones.
    pub fn refuse_unknown_options(&self, known: &[&str]) -> Result<()> {
        match self.options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(invalid_url(format!("`{}:` has no options: remove {key:?}", self.scheme)))
            }
            Some((key, _)) => {
                Err(invalid_url(format!("`{}:` has no option {key:?}; it has {}", self.scheme, known.join(", "))))
            }
        }
    }

    /// The value of an option that is a duration, like `500ms` or `30`, which is in seconds; `None`
    /// if the URL does not have the option.
    #[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
    pub(crate) fn duration(&self, key: &str) -> Result<Option<Duration>> {
        let parse = |text: &str| {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, unit) = text.split_at(digits);
            let number: u32 = number.parse().ok()?;
            let each = match unit {
                "ms" => Duration::from_millis(1),
                "" | "s" => Duration::from_secs(1),
                "m" => Duration::from_secs(60),
                "h" => Duration::from_secs(3600),
                "d" => Duration::from_secs(24 * 3600),
                _ => return None,
            };
            each.checked_mul(number)
        };
        let read = |text: &str| {
            parse(text).ok_or_else(|| invalid_url(format!("{key} is like 500ms, 30s, 5m, 1h or 2d, and not {text:?}")))
        };
        self.option(key).map(read).transpose()
    }

    /// Adds the URL to an error that occurred while the engine was opened. A malformed URL may have
    /// a password anywhere, so only its scheme is shown.
    pub fn add_location(&self, error: Error) -> Error {
        match error.kind() {
            // There is no such engine.
            ErrorKind::UnknownScheme | ErrorKind::FeatureDisabled => error,
            ErrorKind::InvalidUrl => error.at_url(format!("{}:", self.scheme)),
            _ => error.at_url(self.location()),
        }
    }

    /// The URL for error messages: without its password, and without options, since an unknown
    /// option may be a misspelt `password=`.
    pub(crate) fn location(&self) -> String {
        Self { options: Vec::new(), ..self.clone() }.to_string()
    }

    /// The value of an option; if the URL repeats the option, the last value. `None` if it is
    /// missing.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

/// Parses `host`, `host:port`, `[::1]` or `[::1]:port` into host and port; without a port, the port
/// is `default_port`. The error message shows the syntax with the host `example`.
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
pub(crate) fn host_and_port(text: &str, default_port: u16, example: &str) -> Result<(String, u16)> {
    // The text after a `:` without a host may be the start of a password: do not show it.
    let shown_text = if text.starts_with(':') { "a `:` without a host".to_owned() } else { format!("{text:?}") };
    let malformed_error = || {
        invalid_url(format!(
            "{shown_text} is no host with a port, like `{example}:{default_port}` or `[::1]:{default_port}`"
        ))
    };
    let (host, digits) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(malformed_error)?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")).ok_or_else(malformed_error)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if host.is_empty() {
        return Err(malformed_error());
    }
    let port = if digits.is_empty() { default_port } else { digits.parse().map_err(|_| malformed_error())? };
    Ok((host.to_owned(), port))
}

/// Replaces the password in a host or full address with `***`.
fn hide_password(part: &str) -> String {
    let (scheme, rest) = part.split_once("://").map_or(("", part), |(scheme, rest)| (scheme, rest));
    let joint = if scheme.is_empty() { "" } else { "://" };
    match rest.rsplit_once('@').map(|(login, host)| (login.split_once(':'), host)) {
        Some((Some((user, _)), host)) => format!("{scheme}{joint}{user}:***@{host}"),
        _ => part.to_owned(),
    }
}

/// The schemes of all engines in this crate; a test in `registry` compares them with the engines.
pub(crate) const SCHEMES: [&str; 11] = [
    "memory",
    "file",
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "mysql",
    "postgres",
    "postgresql",
    "zookeeper",
];

/// Whether an engine of this crate has this scheme.
fn is_known_scheme(scheme: &str) -> bool {
    SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme))
}

/// For a path or a `host:port` without a scheme, or a scheme without `//`: the URL that was probably
/// meant. `None` for other texts, and for all that may have a password.
fn suggest_url(text: &str) -> Option<String> {
    if text.contains('@') || text.contains("password=") {
        return None;
    }
    let before_options = text.split('?').next().unwrap_or_default();
    if text.starts_with(['/', '.', '~']) && !before_options.contains(':') {
        return Some(if text.starts_with('/') { format!("file://{text}") } else { format!("file:{text}") });
    }
    let address = before_options.split('/').next().unwrap_or_default();
    let (host, port) = address.rsplit_once(':')?;
    if let Some((scheme, rest)) = text.split_once(':')
        && is_known_scheme(scheme)
    {
        // `file:8080` and `memory:1` are URLs.
        let needs_slashes = !scheme.eq_ignore_ascii_case("file") && !scheme.eq_ignore_ascii_case("memory");
        let has_address = !rest.starts_with(['/', '?']) && !rest.is_empty();
        return (needs_slashes && has_address).then(|| format!("{scheme}://{rest}"));
    }
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._[]:".contains(c));
    if !is_host || port.parse::<u16>().is_err() {
        return None;
    }
    let scheme = match port {
        "3306" => "mysql",
        "5432" => "postgres",
        "2181" => "zookeeper",
        "26379" => "redis+sentinel",
        _ => "redis",
    };
    Some(format!("{scheme}://{text}"))
}

fn invalid_url(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// The scheme in lower case, and `postgres` for its synonym `postgresql`.
fn canonical_scheme(scheme: &str) -> String {
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "postgresql" { "postgres".to_owned() } else { scheme }
}

/// Splits `name=value`, and %-decodes both; without a `=`, the value is empty.
fn parse_option(pair: &str) -> Result<(String, String)> {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Ok((percent_decode(key)?, percent_decode(value)?))
}

/// Replaces each `%XX` by the byte that it stands for; the result must be UTF-8.
fn percent_decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = digits.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(
            byte.ok_or_else(|| invalid_url("a `%` in the URL is not followed by two hexadecimal digits".into()))?,
        );
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| invalid_url("the URL's %-escapes are not UTF-8".into()))
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() || self.user.is_some() || self.password.is_some() {
            f.write_str("//")?;
            if self.user.is_some() || self.password.is_some() {
                let hidden = if self.password.is_some() { ":***" } else { "" };
                write!(f, "{}{hidden}@", self.user.as_deref().unwrap_or(""))?;
            }
            for (index, host) in self.hosts.iter().enumerate() {
                write!(f, "{}{}", if index == 0 { "" } else { "," }, hide_password(host))?;
            }
        } else if self.path.starts_with('/') {
            f.write_str("//")?;
        }
        f.write_str(&self.path)?;
        for (index, (key, value)) in self.options.iter().enumerate() {
            // The path of a password file is not secret.
            let secret =
                !key.ends_with("-file") && ["pass", "secret", "token", "key"].iter().any(|word| key.contains(word));
            write!(f, "{}{key}={}", if index == 0 { '?' } else { '&' }, if secret { "***" } else { value })?;
        }
        Ok(())
    }
}

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_of_every_shape_are_parsed() {
        let url = EngineUrl::parse("redis+sentinel://us%20er:p%40ss@h1:1,h2,[::1]:3/my-master?db=2&x=a%26b").unwrap();
        assert_eq!((url.scheme.as_str(), url.path.as_str()), ("redis+sentinel", "/my-master"));
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("us er"), Some("p@ss")));
        assert_eq!(url.hosts, ["h1:1", "h2", "[::1]:3"]);
        assert_eq!(url.option("x"), Some("a&b"));
        let url = EngineUrl::parse("file:///var/lib/a%20b").unwrap();
        assert_eq!((url.hosts.len(), url.path.as_str()), (0, "/var/lib/a b"));
        assert_eq!(EngineUrl::parse("memory:").unwrap().path, "");
        assert_eq!(EngineUrl::parse("PostgreSQL://u@h/d").unwrap().scheme, "postgres");
        assert_eq!(EngineUrl::parse("memory:shared").unwrap().path, "shared");
    }

    #[test]
    fn never_shows_a_password() {
        let url = EngineUrl::parse("redis://u:hunter2@h/?password=hunter2&tls-key=hunter2&db=1").unwrap();
        for shown_url in [format!("{url}"), format!("{url:?}"), format!("{url:#?}")] {
            assert!(
                !shown_url.contains("hunter2") && shown_url.contains("u:***@h") && shown_url.contains("db=1"),
                "{shown_url}"
            );
        }
    }

    #[test]
    fn errors_name_the_problem() {
        for (text, says) in [
            ("nothing", "no scheme"),
            ("1x:", "no scheme: it begins with a letter"),
            ("file:///%zz", "two hexadecimal"),
        ] {
            assert!(EngineUrl::parse(text).unwrap_err().to_string().contains(says), "{text}");
        }
        let error = EngineUrl::parse("file:?a=1").unwrap().refuse_unknown_options(&["mode"]).unwrap_err();
        assert!(error.to_string().contains("it has mode"));
        let url = EngineUrl::parse("redis://u:hunter2@h:1/0?pasword=hunter2").unwrap();
        assert_eq!(url.location(), "redis://u:***@h:1/0");
    }

    #[test]
    fn a_bare_path_or_address_gets_a_suggestion() {
        for (text, expected) in [
            ("/var/lib/locks", "did you mean `file:///var/lib/locks`?"),
            ("./locks", "did you mean `file:./locks`?"),
            ("127.0.0.1:6379", "did you mean `redis://127.0.0.1:6379`?"),
            ("[::1]:6379", "did you mean `redis://[::1]:6379`?"),
            ("localhost:5432", "did you mean `postgres://localhost:5432`?"),
            ("db1:3306", "did you mean `mysql://db1:3306`?"),
            ("zk1:2181", "did you mean `zookeeper://zk1:2181`?"),
            ("/srv/locks?mode=0770", "did you mean `file:///srv/locks?mode=0770`?"),
            ("127.0.0.1:6379/0", "did you mean `redis://127.0.0.1:6379/0`?"),
            ("127.0.0.1:6379?strict=30s", "did you mean `redis://127.0.0.1:6379?strict=30s`?"),
            ("redis:127.0.0.1:6379", "did you mean `redis://127.0.0.1:6379`?"),
            ("zookeeper:zk1,zk2/locks", "did you mean `zookeeper://zk1,zk2/locks`?"),
            ("db1", "like `redis://db1`"),
        ] {
            let message = EngineUrl::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
        for url in ["file:8080", "memory:1", "file:/a/b", "redis://h:6379"] {
            EngineUrl::parse(url).unwrap();
        }
        for text in ["root:hunter2@db1:3306", "h1:26379?sentinel-password=hunter2", "redis:u:hunter2@h1:6379"] {
            let message = EngineUrl::parse(text).map(|url| url.to_string());
            assert!(!format!("{message:?}").contains("did you mean"), "a password is not repeated: {message:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = EngineUrl::parse(&text);
        }
    }
}
