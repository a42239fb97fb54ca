//! All facts about the servers.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::config::{Config, Technique, Wake};
use super::super::ddl::{self, Tables};
use super::super::error::{Failure, Meaning};
use super::super::link::{Link, Reply, Value};
use super::super::{Dialect, held, lease};
use super::facts::{Aim, Closed, Facts, Found, Known, No, Rows, Seen, Server, Table, Values};
use super::{my, pg, probe};
use crate::clock::Clock;

/// Timeout of a small query.
const PATIENCE: Duration = Duration::from_secs(5);
/// A little more than the longest lease, in microseconds.
const LONGEST: i64 = 25 * 3600 * 1_000_000;

/// A connection for small queries, one after the other.
#[derive(Debug)]
pub(super) struct Asker {
    /// `None` after a timeout: the next reply could belong to the query before.
    link: Option<Link>,
    clock: Clock,
    pub(super) dialect: Dialect,
}

impl Asker {
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        match config.clock.timeout(config.connect_timeout + PATIENCE, Link::open(config)).await {
            Ok(link) => Ok(Self { link: Some(link?), clock: config.clock.clone(), dialect: config.dialect }),
            Err(_) => Err(Failure::Unreachable(format!("no answer within {:?}", config.connect_timeout))),
        }
    }

    /// The server's id of this connection, from the handshake.
    pub(super) fn id(&self) -> Option<i64> {
        self.link.as_ref().map(Link::id)
    }

    pub(super) async fn ask(&mut self, sql: &str) -> Known<Reply> {
        self.ask_with(sql, &[]).await
    }

    pub(super) async fn ask_with(&mut self, sql: &str, values: &[Value]) -> Known<Reply> {
        let dialect = self.dialect;
        self.answered(async |link| link.run(sql, values).await).await?.map_err(|failure| No::of(&failure, dialect))
    }

    /// Runs statements without rows.
    pub(super) async fn tell(&mut self, sql: &str) -> Known<()> {
        let dialect = self.dialect;
        self.answered(async |link| link.script(sql).await).await?.map_err(|failure| No::of(&failure, dialect))
    }

    /// The single value of the single row.
    pub(super) async fn value(&mut self, sql: &str) -> Known<Value> {
        let reply = self.ask(sql).await?;
        reply.value().cloned().ok_or_else(|| No::missing("it"))
    }

    pub(super) async fn number(&mut self, sql: &str) -> Known<i64> {
        self.value(sql).await?.int().ok_or_else(|| No::missing("a number"))
    }

    pub(super) async fn text(&mut self, sql: &str) -> Known<String> {
        self.value(sql).await?.text().map(ToOwned::to_owned).ok_or_else(|| No::missing("it"))
    }

    /// Rows with a name and a value.
    pub(super) async fn values(&mut self, sql: &str) -> Known<Values> {
        let reply = self.ask(sql).await?;
        let pair = |row: &Vec<Value>| match &row[..] {
            [Value::Text(name), Value::Text(value)] => Some((name.to_ascii_lowercase(), value.clone())),
            [Value::Text(name), Value::Int(value)] => Some((name.to_ascii_lowercase(), value.to_string())),
            _ => None,
        };
        Ok(Values(reply.rows.iter().filter_map(pair).collect()))
    }

    async fn answered<T>(
        &mut self,
        asking: impl AsyncFnOnce(&mut Link) -> Result<T, Failure>,
    ) -> Known<Result<T, Failure>> {
        let Some(link) = &mut self.link else { return Err(No::Lost("it fell silent".into())) };
        match self.clock.timeout(PATIENCE, asking(link)).await {
            Ok(answer) => {
                // After a refusal, the next query may succeed.
                if answer.as_ref().is_err_and(|failure| !matches!(failure, Failure::Refused { .. })) {
                    self.link = None;
                }
                Ok(answer)
            }
            Err(_) => {
                self.link = None;
                Err(No::Lost(format!("no answer within {PATIENCE:?}")))
            }
        }
    }

    pub(super) async fn close(self) {
        if let Some(link) = self.link {
            link.close().await;
        }
    }
}

/// Asks for all facts.
pub(super) async fn all(config: &Config, ttl: Duration) -> Facts {
    let aim = Aim {
        dialect: config.dialect,
        ttl,
        technique: config.technique,
        connections: config.connections as u64,
        pooler: config.pooler,
        polls: config.wake == Wake::Poll,
        clock_skew: config.clock_skew,
        ddl: ddl::command(config),
    };
    let servers = join_all(config.servers.iter().map(|place| server(config, place))).await;
    Facts { aim, servers }
}

async fn server(config: &Config, (host, port): &(String, u16)) -> Server {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    // As behind a pooler: we set and prepare nothing, so that we see the settings of other clients.
    let alone = Config { servers: vec![(host.clone(), *port)], pooler: true, only_looks: true, ..config.clone() };
    let seen = match Asker::open(&alone).await {
        Ok(mut asker) => {
            let seen = look(&mut asker, &alone).await;
            asker.close().await;
            Ok(seen)
        }
        Err(failure) => Err(closed(&failure, config.dialect)),
    };
    Server { address, seen }
}

fn closed(failure: &Failure, dialect: Dialect) -> Closed {
    let said = match failure {
        Failure::Refused { code, said } => format!("{code}: {said}"),
        Failure::Unreachable(why) | Failure::Broken(why) => why.clone(),
        other => other.tell(dialect, "it").said(),
    };
    match failure.meaning(dialect) {
        Some(Meaning::Denied) => Closed::Denied(said),
        Some(Meaning::NoDatabase) => Closed::NoDatabase(said),
        Some(Meaning::Crowded) => Closed::Crowded(said),
        _ => Closed::Away(said),
    }
}

