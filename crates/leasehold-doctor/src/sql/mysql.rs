//! The queries for MySQL and MariaDB.

use super::facts::{Column, Fact, Intermediary, ServerFacts, TableDefinition, TableState, UnknownReason};
use super::gather::QueryClient;
use leasehold_internals::sql::connection::Value;

/// Runs the queries that only this kind of server has.
pub(super) async fn query_facts(client: &mut QueryClient, seen: &mut ServerFacts) {
    // A node that is cut off from its cluster serves only SHOW.
    seen.settings = client.values("SHOW GLOBAL VARIABLES").await;
    seen.version = seen.setting("version").map(ToOwned::to_owned);
    seen.status = client.values("SHOW GLOBAL STATUS").await;
    seen.identity = identity(seen);
    seen.in_use = seen.status("threads_connected").and_then(number);
    seen.replicas = replicas(client, seen).await;
    seen.intermediary = detect_intermediary(client, seen).await;
}

fn number(text: &str) -> Fact<i64> {
    text.parse().map_err(|_| UnknownReason::not_reported("a number"))
}

fn identity(seen: &ServerFacts) -> Fact<String> {
    if let Ok(id) = seen.setting("server_uuid").or_else(|_| seen.setting("server_uid")) {
        return Ok(id.to_owned());
    }
    let (host, port) = (seen.setting("hostname")?, seen.setting("port")?);
    Ok(format!("{host} {port} {}", seen.setting("datadir")?))
}

/// MariaDB shows the number to all users; MySQL shows it to some.
async fn replicas(client: &mut QueryClient, seen: &ServerFacts) -> Fact<i64> {
    if let Ok(count) = seen.status("slaves_connected") {
        return number(count);
    }
    if seen.is_on("log_bin")? {
        let listed = client.query("SHOW REPLICAS").await?;
        return Ok(listed.rows.len() as i64);
    }
    Ok(0)
}

async fn detect_intermediary(client: &mut QueryClient, seen: &ServerFacts) -> Fact<Intermediary> {
    let comment = client.text("SELECT @@version_comment").await.unwrap_or_default();
    let version = seen.version.clone().unwrap_or_default();
    for (mark, name) in [("ProxySQL", "ProxySQL"), ("maxscale", "MaxScale")] {
        if comment.contains(mark) || version.contains(mark) {
            return Ok(Intermediary::Proxy(name));
        }
    }
    // The handshake contains the id of the connection. If the server knows the connection by
    // another id, there is a proxy in between.
    let handshake_id = client.id();
    let known = client.number("SELECT CONNECTION_ID()").await?;
    Ok(if handshake_id == Some(known) { Intermediary::Direct } else { Intermediary::Proxy("a proxy") })
}

/// The definition of a table; `made` is the statement that creates it.
pub(super) async fn table(client: &mut QueryClient, name: &str, made: &str) -> Fact<TableState> {
    let named = [Value::from(name)];
    let sql =
        "SELECT COALESCE(engine, '') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    let reply = client.query_with(sql, &named).await?;
    let Some(engine) = reply.value().and_then(Value::text) else {
        // A user who can prepare a statement may also run it.
        let prepared = client.execute(&format!("PREPARE leasehold_doctor FROM '{}'", made.replace('\n', " "))).await;
        if prepared.is_ok() {
            client.execute("DEALLOCATE PREPARE leasehold_doctor").await?;
        }
        return Ok(TableState::Missing { can_create: prepared });
    };
    let engine = engine.to_owned();
    let sql = "SELECT column_name, data_type, COALESCE(collation_name, '') FROM information_schema.columns \
        WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position";
    let columns = client.query_with(sql, &named).await?;
    let column = |row: &Vec<Value>| match &row[..] {
        [Value::Text(name), Value::Text(of), Value::Text(collation)] => {
            let (name, of, collation) = (name.to_lowercase(), of.to_lowercase(), collation.clone());
            // Only binary columns are compared byte by byte: text collations pad with spaces, or
            // treat different letters as equal.
            let is_loose = !matches!(of.as_str(), "varbinary" | "bigint" | "blob" | "mediumblob" | "longblob");
            Some(Column { name, data_type: of, collation, has_loose_collation: is_loose })
        }
        _ => None,
    };
    // A unique key on this column alone, and on its whole value.
    let sql = "SELECT COUNT(*) FROM (SELECT index_name FROM information_schema.statistics \
        WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0 GROUP BY index_name \
        HAVING COUNT(*) = 1 AND MAX(column_name) = 'name' AND MAX(sub_part) IS NULL) AS keys_of_name";
    let reply = client.query_with(sql, &named).await?;
    let unique_name = reply.value().and_then(Value::int).unwrap_or(0) > 0;
    Ok(TableState::Exists(TableDefinition {
        engine,
        columns: columns.rows.iter().filter_map(column).collect(),
        is_name_unique: unique_name,
    }))
}
