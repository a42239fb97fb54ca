//! Replaces the hosts in an engine's URL by the proxies' addresses; the rest stays as written.

use std::net::SocketAddr;

use super::RunError;

/// An engine's URL, split at its hosts.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EngineUrl {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    /// The servers' hosts as written, and their ports or the default one. Empty: the engine has no
    /// network.
    pub(super) hosts: Vec<(String, u16)>,
    /// The text before the first host, between the hosts, and after the last one.
    separators: Vec<String>,
    /// Whether the connection uses TLS.
    pub(super) uses_tls: bool,
}

impl EngineUrl {
    /// Splits a URL at its hosts. Fails with a usage error if it is not an engine's URL.
    pub(super) fn parse(url: &str) -> Result<Self, RunError> {
        let missing_scheme =
            || RunError::usage("not an engine URL: the scheme is missing; expected for example `redis://host:6379`");
        let (scheme, rest) = url.split_once(':').ok_or_else(missing_scheme)?;
        let scheme = scheme.to_ascii_lowercase();
        let (main, query) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
        let Some(port) = default_port(&scheme) else {
            return Ok(Self { scheme, hosts: Vec::new(), separators: vec![url.to_owned()], uses_tls: false });
        };
        let (slashes, main) = main.strip_prefix("//").map_or(("", main), |main| ("//", main));
        let mut reader = UrlParser {
            default_port: port,
            hosts: Vec::new(),
            separators: Vec::new(),
            pending_text: format!("{scheme}:"),
        };
        let mut tls = scheme == "rediss" || enables_tls(&scheme, query);
        if scheme == "redlock" {
            reader.pending_text.push_str(slashes);
            for (at, part) in main.split(',').enumerate() {
                reader.pending_text.push_str(if at == 0 { "" } else { "," });
                tls |= part.starts_with("rediss://");
                let start = part.find("://").map_or(0, |at| at + 3);
                reader.pending_text.push_str(&part[..start]);
                reader.parse_authority(&part[start..])?;
            }
        } else {
            reader.pending_text.push_str("//");
            // Without slashes, what follows the scheme is a path, and the host is the default one.
            reader.parse_authority(if slashes.is_empty() && !main.starts_with('/') { "" } else { main })?;
        }
        reader.pending_text.push_str(query);
        reader.separators.push(reader.pending_text);
        Ok(Self { scheme, hosts: reader.hosts, separators: reader.separators, uses_tls: tls })
    }

    /// The URL with these addresses in place of its hosts, in the same order.
    pub(super) fn with_servers(&self, servers: &[SocketAddr]) -> String {
        let mut url = String::new();
        for (at, text) in self.separators.iter().enumerate() {
            url.push_str(text);
            if at + 1 < self.separators.len() {
                url.push_str(&servers.get(at).map(SocketAddr::to_string).unwrap_or_default());
            }
        }
        url
    }

    /// Why proxies in front of these servers are impossible; `None`: they are possible.
    pub(super) fn proxy_obstacle(&self) -> Option<&'static str> {
        match self.scheme.as_str() {
            "memory" => Some("lives in one process: there is no network to disturb"),
            "file" => Some("lives in a folder of this host: there is no network to disturb"),
            "redis+sentinel" => Some("Sentinels give clients the servers' own addresses, past any proxy"),
            "redis+cluster" => Some("a cluster's nodes give clients each other's own addresses, past any proxy"),
            _ if self.uses_tls => Some("uses TLS, and no certificate matches a proxy's address"),
            _ if self.hosts.iter().any(|(host, _)| host.contains('/') || host.to_ascii_lowercase().contains("%2f")) => {
                Some("is reached by a Unix socket, where a proxy is impossible")
            }
            _ if self.hosts.is_empty() => Some("is not an engine with a known network"),
            _ => None,
        }
    }
}

/// Collects the hosts of a URL and the text around them.
struct UrlParser {
    default_port: u16,
    hosts: Vec<(String, u16)>,
    separators: Vec<String>,
    /// The text since the last host.
    pending_text: String,
}

impl UrlParser {
    /// Parses the part of a URL after its `//`: `[login@]host[:port][,host…][/path]`.
    fn parse_authority(&mut self, text: &str) -> Result<(), RunError> {
        let (authority, path) = text.find('/').map_or((text, ""), |at| text.split_at(at));
        if path.contains('@') {
            return Err(RunError::usage("write `/` or `?` in a user name or password as %2F or %3F"));
        }
        let start = authority.rfind('@').map_or(0, |at| at + 1);
        self.pending_text.push_str(&authority[..start]);
        let mut hosts = authority[start..].split(',').filter(|host| !host.is_empty()).peekable();
        if hosts.peek().is_none() {
            self.parse_host("127.0.0.1")?;
        }
        for (at, host) in hosts.enumerate() {
            self.pending_text.push_str(if at == 0 { "" } else { "," });
            self.parse_host(host)?;
        }
        self.pending_text.push_str(path);
        Ok(())
    }

