//! SQL on trace files: what reads is answered, and nothing else does anything.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use gpucause_investigations::any_format::open;
use gpucause_investigations::query::{
    Answer, QueryError, QueryLimits, Value, csv, jsonl, query, table, tsv,
};
use rusqlite::Connection;
use tempfile::TempDir;

fn trace(journal: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.db");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = {journal};
             CREATE TABLE events (id INTEGER PRIMARY KEY, timestamp INTEGER, pid INTEGER, op INTEGER, name TEXT);
             CREATE TABLE process_names (pid INTEGER PRIMARY KEY, name TEXT);
             INSERT INTO process_names VALUES (1, 'a' || char(27) || '[2Jb');
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
               INSERT INTO events SELECT i, i * 1000, i % 3, 1, 'event' FROM n;"
        ))
        .unwrap();
    connection.close().unwrap();
    (folder, path)
}

const SOON: QueryLimits = QueryLimits { time: Duration::from_secs(2), rows: 1000 };

fn ask(path: &Path, sql: &str) -> Result<Answer, QueryError> {
    query(path, sql, &SOON)
}

/// Every file of a folder: its bytes and when it was written.
fn contents(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let with = |path: PathBuf| {
        let written = path.metadata().unwrap().modified().unwrap();
        let bytes = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        (path, (bytes, written))
    };
    files.map(with).collect()
}