async fn look(asker: &mut Asker, config: &Config) -> Seen {
    let unasked = || No::Unasked("it is another kind of server");
    let mut seen = Seen {
        version: Err(unasked()),
        settings: Err(unasked()),
        status: Err(unasked()),
        identity: Err(unasked()),
        in_recovery: Err(unasked()),
        in_use: Err(unasked()),
        replicas: Err(unasked()),
        between: Err(unasked()),
        clock: Err(unasked()),
        trips: Err(unasked()),
        tables: Vec::new(),
        trial: Err(unasked()),
        rows: Err(unasked()),
    };
    match config.dialect {
        Dialect::MySql => my::look(asker, &mut seen).await,
        Dialect::Postgres => pg::look(asker, config, &mut seen).await,
    }
    (seen.clock, seen.trips) = probe::time(asker).await;
    for (name, wanted, statement) in needed(config) {
        let found = match config.dialect {
            Dialect::MySql => my::table(asker, &name, &statement).await,
            Dialect::Postgres => pg::table(asker, config.schema.as_deref(), &name).await,
        };
        seen.tables.push(Table { name, wanted, found });
    }
    seen.trial = trial(asker, config, &seen).await;
    seen.rows = match seen.tables.first().map(|table| &table.found) {
        Some(Ok(Found::There(_))) if config.technique == Technique::Row => rows(asker, config).await,
        Some(Err(no)) => Err(no.clone()),
        _ => Err(No::Unasked("there is no lease table")),
    };
    seen
}

/// The tables that the technique needs, with their columns and the statements that create them.
fn needed(config: &Config) -> Vec<(String, &'static [&'static str], String)> {
    const LEASE: &[&str] = &["version", "token", "busy", "state"];
    let of = |suffix: &str, wanted| (format!("{}{suffix}", config.table), wanted);
    let tables: Vec<(String, &'static [&'static str])> = match config.technique {
        Technique::Row => vec![of("", LEASE)],
        Technique::ForUpdate => vec![of("_rows", &[]), of("_tokens", &["token"])],
        Technique::Session => vec![of("_tokens", &["token"])],
    };
    tables.into_iter().zip(ddl::needed(config)).map(|((name, wanted), made)| (name, wanted, made)).collect()
}

/// Does what a lock does, where it can be rolled back.
async fn trial(asker: &mut Asker, config: &Config, seen: &Seen) -> Known<()> {
    if seen.read_only(config.dialect).is_ok_and(|read_only| read_only.is_some()) {
        return Err(No::Unasked("it takes no writes"));
    }
    for table in &seen.tables {
        match &table.found {
            Ok(Found::There(shape)) if super::rules::rolls_back(shape) => {}
            Ok(Found::There(_)) => return Err(No::Unasked("its table cannot roll back")),
            Ok(Found::Missing { .. }) => return Err(No::Unasked("its table is not there")),
            Err(_) => return Err(No::Unasked("its table could not be looked at")),
        }
    }
    let dialect = asker.dialect;
    asker
        .answered(async |link| match config.technique {
            Technique::Row => lease::take_back(link, config).await,
            Technique::ForUpdate | Technique::Session => held::take_back(link, config).await,
        })
        .await?
        .map_err(|failure| No::of(&failure, dialect))
}

async fn rows(asker: &mut Asker, config: &Config) -> Known<Rows> {
    let table = Tables::of(config).leases;
    let now = probe::clock_of(config.dialect);
    let most = Rows::MOST;
    let (long, one) = match config.dialect {
        Dialect::MySql => ("SIGNED", "1, 0"),
        Dialect::Postgres => ("bigint", "1 ELSE 0 END"),
    };
    let sum = |condition: &str| match config.dialect {
        Dialect::MySql => format!("CAST(COALESCE(SUM(IF({condition}, {one})), 0) AS {long})"),
        Dialect::Postgres => format!("COALESCE(SUM(CASE WHEN {condition} THEN {one}), 0)::{long}"),
    };
    let sql = format!(
        "SELECT COUNT(*), {}, {}, {} FROM (SELECT busy, {now} AS now FROM {table} LIMIT {most}) AS counted",
        sum("busy > now"),
        sum("busy > 0 AND busy <= now"),
        sum(&format!("busy > now + {LONGEST}")),
    );
    let reply = asker.ask(&sql).await?;
    let numbers: Vec<i64> = reply.row().unwrap_or_default().iter().filter_map(Value::int).collect();
    let [count, busy, ended, endless] = numbers[..] else { return Err(No::missing("how many rows there are")) };
    let sql = format!("SELECT name, version, token, state FROM {table} ORDER BY busy DESC LIMIT {}", Rows::READ);
    // Rows may be large, and there may be no index: read them only if their number is known to be
    // below the limit.
    let reply = if count < most { asker.ask(&sql).await? } else { Reply::default() };
    let damaged = |row: &Vec<Value>| match &row[..] {
        [name, version, token, state] => {
            let why = match (version.int(), token.int(), state.text()) {
                (Some(0..), Some(0..), Some(state)) => lease::damage(state)?,
                _ => "its version or token is none",
            };
            Some((name.text().unwrap_or_default().to_owned(), why))
        }
        _ => None,
    };
    let read = reply.rows.len();
    Ok(Rows { count, busy, ended, endless, read, damaged: reply.rows.iter().filter_map(damaged).collect() })
}
