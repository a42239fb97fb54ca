//! Where passwords could be visible, and how they are hidden there.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{LONG_TTL, TestFolder, shared_servers, wait_for};
use leasehold_testbed::redis::Redis;

const PASSWORD: &str = "hunter2";

/// The command lines of a process and its children, as the kernel shows them to every user.
fn command_lines(pid: rustix::process::Pid) -> String {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children", of = pid.as_raw_nonzero())).unwrap();
    let all = children.split_whitespace().map(str::to_owned).chain([pid.as_raw_nonzero().to_string()]);
    let line = |pid: String| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    all.map(|pid| line(pid).replace('\0', " ")).collect::<Vec<_>>().join("\n")
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Starts a server with a password, and runs `work` with a folder and the server's URL.
async fn run_with_server(work: impl FnOnce(TestFolder, String) + Send + 'static) {
    let server = Redis::new().password(PASSWORD).start().await.unwrap();
    let url = format!("{}?connect-timeout=60s", server.url());
    assert!(url.contains(PASSWORD));
    tokio::task::spawn_blocking(move || work(TestFolder::new(), url)).await.unwrap();
}

#[tokio::test]
async fn a_password_on_the_command_line_is_hidden_from_other_users() {
    run_with_server(|place, url| {
        let work = "env > env; \"$L\" run -n a -c 'env > inner; echo inside'; cat";
        let typed = format!("--engine={url}");
        let holder = place.start(["run", "--ttl", LONG_TTL, &typed, "a", "-c", work, "--describe", "x"]);
        wait_for("the inner command", || place.path("inner").exists().then_some(()));
        let shown = command_lines(holder.pid());
        assert!(!shown.contains(PASSWORD), "{shown}");
        assert!(shown.contains("--engine=redis://:***@127.0.0.1"), "{shown}");
        assert!(!place.read("env").contains("LEASEHOLD_HIDDEN_ENGINE"), "the command does not inherit it");
        assert_eq!(holder.close_input_and_wait().assert_ok().stdout(), "inside\n");
        // The user command's own arguments stay unchanged.
        let echo = place.run(["run", "--engine", &url, "a", "--", "echo", "--engine", &url]).assert_ok();
        assert_eq!(echo.stdout(), format!("--engine {url}\n"));
    })
    .await;
}

#[tokio::test]
async fn the_url_can_be_read_from_a_file_and_is_not_copied_elsewhere() {
    run_with_server(|place, url| {
        let file = place.path("engine");
        write_private(&file, &format!("{url}\n# not this\n"));
        let work = "env > env; \"$L\" run -n a -c 'env > inner'; cd /; \"$L\" run -n a -c 'echo inside'";
        let ran = place.run(["run", "--ttl", LONG_TTL, "--engine-file", "engine", "a", "-c", work]).assert_ok();
        assert_eq!((ran.stdout().as_str(), ran.stderr().as_str()), ("inside\n", ""));
        for environment in ["env", "inner"] {
            let environment = place.read(environment);
            assert!(environment.contains("LEASEHOLD_ENGINE_FILE="), "{environment}");
            assert!(!environment.contains(PASSWORD) && !environment.contains("LEASEHOLD_ENGINE="), "{environment}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let listed = place.run(["ls", "--engine-file", "engine"]).assert_ok();
        assert!(listed.stderr().contains("chmod o-r"), "{}", listed.stderr());
        place.run(["ls", "--engine-file", "nowhere"]).assert_failed(64, "cannot read the engine's URL from nowhere");
        place.run(["ls", "--engine-file", "engine", "--engine", "file:"]).assert_failed(64, "leave one of them out");
        fs::write(&file, "\n").unwrap();
        place.run(["ls", "--engine-file", "engine"]).assert_failed(64, "no URL in its first line");
    })
    .await;
}

#[tokio::test]
async fn the_password_can_be_read_from_a_file() {
    run_with_server(|place, url| {
        write_private(&place.path("secret"), &format!("{PASSWORD}\n"));
        let secret = place.path("secret").display().to_string();
        let bare = url.replace(&format!(":{PASSWORD}@"), "");
        place.run(["run", "--engine", &bare, "a", "--", "true"]).assert_failed(69, "password");
        let url = format!("{bare}&password-file={secret}");
        place.run(["run", "--engine", &url, "a", "-c", "\"$L\" run -n a -c 'echo inside'"]).assert_ok();
        place
            .run(["doctor", "--engine", &url.replace("password-file=", "password-file=/no")])
            .assert_failed(64, "password-file");
        let redlock =
            url.replace("redis://", "redlock://").replace("connect-timeout=60s&", "node-timeout=30s&even=allowed&");
        place.run(["run", "--engine", &redlock, "a", "--", "true"]).assert_ok();
    })
    .await;
}

/// The warning is one line with the file and the remedy, for every way to name the file.
#[test]
fn a_world_readable_secret_file_causes_a_warning() {
    let place = TestFolder::new();
    let of_folder = |mode| fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    let (secret, engine) = (place.path("secret"), place.path("engine"));
    write_private(&secret, &format!("{PASSWORD}\n"));
    write_private(&engine, &format!("redis://u:{PASSWORD}@127.0.0.1:1\n"));
    let run = |options: &[&str], variable: (&str, &str)| {
        let args = [options, &["--connect-timeout", "0"]].concat();
        crate::common::CommandOutput(place.command(&args).env(variable.0, variable.1).output().unwrap())
            .assert_failed(69, "")
            .stderr()
    };
    let ways = [
        "redis://u@127.0.0.1:1/0?password-file=",
        "redis+sentinel://127.0.0.1:1/m?sentinel-password-file=",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?password-file=",
        "mysql://u@127.0.0.1:1/d?password-file=",
        "postgres://u@127.0.0.1:1/d?password-file=",
        "zookeeper://u@127.0.0.1:1/d?password-file=",
    ]
    .map(|way| format!("{way}{}", secret.display()));
    // The last one: other users cannot reach a file in a private folder, even if its mode allows it.
    for (folder, mode, warnings) in [(0o755, 0o600, 0), (0o755, 0o640, 0), (0o755, 0o644, 1), (0o700, 0o644, 0)] {
        of_folder(folder);
        for path in [&secret, &engine] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let count = |output: &str, path: &Path| {
            assert!(!output.contains(PASSWORD), "{output}");
            let line = format!("every user can read the password in {path}: chmod o-r {path}", path = path.display());
            assert_eq!(output.matches(&line).count(), warnings, "{mode:o}: {output}");
            assert_eq!(output.matches("chmod").count(), warnings, "{mode:o}: {output}");
        };
        for url in &ways {
            count(&run(&["ls", "--engine", url], ("X", "")), &secret);
            count(&run(&["ls"], ("LEASEHOLD_ENGINE", url)), &secret);
        }
        let engine_file = engine.to_str().unwrap();
        count(&run(&["ls", "--engine-file", engine_file], ("X", "")), &engine);
        let mut command = place.command(["ls", "--connect-timeout", "0"]);
        let by_variable = command.env_remove("LEASEHOLD_ENGINE").env("LEASEHOLD_ENGINE_FILE", &engine);
        count(&crate::common::CommandOutput(by_variable.output().unwrap()).assert_failed(69, "").stderr(), &engine);
    }
}

#[tokio::test]
async fn postgresql_password_files_are_used() {
    let server = shared_servers::postgres().await;
    let url = server.url();
    let port = server.addr().port();
    tokio::task::spawn_blocking(move || {
        let place = TestFolder::new();
        let bare = url.replace(":password@", "@");
        assert_ne!(bare, url);
        let run = |variable: &str, value: &str| {
            let mut command = place.command(["run", "--engine", &bare, "a", "--", "true"]);
            let none = place.path("none");
            command.env_remove("PGPASSWORD").env("PGPASSFILE", none).env(variable, value);
            crate::common::CommandOutput(command.output().unwrap())
        };
        run("X", "").assert_failed(69, "asks for a password");
        let file = place.path("pgpass");
        write_private(&file, &format!("# a comment\n127.0.0.1:{port}:test:leasehold:password\n"));
        run("PGPASSFILE", file.to_str().unwrap()).assert_ok();
        run("PGPASSWORD", "password").assert_ok();
        // A file that other users can read is not used, as with PostgreSQL's own tools.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        run("PGPASSFILE", file.to_str().unwrap()).assert_failed(69, "asks for a password");
    })
    .await
    .unwrap();
}
