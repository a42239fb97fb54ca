//! A terminal without a screen: a program on its own pseudo-terminal, which controls it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{WITH_DEFAULT_SIGNALS, wait_for};

/// A program on its own terminal, which a test types into and reads.
pub(crate) struct PtySession {
    input: File,
    output: Arc<Mutex<Vec<u8>>>,
    /// The end of the output that `expect` has found so far, in bytes.
    read_offset: usize,
    child: Child,
}

impl PtySession {
    /// Starts `command` in its own session on a new terminal. `setsid` is in every Debian.
    pub(crate) fn start(command: &Command, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut inside = Command::new("setsid");
        inside
            .arg("--ctty")
            .args(WITH_DEFAULT_SIGNALS)
            .arg(command.get_program())
            .args(command.get_args())
            .env("TERM", "dumb");
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(key, value),
                None => inside.env_remove(key),
            };
        }
        inside.current_dir(command.get_current_dir().unwrap());
        inside.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = inside.spawn().unwrap();
        let keys = File::from(master.try_clone().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let seen = Arc::clone(&seen);
            move || collect_output(master, &seen)
        });
        Self { input: keys, output: seen, read_offset: 0, child }
    }

    /// Types these keys.
    pub(crate) fn send_keys(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).unwrap();
    }

    /// The output after the text that the last `expect` found.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()[self.read_offset..]).into_owned()
    }

    /// Waits for this text in the output; later calls search after it.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) {
        let at = wait_for_output(self, text);
        self.read_offset += at + text.len();
    }

    /// Waits for the end of the program; returns its exit code, `None` if a signal ended it.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Option<i32> {
        wait_for("the end of the program on the terminal", || self.child.try_wait().unwrap()).code()
    }
}

#[track_caller]
/// Waits for this text in the output; returns its offset from the last one found.
fn wait_for_output(session: &PtySession, text: &str) -> usize {
    let find = || {
        let seen = session.output.lock().unwrap();
        seen[session.read_offset..].windows(text.len()).position(|window| window == text.as_bytes())
    };
    let look = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for(text, find)));
    look.unwrap_or_else(|_| panic!("never saw {text:?}, but:\n{}", session.output()))
}

/// Reads the terminal's output until the program has ended.
fn collect_output(master: OwnedFd, output: &Mutex<Vec<u8>>) {
    let mut master = File::from(master);
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = master.read(&mut bytes) {
        output.lock().unwrap().extend_from_slice(&bytes[..count]);
    }
}

impl Drop for PtySession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
