//! `cargo xtask test`: installs what the tests need, then runs everything that must hold before a change lands.
//! `cargo xtask check` leaves the tests out; `cargo xtask setup` only installs.

mod again;
mod scratch;
mod tests;

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What the tests run or use, and the Debian package that brings it: a program somewhere in `PATH`, or a file by its full path.
const PROGRAMS: [(&str, &str); 13] = [
    ("redis-server", "redis-server"),
    ("strace", "strace"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("faketime", "faketime"),
    ("/usr/lib/python3/dist-packages/redis/__init__.py", "python3-redis"),
    ("java", "default-jre-headless"),
    ("/usr/share/java/zookeeper.jar", "libzookeeper-java"),
    ("mariadbd", "mariadb-server"),
    ("/usr/lib/galera/libgalera_smm.so", "galera-4"),
    ("rsync", "rsync"),
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql"),
    ("pgbouncer", "pgbouncer"),
];

/// Each engine and module must build and lint alone, and the library without any.
const FEATURES: [&str; 9] = ["", "memory", "file", "cache", "mysql", "postgres", "redis", "schedule", "zookeeper"];

type Done = Result<(), Box<dyn Error>>;

const HELP: &str = "\
cargo xtask test    install what the tests need, then fmt, clippy, docs, and all tests
cargo xtask repeat  all test programs but the histories, several times, to see what fails now and then: `repeat 5`,
                    or `repeat 20 redlock sql_` those with one of these words in their names
cargo xtask check   fmt, clippy (each feature alone too) and docs
cargo xtask setup   only install what the tests need (apt, as root)
cargo xtask bench   the benches, beside their floors; `bench redis` those of Redis, `bench redlock` those of
                    Redlock on five servers, `bench zookeeper` those of ZooKeeper, `bench sql` those of MariaDB
                    and PostgreSQL, `bench cache` how often each way to keep a cache is stale; with --peers
                    beside other people's locks, with --quick only to see that all runs
cargo xtask soak    every engine under every fault, 100 histories of 1,000 calls each, and the negative controls;
                    a long one goes on where it was ended; `soak --histories 10` is shorter, `--only redis/failover` less, `--readme README.md`
                    puts the table of promises there";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let done = match task.as_str() {
        "test" => setup().and_then(|()| check()).and_then(|()| test()),
        "check" => check(),
        "setup" => setup(),
        "repeat" => repeat(),
        "bench" => bench(),
        "soak" => soak(),
        _ => Err(format!("{task:?} is no task\n\n{HELP}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("xtask: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stderr, reason = "this is a command")]
fn say(line: &str) {
    eprintln!("{line}");
}

/// Installs what is missing.
fn setup() -> Done {
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !found(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let advice = format!("the tests need the Debian packages {}; as root: apt-get install {0}", missing.join(" "));
    if !root || !found("apt-get") {
        return Err(advice.into());
    }
    apt(&["update"]).and_then(|()| apt(&[&["install", "--yes", "--no-install-recommends"], &missing[..]].concat()))?;
    match PROGRAMS.iter().find(|(program, _)| !found(program)) {
        None => Ok(()),
        Some((program, package)) => Err(format!("{program} is still missing after installing {package}").into()),
    }
}

fn found(program: &str) -> bool {
    if Path::new(program).is_absolute() {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
}

fn apt(arguments: &[&str]) -> Done {
    // Servers are started by the tests, on ports of their own; the packages must not start theirs.
    let mut apt = Command::new("apt-get");
    apt.args(["-o", "DPkg::Lock::Timeout=300"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    run(apt.env("RUNLEVEL", "1"))
}

fn check() -> Done {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])?;
    for feature in FEATURES {
        let alone = ["clippy", "--package", "leasehold", "--no-default-features", "--features", feature, "--locked"];
        cargo(&[&alone[..], &["--", "--deny", "warnings"]].concat())?;
    }
    cargo(&["clippy", "--package", "leasehold", "--examples", "--locked", "--", "--deny", "warnings"])?;
    cargo(&["doc", "--workspace", "--no-deps", "--locked", "--config", "build.rustdocflags=['--deny', 'warnings']"])
}

fn test() -> Done {
    tests::run_all(root()?)?;
    cargo(&["test", "--workspace", "--locked", "--doc"])?;
    // The examples as one command of the README builds them: without the engines that need a server.
    cargo(&["build", "--package", "leasehold", "--examples", "--locked"])?;
    cargo(&["test", "--package", "leasehold", "--locked", "--test", "examples"])?;
    // A scheme whose feature is off must say which.
    cargo(&[
        "test",
        "--package",
        "leasehold",
        "--no-default-features",
        "--features",
        "memory",
        "--locked",
        "--test",
        "library",
        "open",
    ])
}

/// `repeat 20 redlock`: how often, and which.
fn repeat() -> Done {
    let mut rest = std::env::args().skip(2);
    let times = rest.next().ok_or("how often? `cargo xtask repeat 5`")?;
    let times = times.parse().map_err(|error| format!("how often? {times:?}: {error}"))?;
    tests::repeat(root()?, times, &rest.collect::<Vec<_>>())
}

/// What comes after `bench` is the bench's own.
fn bench() -> Done {
    let rest: Vec<String> = std::env::args().skip(2).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    cargo(&[&["run", "--release", "--package", "leasehold-bench", "--"], &rest[..]].concat())
}

/// What comes after `soak` is the soak's own.
fn soak() -> Done {
    let rest: Vec<String> = std::env::args().skip(2).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let soak = ["run", "--release", "--package", "leasehold-verify", "--bin", "leasehold-soak", "--"];
    cargo(&[&soak[..], &rest[..]].concat())
}

fn cargo(arguments: &[&str]) -> Done {
    let mut cargo = Command::new(env!("CARGO"));
    run(cargo.args(arguments))
}

fn root() -> Result<&'static Path, Box<dyn Error>> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?)
}

fn run(command: &mut Command) -> Done {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy());
    let line = words.collect::<Vec<_>>().join(" ");
    say(&format!("==> {line}"));
    let status = command.current_dir(root()?).status().map_err(|error| format!("{line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}").into()) }
}
