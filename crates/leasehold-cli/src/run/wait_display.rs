//! The status line of a wait on a terminal: who holds the lock, since when, and the queue position.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use leasehold::engine::LockView;
use leasehold::{Holder, LockName, Locks};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp, tcgetwinsize};

use super::report::Report;
use crate::duration::format_duration;
use crate::output::{self, escape_control_chars};
use crate::view;

/// A wait shorter than this shows no status line.
const SHOW_AFTER: Duration = Duration::from_millis(100);
/// How often the status line is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The status line on the terminal.
pub(super) struct WaitDisplay<'a> {
    name: &'a LockName,
    report: &'a Report,
    is_on_terminal: bool,
    is_shown: Cell<bool>,
}

impl<'a> WaitDisplay<'a> {
    pub(super) fn new(name: &'a LockName, report: &'a Report) -> Self {
        let on_terminal = isatty(io::stderr()) && !report.is_json();
        Self { name, report, is_on_terminal: on_terminal, is_shown: Cell::new(false) }
    }

    /// Shows the state of the awaited lock, and refreshes it, until the future is dropped. Prints
    /// only on a terminal, or with --verbose or --json.
    pub(super) async fn show(&self, locks: &Locks) -> std::convert::Infallible {
        if !self.is_on_terminal && !self.report.is_verbose() {
            return std::future::pending().await;
        }
        let me = Holder::this_process();
        tokio::time::sleep(SHOW_AFTER).await;
        let view = locks.inspect(self.name).await.ok();
        if self.report.is_verbose() {
            self.report.report_waiting(
                self.name,
                &locks.url(),
                view.as_ref(),
                &format_line(self.name, view.as_ref(), &me),
            );
        }
        if !self.is_on_terminal {
            return std::future::pending().await;
        }
        self.draw(&format_line(self.name, view.as_ref(), &me));
        loop {
            tokio::time::sleep(REFRESH_INTERVAL).await;
            let view = locks.inspect(self.name).await.ok();
            self.draw(&format_line(self.name, view.as_ref(), &me));
        }
    }

    /// Overwrites the status line; not in the background, where it would overwrite the shell's
    /// prompt.
    fn draw(&self, line: &str) {
        let stderr = io::stderr();
        if tcgetpgrp(&stderr).is_ok_and(|foreground| foreground != getpgrp()) {
            self.is_shown.set(false);
            return;
        }
        let width = tcgetwinsize(&stderr).map_or(80, |size| usize::from(size.ws_col));
        let fits: String = line.chars().take(width.max(20) - 1).collect();
        output::write_stderr(&format!("\r\x1b[2K{fits}"));
        self.is_shown.set(true);
    }

    /// Erases the status line, if one is shown.
    pub(super) fn clear(&self) {
        if self.is_shown.replace(false) {
            output::write_stderr("\r\x1b[2K");
        }
    }
}

/// The status line:
/// `waiting for nightly: 2nd of 3 in queue; held by web1:4711 (./send-messages) for 12s`
fn format_line(name: &LockName, view: Option<&LockView>, own_process: &Holder) -> String {
    let mut line = format!("waiting for {}", escape_control_chars(name.as_str()));
    let Some(view) = view else { return line };
    let is_me = |other: &Holder| other.pid == own_process.pid && other.host == own_process.host;
    if let Some(at) = view.waiters.iter().position(|waiter| is_me(&waiter.holder)) {
        line.push_str(&format!(": {} of {} in queue", format_ordinal(at + 1), view.waiters.len()));
    }
    if let Some(left) = view.cool_down {
        line.push_str(&format!("; {}", view::format_cool_down(left)));
    }
    if let Some(first) = view.holders.first() {
        let others = match view.holders.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (process, doing, age) =
            (view::format_process(first), view::format_activity(first), format_duration(first.age));
        line.push_str(&format!("; held by {process} ({doing}) for {age}{others}"));
    }
    line
}

/// `1st`, `2nd`, `3rd`, `4th`, …
fn format_ordinal(n: usize) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_line_shows_the_holder_and_our_position() {
        let locks = Locks::open("memory:").await.unwrap();
        let held = locks.mutex("a").describe("./send-messages").lock().await.unwrap();
        let waiter = tokio::spawn({
            let lock = locks.mutex("a");
            async move { lock.lock().await.map(drop) }
        });
        while locks.inspect("a").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let name = LockName::new("a").unwrap();
        let view = locks.inspect("a").await.unwrap();
        let line = format_line(&name, Some(&view), &Holder::this_process());
        assert!(line.starts_with("waiting for a: 1st of 1 in queue; held by "), "{line}");
        assert!(line.contains("(./send-messages) for "), "{line}");
        assert_eq!(format_line(&name, None, &Holder::this_process()), "waiting for a");
        drop(held);
        waiter.await.unwrap().unwrap();
    }

    #[test]
    fn ordinals_have_english_endings() {
        let ordinals: Vec<_> = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(format_ordinal).into();
        assert_eq!(ordinals, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]);
    }
}
