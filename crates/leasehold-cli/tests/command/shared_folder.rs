//! A folder that several users share: what they can do together, and what one of them cannot do to
//! another. Needs root, to act as other users.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{LASTING, Ran, Running, copy_program, wait_for};

/// The group that all users of the folder are in. Each also has its own primary group.
const COMMON: u32 = 4100;

/// A folder that every user can reach, with a copy of the program.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
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

    fn folder(&self) -> PathBuf {
        self.path("locks-here")
    }

    fn url(&self, options: &str) -> String {
        format!("file://{}?mode=0770{options}", self.folder().display())
    }

    /// An administrator creates the folder for the common group.
    fn make_folder(&self, mode: u32) {
        fs::create_dir(self.folder()).unwrap();
        chown(self.folder(), None, Some(COMMON)).unwrap();
        chmod(&self.folder(), mode);
    }

    /// A program run as user `uid` in the common group; for user 0 unchanged.
    fn as_user(&self, uid: u32, program: &str) -> Command {
        let mut command = match uid {
            0 => Command::new(program),
            _ => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
                command.args(["--groups", &COMMON.to_string(), program]);
                command
            }
        };
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn leasehold(&self, uid: u32, url: &str, args: &[&str]) -> Command {
        let mut command = self.as_user(uid, self.path("leasehold").to_str().unwrap());
        for variable in ["LEASEHOLD_OWNER", "LEASEHOLD_HELD", "LEASEHOLD_NAME", "LEASEHOLD_TOKEN", "LEASEHOLD_LOG"] {
            command.env_remove(variable);
        }
        command.args(args).env("LEASEHOLD_ENGINE", url);
        command
    }

    fn run(&self, uid: u32, url: &str, args: &[&str]) -> Ran {
        Ran(self.leasehold(uid, url, args).output().unwrap())
    }

    /// Runs a script in the folder as a member of the group.
    fn shell(&self, uid: u32, script: &str) {
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

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Two users exclude each other, see each other, and hand off the lock.
fn share(host: &Host, url: &str) {
    let mut holder = host.leasehold(4001, url, &["run", "--ttl", LASTING, "job", "--", "cat"]);
    let holder = Running(Some(holder.spawn().unwrap()));
    wait_for("a holder", || host.run(4001, url, &["show", "job"]).out().contains("held").then_some(()));
    host.run(4002, url, &["run", "-n", "job", "--", "true"]).failed(1, "");
    assert!(host.run(4002, url, &["ls"]).ok().out().contains("cat"));
    let mut waiter = host.leasehold(4002, url, &["run", "--ttl", LASTING, "job", "-c", "echo served"]);
    let waiter = Running(Some(waiter.spawn().unwrap()));
    wait_for("a waiter", || host.run(4001, url, &["show", "job"]).out().contains("WAITER").then_some(()));
    holder.finish().ok();
    assert_eq!(waiter.finish().ok().out(), "served\n");
    host.run(4001, url, &["run", "-n", "job", "--", "true"]).ok();
    host.run(0, url, &["run", "-n", "job", "--", "true"]).ok();
}

#[test]
fn two_users_with_primary_groups_of_their_own_share_a_folder_that_was_made_for_them() {
    for given in [0o2770, 0o770, 0o3777] {
        let host = Host::new();
        host.make_folder(given);
        share(&host, &host.url(if given == 0o3777 { "&group=4100" } else { "" }));
        assert_eq!(mode(&host.folder()), given, "its mode is its maker's");
        // After a reboot the other user comes first: in a sticky folder it cannot replace the first
        // user's file.
        fs::write(host.folder().join("clock"), "0 1\n").unwrap();
        host.run(4002, &host.url(""), &["run", "-n", "job", "--", "true"]).ok();
        assert!(fs::read_to_string(host.folder().join("clock")).unwrap().len() > 32);
    }
}

#[test]
fn the_first_user_can_make_the_folder_for_a_group() {
    let host = Host::new();
    chmod(host.dir.path(), 0o1777);
    share(&host, &host.url("&group=4100"));
    let made = fs::metadata(host.folder()).unwrap();
    assert_eq!((made.uid(), made.gid(), mode(&host.folder())), (4001, COMMON, 0o2770));
}

#[test]
fn a_folder_whose_group_is_not_shared_says_what_to_do() {
    let host = Host::new();
    chmod(host.dir.path(), 0o1777);
    let url = host.url("");
    host.run(4001, &url, &["run", "job", "--", "true"]).ok();
    let refused = host.run(4002, &url, &["run", "job", "--", "true"]).failed(69, "group 4001");
    for part in ["user 4002 in the groups 4002, 4100", "chgrp -R GROUP", "&group=GROUP"] {
        assert!(refused.err().contains(part), "{part}: {}", refused.err());
    }
    // The printed remedy works.
    let folder = host.folder().display().to_string();
    let script = format!("chgrp -R {COMMON} {folder} && chmod -R g+rwX {folder}");
    assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success());
    host.run(4002, &url, &["run", "job", "--", "true"]).ok();
}