/// Statements that do something else than read, or take more than they may.
#[allow(clippy::too_many_lines, reason = "it is a list")]
fn hostile(folder: &Path) -> Vec<String> {
    let other = folder.join("other.db").display().to_string();
    let mut all: Vec<String> = [
        "INSERT INTO events VALUES (1, 2, 3, 4, 'x')",
        "insert or replace into events values (1, 2, 3, 4, 'x')",
        "REPLACE INTO events VALUES (1, 2, 3, 4, 'x')",
        "UPDATE events SET pid = 0",
        "UPDATE events SET pid = 0 RETURNING *",
        "DELETE FROM events",
        "DELETE\tFROM events",
        "delete\nfrom events",
        "/* SELECT */ DELETE FROM events",
        "-- SELECT\nDELETE FROM events",
        "DELETE FROM events RETURNING id",
        "WITH n AS (SELECT 1) DELETE FROM events",
        "WITH n AS (SELECT 1) INSERT INTO events (id) SELECT * FROM n",
        "WITH n AS (SELECT 1) UPDATE events SET pid = 0",
        "SELECT 1; DELETE FROM events",
        "SELECT 1; SELECT 2",
        "SELECT 1;;DROP TABLE events",
        "DROP TABLE events",
        "DROP TABLE IF EXISTS events",
        "DROP VIEW IF EXISTS v",
        "DROP INDEX IF EXISTS i",
        "DROP TRIGGER IF EXISTS t",
        "CREATE TABLE t (x)",
        "CREATE TABLE t AS SELECT * FROM events",
        "CREATE TEMP TABLE t (x)",
        "CREATE TEMPORARY TABLE t AS SELECT 1",
        "CREATE TABLE temp.t (x)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE INDEX i ON events (pid)",
        "CREATE UNIQUE INDEX i ON events (id)",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON events BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE VIRTUAL TABLE f USING fts4(x)",
        "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
        "CREATE VIRTUAL TABLE temp.d USING dbstat",
        "ALTER TABLE events RENAME TO e",
        "ALTER TABLE events ADD COLUMN x",
        "ALTER TABLE events DROP COLUMN name",
        "ATTACH ':memory:' AS m",
        "ATTACH DATABASE '/etc/passwd' AS p",
        "ATTACH 'file:x?mode=memory' AS x",
        "DETACH main",
        "DETACH DATABASE temp",
        "VACUUM",
        "VACUUM main",
        "REINDEX",
        "REINDEX events",
        "ANALYZE",
        "ANALYZE events",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "BEGIN EXCLUSIVE TRANSACTION",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT s",
        "RELEASE s",
        "EXPLAIN DELETE FROM events",
        "EXPLAIN QUERY PLAN DELETE FROM events",
        "PRAGMA query_only = OFF",
        "PRAGMA query_only(0)",
        "PRAGMA main.query_only = 0",
        "PRAGMA writable_schema = ON",
        "PRAGMA writable_schema = RESET",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA user_version = 7",
        "PRAGMA application_id = 7",
        "PRAGMA schema_version = 7",
        "PRAGMA page_size = 512",
        "PRAGMA encoding = 'UTF-16'",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA hard_heap_limit = 0",
        "PRAGMA soft_heap_limit = 0",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA temp_store = FILE",
        "PRAGMA data_store_directory = '/tmp'",
        "PRAGMA trusted_schema = ON",
        "PRAGMA cell_size_check = OFF",
        "PRAGMA threads = 8",
        "PRAGMA mmap_size = 1000000000",
        "PRAGMA cache_size = -10000000",
        "PRAGMA secure_delete = ON",
        "PRAGMA synchronous = OFF",
        "PRAGMA incremental_vacuum",
        "PRAGMA optimize",
        "PRAGMA integrity_check",
        "PRAGMA shrink_memory",
        "PRAGMA busy_timeout = 100000",
        "PRAGMA case_sensitive_like = ON",
        "SELECT * FROM pragma_journal_mode",
        "SELECT * FROM pragma_integrity_check",
        "SELECT load_extension('libm.so.6')",
        "SELECT load_extension('/tmp/x', 'entry')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/gpucause-query-test', 'x')",
        "SELECT edit('x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT fts3_tokenizer('simple', x'0000000000000000')",
        "SELECT fts5(1)",
        "SELECT rtreecheck('events')",
        "SELECT sqlite_compileoption_get(1)",
        "SELECT sqlite_log(1, 'x')",
        "SELECT randomblob(1000000000)",
        "SELECT hex(randomblob(1000000000))",
        "SELECT length(randomblob(300000))",
        "SELECT zeroblob(2000000000)",
        "SELECT length(zeroblob(1000000000) || x'00')",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT printf('%1000000000d', 1)",
        "SELECT format('%.*c', 2000000000, 'x')",
        "SELECT replace(hex(zeroblob(100000)), '0', hex(zeroblob(1000)))",
        "SELECT group_concat(hex(zeroblob(1000)), '') FROM events",
        "SELECT json_group_array(hex(zeroblob(1000))) FROM events",
        "SELECT string_agg(hex(zeroblob(1000)), ',') FROM events",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n ORDER BY i DESC",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i, t) AS (SELECT 1, 'x' UNION ALL SELECT i + 1, t || t FROM n) SELECT max(length(t)) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n WHERE i > 1",
        "SELECT count(*) FROM events a, events b, events c, events d",
        "SELECT count(DISTINCT a.id * 2500 + b.id + c.id / 7.0) FROM events a, events b, events c",
        "SELECT a.id FROM events a, events b, events c ORDER BY random()",
        "SELECT sum(length(hex(randomblob(100000)))) FROM events a, events b",
        "SELECT 1 WHERE (SELECT count(*) FROM events a, events b, events c) > 0",
        "SELECT * FROM no_such_table",
        "SELECT no_such_function(1)",
        "SELEC 1",
        "",
        ";",
        "-- nothing",
        "/* nothing",
        "SELECT 1\0; DELETE FROM events",
        "\u{feff}DELETE FROM events",
        "?",
        "SELECT (",
    ]
    .map(str::to_owned)
    .into();
    all.push(format!("ATTACH '{other}' AS other"));
    all.push(format!("VACUUM INTO '{other}'"));
    all.push(format!("VACUUM main INTO '{other}'"));
    all.push(format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000)));
    all.push(format!("SELECT 1{}", " + 1".repeat(5000)));
    all.push(format!("SELECT -{}1", "~".repeat(3000)));
    all.push(format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(600)));
    all.push(format!("SELECT 1{}", ", 1".repeat(3000)));
    all.push(format!("SELECT '{}'", "x".repeat(100_000)));
    all.push(format!("SELECT max(1{})", ", 1".repeat(200)));
    all.push(format!(
        "SELECT 1 FROM events a0{}",
        (1..80).map(|i| format!(", events a{i}")).collect::<String>()
    ));
    all.push(format!("SELECT 'a' LIKE '{}'", "%a".repeat(1000)));
    all
}

