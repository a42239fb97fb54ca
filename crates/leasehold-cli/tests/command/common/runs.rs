//! Runs `leasehold` on a thread that may block: the test's own thread serves a server's process.

use super::TestFolder;

/// Runs `leasehold` to its end; returns its exit code and its output, standard error last. Its
/// engine may take two minutes to open.
pub(crate) async fn run_with_output(arguments: &[&str]) -> (i32, String) {
    let mut arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    if arguments.iter().any(|word| word == "--engine") && !arguments.iter().any(|word| word == "--connect-timeout") {
        arguments.splice(1..1, ["--connect-timeout", "120s"].map(str::to_owned));
    }
    let done = tokio::task::spawn_blocking(move || TestFolder::new().run(arguments)).await.unwrap();
    (done.exit_code(), format!("{}{}", done.stdout(), done.stderr()))
}

/// Runs `leasehold` with longer and longer waits until the engine responds within one; returns its
/// exit code and its output, standard error last. Each `{wait}` in the arguments becomes the wait
/// in seconds, which begins with `shortest`.
pub(crate) async fn run_with_longer_waits(shortest: f64, arguments: &[&str]) -> (i32, String) {
    let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    let run = move || {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        TestFolder::new().run_with_longer_waits(shortest, &arguments)
    };
    let done = tokio::task::spawn_blocking(run).await.unwrap();
    (done.exit_code(), format!("{}{}", done.stdout(), done.stderr()))
}