/// A link to another user's folder: the message names a remedy, and does not suggest changing that
/// folder.
#[test]
fn a_link_to_another_users_folder_names_its_owner_and_what_to_do() {
    let host = Host::new();
    let theirs = host.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(65534), Some(65534)).unwrap();
    std::os::unix::fs::symlink(&theirs, host.folder()).unwrap();
    let bare = format!("file://{}", host.folder().display());
    for (mode, url) in [(0o755, bare.clone()), (0o755, host.url("")), (0o700, bare), (0o700, host.url(""))] {
        chmod(&theirs, mode);
        for uid in [4001, 0] {
            let said = host.run(uid, &url, &["run", "job", "--", "true"]).failed(69, "through a link").err();
            for part in
                [&format!("to {}", theirs.display()), "belongs to user nobody (65534)", "Name a folder of our own"]
            {
                assert!(said.contains(part), "{part} is not in {said}");
            }
            assert!(!said.contains("chmod") && !said.contains("chgrp"), "{said}");
        }
    }
    // The link's target is not visible.
    let inner = theirs.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::remove_file(host.folder()).unwrap();
    std::os::unix::fs::symlink(&inner, host.folder()).unwrap();
    let said = host.run(4001, &host.url(""), &["run", "job", "--", "true"]).failed(69, "is a link to ").err();
    assert!(said.contains(&format!("{} belongs to user nobody (65534)", theirs.display())), "{said}");
}

#[test]
fn a_member_of_the_group_cannot_reach_roots_files_through_the_folder() {
    let host = Host::new();
    host.make_folder(0o2770);
    let (url, private) = (host.url(""), host.private_file());
    host.run(0, &url, &["run", "job", "--", "true"]).ok();
    let folder = host.path("private-folder");
    fs::create_dir(&folder).unwrap();
    chmod(&folder, 0o700);
    let links = format!(
        "rm locks/job; ln -s {private} locks/job; ln -s {private} floor.new; ln -s {private} audit.log",
        private = private.display()
    );
    host.shell(4001, &links);
    host.run(0, &url, &["run", "job", "--", "true"]).failed(69, "it is a link");
    assert!(host.run(0, &url, &["ls"]).failed(69, "it is a link").out().contains("job"), "others are still listed");
    for number in 0..300 {
        // Enough locks that some are swept, which writes the floor.
        if fs::symlink_metadata(host.folder().join("floor")).is_ok() {
            break;
        }
        host.run(0, &url, &["run", &format!("n{number}"), "--", "true"]).ok();
    }
    assert!(fs::symlink_metadata(host.folder().join("floor")).is_ok(), "the floor was written");
    host.shell(4001, &format!("mv records away; ln -s {} records", folder.display()));
    host.run(0, &url, &["run", "other", "--", "true"]).failed(69, "records is a link");
    assert_eq!((fs::read_to_string(&private).unwrap().as_str(), mode(&private)), ("private", 0o600));
    assert_eq!((mode(&folder), fs::read_dir(&folder).unwrap().count()), (0o700, 0));
}

#[test]
fn the_default_folder_is_a_users_own_and_is_named() {
    let host = Host::new();
    let (home, state) = (host.path("home"), host.path("state"));
    for dir in [&home, &state] {
        fs::create_dir(dir).unwrap();
        chown(dir, Some(4001), Some(4001)).unwrap();
    }
    let run = |args: &[&str], state: Option<&Path>| {
        let mut command = host.leasehold(4001, "", args);
        command.env_remove("LEASEHOLD_ENGINE").env("HOME", &home).env_remove("XDG_STATE_HOME");
        command.envs(state.map(|state| ("XDG_STATE_HOME", state)));
        Ran(command.output().unwrap())
    };
    let folder = home.join(".local/state/leasehold");
    let named = format!("this user's own folder {}", folder.display());
    assert!(run(&["ls"], None).ok().err().contains(&named));
    assert!(!folder.exists());
    run(&["run", "job", "--", "true"], None).ok();
    let listed = run(&["ls"], None).ok();
    assert!(listed.err().contains(&named), "{}", listed.err());
    // As under cron, which has another environment.
    let doctor = run(&["doctor", "--json"], Some(&state));
    assert_eq!(doctor.code(), 1, "{}", doctor.out());
    let report: serde_json::Value = serde_json::from_str(&doctor.out()).unwrap();
    let finding = report["findings"].as_array().unwrap().iter().find(|one| one["check"] == "default-folder").unwrap();
    assert_eq!(finding["level"], "warn", "{finding}");
    assert!(finding["found"].as_str().unwrap().contains(folder.to_str().unwrap()), "{finding}");
}

/// As another user's doctor sees root's default folder: mode 0700 hides what is in it.
#[test]
fn a_default_folder_that_is_closed_to_us_is_seen() {
    let host = Host::new();
    let (home, state) = (host.path("home"), host.path("state"));
    let closed = home.join(".local/state/leasehold");
    fs::create_dir_all(closed.join("locks")).unwrap();
    fs::create_dir(&state).unwrap();
    chown(&state, Some(4001), Some(4001)).unwrap();
    let found = || {
        let mut command = host.leasehold(4001, "", &["doctor", "--json"]);
        command.env_remove("LEASEHOLD_ENGINE").env("HOME", &home).env("XDG_STATE_HOME", &state);
        let report: serde_json::Value = serde_json::from_str(&Ran(command.output().unwrap()).out()).unwrap();
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
