//! One direction of one connection: read, hold, and pass on as the rules allow.

use std::{collections::VecDeque, io, time::Duration};

use tokio::{
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    time::{Instant, sleep_until},
};

use super::{link::Link, rules::Rules};

/// The most that is read at once.
const CHUNK: usize = 64 * 1024;
/// What one direction may hold back, in bytes and in chunks, before it stops reading.
const MOST_BYTES: usize = 1024 * 1024;
const MOST_CHUNKS: usize = 1024;
/// Stands for "no chunk is due": far away, and no overflow.
const FAR: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Request,
    Reply,
}

/// Why a connection ends before both sides have closed it in peace.
pub(super) enum Ended {
    /// Cut by the test, or broken by one of the sides.
    Broken,
    /// The reply that was to be lost has come: the client goes, the server is heard out.
    Doomed(OwnedReadHalf),
}

enum Content {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    Close,
    /// The sender is gone.
    Abort,
}

struct Held {
    content: Content,
    arrived: Instant,
    /// Whether it was let through: what is done to a request is decided once.
    judged: bool,
    /// How much has been passed on.
    sent: usize,
}

/// What to wait for, besides new bytes and new rules.
enum Wait {
    Nothing,
    Until(Instant),
    Room,
}

/// What is to be done after all that may pass has passed.
enum Pass {
    Wait(Wait),
    Closed,
    Broken,
    Doomed,
}

pub(super) struct Pipe<'a> {
    way: Way,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    link: &'a Link,
    held: VecDeque<Held>,
    held_bytes: usize,
    ended: bool,
    scratch: Vec<u8>,
}

impl<'a> Pipe<'a> {
    pub(super) fn new(way: Way, from: OwnedReadHalf, to: OwnedWriteHalf, link: &'a Link) -> Self {
        Self { way, from, to, link, held: VecDeque::new(), held_bytes: 0, ended: false, scratch: vec![0; CHUNK] }
    }

    /// Runs until the sender's close has been passed on.
    pub(super) async fn run(mut self) -> Result<(), Ended> {
        let mut changes = self.link.shared.changes();
        loop {
            // Seen before the rules are read: a change in between wakes us again.
            changes.mark_unchanged();
            let wait = match self.pass_on() {
                Pass::Wait(wait) => wait,
                Pass::Closed => return Ok(()),
                Pass::Broken => return Err(Ended::Broken),
                Pass::Doomed => return Err(Ended::Doomed(self.from)),
            };
            let room = self.held_bytes < MOST_BYTES && self.held.len() < MOST_CHUNKS;
            let (due, timed) = match wait {
                Wait::Until(due) => (due, true),
                _ => (Instant::now() + FAR, false),
            };
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| Ended::Broken)?,
                () = sleep_until(due), if timed => {}
                _ = self.to.writable(), if matches!(wait, Wait::Room) => {}
                _ = self.from.readable(), if room && !self.ended => self.read(),
            }
        }
    }

    fn read(&mut self) {
        let content = match self.from.try_read(&mut self.scratch) {
            Ok(0) => Content::Close,
            Ok(read) => Content::Bytes(self.scratch[..read].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => Content::Abort,
        };
        match &content {
            Content::Bytes(bytes) => self.held_bytes += bytes.len(),
            Content::Close | Content::Abort => self.ended = true,
        }
        self.held.push_back(Held { content, arrived: Instant::now(), judged: false, sent: 0 });
    }

    /// Passes on what may pass now. The lock is held all the while.
    fn pass_on(&mut self) -> Pass {
        let link = self.link;
        let mut rules = link.shared.rules();
        if rules.epoch != link.epoch {
            return Pass::Broken;
        }
        if rules.silent.contains(&link.number) {
            // The server hears nothing of it, but nobody keeps a connection that its client has given up.
            return if self.ended && self.way == Way::Request { Pass::Broken } else { Pass::Wait(Wait::Nothing) };
        }
        while let Some(first) = self.held.front_mut() {
            if rules.freeze {
                return Pass::Wait(Wait::Nothing);
            }
            let due = first.arrived + rules.delay;
            if Instant::now() < due {
                return Pass::Wait(Wait::Until(due));
            }
            let bytes = match &mut first.content {
                Content::Bytes(bytes) => bytes,
                Content::Close | Content::Abort if self.way == Way::Reply && link.is_doomed() => {
                    return Pass::Doomed;
                }
                Content::Close => return Pass::Closed,
                Content::Abort => return Pass::Broken,
            };
            if self.way == Way::Reply && !first.judged {
                rules.translate(bytes);
                first.judged = true;
            }
            let fate = match self.way {
                Way::Request if first.judged => Fate::Pass,
                Way::Request => judge_request(&mut rules, link),
                Way::Reply => judge_reply(&mut rules, link, bytes.len() - first.sent),
            };
            first.judged |= !matches!(fate, Fate::Hold);
            match fate {
                Fate::Pass => {}
                Fate::Double => {
                    self.held_bytes += bytes.len();
                    bytes.extend_from_within(..);
                }
                Fate::Swallow => first.sent = bytes.len(),
                Fate::Hold => return Pass::Wait(Wait::Nothing),
                Fate::Doom => return Pass::Doomed,
            }
            if first.sent < bytes.len() {
                match self.to.try_write(&bytes[first.sent..]) {
                    Ok(written) => first.sent += count(&mut rules, self.way, written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Pass::Wait(Wait::Room);
                    }
                    Err(_) => return Pass::Broken,
                }
            }
            if first.sent == bytes.len() {
                self.held_bytes -= bytes.len();
                self.held.pop_front();
            }
        }
        Pass::Wait(Wait::Nothing)
    }
}

/// What becomes of a chunk.
enum Fate {
    Pass,
    Double,
    Swallow,
    Hold,
    Doom,
}

fn judge_request(rules: &mut Rules, link: &Link) -> Fate {
    if link.is_doomed() {
        return Fate::Hold;
    }
    let double = rules.duplicate_requests || rules.double_and_cut;
    if rules.cut_after_request || rules.double_and_cut {
        (rules.cut_after_request, rules.double_and_cut) = (false, false);
        link.set_doomed();
    }
    if double { Fate::Double } else { Fate::Pass }
}

fn judge_reply(rules: &mut Rules, link: &Link, length: usize) -> Fate {
    let fate = if link.is_doomed() {
        Fate::Doom
    } else if link.is_mute() || rules.drop_replies {
        link.set_mute();
        Fate::Swallow
    } else {
        return Fate::Pass;
    };
    rules.counts.swallowed_bytes += length as u64;
    fate
}

fn count(rules: &mut Rules, way: Way, written: usize) -> usize {
    match way {
        Way::Request => rules.counts.request_bytes += written as u64,
        Way::Reply => rules.counts.reply_bytes += written as u64,
    }
    written
}