#[test]
fn a_hundred_hostile_statements_get_an_error_and_change_nothing() {
    for journal in ["DELETE", "WAL"] {
        let (folder, path) = trace(journal);
        let before = contents(folder.path());
        let statements = hostile(folder.path());
        assert!(statements.len() >= 100, "{}", statements.len());
        for sql in statements {
            let limits = QueryLimits { time: Duration::from_millis(300), rows: 1000 };
            let start = Instant::now();
            let answer = query(&path, &sql, &limits);
            let start_of = sql.chars().take(80).collect::<String>();
            assert!(answer.is_err(), "{start_of:?} was answered");
            let taken = start.elapsed();
            assert!(taken < Duration::from_secs(10), "{start_of:?} took {taken:?}");
            let now: Vec<_> = contents(folder.path()).into_keys().collect();
            assert!(now.iter().eq(before.keys()), "{start_of:?} left {now:?}");
        }
        assert!(contents(folder.path()) == before, "the file was changed");
        assert!(!Path::new("/tmp/gpucause-query-test").exists());
    }
}

#[test]
fn what_reads_is_answered() {
    let (_folder, path) = trace("DELETE");
    let one =
        |sql: &str| ask(&path, sql).unwrap_or_else(|e| panic!("{sql}: {e}")).rows[0][0].clone();
    assert_eq!(one("SELECT count(*) FROM events"), Value::Integer(2500));
    assert_eq!(one("  -- how many\n /* all */ select count(*) from events;"), Value::Integer(2500));
    assert_eq!(
        one("WITH e AS (SELECT * FROM events WHERE pid = 1) SELECT count(*) FROM e"),
        Value::Integer(834)
    );
    assert_eq!(one("VALUES (7)"), Value::Integer(7));
    assert_eq!(one("SELECT typeof(avg(pid)) FROM events"), Value::Text("real".into()));
    assert_eq!(one("SELECT NULL"), Value::Null);
    assert_eq!(one("SELECT x'00ff'"), Value::Bytes("00ff".into()));
    assert_eq!(one("SELECT value FROM json_each('[5,6]')"), Value::Integer(5));
    assert_eq!(one("SELECT row_number() OVER (ORDER BY id) FROM events"), Value::Integer(1));
    assert_eq!(
        one("SELECT name FROM pragma_table_info('events') LIMIT 1"),
        Value::Text("id".into())
    );
    assert_eq!(
        one("SELECT name FROM sqlite_schema WHERE name = 'events'"),
        Value::Text("events".into())
    );
    assert_eq!(
        one(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT sum(i) FROM n"
        ),
        Value::Integer(500_500)
    );
    assert_eq!(ask(&path, "PRAGMA table_info(events)").unwrap().rows.len(), 5);
    assert!(!ask(&path, "EXPLAIN QUERY PLAN SELECT * FROM events").unwrap().rows.is_empty());
}

#[test]
fn rows_beyond_the_limit_are_reported_but_not_returned() {
    let (_folder, path) = trace("DELETE");
    let answer = ask(&path, "SELECT id FROM events").unwrap();
    assert_eq!((answer.rows.len(), answer.more_rows), (1000, true));
    let answer = ask(&path, "SELECT id FROM events LIMIT 1000").unwrap();
    assert_eq!((answer.rows.len(), answer.more_rows), (1000, false));
}

