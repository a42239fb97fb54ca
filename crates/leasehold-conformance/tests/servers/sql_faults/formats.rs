//! Locks and records that another version stored in another format.

use leasehold_conformance::formats::{assert_lock_format_refused, assert_record_format_refused};

use super::fixture::{BOTH, Fixture, LASTING, open_locks};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_or_record_in_another_format_is_an_error() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        for (technique, table) in
            [("row", "leasehold"), ("session", "leasehold_tokens"), ("for-update", "leasehold_tokens")]
        {
            let url = format!("{}?technique={technique}", fixture.url());
            let locks = open_locks(&url, LASTING).await;
            let _ = locks.mutex("a").lock().await.expect("the lock").release().await.expect("a release");
            locks.flush().await.expect("the release is sent");
            let table = fixture.qualified_name(table);
            fixture.query_as_admin(&format!("UPDATE {table} SET format = 2")).await;
            // Another client, which has not read the row before.
            let locks = open_locks(&url, LASTING).await;
            if technique == "row" {
                assert_lock_format_refused(&locks).await;
            } else {
                let error = locks.mutex("a").try_lock().await.expect_err("the counter is in another format");
                let text = error.to_string();
                assert!(text.contains("format 2") && text.contains("format 1"), "{technique}: {text}");
            }
            fixture.query_as_admin(&format!("UPDATE {table} SET format = 1")).await;
            let _ = locks.mutex("a").lock().await.expect("the lock").release().await.expect("a release");
        }
        let locks = fixture.open_locks(LASTING).await;
        let records = locks.records().expect("records");
        assert!(records.compare_and_set("a", 0, "x").await.expect("an answer").is_some());
        let table = fixture.qualified_name("leasehold_records");
        fixture.query_as_admin(&format!("UPDATE {table} SET format = 2")).await;
        assert_record_format_refused(&locks).await;
    }
}
