//! Sends four-letter words: one plain connection each, which the server closes after its reply.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::facts::{Fact, KeyValues, UnknownReason};
use leasehold::clock::Clock;

/// A server that does not reply within this time counts as unreachable.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a reply, in bytes.
const MAX_REPLY: u64 = 1 << 20;

/// The IP addresses of a host name.
pub(super) async fn resolve_addresses(host: &str, port: u16) -> Fact<Vec<SocketAddr>> {
    let (host, shown) = (host.to_owned(), host.to_owned());
    let lookup = move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    match Clock::system().timeout(REPLY_TIMEOUT, tokio::task::spawn_blocking(lookup)).await {
        Ok(Ok(Ok(found))) if !found.is_empty() => Ok(found),
        Ok(Ok(Err(cause))) => Err(UnknownReason::Unreachable(format!("{shown:?} cannot be resolved: {cause}"))),
        _ => Err(UnknownReason::Unreachable(format!("{shown:?} cannot be resolved"))),
    }
}

/// Sends a four-letter word to the first of these addresses that accepts a connection within
/// `connect_timeout`; returns the reply.
pub(super) async fn query(addresses: &[SocketAddr], word: &'static str, connect_timeout: Duration) -> Fact<String> {
    let (addresses, connect_timeout) = (addresses.to_vec(), connect_timeout.min(REPLY_TIMEOUT));
    let reply = tokio::task::spawn_blocking(move || query_blocking(&addresses, word, connect_timeout));
    let whole = connect_timeout.saturating_add(REPLY_TIMEOUT);
    let reply = match Clock::system().timeout(whole, reply).await {
        Ok(Ok(Ok(reply))) => reply,
        // A timeout of the read.
        Ok(Ok(Err(cause))) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(UnknownReason::Unreachable("it does not answer".into()));
        }
        Ok(Ok(Err(cause))) => return Err(UnknownReason::Unreachable(format!("it cannot be reached: {cause}"))),
        _ => return Err(UnknownReason::Unreachable("it does not answer".into())),
    };
    parse_reply(word, reply)
}

/// Sends a word and reads the reply, on a thread that may block.
fn query_blocking(addresses: &[SocketAddr], word: &str, connect_timeout: Duration) -> std::io::Result<String> {
    let mut last = std::io::Error::other("no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, connect_timeout) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
                stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
                stream.write_all(word.as_bytes())?;
                let mut reply = Vec::new();
                stream.take(MAX_REPLY).read_to_end(&mut reply)?;
                return Ok(String::from_utf8_lossy(&reply).into_owned());
            }
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

/// The reply to a word; an error if the server refuses the word, or does not serve requests.
fn parse_reply(word: &'static str, reply: String) -> Fact<String> {
    if reply.contains("not in the whitelist") {
        Err(UnknownReason::NotWhitelisted(word))
    } else if reply.contains("not currently serving requests") {
        Err(UnknownReason::NotServing)
    } else if reply.trim().is_empty() {
        Err(UnknownReason::NotReported(format!("it sends no reply to {word}: is this its plain client port?")))
    } else {
        Ok(reply)
    }
}

/// Sends `mntr`; returns the metrics.
pub(super) async fn query_mntr(addresses: &[SocketAddr], connect_timeout: Duration) -> Fact<KeyValues> {
    query(addresses, "mntr", connect_timeout).await.map(|text| KeyValues::parse(&text, "\t"))
}

/// Sends `srvr`, `mntr` and `conf`; returns their replies in this order.
pub(super) async fn query_all(addresses: &[SocketAddr], connect_timeout: Duration) -> [Fact<KeyValues>; 3] {
    let one = |word, between| async move {
        query(addresses, word, connect_timeout).await.map(|text| KeyValues::parse(&text, between))
    };
    let srvr = one("srvr", ": ").await;
    if let Err(reason @ UnknownReason::Unreachable(_)) = &srvr {
        return [srvr.clone(), Err(reason.clone()), Err(reason.clone())];
    }
    let (mntr, conf) = futures_util::future::join(query_mntr(addresses, connect_timeout), one("conf", "=")).await;
    [srvr, mntr, conf]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_are_recognized() {
        let parse = |reply: &str| parse_reply("mntr", reply.to_owned());
        assert_eq!(
            parse("mntr is not executed because it is not in the whitelist.\n"),
            Err(UnknownReason::NotWhitelisted("mntr"))
        );
        assert_eq!(
            parse("This ZooKeeper instance is not currently serving requests\n"),
            Err(UnknownReason::NotServing)
        );
        assert!(matches!(parse(""), Err(UnknownReason::NotReported(_))));
        assert_eq!(parse("zk_version\t3.8.0"), Ok("zk_version\t3.8.0".into()));
    }

    #[tokio::test]
    async fn an_unreachable_server_is_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        drop(listener);
        let [srvr, mntr, conf] = query_all(&[place], Duration::from_secs(1)).await;
        assert!(matches!(
            (srvr, mntr, conf),
            (
                Err(UnknownReason::Unreachable(_)),
                Err(UnknownReason::Unreachable(_)),
                Err(UnknownReason::Unreachable(_))
            )
        ));
        assert!(matches!(resolve_addresses("no-such-host.invalid", 1).await, Err(UnknownReason::Unreachable(_))));
    }
}
