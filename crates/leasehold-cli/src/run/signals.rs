//! Signals: those forwarded to the command, those that end the wait, and those of the terminal's
//! job control.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;

/// The signals that are forwarded to the command's group.
const FORWARDED: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// The signal that `leasehold cron` sends to the commands of all its jobs at shutdown; `None`
/// before. Only the latest value counts.
pub(crate) type SignalOrders = watch::Receiver<Option<Signal>>;

/// The signals that this process handles.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// Orders from `leasehold cron`, in place of signals to this process; `None` for
    /// `leasehold run`.
    orders: Option<SignalOrders>,
}

impl Signals {
    /// Handles the forwarded signals and SIGCHLD. A signal that was ignored when this process
    /// started (by `nohup`, or in the background of a script) stays ignored, by the command, too.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_signals();
        let mut signals = Self { streams: Vec::new(), orders: None };
        for signal in FORWARDED {
            if ignored & signal_bit(signal) == 0 {
                signals.add(signal)?;
            }
        }
        signals.add(Signal::CHILD)?;
        Ok(signals)
    }

    /// Handles SIGCHLD, and these orders in place of signals to this process.
    pub(crate) fn from_orders(orders: SignalOrders) -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), orders: Some(orders) };
        signals.add(Signal::CHILD)?;
        Ok(signals)
    }

    /// Also handles SIGTSTP and SIGCONT. Called when the command starts: from then on, this process
    /// stops and continues with it.
    pub(super) fn listen_to_job_control(&mut self) -> io::Result<()> {
        if self.orders.is_some() {
            return Ok(());
        }
        if ignored_signals() & signal_bit(Signal::TSTP) == 0 {
            self.add(Signal::TSTP)?;
        }
        self.add(Signal::CONT)
    }

    /// Handles this signal, too.
    fn add(&mut self, signal: Signal) -> io::Result<()> {
        self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(())
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        let Self { streams, orders } = self;
        let received = poll_fn(|context| {
            for (signal, stream) in &mut *streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            signal = received => signal,
            signal = next_order(orders.as_mut()) => signal,
        }
    }

    /// The next signal that requests an end. Without a running command, other signals have no effect.
    pub(crate) async fn next_end_signal(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_end_signal(signal) {
                return signal;
            }
        }
    }
}

/// Waits for the next order; forever without `orders`, or when their sender is gone.
async fn next_order(orders: Option<&mut SignalOrders>) -> Signal {
    if let Some(orders) = orders {
        while orders.changed().await.is_ok() {
            if let Some(signal) = *orders.borrow_and_update() {
                return signal;
            }
        }
    }
    std::future::pending().await
}

/// The name of a signal that `leasehold cron` logs; `a signal` for all others.
pub(crate) fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::QUIT => "QUIT",
        Signal::HUP => "HUP",
        Signal::KILL => "KILL",
        _ => "a signal",
    }
}

/// Whether a signal requests its receiver to end.
pub(crate) fn is_end_signal(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
}

/// The ignored signals, as a bit set.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_ignored(&status)
}

/// The `SigIgn` bit set in the text of `/proc/self/status`; 0 if there is none.
fn parse_ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// The bit of a signal in the kernel's bit sets.
fn signal_bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Blocks SIGTTOU, so that this process can take the terminal back from the background, and
/// unblocks SIGCHLD. Returns the signal mask that this process was started with, which its commands
/// get.
pub(super) fn prepare_mask() -> nix::Result<SigSet> {
    /// The signal mask before the first call.
    static ORIGINAL_MASK: OnceLock<SigSet> = OnceLock::new();
    if let Some(before) = ORIGINAL_MASK.get() {
        return Ok(*before);
    }
    let before = *ORIGINAL_MASK.get_or_init({
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
    fn ignored_signals_are_parsed_from_the_process_status() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_ne!(parse_ignored(status) & signal_bit(Signal::HUP), 0);
        assert_eq!(parse_ignored(status) & signal_bit(Signal::TERM), 0);
        assert_eq!(parse_ignored("no such line"), 0);
    }
}
