use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use parquet::basic::Compression;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;

use super::*;
use crate::any_format::open;
use crate::export::tests::MadeUp;
use gpucause_trace::merge::{Input, merge};

fn case() -> Box<dyn Recording> {
    open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/cpu-contention.db")).unwrap()
}

/// A trace file with the content of others.
fn merged(folder: &Path, name: &str, recordings: Vec<Box<dyn Recording>>) -> PathBuf {
    let path = folder.join(name);
    let input = |recording| Input { path: "input".into(), recording, measured: None };
    let inputs: Vec<_> = recordings.into_iter().map(input).collect();
    merge(&inputs, &path, false, &mut |_| {}).unwrap();
    path
}

fn written(recording: &dyn Recording, folder: &Path, overwrite: bool) -> io::Result<Written> {
    let mut parquet = ParquetFolder::new(folder.to_owned(), overwrite);
    let written = parquet.write(recording, &Selection::default(), &mut |_| {});
    let written = written.map_err(|error| match error {
        ExportError::Write(error) => error,
        other => panic!("{other}"),
    })?;
    parquet.publish()?;
    Ok(written)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.extend(if path.is_dir() { files(&path) } else { vec![path] });
    }
    found.sort();
    found
}

fn read(path: &Path) -> SerializedFileReader<File> {
    SerializedFileReader::new(File::open(path).unwrap()).unwrap()
}

/// The rows of a table's files, in any order.
fn rows_of(folder: &Path, table: &str) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for path in files(&folder.join(table)) {
        rows.extend(read(&path).get_row_iter(None).unwrap().map(|row| {
            let value = |(_, field): (&String, &Field)| match field {
                Field::Null => Value::Null,
                Field::Long(number) | Field::TimestampMicros(number) => Value::Integer(*number),
                Field::Double(number) => Value::Real(*number),
                Field::Str(text) => Value::Text(text.clone()),
                other => panic!("{other}"),
            };
            row.unwrap().get_column_iter().map(value).collect()
        }));
    }
    sorted(rows)
}

fn sorted(mut rows: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    rows.sort_by_cached_key(|row| format!("{row:?}"));
    rows
}

fn asked(trace: &Path, sql: &str) -> Vec<Vec<Value>> {
    let trace = Connection::open(trace).unwrap();
    let mut statement = trace.prepare(sql).unwrap();
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
    sorted(statement.query_map([], row).unwrap().map(Result::unwrap).collect())
}

fn names(columns: &[Column]) -> Vec<&str> {
    columns.iter().map(|column| column.name).collect()
}

#[test]
fn rows_are_those_of_the_trace_file() {
    let folder = TempDir::new().unwrap();
    // Chains of older forms are completed as they are read.
    let two_nodes = merged(folder.path(), "made-up.db", vec![Box::new(MadeUp::two_nodes())]);
    let two_nodes = open(&two_nodes).unwrap();
    for (recordings, nodes) in [(vec![case()], 1), (vec![case(), two_nodes], 2)] {
        let trace = merged(folder.path(), &format!("{nodes}.db"), recordings);
        let out = folder.path().join(nodes.to_string());
        let recording = open(&trace).unwrap();
        let counted = written(&*recording, &out, false).unwrap();
        let sql = format!("SELECT {}1000 FROM events", {
            names(rows::EVENTS).join(", ").replace("start_time", "start_ns / ")
        });
        let events = asked(&trace, &sql);
        assert_eq!((events.len() as u64, recording.nodes().len()), (counted.events, nodes));
        assert_eq!(rows_of(&out, "events"), events);
        let sql = format!("SELECT {} FROM chains", {
            let columns = names(rows::CHAINS).join(", ");
            let columns = columns.replace("node,", "(SELECT name FROM nodes WHERE id = node),");
            columns.replace("start_time", "CAST(first_seen * 1e6 AS INTEGER)")
        });
        assert_eq!(rows_of(&out, "chains"), asked(&trace, &sql));
        assert_eq!(counted.chains, nodes as u64);
    }
}

#[test]
fn columns_are_those_of_the_trace_file() {
    let folder = TempDir::new().unwrap();
    let trace = merged(folder.path(), "a.db", vec![case()]);
    let of = |table: &str| {
        let sql = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
        let connection = Connection::open(&trace).unwrap();
        let mut statement = connection.prepare(&sql).unwrap();
        let names = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        names.map(Result::unwrap).collect::<Vec<_>>()
    };
    let not_exported = ["stack", "event_id", "process", "session"];
    for (table, columns) in [("events", rows::EVENTS), ("chains", rows::CHAINS)] {
        let mut known = of(table);
        known.retain(|name| !not_exported.contains(&&**name));
        known.push("start_time".into());
        assert_eq!(names(columns), known);
    }
}

#[test]
fn no_key_of_a_folder_is_also_a_column() {
    let folder = TempDir::new().unwrap();
    written(&MadeUp::two_nodes(), folder.path(), false).unwrap();
    for path in files(folder.path()) {
        let parts = path.components().map(|part| part.as_os_str().to_string_lossy());
        let keys: Vec<_> =
            parts.filter_map(|part| Some(part.split_once('=')?.0.to_owned())).collect();
        assert_eq!(keys, ["host", "date"]);
        let columns = [names(rows::EVENTS), names(rows::CHAINS)].concat();
        assert!(keys.iter().all(|key| !columns.contains(&&**key)), "{}", path.display());
    }
}

