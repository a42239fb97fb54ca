//! How a claim is described in a stored lock, and the messages to its client.

use std::sync::Arc;
use std::time::Duration;

use super::layout::{Field, Layout, Rest, Stored, layout};
use super::values::{Reader, kind_of};
use crate::engine::LockOptions;
use crate::types::{ClaimId, Holder, Mode, Token};

layout! {
    /// A claim's client and what it wants.
    pub struct StoredContender = "contender" {
        /// `E`: exclusive; `S`: shared; `P`: permits.
        mode: char,
        /// In µs.
        ttl: u64,
        /// Zero: it has no owner.
        owner: u128,
        /// How many permits it wants; zero in another mode.
        permits: u64,
        /// The semaphore's limit; zero in another mode.
        limit: u64,
        /// The channel of its client; empty if it has none.
        inbox: Arc<str>,
        /// Who it is: a [`StoredHolder`]. The scripts do not read it.
        holder: Rest,
    }
}

layout! {
    /// Who a claim's client is.
    pub struct StoredHolder = "holder" {
        pid: u64,
        host: Arc<str>,
        program: Arc<str>,
        description: Arc<str>,
    }
}

/// Describes a claim for the scripts. `inbox` is the channel of its client.
pub fn encode_contender(options: &LockOptions, inbox: &Arc<str>) -> Vec<u8> {
    let (mode, permits, limit) = match options.mode {
        Mode::Exclusive => ('E', 0, 0),
        Mode::Shared => ('S', 0, 0),
        Mode::Permits { n, limit } => ('P', n, limit),
    };
    // An owner whose bits are zero gets another number.
    let owner = options.owner.map_or(0, |owner| if owner.bits() == 0 { u128::MAX } else { owner.bits() });
    let Holder { host, pid, program, description } = (*options.holder).clone();
    let holder = StoredHolder { pid: pid.into(), host, program, description };
    let ttl = options.ttl.as_micros() as u64;
    let (permits, limit) = (permits.into(), limit.into());
    let inbox = Arc::clone(inbox);
    StoredContender { mode, ttl, owner, permits, limit, inbox, holder: Rest(holder.write()) }.write()
}

/// A claim, parsed from its stored description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    pub mode: Mode,
    pub ttl: Duration,
    pub holder: Holder,
    /// The channel of its client, if it has one.
    pub inbox: Option<Arc<str>>,
}

impl Contender {
    pub fn read(text: &[u8]) -> Option<Self> {
        let stored = StoredContender::parse(&mut Reader(text))?;
        let mode = match stored.mode {
            'E' => Mode::Exclusive,
            'S' => Mode::Shared,
            'P' => Mode::Permits { n: stored.permits.try_into().ok()?, limit: stored.limit.try_into().ok()? },
            _ => return None,
        };
        let holder = StoredHolder::parse(&mut Reader(&stored.holder.0))?;
        let pid = holder.pid.try_into().ok()?;
        Some(Self {
            mode,
            ttl: Duration::from_micros(stored.ttl),
            holder: Holder { host: holder.host, pid, program: holder.program, description: holder.description },
            inbox: Some(stored.inbox).filter(|inbox| !inbox.is_empty()),
        })
    }
}

layout! {
    /// The claim, which waited at this place, is granted.
    pub struct Granted = "granted", kind 'G' {
        claim: ClaimId,
        token: Token,
        place: u64,
    }
}

layout! {
    /// The claim should send a heartbeat.
    pub struct Recheck = "recheck", kind 'C' {
        claim: ClaimId,
    }
}

layout! {
    /// The claim, which had this place, was force released.
    pub struct ForceReleased = "force_released", kind 'X' {
        claim: ClaimId,
        place: u64,
        reason: Arc<str>,
    }
}

layout! {
    /// An operator requests that the claim's holder releases it.
    pub struct ReleaseRequested = "release_requested", kind 'R' {
        claim: ClaimId,
        reason: Arc<str>,
    }
}

/// A message in a client's inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Granted(Granted),
    Recheck(Recheck),
    ForceReleased(ForceReleased),
    ReleaseRequested(ReleaseRequested),
}

impl Message {
    /// `None`: another version sent it, or another program.
    pub fn read(text: &[u8]) -> Option<Self> {
        let (kind, fields) = kind_of(text).ok()?;
        let mut reader = Reader(fields);
        match kind {
            b'G' => Granted::parse(&mut reader).map(Self::Granted),
            b'C' => Recheck::parse(&mut reader).map(Self::Recheck),
            b'X' => ForceReleased::parse(&mut reader).map(Self::ForceReleased),
            b'R' => ReleaseRequested::parse(&mut reader).map(Self::ReleaseRequested),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
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
            let inbox: Arc<str> = inbox.into();
            let read = Contender::read(&encode_contender(&options, &inbox)).unwrap();
            prop_assert_eq!(&read, &Contender { mode, ttl, holder: (*holder).clone(), inbox: Some(inbox) });
        }

        #[test]
        fn a_message_is_parsed_back_as_it_was_written(claim: u128, token in 0u64..1 << 53, place in 0u64..1 << 53, reason in "\\PC{0,40}") {
            let (claim, token, reason) = (ClaimId::from_bits(claim), Token(token), Arc::<str>::from(reason));
            for message in [
                Message::Granted(Granted { claim, token, place }),
                Message::Recheck(Recheck { claim }),
                Message::ForceReleased(ForceReleased { claim, place, reason: Arc::clone(&reason) }),
                Message::ReleaseRequested(ReleaseRequested { claim, reason }),
            ] {
                let text = match &message {
                    Message::Granted(message) => message.write(),
                    Message::Recheck(message) => message.write(),
                    Message::ForceReleased(message) => message.write(),
                    Message::ReleaseRequested(message) => message.write(),
                };
                prop_assert_eq!(Message::read(&text), Some(message));
            }
        }
    }
}
