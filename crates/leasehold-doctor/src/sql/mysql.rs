//! The queries for MySQL and MariaDB.

use super::facts::{Column, Fact, Intermediary, ServerFacts, TableDefinition, TableState, UnknownReason};
use super::gather::QueryClient;
use leasehold_internals::sql::connection::Value;

/// Queries the facts that MySQL and MariaDB report in their own way.
pub(super) async fn query_facts(client: &mut QueryClient, facts: &mut ServerFacts) {
    // A node that is cut off from its cluster serves only SHOW.
    facts.settings = client.query_values("SHOW GLOBAL VARIABLES").await;
    facts.version = facts.setting("version").map(ToOwned::to_owned);
    facts.status = client.query_values("SHOW GLOBAL STATUS").await;
    facts.identity = server_identity(facts);
    facts.in_use = facts.status("threads_connected").and_then(parse_number);
    facts.replicas = count_replicas(client, facts).await;
    facts.intermediary = detect_intermediary(client, facts).await;
}

/// Parses a number of `SHOW GLOBAL STATUS`.
fn parse_number(text: &str) -> Fact<i64> {
    text.parse().map_err(|_| UnknownReason::not_reported("a number"))
}

/// What identifies the server: its UUID, or else its host name, port and data directory.
fn server_identity(facts: &ServerFacts) -> Fact<String> {
    if let Ok(id) = facts.setting("server_uuid").or_else(|_| facts.setting("server_uid")) {
        return Ok(id.to_owned());
    }
    let (host, port) = (facts.setting("hostname")?, facts.setting("port")?);
    Ok(format!("{host} {port} {}", facts.setting("datadir")?))
}

/// The number of connected replicas. MariaDB shows it to all users; MySQL shows it to some.
async fn count_replicas(client: &mut QueryClient, facts: &ServerFacts) -> Fact<i64> {
    if let Ok(count) = facts.status("slaves_connected") {
        return parse_number(count);
    }
    if facts.is_on("log_bin")? {
        let listed = client.query("SHOW REPLICAS").await?;
        return Ok(listed.rows.len() as i64);
    }
    Ok(0)
}

/// Detects a proxy, by its version or by the id of the connection.
async fn detect_intermediary(client: &mut QueryClient, facts: &ServerFacts) -> Fact<Intermediary> {
    let comment = client.query_text("SELECT @@version_comment").await.unwrap_or_default();
    let version = facts.version.clone().unwrap_or_default();
    for (mark, name) in [("ProxySQL", "ProxySQL"), ("maxscale", "MaxScale")] {
        if comment.contains(mark) || version.contains(mark) {
            return Ok(Intermediary::Proxy(name));
        }
    }
    // The handshake contains the id of the connection. If the server knows the connection by
    // another id, there is a proxy in between.
    let handshake_id = client.connection_id();
    let known = client.query_number("SELECT CONNECTION_ID()").await?;
    Ok(if handshake_id == Some(known) { Intermediary::Direct } else { Intermediary::Proxy("a proxy") })
}

/// Queries the definition of a table. `create_statement` shows whether this user may create it.
pub(super) async fn query_table(client: &mut QueryClient, name: &str, create_statement: &str) -> Fact<TableState> {
    let named = [Value::from(name)];
    let sql =
        "SELECT COALESCE(engine, '') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    let reply = client.query_with(sql, &named).await?;
    let Some(engine) = reply.value().and_then(Value::text) else {
        // A user who can prepare a statement may also run it.
        let prepared =
            client.execute(&format!("PREPARE leasehold_doctor FROM '{}'", create_statement.replace('\n', " "))).await;
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
