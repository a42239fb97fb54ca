//! The queries for PostgreSQL.

use super::facts::{Column, Fact, Intermediary, ServerFacts, TableDefinition, TableState, UnknownReason};
use super::gather::QueryClient;
use leasehold_internals::sql::config::Config;
use leasehold_internals::sql::connection::Value;

/// How often to check whether two connections share a session.
const SESSION_CHECKS: usize = 3;

/// Queries the facts that PostgreSQL reports in its own way.
pub(super) async fn query_facts(client: &mut QueryClient, config: &Config, facts: &mut ServerFacts) {
    facts.version = client.query_text("SELECT version()").await;
    facts.settings = client.query_values("SELECT name::text, COALESCE(setting, '')::text FROM pg_settings").await;
    if let Ok(settings) = &mut facts.settings {
        let limits = "SELECT 'role_connections', rolconnlimit::bigint FROM pg_roles WHERE rolname = current_user UNION ALL \
            SELECT 'database_connections', datconnlimit::bigint FROM pg_database WHERE datname = current_database()";
        settings.0.extend(client.query_values(limits).await.unwrap_or_default().0);
    }
    let sql = "SELECT COALESCE((SELECT system_identifier::text FROM pg_control_system()), '') || ' ' || \
        extract(epoch FROM pg_postmaster_start_time())::text";
    facts.identity = client.query_text(sql).await;
    facts.is_in_recovery = client.query_number("SELECT pg_is_in_recovery()").await.map(|yes| yes == 1);
    facts.in_use =
        client.query_number("SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").await;
    facts.replicas = client.query_number("SELECT COUNT(*) FROM pg_stat_replication").await;
    facts.intermediary = detect_intermediary(client, config).await;
}

/// Whether a pooler may use another session for each transaction: then two connections share a
/// session, or one moves to another session while its own is in use.
async fn detect_intermediary(client: &mut QueryClient, config: &Config) -> Fact<Intermediary> {
    let mut other =
        QueryClient::open(config).await.map_err(|failure| UnknownReason::from_failure(&failure, config.dialect))?;
    let mut shared = Ok(false);
    for _ in 0..SESSION_CHECKS {
        shared = is_session_shared_or_changed(client, &mut other).await;
        if shared != Ok(false) {
            break;
        }
    }
    other.close().await;
    Ok(if shared? { Intermediary::TransactionPooler } else { Intermediary::Direct })
}

/// Whether two connections share a session, or the first one moves to another session while the
/// other has a transaction open.
async fn is_session_shared_or_changed(client: &mut QueryClient, other: &mut QueryClient) -> Fact<bool> {
    const SESSION_ID_QUERY: &str = "SELECT pg_backend_pid()";
    let first = client.query_number(SESSION_ID_QUERY).await?;
    other.execute("BEGIN").await?;
    let second = other.query_number(SESSION_ID_QUERY).await;
    let third = client.query_number(SESSION_ID_QUERY).await;
    other.execute("ROLLBACK").await?;
    Ok(second? == first || third? != first)
}

/// Queries the definition of a table.
pub(super) async fn query_table(client: &mut QueryClient, schema: Option<&str>, name: &str) -> Fact<TableState> {
    let quoted = match schema {
        Some(schema) => format!("\"{schema}\".\"{name}\""),
        None => format!("\"{name}\""),
    };
    let named = [Value::from(quoted.as_str())];
    let sql =
        "SELECT c.oid::bigint, c.relkind::text || c.relpersistence::text FROM pg_class c WHERE c.oid = to_regclass($1)";
    let reply = client.query_with(sql, &named).await?;
    let Some([Value::Int(oid), Value::Text(kind)]) = reply.row() else {
        return Ok(TableState::Missing { can_create: check_can_create(client, schema).await });
    };
    let engine = match kind.as_str() {
        "rp" => "ordinary",
        "ru" => "UNLOGGED",
        "rt" => "TEMPORARY",
        "pp" => "partitioned",
        _ => "no table",
    };
    let sql = "SELECT a.attname::text, format_type(a.atttypid, NULL), COALESCE(l.collname::text, ''), \
        COALESCE(NOT l.collisdeterministic, false) \
        FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation \
        WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let columns = client.query_with(sql, &[Value::Int(*oid)]).await?;
    let column = |row: &Vec<Value>| match &row[..] {
        [Value::Text(name), Value::Text(of), Value::Text(collation), Value::Int(loose)] => Some(Column {
            name: name.clone(),
            data_type: of.clone(),
            collation: collation.clone(),
            // `character` pads with spaces.
            has_loose_collation: *loose == 1
                || of.starts_with("character") && !of.contains("varying")
                || of == "citext",
        }),
        _ => None,
    };
    let sql = "SELECT COUNT(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
        WHERE i.indrelid = $1::oid AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL \
        AND a.attname = 'name'";
    let reply = client.query_with(sql, &[Value::Int(*oid)]).await?;
    let unique_name = reply.value().and_then(Value::int).unwrap_or(0) > 0;
    let columns = columns.rows.iter().filter_map(column).collect();
    Ok(TableState::Exists(TableDefinition { engine: engine.to_owned(), columns, is_name_unique: unique_name }))
}

/// Checks whether this user may create tables in the schema; `None`: the first one of its search
/// path.
async fn check_can_create(client: &mut QueryClient, schema: Option<&str>) -> Fact<()> {
    let schema = schema.unwrap_or_default();
    let sql = "SELECT COALESCE(NULLIF($1, ''), current_schema()::text, ''), \
        COALESCE((SELECT has_schema_privilege(n.oid, 'CREATE') FROM pg_namespace n \
         WHERE n.nspname = COALESCE(NULLIF($1, ''), current_schema()::text)), false)";
    let reply = client.query_with(sql, &[Value::from(schema)]).await?;
    match reply.row() {
        Some([_, Value::Int(1)]) => Ok(()),
        Some([Value::Text(schema), _]) if schema.is_empty() => {
            Err(UnknownReason::Denied("there is no schema for it (search_path)".into()))
        }
        Some([Value::Text(schema), _]) => {
            Err(UnknownReason::Denied(format!("no permission to CREATE in the schema {schema:?}")))
        }
        _ => Err(UnknownReason::not_reported("this user's permissions")),
    }
}
