//! One thread that starts every child, because the kernel ties a child's life to a *thread*.
//!
//! The parent-death signal is sent when the thread that spawned the child ends. A test runs on a
//! thread of its own, and a runtime's workers come and go; this thread stays until the process ends.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{LazyLock, mpsc},
    thread,
};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// `None` if the thread could not be started.
static SPAWNER: LazyLock<Option<mpsc::Sender<SpawnRequest>>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<SpawnRequest>();
    thread::Builder::new()
        .name("testbed-spawner".to_owned())
        .spawn(move || {
            for (mut command, reply) in inbox {
                // A caller that has gone away loses the child: kill it rather than leave it behind.
                if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        })
        .ok()
        .map(|_| orders)
});

/// Starts `command` so that it dies with this process, and in a process group of its own, so that
/// a Ctrl-C in the terminal reaches the test first.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let gone = || io::Error::other("the thread that starts child processes is gone");
    command.process_group(0);
    set_parent_death_signal(&mut command);
    let (reply, answer) = mpsc::channel();
    let spawner = SPAWNER.as_ref().ok_or_else(gone)?;
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[allow(unsafe_code)]
fn set_parent_death_signal(command: &mut Command) {
    let parent = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above took effect: then no signal will come.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from(rustix::io::Errno::SRCH)) }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two
    // system calls (prctl, getppid), takes no lock and allocates nothing: `parent` is a copied
    // integer, and an `io::Error` made from an error number is stored inline.
    // It runs after the change of user, which would clear the parent-death signal.
    unsafe {
        command.pre_exec(before_exec);
    }
}
