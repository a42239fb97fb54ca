//! How a claim is described in a stored lock, and the messages to its client.

use std::time::Duration;

use super::keys::INBOX_DIGITS;
use super::values::{FORMAT_DIGIT, Reader, push_digits};
use crate::engine::LockOptions;
use crate::types::{ClaimId, Holder, Mode, Token};

/// Describes a claim for the scripts, see `engine/redis/scripts/table.lua`.
pub fn encode_contender(options: &LockOptions, prefix: &str, inbox: &str) -> Vec<u8> {
    let mode = match options.mode {
        Mode::Exclusive => b'E',
        Mode::Shared => b'S',
        Mode::Permits { .. } => b'P',
    };
    let holder = &options.holder;
    let mut text = Vec::with_capacity(96 + holder.host.len() + holder.program.len() + holder.description.len());
    text.push(mode);
    push_digits(&mut text, options.ttl.as_micros() as u64, 12);
    // Zero means no owner; an owner whose bits are zero gets another number.
    text.extend(
        options.owner.map_or(0, |owner| if owner.bits() == 0 { u128::MAX } else { owner.bits() }).to_be_bytes(),
    );
    push_digits(&mut text, prefix.len() as u64, 3);
    text.extend(inbox.as_bytes());
    if let Mode::Permits { n, limit } = options.mode {
        push_digits(&mut text, n.into(), 10);
        push_digits(&mut text, limit.into(), 10);
    }
    push_digits(&mut text, holder.pid.into(), 10);
    for part in [&holder.host, &holder.program] {
        push_digits(&mut text, part.len() as u64, 5);
        text.extend(part.as_bytes());
    }
    text.extend(holder.description.as_bytes());
    text
}

/// A claim, parsed from its stored description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    pub mode: Mode,
    pub ttl: Duration,
    pub holder: Holder,
    /// The length of the prefix and the number of the client's inbox.
    inbox: (usize, String),
}

impl Contender {
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
        let mode = reader.bytes(1)?[0];
        let ttl = Duration::from_micros(reader.number(12)?);
        reader.bytes(16)?;
        let inbox = (reader.number(3)? as usize, reader.text(INBOX_DIGITS)?.to_owned());
        // A mode in lower case is inherited from another run of the server.
        let mode = match mode.to_ascii_uppercase() {
            b'E' => Mode::Exclusive,
            b'S' => Mode::Shared,
            b'P' => {
                Mode::Permits { n: reader.number(10)?.try_into().ok()?, limit: reader.number(10)?.try_into().ok()? }
            }
            _ => return None,
        };
        let pid = reader.number(10)?.try_into().ok()?;
        let mut part = || {
            let length = reader.number(5)?;
            reader.text(length as usize)
        };
        let (host, program) = (part()?, part()?);
        let rest = std::str::from_utf8(reader.0).ok()?;
        Some(Self { mode, ttl, holder: Holder::new(host, pid, program, rest), inbox })
    }

    /// The channel that the claim's client subscribes to, if it does; `key` is the lock's.
    pub fn channel(&self, key: &str) -> Option<String> {
        let (prefix, inbox) = &self.inbox;
        let listens = inbox.bytes().any(|digit| digit != b'0');
        listens.then_some(format!("{}i{inbox}", key.get(..*prefix)?))
    }
}

/// A message in a client's inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The claim, which waited at this position, is granted.
    Granted(ClaimId, Token, u64),
    /// The claim should send a `heartbeat`.
    Recheck(ClaimId),
    /// The claim, which had this position, was force released for this reason.
    ForceReleased(ClaimId, u64, String),
    /// An operator requests that the claim's holder releases it, for this reason.
    ReleaseRequested(ClaimId, String),
}

impl Message {
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
        if reader.bytes(1)? != [FORMAT_DIGIT] {
            return None;
        }
        let kind = reader.bytes(1)?[0];
        let claim = ClaimId::from_bits(u128::from_be_bytes(reader.bytes(16)?.try_into().ok()?));
        match kind {
            b'G' => Some(Self::Granted(claim, Token(reader.number(16)?), reader.number(16)?)),
            b'L' => Some(Self::Recheck(claim)),
            b'X' => {
                let position = reader.number(16)?;
                Some(Self::ForceReleased(claim, position, String::from_utf8_lossy(reader.0).into_owned()))
            }
            b'R' => Some(Self::ReleaseRequested(claim, String::from_utf8_lossy(reader.0).into_owned())),
            _ => None,
        }
    }

    /// The message that requests a release from a claim's holder.
    pub fn request_release(claim: ClaimId, reason: &str) -> Vec<u8> {
        [&[FORMAT_DIGIT, b'R'], &claim.bits().to_be_bytes()[..], reason.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::types::{LockName, Owner};

    proptest! {
        #[test]
        fn a_contender_is_parsed_back_as_it_was_encoded(
            host in "\\PC{0,40}", program in "\\PC{0,20}", text in "\\PC{0,60}", pid: u32, ms in 1u64..86_400_001, n: u32, limit: u32,
            mode in 0..3usize, inbox in "[a-z]{16}",
        ) {
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { n, limit }][mode];
            let holder = Arc::new(Holder::new(&host, pid, &program, &text));
            let ttl = Duration::from_millis(ms);
            let name = LockName::new("a").unwrap();
            let options = LockOptions::new(name, mode, Some(Owner::named("x")), ttl, Arc::clone(&holder));
            let written = encode_contender(&options, "p:", &inbox);
            let read = Contender::read(&written).unwrap();
            prop_assert_eq!(read.channel("p:qlock").unwrap(), format!("p:i{inbox}"));
            prop_assert_eq!(&read, &Contender { mode, ttl, holder: (*holder).clone(), inbox: (2, inbox.clone()) });
        }
    }
}
