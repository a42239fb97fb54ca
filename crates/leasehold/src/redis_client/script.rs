//! Scripts that servers cache, and the parts of them that several engines share.

use std::sync::Arc;

use redis::{Cmd, Script};

use super::layout::{Field, Layout, Rest, Stored, layout};
use super::values::Reader;
use crate::types::Token;

/// A script that the server may have stored.
#[derive(Debug)]
pub struct CachedScript {
    sha: String,
    text: String,
}

impl CachedScript {
    pub fn new(text: String) -> Arc<Self> {
        Arc::new(Self { sha: Script::new(&text).get_hash().to_owned(), text })
    }

    /// The digest by which the server knows the script.
    #[cfg(test)]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// The text that the server compiles.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Runs the script by its digest: the server must have stored it.
    pub fn evalsha(&self, keys: usize) -> Cmd {
        eval_command("EVALSHA", &self.sha, keys)
    }

    /// Runs the script from its text, and thereby stores it.
    pub fn eval(&self, keys: usize) -> Cmd {
        eval_command("EVAL", &self.text, keys)
    }

    /// Loads the script into the server.
    pub fn script_load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text);
        load
    }
}

fn eval_command(command: &str, script: &str, keys: usize) -> Cmd {
    let mut cmd = Cmd::with_capacity(12, script.len() + 320);
    cmd.arg(command).arg(script).arg(keys);
    cmd
}

layout! {
    /// Strict mode: the run of a server.
    pub struct Epoch = "epoch", kind 'E' {
        /// When the run began, as far as is known.
        start: u64,
        /// The longest lease, in µs.
        longest: u64,
        /// When this was last written.
        refreshed: u64,
        /// No token that the server may have lost is above this.
        min_token: Token,
        /// The server's run_id; with Sentinels, a colon and the number of the election.
        run: Rest,
    }
}

/// Parts that the scripts of several engines share.
pub mod lua {
    use super::Epoch;
    use crate::redis_client::{Layout, Stored};

    /// The functions that read and write values of these layouts.
    pub fn functions(layouts: &[Layout]) -> String {
        layouts.iter().map(Layout::functions).collect()
    }

    /// Strict mode.
    pub fn strict() -> String {
        FORMAT_CHECK.to_owned() + &Epoch::LAYOUT.functions() + STRICT
    }

    pub const PRELUDE: &str = include_str!("scripts/prelude.lua");
    /// What the functions `read_…` need.
    pub const FORMAT_CHECK: &str = include_str!("scripts/format_check.lua");
    pub const SERVER_TIME: &str = include_str!("scripts/server_time.lua");
    pub const STRICT_OFF: &str = include_str!("scripts/strict_off.lua");
    pub const STRICT_OFF_WITH_RUN: &str = include_str!("scripts/strict_off_with_run.lua");
    const STRICT: &str = include_str!("scripts/strict.lua");
    pub const STRICT_RUN: &str = include_str!("scripts/strict_run.lua");
    pub const STRICT_SLOT_MOVING: &str = include_str!("scripts/strict_slot_moving.lua");
}

/// How many digits of a server's run are stored.
pub const RUN_DIGITS: usize = 8;

/// A server's run, as it is stored.
pub fn short_run(run: &str) -> &str {
    run.get(..RUN_DIGITS).unwrap_or(run)
}
