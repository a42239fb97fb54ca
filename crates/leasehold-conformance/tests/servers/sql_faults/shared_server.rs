//! One server of each kind, shared by all tests that neither stop nor change it. Each test has its
//! own database there.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{Guard, Locks};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::mariadb::{self, Connection, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Data, Server, eventually};
use tokio::sync::OnceCell;

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    MariaDb,
    Postgres,
}

pub(crate) const BOTH: [DatabaseKind; 2] = [DatabaseKind::MariaDb, DatabaseKind::Postgres];

/// Enough for all tests that run at once.
const CONNECTIONS: &str = "400";

/// A database on a server.
pub(crate) struct TestDatabase {
    pub(crate) kind: DatabaseKind,
    server: ServerRef,
    pub(crate) database: String,
}

enum ServerRef {
    Own(Server),
    Shared(&'static Server),
}

impl TestDatabase {
    /// The only database on a server.
    pub(crate) fn on_own_server(kind: DatabaseKind, server: Server) -> Self {
        Self { kind, server: ServerRef::Own(server), database: mariadb::DATABASE.to_owned() }
    }

    /// A new database on the shared server.
    pub(crate) async fn on_shared_server(kind: DatabaseKind) -> Self {
        static NEXT_DATABASE: AtomicU32 = AtomicU32::new(0);
        let server = shared_server(kind).await;
        let database = format!("site{}", NEXT_DATABASE.fetch_add(1, Ordering::Relaxed));
        for sql in match kind {
            DatabaseKind::MariaDb => {
                [format!("CREATE DATABASE {database}"), format!("GRANT ALL ON {database}.* TO {}@'%'", mariadb::USER)]
                    .to_vec()
            }
            DatabaseKind::Postgres => [format!("CREATE DATABASE {database} OWNER {}", postgres::USER)].to_vec(),
        } {
            match kind {
                DatabaseKind::MariaDb => mariadb::query(server, &sql).await,
                DatabaseKind::Postgres => postgres::query(server, &sql).await,
            }
            .expect("a database");
        }
        Self { kind, server: ServerRef::Shared(server), database }
    }

    pub(crate) fn server(&self) -> &Server {
        match &self.server {
            ServerRef::Own(server) => server,
            ServerRef::Shared(server) => server,
        }
    }

    /// The server, if this test owns it.
    pub(crate) fn own_server(&mut self) -> &mut Server {
        match &mut self.server {
            ServerRef::Own(server) => server,
            ServerRef::Shared(_) => panic!("the server is shared"),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.server().url().replace(&format!("/{}", mariadb::DATABASE), &format!("/{}", self.database))
    }

    /// Runs a statement as the administrator. In MariaDB, table names include their database.
    pub(crate) async fn query_as_admin(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        match self.kind {
            DatabaseKind::MariaDb => {
                mariadb::query(self.server(), sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
            }
            DatabaseKind::Postgres => {
                self.query_postgres_as_admin(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
            }
        }
    }

    /// The testbed's own query uses another database.
    async fn query_postgres_as_admin(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.server().dir()).port(self.server().port()).user(postgres::ADMIN).dbname(&self.database);
        let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
        let query = async move { client.simple_query(sql).await };
        let (answer, end) = tokio::join!(query, connection);
        let messages = answer?;
        end?;
        let rows = messages.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.map(|row| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()).collect())
    }

    /// The connections of the locks' user to this database, oldest first.
    pub(crate) async fn connections(&self) -> Vec<Connection> {
        let (user, database) = (mariadb::USER, &self.database);
        let sql = match self.kind {
            DatabaseKind::MariaDb => format!(
                "SELECT id, command, info FROM information_schema.processlist WHERE user = '{user}' AND db = '{database}' ORDER BY id"
            ),
            DatabaseKind::Postgres => format!(
                "SELECT pid, state, query FROM pg_stat_activity WHERE usename = '{user}' AND datname = '{database}' \
                 ORDER BY backend_start, pid"
            ),
        };
        let one = |row: Vec<Option<String>>| {
            let [id, state, query] = <[Option<String>; 3]>::try_from(row).expect("three columns");
            Connection { id: id.expect("an id").parse().expect("a number"), state: state.unwrap_or_default(), query }
        };
        self.query_as_admin(&sql).await.into_iter().map(one).collect()
    }

    /// Closes a connection from the server's side, and returns whether it existed.
    pub(crate) async fn kill_connection(&self, id: u64) -> bool {
        match self.kind {
            DatabaseKind::MariaDb => mariadb::kill_connection(self.server(), id).await,
            DatabaseKind::Postgres => postgres::kill_connection(self.server(), id).await,
        }
        .is_ok()
    }

    /// Kills the server with SIGKILL and restarts it with its data.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.own_server().kill().expect("a kill");
        self.own_server().restart(Data::Keep).await.expect("a restart");
    }
}

/// The server that all tests of this binary share.
async fn shared_server(kind: DatabaseKind) -> &'static Server {
    static MARIADB: OnceCell<Server> = OnceCell::const_new();
    static POSTGRES: OnceCell<Server> = OnceCell::const_new();
    match kind {
        DatabaseKind::MariaDb => {
            let start =
                || async { MariaDb::new().setting("max_connections", CONNECTIONS).start().await.expect("a server") };
            MARIADB.get_or_init(start).await
        }
        DatabaseKind::Postgres => {
            let start =
                || async { Postgres::new().setting("max_connections", CONNECTIONS).start().await.expect("a server") };
            POSTGRES.get_or_init(start).await
        }
    }
}

/// Acquires a lock with a short TTL, retrying while the database does not answer in time.
pub(crate) async fn lock_with_retries(locks: &Locks, name: &str) -> Guard {
    eventually(TEST_TIMEOUT, || async { locks.mutex(name).lock().await }).await
}
