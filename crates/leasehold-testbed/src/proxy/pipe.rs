//! One direction of one connection: reads, holds back, and forwards by the rules.

use std::{collections::VecDeque, io, time::Duration};

use tokio::{
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    time::{Instant, sleep_until},
};

use super::{connection::ProxyConnection, rules::ProxyRules};

/// The maximum size of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// With this many held bytes, a direction stops reading.
const MAX_HELD_BYTES: usize = 1024 * 1024;
/// With this many held chunks, a direction stops reading.
const MAX_HELD_CHUNKS: usize = 1024;
/// The time of a timer that is not used: far in the future, without overflow.
const FAR_FUTURE: Duration = Duration::from_secs(86_400);

/// Which way bytes flow: requests to the server, or replies to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Reply,
}

/// Why a connection ends before both sides have closed it normally.
pub(super) enum ConnectionEnd {
    /// Cut by the test, or aborted by one side.
    Broken,
    /// The reply that the test wants to lose has arrived: the client's connection is closed, and
    /// the server's connection is read to its end.
    CutAfterReply(OwnedReadHalf),
}

/// What was read from the sender.
enum Content {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    Close,
    /// The sender reset the connection.
    Abort,
}

/// A chunk that was read and not completely forwarded.
struct HeldChunk {
    content: Content,
    arrived: Instant,
    /// Whether the rules were already applied to the chunk; a rule such as `duplicate` applies
    /// once.
    is_decided: bool,
    /// How many of its bytes were forwarded or dropped.
    sent_bytes: usize,
}

/// The event to wait for, besides new bytes and new rules.
enum WaitFor {
    Nothing,
    /// The time when the next chunk is due.
    Until(Instant),
    /// Space in the receiver's socket buffer.
    WriteSpace,
}

/// What a direction does after all allowed bytes were forwarded.
enum PassOutcome {
    Wait(WaitFor),
    Closed,
    Broken,
    CutAfterReply,
}

/// One direction of one connection.
pub(super) struct Pipe<'a> {
    direction: Direction,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    connection: &'a ProxyConnection,
    held: VecDeque<HeldChunk>,
    held_bytes: usize,
    /// Whether the sender has closed or reset its side.
    is_ended: bool,
    /// The buffer of each read.
    scratch: Vec<u8>,
}

impl<'a> Pipe<'a> {
    pub(super) fn new(
        direction: Direction,
        from: OwnedReadHalf,
        to: OwnedWriteHalf,
        connection: &'a ProxyConnection,
    ) -> Self {
        Self {
            direction,
            reader: from,
            writer: to,
            connection,
            held: VecDeque::new(),
            held_bytes: 0,
            is_ended: false,
            scratch: vec![0; CHUNK_BYTES],
        }
    }

