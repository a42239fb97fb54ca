//! Schedule files that are checked, and the mistakes in them.

use crate::common::TestFolder;
use crate::cron::write_file;
use serde_json::Value;

#[test]
fn every_mistake_in_a_file_is_reported_and_no_job_starts() {
    let place = TestFolder::new();
    write_file(
        &place,
        "jobs.cron",
        "0 3 * * * ./backup.sh\na: 61 * * * * x\nb [missed=maybe]: @daily x\nc [ttl=1s kill-after=1s]: @daily x\nd [overlap=allow:65]: @daily x\ne [missed=all:1001]: @daily x\n",
    );
    for command in [&["cron", "jobs.cron"][..], &["cron", "check", "jobs.cron"]] {
        let ran = place.run(command).assert_failed(64, "jobs.cron:1: this line has no name");
        let output = ran.stderr();
        assert_eq!(output.lines().count(), 6, "a line each: {output}");
        assert!(output.contains("write `backup: 0 3 * * * ./backup.sh`"), "{output}");
        assert!(output.contains("jobs.cron:2: ") && output.contains("field 1 (minute) is \"61\""), "{output}");
        assert!(output.contains("jobs.cron:3: ") && output.contains("write skip, once"), "{output}");
        assert!(output.contains("jobs.cron:4: kill-after"), "{output}");
        assert!(output.contains("jobs.cron:5: ") && output.contains("64 at most"), "{output}");
        assert!(output.contains("jobs.cron:6: ") && output.contains("1000 at most"), "{output}");
    }
    // Six fields where five are expected: the sixth would be the command.
    write_file(&place, "six.cron", "probe: */10 * * * * *  ./probe\nfive: */10 * * * *  ./*\n");
    let output =
        place.run(["cron", "check", "six.cron"]).assert_failed(64, "six.cron:1: this line has six fields").stderr();
    assert!(output.contains("CRON_SECONDS=yes") && !output.contains("six.cron:2"), "{output}");
    // With --json, the mistakes are one event.
    let ran = place.run(["cron", "--json", "jobs.cron"]);
    let [error] = &ran.events()[..] else { panic!("{}", ran.stderr()) };
    assert_eq!((ran.exit_code(), &error["event"], &error["kind"]), (64, &Value::from("error"), &Value::from("usage")));
    place.run(["cron", "none.cron"]).assert_failed(64, "cannot read none.cron");
    place.run(["cron", "stauts"]).assert_failed(64, "leasehold cron --help");
    place.run(["cron"]).assert_failed(64, "no schedule file was given");
    write_file(&place, "empty.cron", "# no jobs\n");
    place.run(["cron", "empty.cron"]).assert_failed(64, "has no jobs");
    place.run(["cron", "history", "nobody"]).assert_failed(64, "no job \"nobody\"");
    place.run(["cron", "pause", "nobody"]).assert_failed(64, "no job \"nobody\"");
    // A mistyped folder is not created.
    let nowhere = format!("file://{}", place.path("nowhere").display());
    place.run(["cron", "pause", "nobody", "--engine", &nowhere]).assert_failed(64, "was never used");
    let forgotten = place.run(["cron", "forget", "nobody", "--engine", &nowhere]).assert_ok().stdout();
    assert_eq!(forgotten, format!("nobody: had no record on {nowhere}\n"));
    assert!(!place.path("nowhere").exists());
}

#[test]
fn a_file_can_be_checked_without_an_engine() {
    let place = TestFolder::new();
    write_file(&place, "jobs.cron", "CRON_TZ=Europe/Berlin\nnightly: 30 2 * * * ./send\n");
    let shown =
        place.run(["cron", "check", "--from", "2026-03-28T12:00:00Z", "-n", "2", "jobs.cron"]).assert_ok().stdout();
    assert!(shown.contains("2026-03-29T01:00:00Z  2026-03-29 03:00:00 CEST"), "{shown}");
    assert!(shown.contains("2026-03-30T00:30:00Z  2026-03-30 02:30:00 CEST"), "{shown}");
    let json =
        place.run(["cron", "check", "--json", "--from", "2026-03-28T12:00:00Z", "jobs.cron"]).assert_ok().stdout();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["zone"], json[0]["next"].as_array().unwrap().len()), (&Value::from("Europe/Berlin"), 5));
    place.run(["cron", "check", "--from", "yesterday", "jobs.cron"]).assert_failed(64, "is no time");
}
