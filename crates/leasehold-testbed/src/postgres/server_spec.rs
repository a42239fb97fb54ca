//! How a PostgreSQL is started.

use std::{fs, path::PathBuf};

use super::{ADMIN, DATABASE, PASSWORD, Postgres, USER, leftovers, query};
use crate::{
    Error, Result,
    process::{Binary, DataTemplate, InitStep, Probe, ServerSpec, Signal, Workspace},
};

const PACKAGE: &str = "postgresql";
/// Where Debian has a folder for each version of PostgreSQL; they are not in `PATH`.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that the package creates; PostgreSQL refuses to run as root.
pub(super) const SYSTEM_USER: &str = "postgres";
/// The file with the rules of which clients may log in, and how.
const ACCESS_FILE: &str = "access.conf";

const BASE_SETTINGS: [(&str, &str); 7] = [
    ("listen_addresses", "127.0.0.1"),
    // The data folder, in which the server runs.
    ("unix_socket_directories", "."),
    ("hba_file", ACCESS_FILE),
    ("shared_buffers", "16MB"),
    // Shared memory of a killed server is then a file in its folder.
    ("dynamic_shared_memory_type", "mmap"),
    ("wal_recycle", "off"),
    ("password_encryption", "scram-sha-256"),
];

impl Postgres {
    /// All arguments of `postgres`; `extra` are additional settings.
    pub(super) fn arguments_with(&self, workspace: &Workspace, extra: &[(&str, &str)]) -> Vec<String> {
        let port = workspace.port().to_string();
        let sync = if self.fsyncs { "on" } else { "off" };
        let mut settings = BASE_SETTINGS.to_vec();
        settings.extend([("port", port.as_str()), ("fsync", sync), ("full_page_writes", sync)]);
        settings.extend_from_slice(extra);
        settings.extend(self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let settings = settings.into_iter().flat_map(|(key, value)| ["-c".to_owned(), format!("{key}={value}")]);
        ["-D".to_owned(), workspace.dir().to_string_lossy().into_owned()].into_iter().chain(settings).collect()
    }

    /// Writes the access file. Clients of the socket in the data folder may log in as any user,
    /// because only the folder's owner and root can reach it. TCP clients need a password, and
    /// `option` if that is not empty; `kind` is `host`, or `hostssl` to require TLS.
    pub(super) fn write_access(&self, workspace: &Workspace, kind: &str, option: &str) -> Result<()> {
        let file = workspace.dir().join(ACCESS_FILE);
        let access = format!(
            "local all all trust\n\
             {kind} all all 127.0.0.1/32 scram-sha-256 {option}\n\
             {kind} replication {ADMIN} 127.0.0.1/32 scram-sha-256 {option}\n"
        );
        let writing = Error::io(format!("writing {}", file.display()));
        fs::write(file, access).map_err(writing)
    }
}

impl ServerSpec for Postgres {
    fn binary(&self) -> Binary {
        binary("postgres")
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        self.arguments_with(workspace, &[])
    }

    fn url(&self, workspace: &Workspace) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{DATABASE}", workspace.port())
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.write_access(workspace, "host", "")
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(query::check_answers(workspace.dir(), workspace.port()))
    }

    fn init_steps(&self, _workspace: &Workspace) -> Vec<InitStep> {
        vec![data_template(self.binary().find().unwrap_or_default()).init_step()]
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.clock.as_ref().map(|clock| clock.environment()).unwrap_or_default()
    }

    /// SIGINT: at SIGTERM PostgreSQL would wait until all clients have disconnected.
    fn stop_signal(&self) -> Signal {
        Signal::INT
    }

    fn clean_up(&self, workspace: &Workspace) {
        leftovers::remove_shared_memory(workspace.dir());
    }

    fn disk(&self) -> Option<u64> {
        self.disk
    }

    fn run_as(&self) -> Option<&str> {
        Some(SYSTEM_USER)
    }
}

/// A program of the newest version that is installed.
pub(super) fn binary(name: &str) -> Binary {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.into_iter().fold(Binary::new(name, PACKAGE), |binary, (_, folder)| binary.search_in(folder))
}

fn data_template(program: PathBuf) -> DataTemplate {
    let folder = program.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    // Small log segments are faster to copy. In single-user mode the server reads one statement per
    // line.
    let make = format!(
        "echo {PASSWORD} > word\n\
         '{folder}/initdb' --pgdata=data --username={ADMIN} --pwfile=word --auth=scram-sha-256 \
         --encoding=UTF8 --locale=C.UTF-8 --wal-segsize=1 --no-sync\n\
         printf '%s\\n' \"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'\" \
         'CREATE DATABASE {DATABASE} OWNER {USER}' | \
         '{folder}/postgres' --single -F -c exit_on_error=on -D data postgres"
    );
    DataTemplate { name: "postgres", program, create_commands: make }
}