#[test]
fn errors_say_what_to_do() {
    let (folder, path) = trace("DELETE");
    let error = |sql: &str| ask(&path, sql).unwrap_err().to_string();
    let endless =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    assert!(error(endless).contains("--timeout"), "{}", error(endless));
    assert!(error("DELETE FROM events").contains("only reads"));
    assert!(error("SELECT zeroblob(1000000000)").contains("query less"));
    assert!(error("SELECT x FROM events").contains("no such column"));
    let missing = ask(&folder.path().join("none.db"), "SELECT 1").unwrap_err();
    assert!(missing.to_string().contains("none.db"), "{missing}");
    let text = folder.path().join("text");
    std::fs::write(&text, "no database, but long enough to be taken for one".repeat(50)).unwrap();
    let foreign = ask(&text, "SELECT 1 FROM sqlite_schema").unwrap_err().to_string();
    assert_eq!(foreign, open(&text).unwrap_err().to_string(), "as every other command says it");
    assert!(foreign.contains("text is not a trace: it is not a SQLite database - "), "{foreign}");
}

#[test]
fn a_name_that_does_not_exist_is_answered_with_those_that_do() {
    let (_folder, path) = trace("DELETE");
    let error = |sql: &str| ask(&path, sql).unwrap_err().to_string();
    let columns = " - columns of events are id, timestamp, pid, op, name";
    for sql in
        ["SELECT x FROM events", "SELECT e.x FROM EVENTS AS e", "SELECT 1 FROM events WHERE x"]
    {
        assert!(error(sql).ends_with(columns), "{}", error(sql));
    }
    let both = error("SELECT x FROM events JOIN process_names USING (pid)");
    assert!(both.contains("; columns of process_names are pid, name"), "{both}");
    let tables = " - tables are events, process_names";
    for sql in ["SELECT 1 FROM event", "SELECT x"] {
        assert!(error(sql).ends_with(tables), "{}", error(sql));
    }
    assert!(!error("SELECT 1 +").contains(" are "), "{}", error("SELECT 1 +"));
}

#[test]
fn lines_for_other_programs_keep_every_value() {
    let (_folder, path) = trace("DELETE");
    let sql =
        "SELECT 1 AS n, NULL AS void, 'a' || char(9) || 'b' || char(10) || '\\' AS t, 2.5 AS n";
    let answer = ask(&path, sql).unwrap();
    assert_eq!(tsv(&answer), "n\tvoid\tt\tn\n1\t\\N\ta\\tb\\n\\\\\t2.5\n");
    assert_eq!(jsonl(&answer), "{\"n\":1,\"void\":null,\"t\":\"a\\tb\\n\\\\\",\"n_4\":2.5}\n");
    let none = ask(&path, "SELECT id, pid FROM events WHERE id < 0").unwrap();
    assert_eq!((tsv(&none), jsonl(&none)), ("id\tpid\n".into(), String::new()));
}

#[test]
fn text_that_a_spreadsheet_would_run_is_only_text_in_csv() {
    let (_folder, path) = trace("DELETE");
    let sql = "SELECT '=1+1' AS a, '+x' AS b, '-x' AS c, '@x' AS \"=d\", -5 AS e, 'a=b' AS f, \
               '=\"x\",2' AS g";
    let answer = ask(&path, sql).unwrap();
    assert_eq!(csv(&answer), "a,b,c,'=d,e,f,g\r\n'=1+1,'+x,'-x,'@x,-5,a=b,\"'=\"\"x\"\",2\"\r\n");
    assert!(tsv(&answer).contains("\n=1+1\t+x\t-x\t@x\t-5\t"), "{}", tsv(&answer));
}

#[test]
fn a_name_that_steers_a_terminal_is_only_a_name() {
    let (_folder, path) = trace("DELETE");
    let answer = ask(&path, "SELECT pid, name, 'a,\"b' AS c FROM process_names").unwrap();
    assert_eq!(table(&answer), "pid  name    c\n---  ------  ----\n  1  a?[2Jb  a,\"b\n");
    assert_eq!(csv(&answer), "pid,name,c\r\n1,a\u{1b}[2Jb,\"a,\"\"b\"\r\n");
    let json = serde_json::to_string(&answer).unwrap();
    assert!(json.contains("\"rows\":[[1,\"a\\u001b[2Jb\","), "{json}");
}
