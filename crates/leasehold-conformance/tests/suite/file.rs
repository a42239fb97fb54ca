//! The suite on `file:`, each instance in its own folder.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use leasehold_conformance::{Instance, Subject, suite};

/// A temporary folder.
struct File;

impl Subject for File {
    async fn instance(&self) -> Instance {
        let folder = tempfile::tempdir().expect("a folder");
        Instance::with_url(format!("file://{}", folder.path().display())).with_keep_alive(folder)
    }
}

suite!(file, File);
