//! The message for a lock that was not acquired: who holds it, where, since when, and who is ahead.

use std::time::Duration;

use leasehold::engine::{ContenderView, LockView};
use leasehold::{Holder, LockName, Locks};

use super::plan::Plan;
use crate::duration::format_duration;
use crate::output::escape_control_chars;
use crate::view;

/// A lock that this run did not acquire, with what the message for the user says about it.
pub(super) struct Refusal<'a> {
    pub(super) name: &'a LockName,
    /// The engine's URL, without secrets.
    pub(super) engine: String,
    /// The lock's state just after the refusal; `None` if the engine cannot inspect it.
    pub(super) view: Option<LockView>,
    /// How long this run waited, if at all.
    pub(super) waited: Option<Duration>,
}

impl<'a> Refusal<'a> {
    /// Inspects the lock, just after it was refused, to find its holders.
    pub(super) async fn inspect(locks: &Locks, plan: &'a Plan, waited: Option<Duration>) -> Self {
        let view = locks.inspect(&plan.name).await.ok();
        Self { name: &plan.name, engine: locks.url(), view, waited }
    }

    /// The lock's holders; none if the engine cannot inspect it.
    pub(super) fn holders(&self) -> &[ContenderView] {
        self.view.as_ref().map_or(&[], |view| &view.holders)
    }

    /// The waiters ahead of this run. Its own claim may still be listed while it is withdrawn.
    pub(super) fn waiters_ahead(&self) -> Vec<&ContenderView> {
        let (since, me) = (self.waited.unwrap_or_default(), Holder::this_process());
        let is_me = |waiter: &ContenderView| (waiter.holder.pid, &waiter.holder.host) == (me.pid, &me.host);
        let waiters = self.view.iter().flat_map(|view| &view.waiters);
        waiters.filter(|waiter| waiter.age >= since && !is_me(waiter)).collect()
    }

    /// The message:
    /// `lock nightly on redis://db1:6379/0 is held by web1:4711 (./send-messages) for 12s, token 41; 1 ahead: …; gave up after 5s`
    pub(super) fn format_line(&self) -> String {
        let mut line = format!("lock {} on {}", escape_control_chars(self.name.as_str()), self.engine);
        match self.holders() {
            [] => line.push_str(" was not free"),
            [first, others @ ..] => {
                let token = view::format_token(first.token);
                line.push_str(&format!(" is held by {}, token {token}", format_contender(first)));
                if !others.is_empty() {
                    line.push_str(&format!(", and {} more", others.len()));
                }
            }
        }
        let ahead = self.waiters_ahead();
        if let Some(first) = ahead.first() {
            line.push_str(&format!("; {} ahead in the queue, first {}", ahead.len(), format_contender(first)));
        }
        match self.waited {
            None => line.push_str("; did not wait"),
            Some(waited) => line.push_str(&format!("; gave up after {}", format_duration(waited))),
        }
        line
    }
}

/// A holder or waiter in a few words: `web1:4711 (./send-messages) for 12s`.
fn format_contender(contender: &ContenderView) -> String {
    format!(
        "{} ({}) for {}",
        view::format_process(contender),
        view::format_activity(contender),
        format_duration(contender.age)
    )
}
