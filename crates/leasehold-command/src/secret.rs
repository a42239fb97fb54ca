//! Keeps a password that was typed as an argument out of what `ps` shows.
//!
//! The kernel shows a process's arguments to every user for as long as it runs. The memory that they are in can only be overwritten with
//! `unsafe`, and not everywhere. So the program starts itself again in the same process, with the password hidden in the argument and
//! the whole URL in its environment, which only the same user and root can read.
//!
//! What remains: between the two starts, for about a millisecond, the password can be read, as it can in the shell's history and wherever
//! else the command line was written down. A file (`--engine-file`, `password-file=`) has neither problem.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::output::hide_passwords;

/// Where the URL is after the second start. What we start does not inherit it.
pub const VARIABLE: &str = "LEASEHOLD_HIDDEN_ENGINE";

/// What was meant by a URL on the command line whose password this program has hidden.
pub fn revealed(url: &str) -> String {
    let hidden = env::var(VARIABLE).ok().filter(|whole| hide_passwords(whole) == url);
    hidden.unwrap_or_else(|| url.to_owned())
}

/// Whether a URL has a password in it.
pub fn has_password(url: &str) -> bool {
    hide_passwords(url) != url
}

/// Starts this program again without the password of `url`, if that was typed after `option`. Comes back if there was nothing to hide, or
/// if it could not be hidden: then the error says why.
///
/// # Errors
/// If the program cannot be started again.
pub fn hide(option: &str, url: &str) -> std::io::Result<()> {
    if env::var(VARIABLE).is_ok_and(|hidden| hidden == url) {
        // This is the second start. If the URL stands there again, it is an argument of the command to be run.
        return Ok(());
    }
    let mut arguments: Vec<OsString> = env::args_os().collect();
    if !has_password(url) || !hide_in(&mut arguments, option, url) {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    if let Some((first, rest)) = arguments.split_first() {
        again.arg0(first).args(rest);
    }
    Err(again.env(VARIABLE, url).exec())
}

/// Hides it where it stands first: what stands behind our own options is the command's, and comes later. Whether it was there.
fn hide_in(arguments: &mut [OsString], option: &str, url: &str) -> bool {
    let (joined, hidden) = (format!("{option}={url}"), hide_passwords(url));
    for at in 1..arguments.len() {
        if arguments[at] == joined.as_str() {
            arguments[at] = format!("{option}={hidden}").into();
            return true;
        }
        if arguments[at] == url && arguments[at - 1] == option {
            arguments[at] = hidden.into();
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_argument_is_changed() {
        let url = "mysql://u:hunter2@h/d";
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (before, after) in [
            (
                "x run --engine mysql://u:hunter2@h/d a -- y --engine mysql://u:hunter2@h/d",
                "x run --engine mysql://u:***@h/d a -- y --engine mysql://u:hunter2@h/d",
            ),
            ("x ls --engine=mysql://u:hunter2@h/d", "x ls --engine=mysql://u:***@h/d"),
            ("x run a mysql://u:hunter2@h/d", "x run a mysql://u:hunter2@h/d"),
        ] {
            let mut arguments = words(before);
            assert_eq!(hide_in(&mut arguments, "--engine", url), before != after);
            assert_eq!(arguments, words(after));
        }
    }
}