#[test]
fn tables_without_rows_have_their_columns() {
    let folder = TempDir::new().unwrap();
    let mut made_up = MadeUp::two_nodes();
    made_up.chains.clear();
    written(&made_up, &folder.path().join("without-chains"), false).unwrap();
    made_up.events.clear();
    written(&made_up, &folder.path().join("empty"), false).unwrap();
    for (lake, table, columns) in [
        ("without-chains", "chains", rows::CHAINS),
        ("empty", "chains", rows::CHAINS),
        ("empty", "events", rows::EVENTS),
    ] {
        let lake = folder.path().join(lake);
        assert_eq!(rows_of(&lake, table), Vec::<Vec<Value>>::new());
        let [file] = &files(&lake.join(table))[..] else { panic!("one file of {table}") };
        let schema = read(file).metadata().file_metadata().schema_descr_ptr();
        let known: Vec<_> = schema.columns().iter().map(|own| own.name().to_owned()).collect();
        assert_eq!(known, names(columns));
    }
}

#[test]
fn files_of_nodes_are_in_folders_of_their_own_for_their_owner_only() {
    let folder = TempDir::new().unwrap();
    let mut made_up = MadeUp::two_nodes();
    made_up.nodes[1].name = "../b=1".into();
    written(&made_up, folder.path(), false).unwrap();
    let files = files(folder.path());
    let relative = |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
    assert_eq!(
        files.iter().map(relative).collect::<Vec<_>>(),
        [
            "chains/host=..%2Fb%3D1/date=2023-11-14/part-1700003600000000000.parquet",
            "events/host=..%2Fb%3D1/date=2023-11-14/part-1700003600000000000.parquet",
            "events/host=gpu-1/date=2023-11-14/part-1700000000000000000.parquet",
        ]
    );
    for file in files {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let Field::Str(node) = &read(&file)
            .get_row_iter(None)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .get_column_iter()
            .find(|(name, _)| *name == "node")
            .unwrap()
            .1
            .clone()
        else {
            panic!("it is text")
        };
        assert_eq!(node.contains(".."), file.display().to_string().contains(".."));
    }
}

#[test]
fn a_recording_is_exported_once_unless_it_is_to_be_replaced_and_others_go_beside_it() {
    let folder = TempDir::new().unwrap();
    let mut made_up = MadeUp::two_nodes();
    written(&made_up, folder.path(), false).unwrap();
    let before = files(folder.path());
    let refused = written(&made_up, folder.path(), false).unwrap_err().to_string();
    assert!(refused.contains(".parquet exists") && refused.contains("--force"), "{refused}");
    assert_eq!(files(folder.path()), before);
    written(&made_up, folder.path(), true).unwrap();
    assert_eq!(files(folder.path()), before);
    made_up.sessions[0].started_ns += 1;
    made_up.sessions[1].started_ns += 1;
    written(&made_up, folder.path(), false).unwrap();
    assert_eq!(files(folder.path()).len(), 2 * before.len());
}

#[test]
fn a_damaged_recording_has_the_events_before_the_damage_and_nothing_is_left_of_what_is_given_up() {
    let folder = TempDir::new().unwrap();
    let mut made_up = MadeUp::two_nodes();
    made_up.is_damaged = true;
    let mut parquet = ParquetFolder::new(folder.path().into(), false);
    let error = parquet.write(&made_up, &Selection::default(), &mut |_| {}).unwrap_err();
    assert!(error.is_damage() && parquet.files() > 0, "{error}");
    drop(parquet);
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    let mut parquet = ParquetFolder::new(folder.path().into(), false);
    parquet.write(&made_up, &Selection::default(), &mut |_| {}).unwrap_err();
    parquet.publish().unwrap();
    assert_eq!(rows_of(folder.path(), "events").len(), 9);
}

#[test]
fn row_groups_end_after_so_many_rows_and_so_much_text() {
    const COLUMNS: &[Column] = &[Column::text("text"), Column::integer("number")];
    let groups_of = |rows: usize, text: &str| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let mut out = RowGroups::new(File::create(&path).unwrap(), "table", COLUMNS).unwrap();
        for _ in 0..rows {
            out.push(&[Cell::Text(text), Cell::Null]).unwrap();
        }
        out.finish().unwrap();
        let reader = read(&path);
        let metadata = reader.metadata();
        assert_eq!(metadata.row_group(0).column(0).compression(), Compression::SNAPPY);
        assert_eq!(usize::try_from(metadata.file_metadata().num_rows()).unwrap(), rows);
        assert_eq!(reader.get_row_iter(None).unwrap().count(), rows);
        metadata.num_row_groups()
    };
    assert_eq!(groups_of(65_536, "a"), 1);
    assert_eq!(groups_of(65_537, "a"), 2);
    assert_eq!(groups_of(20, &"a".repeat(1 << 20)), 3);
}
