//! The programs that the tests need, and the Debian package of each.

use std::path::Path;
use std::process::Command;

use crate::{TaskResult, run_command};

/// A program in `PATH`, or a file by its full path; and its package.
type RequiredPackage = (&'static str, &'static str);

/// The packages for the gate.
const GATE_PACKAGES: [RequiredPackage; 11] = [
    ("redis-server", "redis-server"),
    ("strace", "strace"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("faketime", "faketime"),
    ("/usr/lib/python3/dist-packages/redis/__init__.py", "python3-redis"),
    ("java", "default-jre-headless"),
    ("/usr/share/java/zookeeper.jar", "libzookeeper-java"),
    ("mariadbd", "mariadb-server"),
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql"),
    ("pgbouncer", "pgbouncer"),
];

/// The additional packages for the nightly parts.
const NIGHTLY_PACKAGES: [RequiredPackage; 4] =
    [("/usr/lib/galera/libgalera_smm.so", "galera-4"), ("rsync", "rsync"), ("pip3", "python3-pip"), ("mvn", "maven")];

/// Installs the missing packages for the gate.
pub(crate) fn install_for_gate() -> TaskResult {
    install(&GATE_PACKAGES)
}

/// Installs the missing packages for the nightly parts.
pub(crate) fn install_for_nightly() -> TaskResult {
    install(&[&GATE_PACKAGES[..], &NIGHTLY_PACKAGES[..]].concat())
}

fn install(packages: &[RequiredPackage]) -> TaskResult {
    let missing: Vec<&str> =
        packages.iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !root || !is_installed("apt-get") {
        let names = missing.join(" ");
        return Err(format!("the tests need the Debian packages {names}; as root: apt-get install {names}").into());
    }
    run_apt(&["update"])?;
    run_apt(&[&["install", "--yes", "--no-install-recommends"], &missing[..]].concat())?;
    match packages.iter().find(|(program, _)| !is_installed(program)) {
        None => Ok(()),
        Some((program, package)) => Err(format!("{program} is still missing after installing {package}").into()),
    }
}

fn is_installed(program: &str) -> bool {
    if Path::new(program).is_absolute() {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
}

fn run_apt(arguments: &[&str]) -> TaskResult {
    let mut apt = Command::new("apt-get");
    apt.args(["-o", "DPkg::Lock::Timeout=300", "-q"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    // The tests start servers on their own ports; the packages must not start theirs.
    run_command(apt.env("RUNLEVEL", "1"))
}
