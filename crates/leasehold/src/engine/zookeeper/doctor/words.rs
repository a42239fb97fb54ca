//! Four-letter words: one plain connection each, which the server closes after its answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::facts::{Known, Lines, No};
use crate::clock::Clock;

/// A server that does not answer within this time counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum length of an answer.
const MOST: u64 = 1 << 20;

/// The addresses of a name.
pub(super) async fn places(host: &str, port: u16) -> Known<Vec<SocketAddr>> {
    let (host, shown) = (host.to_owned(), host.to_owned());
    let look = move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    match Clock::system().timeout(PATIENCE, tokio::task::spawn_blocking(look)).await {
        Ok(Ok(Ok(found))) if !found.is_empty() => Ok(found),
        Ok(Ok(Err(cause))) => Err(No::Lost(format!("{shown:?} is not found: {cause}"))),
        _ => Err(No::Lost(format!("{shown:?} is not found"))),
    }
}

/// The answer to a word, from the first of these addresses that responds.
pub(super) async fn ask(places: &[SocketAddr], word: &'static str, connect: Duration) -> Known<String> {
    let (places, connect) = (places.to_vec(), connect.min(PATIENCE));
    let asking = tokio::task::spawn_blocking(move || speak(&places, word, connect));
    let whole = connect.saturating_add(PATIENCE);
    let said = match Clock::system().timeout(whole, asking).await {
        Ok(Ok(Ok(said))) => said,
        // This is how a read that takes too long ends.
        Ok(Ok(Err(cause))) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(No::Lost("it does not answer".into()));
        }
        Ok(Ok(Err(cause))) => return Err(No::Lost(format!("it cannot be reached: {cause}"))),
        _ => return Err(No::Lost("it does not answer".into())),
    };
    heard(word, said)
}

fn speak(places: &[SocketAddr], word: &str, connect: Duration) -> std::io::Result<String> {
    let mut last = std::io::Error::other("no address");
    for place in places {
        match TcpStream::connect_timeout(place, connect) {
            Ok(mut line) => {
                line.set_read_timeout(Some(PATIENCE))?;
                line.set_write_timeout(Some(PATIENCE))?;
                line.write_all(word.as_bytes())?;
                let mut said = Vec::new();
                line.take(MOST).read_to_end(&mut said)?;
                return Ok(String::from_utf8_lossy(&said).into_owned());
            }
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

/// The meaning of an answer.
fn heard(word: &'static str, said: String) -> Known<String> {
    if said.contains("not in the whitelist") {
        Err(No::Unlisted(word))
    } else if said.contains("not currently serving requests") {
        Err(No::Idle)
    } else if said.trim().is_empty() {
        Err(No::Missing(format!("it answers nothing to {word}: is this its plain client port?")))
    } else {
        Ok(said)
    }
}

/// `mntr`, as lines.
pub(super) async fn figures(places: &[SocketAddr], connect: Duration) -> Known<Lines> {
    ask(places, "mntr", connect).await.map(|text| Lines::read(&text, "\t"))
}

/// `srvr`, `mntr` and `conf`, as lines.
pub(super) async fn all(places: &[SocketAddr], connect: Duration) -> [Known<Lines>; 3] {
    let one = |word, between| async move { ask(places, word, connect).await.map(|text| Lines::read(&text, between)) };
    let srvr = one("srvr", ": ").await;
    if let Err(no @ No::Lost(_)) = &srvr {
        return [srvr.clone(), Err(no.clone()), Err(no.clone())];
    }
    let (mntr, conf) = futures_util::future::join(figures(places, connect), one("conf", "=")).await;
    [srvr, mntr, conf]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_none() {
        let heard = |said: &str| heard("mntr", said.to_owned());
        assert_eq!(heard("mntr is not executed because it is not in the whitelist.\n"), Err(No::Unlisted("mntr")));
        assert_eq!(heard("This ZooKeeper instance is not currently serving requests\n"), Err(No::Idle));
        assert!(matches!(heard(""), Err(No::Missing(_))));
        assert_eq!(heard("zk_version\t3.8.0"), Ok("zk_version\t3.8.0".into()));
    }

    #[tokio::test]
    async fn nobody_there_is_lost() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        drop(listener);
        let [srvr, mntr, conf] = all(&[place], Duration::from_secs(1)).await;
        assert!(matches!((srvr, mntr, conf), (Err(No::Lost(_)), Err(No::Lost(_)), Err(No::Lost(_)))));
        assert!(matches!(places("no-such-host.invalid", 1).await, Err(No::Lost(_))));
    }
}
