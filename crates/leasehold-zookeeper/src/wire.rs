//! The packets of ZooKeeper's protocol.

use crate::error::{Error, Result};
use crate::jute::{Reader, Writer};

/// The longest frame accepted from a server. By default a server refuses a node's data above 1 MiB,
/// and a list of children is rarely longer.
pub(crate) const MAX_FRAME: usize = 16 * 1024 * 1024;

/// The maximum size of a packet of watches: well below the reference client's own limit of 128 KiB.
const MAX_WATCHES: usize = 100 * 1024;

/// The protocol's numbers for the kinds of requests.
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN_AND_STAT: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE_WITH_STAT: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    #[cfg(feature = "sasl")]
    pub(crate) const SASL: i32 = 102;
    pub(crate) const CLOSE_SESSION: i32 = -11;
    /// A failed part of a transaction, in its reply.
    pub(crate) const ERROR: i32 = -1;
}

/// The request numbers that the protocol reserves for packets outside the order of requests.
pub(crate) mod xid {
    pub(crate) const EVENT: i32 = -1;
    pub(crate) const PING: i32 = -2;
    pub(crate) const AUTH: i32 = -4;
    pub(crate) const SET_WATCHES: i32 = -8;
}

/// A request of the kind `op`; its number is set when it is sent.
pub(crate) fn request(op: i32) -> Writer {
    new_packet(0, op)
}

pub(crate) fn new_packet(xid: i32, op: i32) -> Writer {
    let mut writer = Writer::new();
    writer.int(xid);
    writer.int(op);
    writer
}

/// Sets the number of a finished request.
pub(crate) fn set_xid(frame: &mut [u8], xid: i32) {
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&xid.to_be_bytes());
    }
}

/// The header of every reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) code: i32,
}

impl Header {
    pub(crate) const LENGTH: usize = 16;

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { xid: reader.int()?, zxid: reader.long()?, code: reader.int()? })
    }
}

/// The first packet: opens a new session, or resumes an earlier one.
pub(crate) fn connect_request(last_zxid: i64, timeout_ms: i32, id: i64, password: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.int(0);
    writer.long(last_zxid);
    writer.int(timeout_ms);
    writer.long(id);
    writer.buffer(password);
    // Refuses a server that has lost its majority.
    writer.flag(false);
    writer.finish()
}

/// The reply to the first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectResponse {
    pub(crate) timeout_ms: u32,
    pub(crate) id: i64,
    pub(crate) password: Vec<u8>,
}

impl ConnectResponse {
    /// # Errors
    /// [`Error::SessionExpired`] if the servers have ended the session.
    pub(crate) fn read(frame: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(frame);
        let _protocol = reader.int()?;
        let (timeout, id, password) = (reader.int()?, reader.long()?, reader.buffer()?);
        if !reader.is_empty() && reader.flag()? {
            return Err(Error::NotReadOnly);
        }
        match u32::try_from(timeout) {
            Ok(timeout_ms) if timeout_ms > 0 && id != 0 => Ok(Self { timeout_ms, id, password: password.to_vec() }),
            _ => Err(Error::SessionExpired),
        }
    }
}

pub(crate) fn auth(scheme: &str, secret: &[u8]) -> Vec<u8> {
    let mut writer = new_packet(xid::AUTH, op::AUTH);
    writer.int(0);
    writer.text(scheme);
    writer.buffer(secret);
    writer.finish()
}

/// The paths watched for their data, for their creation, and for their children, in this order.
pub(crate) type WatchedPaths<'a> = [Vec<&'a str>; 3];

/// Sets all watches again, after a reconnect: the server reports what has happened since
/// `last_zxid`, and watches the rest.
pub(crate) fn set_watches_packets(last_zxid: i64, watched: &WatchedPaths<'_>) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let (mut part, mut length) = (WatchedPaths::default(), 0);
    for (kind, paths) in watched.iter().enumerate() {
        for path in paths {
            if length > 0 && length + path.len() + 4 > MAX_WATCHES {
                packets.push(watches_packet(last_zxid, &part));
                (part, length) = (WatchedPaths::default(), 0);
            }
            part[kind].push(path);
            length += path.len() + 4;
        }
    }
    if length > 0 {
        packets.push(watches_packet(last_zxid, &part));
    }
    packets
}

fn watches_packet(last_zxid: i64, watched: &WatchedPaths<'_>) -> Vec<u8> {
    let mut writer = new_packet(xid::SET_WATCHES, op::SET_WATCHES);
    writer.long(last_zxid);
    for paths in watched {
        writer.texts(paths.iter().copied());
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_watches_are_split_into_packets_below_the_limit() {
        let paths: Vec<String> = (0..6_000).map(|n| format!("/a/rather/long/path/of/a/node-{n:010}")).collect();
        let watched = [paths.iter().map(String::as_str).collect(), Vec::new(), vec!["/last"]];
        let packets = set_watches_packets(7, &watched);
        assert!(packets.len() > 2 && packets.iter().all(|packet| packet.len() < 128 * 1024));
        let mut seen = 0;
        for packet in &packets {
            let mut reader = Reader::new(&packet[12..]);
            assert_eq!(reader.long(), Ok(7));
            seen += (0..3).map(|_| reader.texts().unwrap().len()).sum::<usize>();
            assert!(reader.is_empty());
        }
        assert_eq!(seen, 6_001);
        assert!(set_watches_packets(7, &WatchedPaths::default()).is_empty());
    }

    #[test]
    fn an_ended_session_is_recognized_by_its_timeout() {
        let answer = |timeout, id| {
            let mut writer = Writer::new();
            writer.int(0);
            writer.int(timeout);
            writer.long(id);
            writer.buffer(&[1; 16]);
            ConnectResponse::read(&writer.into_body())
        };
        assert_eq!(answer(4_000, 9).map(|connected| (connected.timeout_ms, connected.id)), Ok((4_000, 9)));
        assert_eq!(answer(0, 9), Err(Error::SessionExpired));
        assert_eq!(answer(-1, 9), Err(Error::SessionExpired));
        assert_eq!(answer(4_000, 0), Err(Error::SessionExpired));
        assert!(matches!(ConnectResponse::read(&[0; 7]), Err(Error::Malformed(_))));
    }
}
