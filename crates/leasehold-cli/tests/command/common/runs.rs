//! Runs beside a server, whose process the test's thread serves: that thread must not block.

use super::TestFolder;

/// Runs it to its end; returns its exit code and its output. An engine may take two minutes to open.
pub(crate) async fn run_with_output(arguments: &[&str]) -> (i32, String) {
    let mut arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    if arguments.iter().any(|word| word == "--engine") && !arguments.iter().any(|word| word == "--connect-timeout") {
        arguments.splice(1..1, ["--connect-timeout", "120s"].map(str::to_owned));
    }
    let done = tokio::task::spawn_blocking(move || TestFolder::new().run(arguments)).await.unwrap();
    (done.exit_code(), format!("{}{}", done.stdout(), done.stderr()))
}

/// Runs it with the first wait within which the engine responds; returns its exit code and its
/// output. `{wait}` in the arguments is that wait, in seconds.
pub(crate) async fn run_with_a_wait(shortest: f64, arguments: &[&str]) -> (i32, String) {
    let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    let run = move || {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        TestFolder::new().run_with_a_wait(shortest, &arguments)
    };
    let done = tokio::task::spawn_blocking(run).await.unwrap();
    (done.exit_code(), format!("{}{}", done.stdout(), done.stderr()))
}
