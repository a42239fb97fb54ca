//! Keeps a password in an argument out of the output of `ps`.
//!
//! The kernel shows a process's arguments to every user while it runs. Overwriting their memory
//! needs `unsafe`, and does not work on every system. So the program executes itself again in the
//! same process: the argument then has the password hidden, and the environment, which only the
//! same user and root can read, has the whole URL.
//!
//! What remains: before the second start, for about a millisecond, the password can be read. It can
//! also be read in the shell's history and in any other copy of the command line. A file
//! (`--engine-file`, `password-file=`) avoids both problems.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use leasehold::engine::EngineUrl;
use rustix::termios::isatty;

use crate::output::{self, hide_passwords};

/// The environment variable that passes the URL with its password when the program executes itself
/// again. Commands that this process starts do not inherit it.
pub const HIDDEN_URL_VARIABLE: &str = "LEASEHOLD_HIDDEN_ENGINE";

/// The URL with its password, if `url` is the one in whose argument this program hid the password;
/// `url` itself otherwise.
pub fn original_url(url: &str) -> String {
    let hidden = env::var(HIDDEN_URL_VARIABLE).ok().filter(|whole| hide_passwords(whole) == url);
    hidden.unwrap_or_else(|| url.to_owned())
}

/// Whether a URL contains a password.
pub fn has_password(url: &str) -> bool {
    hide_passwords(url) != url
}

/// Hides the password of `url`, which was typed after `option`, from `ps`; warns if that fails. On
/// a terminal it also recommends `alternatives`, the options that keep a password private.
pub fn hide_typed_password(option: &str, url: &str, alternatives: &str) {
    if let Err(error) = reexec_without_password(option, url) {
        output::print_message(&format!("warning: `ps` shows the password in {option} to every user: {error}"));
    } else if has_password(url) && isatty(io::stderr()) {
        output::print_message(&format!(
            "warning: a password on the command line can be seen by others; use {alternatives}"
        ));
    }
}

/// Prints a warning for each password file of this URL that every user can read. Ignores a
/// malformed URL, which is refused where it is used.
pub fn warn_of_exposed_files(url: &str) {
    let files = EngineUrl::parse(url).map(|url| url.world_readable_files()).unwrap_or_default();
    files.iter().for_each(|path| warn_of_exposed_file(path));
}

/// Prints a warning that every user can read the password in this file.
pub fn warn_of_exposed_file(path: &Path) {
    let path = path.display();
    output::print_message(&format!("warning: every user can read the password in {path}: chmod o-r {path}"));
}

/// Executes this program again without the password of `url`, if `url` was given after `option`.
/// Returns `Ok` if there was no password to hide.
///
/// # Errors
/// If the program cannot be executed again; the password is then still visible.
fn reexec_without_password(option: &str, url: &str) -> io::Result<()> {
    if env::var(HIDDEN_URL_VARIABLE).is_ok_and(|hidden| hidden == url) {
        // This is the second start. Any further occurrence of the URL is an argument of the user's
        // command.
        return Ok(());
    }
    let mut arguments: Vec<OsString> = env::args_os().collect();
    if !has_password(url) || !hide_in_arguments(&mut arguments, option, url) {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    if let Some((first, rest)) = arguments.split_first() {
        again.arg0(first).args(rest);
    }
    Err(again.env(HIDDEN_URL_VARIABLE, url).exec())
}

/// Hides the password of `url` in the first argument that has it after `option`; later ones belong
/// to the user's command. Returns whether there is such an argument.
fn hide_in_arguments(arguments: &mut [OsString], option: &str, url: &str) -> bool {
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
            assert_eq!(hide_in_arguments(&mut arguments, "--engine", url), before != after);
            assert_eq!(arguments, words(after));
        }
    }
}
