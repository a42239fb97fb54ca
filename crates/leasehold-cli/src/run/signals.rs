//! Signals: what we pass on, what ends our waiting, and what the terminal's job control needs.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;

/// What is passed on to the command's group.
const PASSED_ON: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// What whoever runs many commands wants them to be sent; the last word counts.
pub(crate) type Orders = watch::Receiver<Option<Signal>>;

/// The signals that we listen to.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    orders: Option<Orders>,
}

impl Signals {
    /// Listens to what is passed on, and to the end of children. What we were started to ignore (by `nohup`, or in the
    /// background of a script) stays ignored, by the command, too.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let mut signals = Self { streams: Vec::new(), orders: None };
        for signal in PASSED_ON {
            if ignored & bit(signal) == 0 {
                signals.add(signal)?;
            }
        }
        signals.add(Signal::CHILD)?;
        Ok(signals)
    }

    /// Listens to the end of children, and to orders instead of what we are sent ourselves.
    pub(crate) fn obey(orders: Orders) -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), orders: Some(orders) };
        signals.add(Signal::CHILD)?;
        Ok(signals)
    }

    /// From the start of the command on: its stop is ours.
    pub(super) fn listen_to_job_control(&mut self) -> io::Result<()> {
        if self.orders.is_some() {
            return Ok(());
        }
        if ignored() & bit(Signal::TSTP) == 0 {
            self.add(Signal::TSTP)?;
        }
        self.add(Signal::CONT)
    }

    fn add(&mut self, signal: Signal) -> io::Result<()> {
        self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(())
    }

    /// The next one. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Signal {
        let Self { streams, orders } = self;
        let heard = poll_fn(|context| {
            for (signal, stream) in &mut *streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            signal = heard => signal,
            signal = order(orders.as_mut()) => signal,
        }
    }

    /// The next one that asks us to end. The others mean nothing to who has no command yet, or none any more.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if asks_to_end(signal) {
                return signal;
            }
        }
    }
}

/// The next order.
async fn order(orders: Option<&mut Orders>) -> Signal {
    if let Some(orders) = orders {
        while orders.changed().await.is_ok() {
            if let Some(signal) = *orders.borrow_and_update() {
                return signal;
            }
        }
    }
    // Nobody gives any, or nobody will any more.
    std::future::pending().await
}

/// What a signal is called.
pub(crate) fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::QUIT => "QUIT",
        Signal::HUP => "HUP",
        Signal::KILL => "KILL",
        _ => "a signal",
    }
}

/// Whether a signal asks whoever gets it to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
}

/// The signals that are ignored, as a set of bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status)
}

fn ignored_in(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Blocks SIGTTOU, so that we may take the terminal back from the background, and lets SIGCHLD in. Returns the mask that
/// we were started with: the command gets it back, and so does every one after it.
pub(super) fn prepare_mask() -> nix::Result<SigSet> {
    static BEFORE: OnceLock<SigSet> = OnceLock::new();
    if let Some(before) = BEFORE.get() {
        return Ok(*before);
    }
    let before = *BEFORE.get_or_init({
        let before = SigSet::thread_get_mask()?;
        move || before
    });
    let (mut terminal, mut child) = (SigSet::empty(), SigSet::empty());
    terminal.add(Masked::SIGTTOU);
    child.add(Masked::SIGCHLD);
    terminal.thread_block()?;
    child.thread_unblock()?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_ignored_at_the_start() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_ne!(ignored_in(status) & bit(Signal::HUP), 0);
        assert_eq!(ignored_in(status) & bit(Signal::TERM), 0);
        assert_eq!(ignored_in("nothing"), 0);
    }
}