    /// Runs until the sender's close was forwarded.
    pub(super) async fn run(mut self) -> Result<(), ConnectionEnd> {
        let mut changes = self.connection.shared.subscribe();
        loop {
            // Marked before the rules are read, so that a change in between wakes this task again.
            changes.mark_unchanged();
            let wait = match self.pass_held_chunks() {
                PassOutcome::Wait(wait) => wait,
                PassOutcome::Closed => return Ok(()),
                PassOutcome::Broken => return Err(ConnectionEnd::Broken),
                PassOutcome::CutAfterReply => return Err(ConnectionEnd::CutAfterReply(self.reader)),
            };
            let has_space = self.held_bytes < MAX_HELD_BYTES && self.held.len() < MAX_HELD_CHUNKS;
            let (due, timed) = match wait {
                WaitFor::Until(due) => (due, true),
                _ => (Instant::now() + FAR_FUTURE, false),
            };
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| ConnectionEnd::Broken)?,
                () = sleep_until(due), if timed => {}
                _ = self.writer.writable(), if matches!(wait, WaitFor::WriteSpace) => {}
                _ = self.reader.readable(), if has_space && !self.is_ended => self.read_chunk(),
            }
        }
    }

    fn read_chunk(&mut self) {
        let content = match self.reader.try_read(&mut self.scratch) {
            Ok(0) => Content::Close,
            Ok(read) => Content::Bytes(self.scratch[..read].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => Content::Abort,
        };
        match &content {
            Content::Bytes(bytes) => self.held_bytes += bytes.len(),
            Content::Close | Content::Abort => self.is_ended = true,
        }
        self.held.push_back(HeldChunk { content, arrived: Instant::now(), is_decided: false, sent_bytes: 0 });
    }

    /// Forwards all bytes that the rules allow now, holding the lock of the rules.
    fn pass_held_chunks(&mut self) -> PassOutcome {
        let connection = self.connection;
        let mut rules = connection.shared.rules();
        if rules.cut_epoch != connection.epoch {
            return PassOutcome::Broken;
        }
        if rules.silent_connections.contains(&connection.number) {
            // A silenced connection passes nothing, and ends when its client closes it.
            return if self.is_ended && self.direction == Direction::Request {
                PassOutcome::Broken
            } else {
                PassOutcome::Wait(WaitFor::Nothing)
            };
        }
        while let Some(first) = self.held.front_mut() {
            if rules.is_frozen {
                return PassOutcome::Wait(WaitFor::Nothing);
            }
            let due = first.arrived + rules.delay;
            if Instant::now() < due {
                return PassOutcome::Wait(WaitFor::Until(due));
            }
            let bytes = match &mut first.content {
                Content::Bytes(bytes) => bytes,
                Content::Close | Content::Abort
                    if self.direction == Direction::Reply && connection.is_cut_pending() =>
                {
                    return PassOutcome::CutAfterReply;
                }
                Content::Close => return PassOutcome::Closed,
                Content::Abort => return PassOutcome::Broken,
            };
            if self.direction == Direction::Reply && !first.is_decided {
                rules.replace_in_reply(bytes);
                first.is_decided = true;
            }
            let action = match self.direction {
                Direction::Request if first.is_decided => ChunkAction::Pass,
                Direction::Request => decide_request(&mut rules, connection),
                Direction::Reply => decide_reply(&mut rules, connection, bytes.len() - first.sent_bytes),
            };
            first.is_decided |= !matches!(action, ChunkAction::Hold);
            match action {
                ChunkAction::Pass => {}
                ChunkAction::Duplicate => {
                    self.held_bytes += bytes.len();
                    bytes.extend_from_within(..);
                }
                ChunkAction::Drop => first.sent_bytes = bytes.len(),
                ChunkAction::Hold => return PassOutcome::Wait(WaitFor::Nothing),
                ChunkAction::CutAfterReply => return PassOutcome::CutAfterReply,
            }
            if first.sent_bytes < bytes.len() {
                match self.writer.try_write(&bytes[first.sent_bytes..]) {
                    Ok(written) => first.sent_bytes += count_written(&mut rules, self.direction, written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return PassOutcome::Wait(WaitFor::WriteSpace);
                    }
                    Err(_) => return PassOutcome::Broken,
                }
            }
            if first.sent_bytes == bytes.len() {
                self.held_bytes -= bytes.len();
                self.held.pop_front();
            }
        }
        PassOutcome::Wait(WaitFor::Nothing)
    }
}

/// What the rules do with a chunk.
enum ChunkAction {
    Pass,
    /// Forward it twice.
    Duplicate,
    Drop,
    /// Hold it back: the connection is about to be cut.
    Hold,
    /// Close the client's connection instead of forwarding this reply.
    CutAfterReply,
}

/// Applies the rules to a chunk of a client.
fn decide_request(rules: &mut ProxyRules, connection: &ProxyConnection) -> ChunkAction {
    if connection.is_cut_pending() {
        return ChunkAction::Hold;
    }
    let is_duplicated = rules.duplicates_requests || rules.duplicate_and_cut;
    if rules.cut_after_request || rules.duplicate_and_cut {
        (rules.cut_after_request, rules.duplicate_and_cut) = (false, false);
        connection.set_cut_pending();
    }
    if is_duplicated { ChunkAction::Duplicate } else { ChunkAction::Pass }
}

/// Applies the rules to a chunk of the server; counts its `length` bytes as dropped if they are.
fn decide_reply(rules: &mut ProxyRules, connection: &ProxyConnection, length: usize) -> ChunkAction {
    let action = if connection.is_cut_pending() {
        ChunkAction::CutAfterReply
    } else if connection.is_muted() || rules.drops_replies {
        connection.set_muted();
        ChunkAction::Drop
    } else {
        return ChunkAction::Pass;
    };
    rules.counts.dropped_bytes += length as u64;
    action
}

/// Adds to the counts, and returns `written`.
fn count_written(rules: &mut ProxyRules, direction: Direction, written: usize) -> usize {
    match direction {
        Direction::Request => rules.counts.request_bytes += written as u64,
        Direction::Reply => rules.counts.reply_bytes += written as u64,
    }
    written
}
