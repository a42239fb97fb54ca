//! How a MariaDB is started.

use std::path::PathBuf;

use super::{DATABASE, MariaDb, PASSWORD, USER, query};
use crate::{
    Result, clock,
    process::{Binary, DataTemplate, InitStep, Probe, ServerSpec, Workspace},
};

pub(super) const PACKAGE: &str = "mariadb-server";
/// The user that the package creates; MariaDB refuses to run as root.
const SYSTEM_USER: &str = "mysql";
/// The server's Unix socket, in its data folder.
pub(super) const SOCKET: &str = "mariadb.sock";
/// The file with the server's process id, in its data folder; the server removes it at a clean
/// exit.
const PID_FILE: &str = "mariadbd.pid";

/// Settings of every server: few and small files, no unneeded threads.
const BASE_SETTINGS: [(&str, &str); 12] = [
    ("bind_address", "127.0.0.1"),
    ("socket", SOCKET),
    ("pid_file", PID_FILE),
    ("skip_name_resolve", "ON"),
    ("skip_log_bin", "1"),
    ("innodb_buffer_pool_size", "16M"),
    ("innodb_log_file_size", "4M"),
    ("innodb_log_buffer_size", "2M"),
    ("innodb_buffer_pool_dump_at_shutdown", "OFF"),
    ("innodb_buffer_pool_load_at_startup", "OFF"),
    ("innodb_fast_shutdown", "1"),
    ("key_buffer_size", "1M"),
];

impl MariaDb {
    /// All arguments of `mariadbd`; `extra` are additional settings.
    pub(super) fn arguments_with(&self, workspace: &Workspace, extra: &[(&str, &str)]) -> Vec<String> {
        let port = workspace.port().to_string();
        let dir = workspace.dir().to_string_lossy();
        let flush = if self.fsyncs { "1" } else { "2" };
        let sync = if self.fsyncs { "1" } else { "0" };
        // In a shared folder, a starting server deletes the temporary tables of running servers,
        // which then crash.
        let mut settings = vec![("datadir", &*dir), ("tmpdir", &*dir), ("port", port.as_str())];
        settings.extend(BASE_SETTINGS);
        settings.extend([("innodb_flush_log_at_trx_commit", flush), ("sync_binlog", sync)]);
        settings.extend_from_slice(extra);
        settings.extend(self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let settings = settings.into_iter().map(|(key, value)| format!("--{key}={value}"));
        std::iter::once("--no-defaults".to_owned()).chain(settings).collect()
    }

    /// Removes the leftovers of a killed server outside its folder.
    pub(super) fn remove_leftovers(&self, workspace: &Workspace) {
        if self.clock.is_some() {
            clock::remove_leftovers(&workspace.dir().join(PID_FILE));
        }
    }
}

impl ServerSpec for MariaDb {
    fn binary(&self) -> Binary {
        Binary::new("mariadbd", PACKAGE)
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        self.arguments_with(workspace, &[])
    }

    fn url(&self, workspace: &Workspace) -> String {
        format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{}/{DATABASE}", workspace.port())
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(query::check_answers(workspace.dir()))
    }

    fn init_steps(&self, _workspace: &Workspace) -> Vec<InitStep> {
        vec![data_template(self.binary().find().unwrap_or_default()).init_step()]
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.remove_leftovers(workspace);
        Ok(())
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.remove_leftovers(workspace);
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.clock.as_ref().map(|clock| clock.environment()).unwrap_or_default()
    }

    fn disk(&self) -> Option<u64> {
        self.disk
    }

    fn run_as(&self) -> Option<&str> {
        Some(SYSTEM_USER)
    }
}

/// A data folder with the database and the ordinary user. Clients of the socket in the folder may
/// log in as root, because only the folder's owner and root can reach it.
fn data_template(program: PathBuf) -> DataTemplate {
    // `mariadb-install-db` reads one statement per line.
    let statements = format!(
        "FLUSH PRIVILEGES;\n\
         CREATE DATABASE {DATABASE};\n\
         CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON {DATABASE}.* TO {USER}@'%';"
    );
    let make = format!(
        "echo \"{statements}\" > statements.sql\n\
         mariadb-install-db --no-defaults --datadir=\"$PWD/data\" --extra-file=\"$PWD/statements.sql\" \
         --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve --innodb-log-file-size=4M"
    );
    DataTemplate { name: "mariadb", program, create_commands: make }
}
