//! One thread starts every child, because the kernel ties a child's lifetime to a *thread*.
//!
//! The parent-death signal is sent when the thread that spawned the child ends. A test has its own
//! thread, and a runtime's workers are temporary; this thread runs until the process ends.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{LazyLock, mpsc},
    thread,
};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// A command to start, and where to send the child.
type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Sends requests to the thread that starts children; `None` if that thread could not be started.
static SPAWNER: LazyLock<Option<mpsc::Sender<SpawnRequest>>> = LazyLock::new(|| {
    let (requests, receiver) = mpsc::channel::<SpawnRequest>();
    thread::Builder::new()
        .name("testbed-spawner".to_owned())
        .spawn(move || {
            for (mut command, reply) in receiver {
                // If the caller is gone, kill the child, so that it does not leak.
                if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        })
        .ok()
        .map(|_| requests)
});

/// Starts `command` so that it dies with this process. It gets its own process group, so that
/// Ctrl-C in the terminal reaches only the test.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let gone = || io::Error::other("the thread that starts child processes has ended");
    command.process_group(0);
    set_parent_death_signal(&mut command);
    let (reply, answer) = mpsc::channel();
    let spawner = SPAWNER.as_ref().ok_or_else(gone)?;
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Makes the kernel kill the child when this process ends.
#[allow(unsafe_code)]
fn set_parent_death_signal(command: &mut Command) {
    let parent = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before the line above took effect, there will be no signal.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from(rustix::io::Errno::SRCH)) }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two
    // system calls (prctl, getppid), acquires no lock and does not allocate: `parent` is a copied
    // integer, and an `io::Error` from an error number is stored inline. It runs after the change
    // of user, which would clear the parent-death signal.
    unsafe {
        command.pre_exec(before_exec);
    }
}
