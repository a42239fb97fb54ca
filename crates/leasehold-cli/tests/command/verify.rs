//! `leasehold verify` starts the program `leasehold-verify`, which is installed separately.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{CommandOutput, LEASEHOLD, TestFolder};

/// Prints its path and its arguments, one per line, and exits with its own code.
const SCRIPT: &str = "#!/bin/sh\necho \"$0\"\nprintf '<%s>\\n' \"$@\"\nexit 23\n";

/// The folders for a test's programs.
struct InstallFolders {
    folder: TestFolder,
}

impl InstallFolders {
    fn new() -> Self {
        let place = TestFolder::new();
        for name in ["here", "path", "empty"] {
            std::fs::create_dir(place.path(name)).unwrap();
        }
        // Copied by another process: a file that this process has open for writing cannot be
        // executed.
        let copied = Command::new("cp").arg(LEASEHOLD).arg(place.path("here/leasehold")).status().unwrap();
        assert!(copied.success());
        Self { folder: place }
    }

    /// Installs the script as `leasehold-verify`.
    fn install(&self, folder: &str) -> PathBuf {
        let program = self.folder.path(folder).join("leasehold-verify");
        let draft = self.folder.path("draft");
        std::fs::write(&draft, SCRIPT).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&draft).arg(&program).status().unwrap().success());
        program
    }

    /// Runs the copied command with `folder` as its PATH.
    fn run_verify(&self, folder: &str, args: &[&str]) -> CommandOutput {
        let mut command = Command::new(self.folder.path("here/leasehold"));
        CommandOutput(command.arg("verify").args(args).env("PATH", self.folder.path(folder)).output().unwrap())
    }
}

/// The output of the script with these arguments.
fn expected_output(program: &Path, args: &[&str]) -> String {
    let lines = args.iter().map(|arg| format!("<{arg}>\n"));
    std::iter::once(format!("{}\n", program.display())).chain(lines).collect()
}

#[test]
fn verify_runs_the_program_in_its_own_folder() {
    let folders = InstallFolders::new();
    let program = folders.install("here");
    // The copy in PATH is not used.
    folders.install("path");
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["--local", "redis", "--faults", "kill,stop"],
        &["help", "--json", "--", "--engine", "a b", ""],
    ] {
        let ran = folders.run_verify("path", args);
        assert_eq!((ran.exit_code(), ran.stderr().as_str()), (23, ""), "{args:?}: {}", ran.stdout());
        assert_eq!(ran.stdout(), expected_output(&program, args));
    }
}

#[test]
fn verify_finds_the_program_in_path() {
    let folders = InstallFolders::new();
    let program = folders.install("path");
    let ran = folders.run_verify("path", &["--local", "redis"]);
    assert_eq!(
        (ran.exit_code(), ran.stdout()),
        (23, expected_output(&program, &["--local", "redis"])),
        "{}",
        ran.stderr()
    );
}

#[test]
fn a_missing_verify_program_is_reported_with_its_install_command() {
    let folders = InstallFolders::new();
    for args in [&[][..], &["--help"], &["--local", "redis"]] {
        let ran = folders.run_verify("empty", args).assert_failed(69, "cargo install --path crates/leasehold-verify");
        assert_eq!(ran.stdout(), "");
    }
}
