//! A folder that several users share: what they can do together, and what one of them cannot do to
//! another. Needs root, to act as other users.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, LONG_TTL, RunningCommand, copy_program, wait_for};

/// The group that all users of the folder are in. Each also has its own primary group.
const COMMON_GROUP: u32 = 4100;

/// A host with several users: a folder that all of them can reach, with a copy of the program.
struct TestHost {
    dir: tempfile::TempDir,
}

impl TestHost {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "needs root, to run the command as several users");
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        copy_program(&dir.path().join("leasehold"));
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The folder for the locks that the users share.
    fn folder(&self) -> PathBuf {
        self.path("locks-here")
    }

    fn url(&self, options: &str) -> String {
        format!("file://{}?mode=0770{options}", self.folder().display())
    }

    /// An administrator creates the folder for the common group.
    fn make_folder(&self, mode: u32) {
        fs::create_dir(self.folder()).unwrap();
        chown(self.folder(), None, Some(COMMON_GROUP)).unwrap();
        chmod(&self.folder(), mode);
    }

    /// A program run as user `uid` in the common group; for user 0 unchanged.
    fn as_user(&self, uid: u32, program: &str) -> Command {
        let mut command = match uid {
            0 => Command::new(program),
            _ => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
                command.args(["--groups", &COMMON_GROUP.to_string(), program]);
                command
            }
        };
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `leasehold` with these arguments, as this user.
    fn command(&self, uid: u32, url: &str, args: &[&str]) -> Command {
        let mut command = self.as_user(uid, self.path("leasehold").to_str().unwrap());
        for variable in ["LEASEHOLD_OWNER", "LEASEHOLD_HELD", "LEASEHOLD_NAME", "LEASEHOLD_TOKEN", "LEASEHOLD_LOG"] {
            command.env_remove(variable);
        }
        command.args(args).env("LEASEHOLD_ENGINE", url);
        command
    }

    /// Runs `leasehold` as this user to its end.
    fn run(&self, uid: u32, url: &str, args: &[&str]) -> CommandOutput {
        CommandOutput(self.command(uid, url, args).output().unwrap())
    }

    /// Runs a script in the folder as a member of the group.
    fn run_script(&self, uid: u32, script: &str) {
        let done = self.as_user(uid, "sh").args(["-ec", script]).current_dir(self.folder()).output().unwrap();
        assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A file of root's that the group must not access.
    fn private_file(&self) -> PathBuf {
        let path = self.path("private-file");
        fs::write(&path, "private").unwrap();
        chmod(&path, 0o600);
        path
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Two users exclude each other, see each other, and hand off the lock.
fn check_sharing(host: &TestHost, url: &str) {
    let mut holder = host.command(4001, url, &["run", "--ttl", LONG_TTL, "job", "--", "cat"]);
    let holder = RunningCommand(Some(holder.spawn().unwrap()));
    wait_for("a holder", || host.run(4001, url, &["show", "job"]).stdout().contains("held").then_some(()));
    host.run(4002, url, &["run", "-n", "job", "--", "true"]).assert_failed(1, "");
    assert!(host.run(4002, url, &["ls"]).assert_ok().stdout().contains("cat"));
    let mut waiter = host.command(4002, url, &["run", "--ttl", LONG_TTL, "job", "-c", "echo served"]);
    let waiter = RunningCommand(Some(waiter.spawn().unwrap()));
    wait_for("a waiter", || host.run(4001, url, &["show", "job"]).stdout().contains("WAITER").then_some(()));
    holder.close_input_and_wait().assert_ok();
    assert_eq!(waiter.close_input_and_wait().assert_ok().stdout(), "served\n");
    host.run(4001, url, &["run", "-n", "job", "--", "true"]).assert_ok();
    host.run(0, url, &["run", "-n", "job", "--", "true"]).assert_ok();
}

#[test]
fn two_users_share_a_prepared_folder_through_a_common_group() {
    for given in [0o2770, 0o770, 0o3777] {
        let host = TestHost::new();
        host.make_folder(given);
        check_sharing(&host, &host.url(if given == 0o3777 { "&group=4100" } else { "" }));
        assert_eq!(mode_of(&host.folder()), given, "the mode stays as its creator set it");
        // After a reboot the other user comes first: in a sticky folder it cannot replace the first
        // user's file.
        fs::write(host.folder().join("clock"), "1 0 1\n").unwrap();
        host.run(4002, &host.url(""), &["run", "-n", "job", "--", "true"]).assert_ok();
        assert!(fs::read_to_string(host.folder().join("clock")).unwrap().len() > 32);
    }
}

#[test]
fn the_first_user_can_make_the_folder_for_a_group() {
    let host = TestHost::new();
    chmod(host.dir.path(), 0o1777);
    check_sharing(&host, &host.url("&group=4100"));
    let made = fs::metadata(host.folder()).unwrap();
    assert_eq!((made.uid(), made.gid(), mode_of(&host.folder())), (4001, COMMON_GROUP, 0o2770));
}

#[test]
fn a_folder_with_an_unshared_group_is_refused_with_a_remedy() {
    let host = TestHost::new();
    chmod(host.dir.path(), 0o1777);
    let url = host.url("");
    host.run(4001, &url, &["run", "job", "--", "true"]).assert_ok();
    let refused = host.run(4002, &url, &["run", "job", "--", "true"]).assert_failed(69, "group 4001");
    for part in ["user 4002 in the groups 4002, 4100", "chgrp -R GROUP", "&group=GROUP"] {
        assert!(refused.stderr().contains(part), "{part}: {}", refused.stderr());
    }
    // The printed remedy works.
    let folder = host.folder().display().to_string();
    let script = format!("chgrp -R {COMMON_GROUP} {folder} && chmod -R g+rwX {folder}");
    assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success());
    host.run(4002, &url, &["run", "job", "--", "true"]).assert_ok();
}

/// A link to another user's folder: the message names a remedy, and does not suggest changing that
/// folder.
#[test]
fn a_link_to_another_users_folder_names_its_owner_and_what_to_do() {
    let host = TestHost::new();
    let other = host.path("other");
    fs::create_dir(&other).unwrap();
    chown(&other, Some(65534), Some(65534)).unwrap();
    std::os::unix::fs::symlink(&other, host.folder()).unwrap();
    let bare = format!("file://{}", host.folder().display());
    for (mode, url) in [(0o755, bare.clone()), (0o755, host.url("")), (0o700, bare), (0o700, host.url(""))] {
        chmod(&other, mode);
        for uid in [4001, 0] {
            let output =
                host.run(uid, &url, &["run", "job", "--", "true"]).assert_failed(69, "through a link").stderr();
            for part in
                [&format!("to {}", other.display()), "belongs to user nobody (65534)", "Name a folder of its own"]
            {
                assert!(output.contains(part), "{part} is not in {output}");
            }
            assert!(!output.contains("chmod") && !output.contains("chgrp"), "{output}");
        }
    }
    // The link's target is not visible.
    let inner = other.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::remove_file(host.folder()).unwrap();
    std::os::unix::fs::symlink(&inner, host.folder()).unwrap();
    let output =
        host.run(4001, &host.url(""), &["run", "job", "--", "true"]).assert_failed(69, "is a link to ").stderr();
    assert!(output.contains(&format!("{} belongs to user nobody (65534)", other.display())), "{output}");
}

#[test]
fn a_member_of_the_group_cannot_reach_roots_files_through_the_folder() {
    let host = TestHost::new();
    host.make_folder(0o2770);
    let (url, private) = (host.url(""), host.private_file());
    host.run(0, &url, &["run", "job", "--", "true"]).assert_ok();
    let folder = host.path("private-folder");
    fs::create_dir(&folder).unwrap();
    chmod(&folder, 0o700);
    let links = format!(
        "rm locks/job; ln -s {private} locks/job; ln -s {private} floor.new; ln -s {private} audit.log",
        private = private.display()
    );
    host.run_script(4001, &links);
    host.run(0, &url, &["run", "job", "--", "true"]).assert_failed(69, "it is a link");
    assert!(
        host.run(0, &url, &["ls"]).assert_failed(69, "it is a link").stdout().contains("job"),
        "others are still listed"
    );
    for number in 0..300 {
        // With so many locks, the engine removes some, and then writes the lowest next token to
        // `floor`.
        if fs::symlink_metadata(host.folder().join("floor")).is_ok() {
            break;
        }
        host.run(0, &url, &["run", &format!("n{number}"), "--", "true"]).assert_ok();
    }
    assert!(fs::symlink_metadata(host.folder().join("floor")).is_ok(), "the floor was written");
    host.run_script(4001, &format!("mv records away; ln -s {} records", folder.display()));
    host.run(0, &url, &["run", "other", "--", "true"]).assert_failed(69, "records is a link");
    assert_eq!((fs::read_to_string(&private).unwrap().as_str(), mode_of(&private)), ("private", 0o600));
    assert_eq!((mode_of(&folder), fs::read_dir(&folder).unwrap().count()), (0o700, 0));
}

#[test]
fn the_default_folder_belongs_to_the_user_and_is_printed() {
    let host = TestHost::new();
    let (home, state) = (host.path("home"), host.path("state"));
    for dir in [&home, &state] {
        fs::create_dir(dir).unwrap();
        chown(dir, Some(4001), Some(4001)).unwrap();
    }
    let run = |args: &[&str], state: Option<&Path>| {
        let mut command = host.command(4001, "", args);
        command.env_remove("LEASEHOLD_ENGINE").env("HOME", &home).env_remove("XDG_STATE_HOME");
        command.envs(state.map(|state| ("XDG_STATE_HOME", state)));
        CommandOutput(command.output().unwrap())
    };
    let folder = home.join(".local/state/leasehold");
    let named = format!("this user's own folder {}", folder.display());
    assert!(run(&["ls"], None).assert_ok().stderr().contains(&named));
    assert!(!folder.exists());
    run(&["run", "job", "--", "true"], None).assert_ok();
    let listed = run(&["ls"], None).assert_ok();
    assert!(listed.stderr().contains(&named), "{}", listed.stderr());
    // With another XDG_STATE_HOME, as cron may set it, `file:` is another folder.
    let doctor = run(&["doctor", "--json"], Some(&state));
    assert_eq!(doctor.exit_code(), 1, "{}", doctor.stdout());
    let report: serde_json::Value = serde_json::from_str(&doctor.stdout()).unwrap();
    let finding = report["findings"].as_array().unwrap().iter().find(|one| one["check"] == "default-folder").unwrap();
    assert_eq!(finding["level"], "warn", "{finding}");
    assert!(finding["found"].as_str().unwrap().contains(folder.to_str().unwrap()), "{finding}");
}

/// Another user's default folder has mode 0700, which hides its content; the doctor reports it
/// anyway.
#[test]
fn a_default_folder_that_is_closed_to_us_is_seen() {
    let host = TestHost::new();
    let (home, state) = (host.path("home"), host.path("state"));
    let closed = home.join(".local/state/leasehold");
    fs::create_dir_all(closed.join("locks")).unwrap();
    fs::create_dir(&state).unwrap();
    chown(&state, Some(4001), Some(4001)).unwrap();
    let found = || {
        let mut command = host.command(4001, "", &["doctor", "--json"]);
        command.env_remove("LEASEHOLD_ENGINE").env("HOME", &home).env("XDG_STATE_HOME", &state);
        let report: serde_json::Value =
            serde_json::from_str(&CommandOutput(command.output().unwrap()).stdout()).unwrap();
        let all = report["findings"].as_array().unwrap();
        all.iter().find(|one| one["check"] == "default-folder").unwrap()["found"].as_str().unwrap().to_owned()
    };
    let shown = closed.display().to_string();
    chmod(&closed, 0o700);
    assert!(found().contains(&shown), "{}", found());
    // A folder that may not exist at all is not counted.
    chmod(&home, 0o700);
    assert!(!found().contains(&shown), "{}", found());
}
