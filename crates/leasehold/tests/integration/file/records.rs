//! Records of the file engine: damaged, half-written, or while another process is stopped in a
//! write.

use std::fs::{self, File};

use leasehold::{ErrorKind, Locks, Records};
use rustix::fs::{FlockOperation, flock};

async fn open_records(dir: &tempfile::TempDir) -> Records {
    Locks::open(&format!("file://{}", dir.path().display())).await.unwrap().records().unwrap()
}

/// Reads and writes of a damaged record fail with the file's name, and do not overwrite it. Other
/// records still work.
#[tokio::test]
async fn a_damaged_record_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let records = open_records(&dir).await;
    let written = records.compare_and_set("a", 0, "every minute").await.unwrap().unwrap();
    let path = dir.path().join("records/a");
    let contents = fs::read(&path).unwrap();
    let damaged =
        [&contents[..contents.len() - 1], b"", &[&contents[..], b"x"].concat(), b"\xff\xfe"].map(<[u8]>::to_vec);
    for (number, bytes) in damaged.into_iter().enumerate() {
        fs::write(&path, &bytes).unwrap();
        let errors = [
            records.get("a").await.map(drop),
            records.compare_and_set("a", written.version, "x").await.map(drop),
            records.update("a", |_, _| Some("x".to_owned())).await.map(drop),
        ];
        for error in errors {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("records/a is damaged"), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "the file is unchanged");
        assert!(records.compare_and_set(format!("b{number}"), 0, "another").await.unwrap().is_some());
    }
    fs::write(&path, contents).unwrap();
    assert_eq!(records.get("a").await.unwrap().value, "every minute");
}

/// The temporary file of a writer that was killed is not a record, and does not hinder later
/// writers.
#[tokio::test]
async fn a_leftover_temporary_file_is_not_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let records = open_records(&dir).await;
    let written = records.compare_and_set("a", 0, "first").await.unwrap().unwrap();
    fs::write(dir.path().join("records/.new"), "half").unwrap();
    assert_eq!(records.list("").await.unwrap().len(), 1);
    assert!(records.compare_and_set("a", written.version, "second").await.unwrap().is_some());
    assert_eq!(records.get("a").await.unwrap().value, "second");
    assert!(!dir.path().join("records/.new").exists());
}

/// The versions of a record do not repeat, even if the clock was set back after it was removed.
#[tokio::test]
async fn versions_rise_over_a_removal_and_a_clock_that_is_behind() {
    let dir = tempfile::tempdir().unwrap();
    let before = open_records(&dir).await;
    let written = before.compare_and_set("a", 0, "first").await.unwrap().unwrap();
    let future = written.version + 3_600_000_000;
    before.compare_and_set("a", written.version, "").await.unwrap().unwrap();
    let floor = dir.path().join("records/.floor");
    assert_eq!(fs::read_to_string(&floor).unwrap().trim(), format!("1 {}", written.version));
    // As if the record was removed when the clock showed an hour more.
    fs::write(&floor, format!("1 {future}")).unwrap();
    let again = open_records(&dir).await.compare_and_set("a", 0, "second").await.unwrap().unwrap();
    assert_eq!(again.version, future + 1);
    fs::write(&floor, "x").unwrap();
    assert_eq!(before.compare_and_set("b", 0, "x").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A process that is stopped in the middle of a write blocks other writers, which get an error with
/// this reason. It does not block readers.
#[tokio::test]
async fn a_stopped_writer_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let records = open_records(&dir).await;
    let written = records.compare_and_set("a", 0, "first").await.unwrap().unwrap();
    let folder_lock = File::open(dir.path().join("records")).unwrap();
    flock(&folder_lock, FlockOperation::LockExclusive).unwrap();
    let error = records.compare_and_set("a", written.version, "second").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("is it stopped?"), "{error}");
    assert_eq!(records.get("a").await.unwrap().value, "first");
    drop(folder_lock);
    assert!(records.compare_and_set("a", written.version, "second").await.unwrap().is_some());
}

/// What another version stored in another format is refused, with both numbers, and kept.
#[tokio::test]
async fn a_lock_or_record_in_another_format_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let locks = Locks::open(&format!("file://{}", dir.path().display())).await.unwrap();
    let records = locks.records().unwrap();
    drop(locks.mutex("a").lock().await.unwrap());
    locks.flush().await.unwrap();
    assert!(records.compare_and_set("a", 0, "x").await.unwrap().is_some());
    for (path, at) in [("locks/a", 7), ("records/a", "leasehold record ".len())] {
        let mut content = fs::read(dir.path().join(path)).unwrap();
        assert_eq!(content[at], b'1', "{path}");
        content[at] = b'2';
        fs::write(dir.path().join(path), content).unwrap();
    }
    let locks = Locks::open(&format!("file://{}", dir.path().display())).await.unwrap();
    let errors = [
        locks.mutex("a").try_lock().await.map(drop),
        locks.inspect("a").await.map(drop),
        records.get("a").await.map(drop),
        records.compare_and_set("a", 0, "y").await.map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownFormat, "{error}");
        let text = error.to_string();
        assert!(text.contains("format 2") && text.contains("format 1"), "{text}");
    }
    let listed = locks.list("").await.unwrap();
    assert!(listed.iter().any(|view| view.damage.is_some()), "{listed:?}");
}
