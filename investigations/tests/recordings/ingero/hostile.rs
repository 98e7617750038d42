//! Files that are damaged, or made to mislead: an error, never a panic.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use gpucause_investigations::any_format::open;
use gpucause_investigations::explain::{Report, render_report};
use gpucause_trace::recording::{Filter, RecordingError, StackId};
use proptest::prelude::*;

use super::fixture::{Database, MS, Row, Schema, US};

fn small(schema: Schema) -> Database {
    let mut db = Database::new(schema);
    db.name(7, "trainer");
    db.add((0..30).map(|i| Row::launch(7, i * MS, 10 * US + i, i % 3)));
    db.add((0..20).map(|i| Row::copy(7, i * MS + 50 * US, 100 * US, 1 << i)));
    db.add((0..20).flat_map(|i| {
        [
            Row::off(7, i * MS, 30 * US, 50),
            Row::wake(8, i * MS + 5, 7),
            Row::read(7, i * MS, 20 * US),
        ]
    }));
    db.aggregate((1, 3), 7, [100, 30, 5_000_000, 90_000]);
    db
}

/// Reads everything that there is to read.
fn read_all(path: &Path) -> Result<(), RecordingError> {
    let recording = open(path)?;
    recording.events(&Filter::default(), &mut |_| ControlFlow::Continue(()))?;
    recording.stack(StackId(1))?;
    let report = Report::of(path, recording.as_ref())?;
    assert!(!render_report(&report, true).is_empty());
    Ok(())
}

#[test]
fn values_of_wrong_types_and_sizes_are_damage_or_survived() {
    for (set, damaged) in [
        ("timestamp = 'x'", true),
        ("duration = -1", true),
        ("duration = 1.5", true),
        ("pid = -1", true),
        ("tid = 4294967296", true),
        ("op = x'00'", true),
        ("duration = 9223372036854775807", false),
        ("timestamp = 9223372036854775807", false),
        ("timestamp = -9223372036854775808", false),
        ("timestamp = -9223372036854775808, duration = 9223372036854775807", false),
        ("arg0 = -9223372036854775808, arg1 = 9223372036854775807", false),
        ("source = 77, op = -5", false),
        ("pid = 0, tid = 0", false),
        ("pid = 4294967295, tid = 4294967295", false),
    ] {
        let db = small(Schema::V08);
        db.sql().execute_batch(&format!("UPDATE events SET {set}")).unwrap();
        let reported = read_all(&db.path());
        assert_eq!(
            matches!(reported, Err(RecordingError::Damaged(..))),
            damaged,
            "{set}: {reported:?}"
        );
    }
}

#[test]
fn what_was_counted_may_be_nonsense() {
    for row in [
        "0, 1, 3, 7, 9223372036854775807, 0, 9223372036854775807, 0, 9223372036854775807, 0",
        "1, 3, 1, 0, 5, 9, 1, 1, 1, 1",
    ] {
        let db = small(Schema::V08);
        db.sql().execute_batch(&format!("INSERT INTO event_aggregates VALUES ({row})")).unwrap();
        read_all(&db.path()).unwrap();
    }
}

#[test]
fn a_view_in_place_of_the_table_is_no_trace() {
    let db = small(Schema::V08);
    let endless = "ALTER TABLE events RENAME TO other;
         CREATE VIEW events AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
           SELECT i AS id, i AS timestamp, 1 AS pid, 1 AS tid, 1 AS source, 3 AS op, 1 AS duration FROM n;";
    db.sql().execute_batch(endless).unwrap();
    assert!(matches!(read_all(&db.path()), Err(RecordingError::NotATrace(..))));
}

#[test]
fn what_is_no_trace_is_distinguished_from_what_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none.db");
    assert!(matches!(open(&none), Err(RecordingError::Open(..))));
    let text = folder.path().join("text");
    std::fs::write(&text, "no database ".repeat(500)).unwrap();
    assert!(matches!(open(&text), Err(RecordingError::NotATrace(..))));
    let other = folder.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE t (x)").unwrap();
    let reported = open(&other).unwrap_err().to_string();
    assert!(reported.contains("has no table events"), "{reported}");
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    let db = small(Schema::V08);
    db.sql()
        .execute("UPDATE process_names SET name = 'x' || char(27) || ']0;y' || char(10)", [])
        .unwrap();
    let recording = open(&db.path()).unwrap();
    let report = render_report(&Report::of(&db.path(), recording.as_ref()).unwrap(), true);
    assert!(!report.contains('\u{1b}') && report.contains("x?]0;y?"), "{report}");
}

/// A file as it was before anything happened to it.
fn whole(v10: bool) -> &'static [u8] {
    static WHOLE: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        [Schema::V08, Schema::V10].map(|schema| std::fs::read(small(schema).path()).unwrap())
    });
    &WHOLE[usize::from(v10)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_are_an_error_or_survived(
        v10: bool,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        keep in any::<prop::sample::Index>(),
        cut: bool,
    ) {
        let mut bytes = whole(v10).to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if cut {
            bytes.truncate(keep.index(bytes.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flipped.db");
        std::fs::write(&path, bytes).unwrap();
        let _ = read_all(&path);
    }
}
