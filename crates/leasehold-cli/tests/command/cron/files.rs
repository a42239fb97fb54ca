//! Schedule files that are checked, and the mistakes in them.

use crate::common::Place;
use crate::cron::write;
use serde_json::Value;

#[test]
fn every_mistake_of_a_file_is_told_and_nothing_is_begun() {
    let place = Place::new();
    write(
        &place,
        "jobs.cron",
        "0 3 * * * ./backup.sh\na: 61 * * * * x\nb [missed=maybe]: @daily x\nc [ttl=1s kill-after=1s]: @daily x\nd [overlap=allow:65]: @daily x\ne [missed=all:1001]: @daily x\n",
    );
    for command in [&["cron", "jobs.cron"][..], &["cron", "check", "jobs.cron"]] {
        let ran = place.run(command).failed(64, "jobs.cron:1: this line has no name");
        let said = ran.err();
        assert_eq!(said.lines().count(), 6, "a line each: {said}");
        assert!(said.contains("write `backup: 0 3 * * * ./backup.sh`"), "{said}");
        assert!(said.contains("jobs.cron:2: ") && said.contains("field 1 (minute) is \"61\""), "{said}");
        assert!(said.contains("jobs.cron:3: ") && said.contains("write skip, once"), "{said}");
        assert!(said.contains("jobs.cron:4: kill-after"), "{said}");
        assert!(said.contains("jobs.cron:5: ") && said.contains("64 at most"), "{said}");
        assert!(said.contains("jobs.cron:6: ") && said.contains("1000 at most"), "{said}");
    }
    // Six fields where five are expected: the sixth would be the command.
    write(&place, "six.cron", "probe: */10 * * * * *  ./probe\nfive: */10 * * * *  ./*\n");
    let said = place.run(["cron", "check", "six.cron"]).failed(64, "six.cron:1: this line has six fields").err();
    assert!(said.contains("CRON_SECONDS=yes") && !said.contains("six.cron:2"), "{said}");
    // As JSON, too.
    let ran = place.run(["cron", "--json", "jobs.cron"]);
    let [error] = &ran.events()[..] else { panic!("{}", ran.err()) };
    assert_eq!((ran.code(), &error["event"], &error["kind"]), (64, &Value::from("error"), &Value::from("usage")));
    place.run(["cron", "none.cron"]).failed(64, "cannot read none.cron");
    place.run(["cron", "stauts"]).failed(64, "leasehold cron --help");
    place.run(["cron"]).failed(64, "which timetable?");
    write(&place, "empty.cron", "# nothing\n");
    place.run(["cron", "empty.cron"]).failed(64, "has no jobs");
    place.run(["cron", "history", "nobody"]).failed(64, "no job \"nobody\"");
    place.run(["cron", "pause", "nobody"]).failed(64, "no job \"nobody\"");
}

#[test]
fn a_file_can_be_checked_without_an_engine() {
    let place = Place::new();
    write(&place, "jobs.cron", "CRON_TZ=Europe/Berlin\nnightly: 30 2 * * * ./send\n");
    let shown = place.run(["cron", "check", "--from", "2026-03-28T12:00:00Z", "-n", "2", "jobs.cron"]).ok().out();
    assert!(shown.contains("2026-03-29T01:00:00Z  2026-03-29 03:00:00 CEST"), "{shown}");
    assert!(shown.contains("2026-03-30T00:30:00Z  2026-03-30 02:30:00 CEST"), "{shown}");
    let json = place.run(["cron", "check", "--json", "--from", "2026-03-28T12:00:00Z", "jobs.cron"]).ok().out();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["zone"], json[0]["next"].as_array().unwrap().len()), (&Value::from("Europe/Berlin"), 5));
    place.run(["cron", "check", "--from", "yesterday", "jobs.cron"]).failed(64, "is no time");
}
