//! `leasehold verify` starts the program `leasehold-verify`, which is installed separately.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{LEASEHOLD, Place, Ran};

/// Prints its path and its arguments, one per line, and exits with its own code.
const SCRIPT: &str = "#!/bin/sh\necho \"$0\"\nprintf '<%s>\\n' \"$@\"\nexit 23\n";

/// The folders for a test's programs.
struct Folders {
    place: Place,
}

impl Folders {
    fn new() -> Self {
        let place = Place::new();
        for name in ["here", "path", "empty"] {
            std::fs::create_dir(place.path(name)).unwrap();
        }
        // Copied by another process: a file that this process has open for writing cannot be
        // executed.
        let copied = Command::new("cp").arg(LEASEHOLD).arg(place.path("here/leasehold")).status().unwrap();
        assert!(copied.success());
        Self { place }
    }

    /// Installs the script as `leasehold-verify`.
    fn install(&self, folder: &str) -> PathBuf {
        let program = self.place.path(folder).join("leasehold-verify");
        let draft = self.place.path("draft");
        std::fs::write(&draft, SCRIPT).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&draft).arg(&program).status().unwrap().success());
        program
    }

    /// Runs the copied command with `folder` as its PATH.
    fn verify(&self, folder: &str, args: &[&str]) -> Ran {
        let mut command = Command::new(self.place.path("here/leasehold"));
        Ran(command.arg("verify").args(args).env("PATH", self.place.path(folder)).output().unwrap())
    }
}

/// The output of the script with these arguments.
fn said(program: &Path, args: &[&str]) -> String {
    let lines = args.iter().map(|arg| format!("<{arg}>\n"));
    std::iter::once(format!("{}\n", program.display())).chain(lines).collect()
}

#[test]
fn verify_hands_over_to_the_program_beside_it() {
    let folders = Folders::new();
    let program = folders.install("here");
    // Another copy in PATH is not used.
    folders.install("path");
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["--local", "redis", "--faults", "kill,stop"],
        &["help", "--json", "--", "--engine", "a b", ""],
    ] {
        let ran = folders.verify("path", args);
        assert_eq!((ran.code(), ran.err().as_str()), (23, ""), "{args:?}: {}", ran.out());
        assert_eq!(ran.out(), said(&program, args));
    }
}

#[test]
fn verify_finds_the_program_in_path() {
    let folders = Folders::new();
    let program = folders.install("path");
    let ran = folders.verify("path", &["--local", "redis"]);
    assert_eq!((ran.code(), ran.out()), (23, said(&program, &["--local", "redis"])), "{}", ran.err());
}

#[test]
fn verify_that_is_not_installed_says_how_it_is() {
    let folders = Folders::new();
    for args in [&[][..], &["--help"], &["--local", "redis"]] {
        let ran = folders.verify("empty", args).failed(69, "cargo install --path crates/leasehold-verify");
        assert_eq!(ran.out(), "");
    }
}
