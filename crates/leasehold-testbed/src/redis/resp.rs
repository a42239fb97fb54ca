//! A minimal client of the Redis protocol (RESP2).

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{Error, Result};

/// The default timeout of a reply.
const DEFAULT_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// The maximum length of a reply in bytes.
const MAX_REPLY_BYTES: usize = 16 * 1024 * 1024;
/// The maximum nesting of arrays.
const MAX_REPLY_DEPTH: usize = 16;

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// An error, such as `WRONGTYPE …`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A value that is text.
    Bulk(String),
    /// A value that is not UTF-8.
    Binary(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// The bytes of a value; `None` for any other reply.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(text) => Some(text.as_bytes()),
            Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// One connection to Redis.
#[derive(Debug)]
pub struct RespClient {
    stream: TcpStream,
    /// Bytes that were received and do not belong to a returned reply.
    unread: Vec<u8>,
    /// How long each reply may take.
    timeout: Duration,
}

impl RespClient {
    /// Connects to a server, or to a proxy before it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::TimedOut`].
    pub async fn connect(addr: SocketAddr) -> Result<Self> {
        let connecting = format!("connecting to {addr}");
        let stream = timeout(DEFAULT_TIMEOUT, TcpStream::connect(addr))
            .await
            .map_err(|_| timed_out_error("connection", DEFAULT_TIMEOUT))?
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(Error::io(connecting))?;
        Ok(Self { stream, unread: Vec::new(), timeout: DEFAULT_TIMEOUT })
    }

    /// Sets the timeout of each later reply.
    #[must_use]
    pub fn timeout(mut self, bound: Duration) -> Self {
        self.timeout = bound;
        self
    }

    /// Sends a command and waits for its reply.
    ///
    /// An error reply of Redis is `Ok(Reply::Error)`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]: connect again, because a late reply would count as that of the next
    /// command. [`Error::Io`] if the connection ended, [`Error::Protocol`] if it is not Redis.
    pub async fn command(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.send(arguments).await?;
        self.reply().await
    }

    /// Sends a command in one piece and does not wait for its reply.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::TimedOut`].
    pub async fn send(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for word in arguments.iter().map(AsRef::as_ref) {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(word);
            request.extend(b"\r\n");
        }
        timeout(self.timeout, self.stream.write_all(&request))
            .await
            .map_err(|_| timed_out_error("space in the send buffer", self.timeout))?
            .map_err(Error::io("sending to Redis"))
    }

    /// Waits for the next reply, or for a message to a subscriber.
    ///
    /// # Errors
    ///
    /// As [`RespClient::command`].
    pub async fn reply(&mut self) -> Result<Reply> {
        let bound = self.timeout;
        timeout(bound, self.read_reply()).await.map_err(|_| timed_out_error("reply from Redis", bound))?
    }

    async fn read_reply(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = parse_reply(&self.unread, MAX_REPLY_DEPTH)? {
                self.unread.drain(..length);
                return Ok(reply);
            }
            if self.unread.len() > MAX_REPLY_BYTES {
                return Err(protocol_error("a reply larger than 16 MiB"));
            }
            let reading = Error::io("reading from Redis");
            let read = self.stream.read_buf(&mut self.unread).await;
            if read.map_err(reading)? == 0 {
                let end = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(Error::io("reading from Redis")(end));
            }
        }
    }
}

/// The first reply in `bytes` and its length; `None` if more must be read. Arrays may be nested
/// `depth` deep.
fn parse_reply(bytes: &[u8], depth: usize) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (line, body) = (String::from_utf8_lossy(&bytes[..end]), end + 2);
    let mut rest = line.chars();
    let (kind, text) = (rest.next(), rest.as_str());
    let number = || text.parse::<i64>().map_err(|_| protocol_error(&line));
    let reply = match kind {
        Some('+') => Reply::Simple(text.to_owned()),
        Some('-') => Reply::Error(text.to_owned()),
        Some(':') => Reply::Integer(number()?),
        Some('$' | '*') if number()? < 0 => Reply::Nil,
        Some('$') => {
            let length = usize::try_from(number()?).map_err(|_| protocol_error(&line))?;
            let value = bytes.get(body..body + length.min(MAX_REPLY_BYTES));
            return Ok(value
                .filter(|_| bytes.len() >= body + length + 2)
                .map(|value| (value_reply(value), body + length + 2)));
        }
        Some('*') if depth > 0 => return parse_items(bytes, body, number()?, depth - 1),
        _ => return Err(protocol_error(&line)),
    };
    Ok(Some((reply, body)))
}

/// Parses the `count` items of an array, the first of which is at `at`. Returns the array and where
/// it ends; `None` if more must be read.
fn parse_items(bytes: &[u8], mut at: usize, count: i64, depth: usize) -> Result<Option<(Reply, usize)>> {
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((item, length)) = parse_reply(&bytes[at..], depth)? else {
            return Ok(None);
        };
        items.push(item);
        at += length;
    }
    Ok(Some((Reply::Array(items), at)))
}

fn value_reply(bytes: &[u8]) -> Reply {
    String::from_utf8(bytes.to_vec()).map_or_else(|error| Reply::Binary(error.into_bytes()), Reply::Bulk)
}

fn protocol_error(problem: &str) -> Error {
    Error::Protocol { peer: "Redis".to_owned(), problem: problem.to_owned() }
}

fn timed_out_error(awaited: &str, bound: Duration) -> Error {
    Error::TimedOut { awaited: awaited.to_owned(), bound, observed: "silence".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_parsed_only_when_it_is_complete() {
        let whole = b"*3\r\n$2\r\nab\r\n:-7\r\n*1\r\n$-1\r\n+next\r\n";
        let length = whole.len() - b"+next\r\n".len();
        let expected =
            Reply::Array(vec![Reply::Bulk("ab".to_owned()), Reply::Integer(-7), Reply::Array(vec![Reply::Nil])]);
        for cut in 0..length {
            assert_eq!(parse_reply(&whole[..cut], 4).unwrap(), None, "cut at {cut}");
        }
        assert_eq!(parse_reply(whole, 4).unwrap(), Some((expected, length)));
    }

    #[test]
    fn invalid_resp_is_refused() {
        assert!(parse_reply(b"HTTP/1.1 400\r\n", 4).is_err());
        assert!(parse_reply(b"$x\r\n", 4).is_err());
        assert!(parse_reply(b"*1\r\n*1\r\n:1\r\n", 1).is_err(), "too deep");
    }
}