    /// Parses one host: `host`, `host:port` or `[::1]:port`.
    fn parse_host(&mut self, text: &str) -> Result<(), RunError> {
        // The message does not repeat the text, which may be half of a password with a comma in it.
        let wrong = || RunError::usage("a host in this URL is invalid; expected `host:6379` or `[::1]:6379`");
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
        };
        let port = match port.strip_prefix(':') {
            None | Some("") => self.default_port,
            Some(digits) => digits.parse().map_err(|_| wrong())?,
        };
        if host.is_empty() {
            return Err(wrong());
        }
        self.hosts.push((host.to_owned(), port));
        self.separators.push(std::mem::take(&mut self.pending_text));
        Ok(())
    }
}

/// The default port of a URL scheme; `None`: the engine has no network, or is unknown.
fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "redis" | "rediss" | "redis+cluster" | "redlock" => Some(6379),
        "redis+sentinel" => Some(26379),
        "zookeeper" => Some(2181),
        "mysql" => Some(3306),
        "postgres" => Some(5432),
        _ => None,
    }
}

/// Whether the URL's options turn TLS on.
fn enables_tls(scheme: &str, query: &str) -> bool {
    let options = || query.trim_start_matches('?').split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let on = options().rfind(|(key, _)| *key == "tls").map(|(_, value)| value != "off" && value != "false");
    // For databases, `ca` alone turns TLS on.
    let sql = scheme == "mysql" || scheme == "postgres";
    on.unwrap_or_else(|| sql && options().any(|(key, _)| key == "ca"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_addrs(count: usize) -> Vec<SocketAddr> {
        (0..count).map(|at| SocketAddr::from(([127, 0, 0, 1], 9000 + at as u16))).collect()
    }

    #[test]
    fn proxy_addresses_replace_only_the_hosts() {
        for (url, hosts, changed) in [
            ("redis://h", vec![("h", 6379)], "redis://127.0.0.1:9000"),
            ("redis:", vec![("127.0.0.1", 6379)], "redis://127.0.0.1:9000"),
            ("redis://u:p%40@h:7/2?strict=1s", vec![("h", 7)], "redis://u:p%40@127.0.0.1:9000/2?strict=1s"),
            ("redis://[::1]:7", vec![("::1", 7)], "redis://127.0.0.1:9000"),
            (
                "redlock://u:p@h1:1/2,redis://:s@h2,h3?drift=0.02",
                vec![("h1", 1), ("h2", 6379), ("h3", 6379)],
                "redlock://u:p@127.0.0.1:9000/2,redis://:s@127.0.0.1:9001,127.0.0.1:9002?drift=0.02",
            ),
            (
                "zookeeper://u:p@z1,z2:99/apps/locks",
                vec![("z1", 2181), ("z2", 99)],
                "zookeeper://u:p@127.0.0.1:9000,127.0.0.1:9001/apps/locks",
            ),
            ("mysql://u:p@h/shop?table=t", vec![("h", 3306)], "mysql://u:p@127.0.0.1:9000/shop?table=t"),
            ("mysql://u:p@/shop", vec![("127.0.0.1", 3306)], "mysql://u:p@127.0.0.1:9000/shop"),
            ("postgres://u@h1,h2:99/d", vec![("h1", 5432), ("h2", 99)], "postgres://u@127.0.0.1:9000,127.0.0.1:9001/d"),
        ] {
            let address = EngineUrl::parse(url).unwrap();
            let expected: Vec<(String, u16)> = hosts.into_iter().map(|(host, port)| (host.to_owned(), port)).collect();
            assert_eq!(address.hosts, expected, "{url}");
            assert_eq!(address.with_servers(&proxy_addrs(expected.len())), changed, "{url}");
            assert_eq!(address.proxy_obstacle(), None, "{url}");
        }
    }

    #[test]
    fn urls_that_cannot_be_proxied_are_explained() {
        for (url, part) in [
            ("memory:", "one process"),
            ("file:///var/lib/locks", "folder"),
            ("redis+sentinel://h1,h2/mymaster", "Sentinels"),
            ("redis+cluster://h1,h2", "cluster"),
            ("rediss://h", "TLS"),
            ("redis://h?tls=on", "TLS"),
            ("redlock://h1,rediss://h2,h3", "TLS"),
            ("zookeeper://h?tls=on&ca=/c", "TLS"),
            ("postgres://u@h/d?ca=/c", "TLS"),
            ("postgres://u@%2Fvar%2Frun/d", "socket"),
            ("etcd://h", "not an engine"),
        ] {
            let why = EngineUrl::parse(url).unwrap().proxy_obstacle().unwrap_or_default();
            assert!(why.contains(part), "{url}: {why}");
        }
        assert_eq!(EngineUrl::parse("postgres://u@h/d?tls=off").unwrap().proxy_obstacle(), None);
    }

    #[test]
    fn errors_never_contain_a_password() {
        for url in ["redis://u:hun/ter2@h", "redis://u:p@:hunter2", "redlock://u:hunter,hunter2@h1", "hunter2"] {
            match EngineUrl::parse(url) {
                Err(trouble) => assert!(!trouble.to_string().contains("hunter"), "{url}: {trouble}"),
                Ok(address) => assert!(address.hosts.iter().all(|(host, _)| !host.contains("hunter2")), "{url}"),
            }
        }
    }
}
