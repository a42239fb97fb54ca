use super::*;
use crate::engine::EngineUrl;

fn wire(url: &str) -> SessionStatements {
    let url = EngineUrl::parse(url).unwrap();
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    SessionStatements::new(&Config::from_url(dialect, &url).unwrap(), ServerKind { is_mariadb: true, version: 150_000 })
}

const MYSQL: &str = "mysql://u@h/d?technique=session";
const POSTGRES: &str = "postgres://u@h/d?technique=session";

#[test]
fn keys_fit_and_differ_by_name_case_table_and_database() {
    let long = "x".repeat(511);
    let names = ["a", "A", "a ", &format!("{long}a"), &format!("{long}b")];
    for base in [MYSQL, POSTGRES] {
        let mut keys = Vec::new();
        for url in [base.to_owned(), base.replace("/d", "/e"), format!("{base}&table=t")] {
            let wire = wire(&url);
            keys.extend(names.iter().map(|name| format!("{:?}", wire.key(name))));
        }
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
    let Value::Text(key) = wire(MYSQL).key(&long) else { panic!("a text") };
    assert!(key.len() <= 64 && key.is_ascii() && key == key.to_lowercase(), "{key}");
    assert!(matches!(wire(POSTGRES).key("a"), Value::Int(_)));
}

#[test]
fn table_and_name_are_separated_in_the_key() {
    assert_ne!(wire(&format!("{POSTGRES}&table=ab")).key("c"), wire(&format!("{POSTGRES}&table=a")).key("bc"));
}

#[test]
fn the_idle_timeout_is_never_below_the_ttl() {
    for (millis, seconds) in [(1000, 1), (1001, 2), (1999, 2), (2000, 2), (86_400_000, 86_400)] {
        assert_eq!(idle_seconds(Duration::from_millis(millis)), seconds);
        let begin = wire(MYSQL).begin_hold(Duration::from_millis(millis));
        assert_eq!(begin, format!("SET SESSION wait_timeout = {seconds}"));
    }
    assert_eq!(idle_seconds(Duration::from_nanos(1_000_000_001)), 2);
    let begin = wire(POSTGRES).begin_hold(Duration::from_micros(1_500_001));
    assert_eq!(begin, "SET SESSION idle_session_timeout = 1501");
    assert!(
        wire("postgres://u@h/d?technique=for-update").begin_hold(Duration::from_secs(2)).ends_with("timeout = 2000")
    );
}

#[test]
fn only_a_positive_reply_is_a_grant() {
    let reply = |value: Option<Value>| Reply { rows: value.into_iter().map(|v| vec![v]).collect(), ..Reply::default() };
    for url in [MYSQL, POSTGRES] {
        let wire = wire(url);
        assert!(wire.is_granted(&reply(Some(Value::Int(1))), "a"));
        assert!(wire.is_granted(&reply(Some("1".into())), "a"));
        for refusal in [None, Some(Value::Null), Some(Value::Int(0)), Some("".into())] {
            assert!(!wire.is_granted(&reply(refusal.clone()), "a"), "{refusal:?}");
        }
    }
    let wire = wire("mysql://u@h/d?technique=for-update");
    assert!(wire.is_granted(&reply(Some("a".into())), "a"));
    for refusal in [None, Some(Value::Null), Some("b".into()), Some("A".into())] {
        assert!(!wire.is_granted(&reply(refusal.clone()), "a"), "{refusal:?}");
    }
}

#[test]
fn a_name_in_statement_text_is_hex_encoded() {
    let wire = wire("mysql://u@h/d?technique=for-update");
    let (sql, values) = wire.wait("'; DROP", Mode::Exclusive, "mark");
    assert!(sql.contains("X'273b2044524f50'") && values.is_empty(), "{sql}");
}

#[test]
fn a_counter_without_a_value_gives_no_token() {
    let (mysql, postgres) = (wire(MYSQL), wire(POSTGRES));
    assert_eq!(mysql.parse_token(&Reply { insert_id: 7, ..Reply::default() }), None, "another format: unchanged");
    assert!(mysql.parse_token(&Reply::default()).is_none() && postgres.parse_token(&Reply::default()).is_none());
    assert_eq!(mysql.parse_token(&Reply { insert_id: 7, rows_changed: 2, ..Reply::default() }), Some(Token(7)));
    assert_eq!(postgres.parse_token(&Reply { rows: vec![vec![Value::Int(7)]], ..Reply::default() }), Some(Token(7)));
}
