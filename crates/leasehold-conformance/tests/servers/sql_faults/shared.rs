//! One server of each kind for all tests that neither end it nor change it: each has a database of its own there.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{Guard, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::{self, Connection, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Data, Server, eventually};
use tokio::sync::OnceCell;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MariaDb,
    Postgres,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::MariaDb, Kind::Postgres];

/// Enough for all tests that run at once.
const CONNECTIONS: &str = "400";

/// A database on a server.
pub(crate) struct Home {
    pub(crate) kind: Kind,
    server: Served,
    pub(crate) database: String,
}

enum Served {
    Own(Server),
    Shared(&'static Server),
}

impl Home {
    /// The only one on a server.
    pub(crate) fn alone(kind: Kind, server: Server) -> Self {
        Self { kind, server: Served::Own(server), database: mariadb::DATABASE.to_owned() }
    }

    /// A new one on the server that all share.
    pub(crate) async fn shared(kind: Kind) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let server = server(kind).await;
        let database = format!("site{}", MADE.fetch_add(1, Ordering::Relaxed));
        for sql in match kind {
            Kind::MariaDb => {
                [format!("CREATE DATABASE {database}"), format!("GRANT ALL ON {database}.* TO {}@'%'", mariadb::USER)]
                    .to_vec()
            }
            Kind::Postgres => [format!("CREATE DATABASE {database} OWNER {}", postgres::USER)].to_vec(),
        } {
            match kind {
                Kind::MariaDb => mariadb::ask(server, &sql).await,
                Kind::Postgres => postgres::ask(server, &sql).await,
            }
            .expect("a database");
        }
        Self { kind, server: Served::Shared(server), database }
    }

    pub(crate) fn server(&self) -> &Server {
        match &self.server {
            Served::Own(server) => server,
            Served::Shared(server) => server,
        }
    }

    /// The server, where it is this test's own.
    pub(crate) fn own(&mut self) -> &mut Server {
        match &mut self.server {
            Served::Own(server) => server,
            Served::Shared(_) => panic!("others have their databases there, too"),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.server().url().replace(&format!("/{}", mariadb::DATABASE), &format!("/{}", self.database))
    }

    /// Asks by hand, as the one who may do everything. In MariaDB, tables are named with their database.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        match self.kind {
            Kind::MariaDb => mariadb::ask(self.server(), sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")),
            Kind::Postgres => self.ask_postgres(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")),
        }
    }

    /// The testbed's own asks another database.
    async fn ask_postgres(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.server().dir()).port(self.server().port()).user(postgres::ADMIN).dbname(&self.database);
        let (client, line) = config.connect(tokio_postgres::NoTls).await?;
        let asking = async move { client.simple_query(sql).await };
        let (answer, end) = tokio::join!(asking, line);
        let messages = answer?;
        end?;
        let rows = messages.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.map(|row| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()).collect())
    }

    /// The connections of the user of the locks to this database, oldest first.
    pub(crate) async fn connections(&self) -> Vec<Connection> {
        let (user, database) = (mariadb::USER, &self.database);
        let sql = match self.kind {
            Kind::MariaDb => format!(
                "SELECT id, command, info FROM information_schema.processlist WHERE user = '{user}' AND db = '{database}' ORDER BY id"
            ),
            Kind::Postgres => format!(
                "SELECT pid, state, query FROM pg_stat_activity WHERE usename = '{user}' AND datname = '{database}' \
                 ORDER BY backend_start, pid"
            ),
        };
        let one = |row: Vec<Option<String>>| {
            let [id, state, query] = <[Option<String>; 3]>::try_from(row).expect("three columns");
            Connection { id: id.expect("an id").parse().expect("a number"), state: state.unwrap_or_default(), query }
        };
        self.ask(&sql).await.into_iter().map(one).collect()
    }

    /// Ends a connection from the server's side; whether it was there.
    pub(crate) async fn kill(&self, id: u64) -> bool {
        match self.kind {
            Kind::MariaDb => mariadb::kill_connection(self.server(), id).await,
            Kind::Postgres => postgres::kill_connection(self.server(), id).await,
        }
        .is_ok()
    }

    /// `kill -9`, and up again with what was written.
    pub(crate) async fn crash(&mut self) {
        self.own().kill().expect("a kill");
        self.own().restart(Data::Keep).await.expect("a restart");
    }
}

/// The server that all tests of this program share.
async fn server(kind: Kind) -> &'static Server {
    static MARIADB: OnceCell<Server> = OnceCell::const_new();
    static POSTGRES: OnceCell<Server> = OnceCell::const_new();
    match kind {
        Kind::MariaDb => {
            let start =
                || async { MariaDb::new().setting("max_connections", CONNECTIONS).start().await.expect("a server") };
            MARIADB.get_or_init(start).await
        }
        Kind::Postgres => {
            let start =
                || async { Postgres::new().setting("max_connections", CONNECTIONS).start().await.expect("a server") };
            POSTGRES.get_or_init(start).await
        }
    }
}

/// Takes a lock under a TTL that is short for a slow machine: it asks again as long as the database does not answer in time.
pub(crate) async fn lock_stubbornly(locks: &Locks, name: &str) -> Guard {
    eventually(SOON, || async { locks.mutex(name).lock().await }).await
}
