//! Counts, sums and percentiles are those that SQL says of the same rows.

use std::path::Path;

use gpucause_ingero::Ingero;
use gpucause_trace::recording::{Completeness, Durations, Recording as _};
use rusqlite::Connection;

use super::fixture::{Database, MS, Row, Schema, US, by_sql, number};

/// Function names in the table of a file.
const NAMES: [(&str, i64, i64); 14] = [
    ("cudaMalloc", 1, 1),
    ("cudaFree", 1, 2),
    ("cudaLaunchKernel", 1, 3),
    ("cudaMemcpy", 1, 4),
    ("cudaStreamSynchronize", 1, 5),
    ("cudaDeviceSynchronize", 1, 6),
    ("cudaMemcpyAsync", 1, 7),
    ("cudaMallocManaged", 1, 8),
    ("cuLaunchKernel", 4, 1),
    ("cuMemcpy", 4, 2),
    ("cuMemcpyAsync", 4, 3),
    ("cuCtxSynchronize", 4, 4),
    ("cuMemAlloc", 4, 5),
    ("cuMemAllocManaged", 4, 6),
];

/// Computes durations by SQL: from rows, and from what was counted where it is more.
fn durations(sql: &Connection, rows: &str, counted: &str) -> Durations {
    let natural = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).unwrap();
    let of_rows = |what: &str| number(sql, &format!("SELECT {what} FROM events WHERE {rows}"));
    let of_counted =
        |what: &str| number(sql, &format!("SELECT {what} FROM event_aggregates WHERE {counted}"));
    let stored = natural(of_rows("count(*)"));
    let counted = natural(of_counted("sum(count)"));
    let sum = of_counted("sum(sum_dur)").filter(|_| counted >= stored && counted > 0);
    let rank = |percent: u64| {
        let offset = (stored * percent).div_ceil(100).checked_sub(1)?;
        let sql_text = format!(
            "SELECT duration FROM events WHERE {rows} ORDER BY duration LIMIT 1 OFFSET {offset}"
        );
        Some(natural(number(sql, &sql_text)))
    };
    Durations {
        count: stored.max(counted),
        sum_ns: natural(sum.or_else(|| of_rows("sum(duration)"))),
        p50_ns: rank(50),
        p99_ns: rank(99),
        max_ns: natural(of_rows("max(duration)").max(of_counted("max(max_dur)"))),
        completeness: if counted > stored {
            Completeness::Sample { stored }
        } else {
            Completeness::Exact
        },
    }
}

/// Compares every call and wait of a file of one node with SQL.
pub(crate) fn agree(path: &Path) -> (usize, usize) {
    let (trace, sql) = (Ingero::open(path).unwrap(), by_sql(path));
    let calls = trace.calls().unwrap();
    for call in &calls {
        let pid = trace.processes()[call.process.0 as usize].pid;
        let (_, source, op) = NAMES.into_iter().find(|(name, ..)| *name == &*call.op).unwrap();
        let which = format!("source = {source} AND op = {op} AND pid = {pid}");
        assert_eq!(call.durations, durations(&sql, &which, &which), "{pid} {}", call.op);
    }
    let kinds = "SELECT count(*) FROM (SELECT DISTINCT pid, source, op FROM events WHERE source IN (1, 4)
                   UNION SELECT DISTINCT pid, source, op FROM event_aggregates WHERE source IN (1, 4))";
    assert_eq!(number(&sql, kinds), Some(calls.len() as i64));

    let waits = trace.waits().unwrap();
    let mut threads: Vec<u32> = waits.iter().map(|wait| wait.tid.unwrap()).collect();
    threads.sort_unstable();
    threads.dedup();
    for &tid in &threads {
        let own = |pick: fn(&Durations) -> u64| -> u64 {
            waits.iter().filter(|w| w.tid == Some(tid)).map(|w| pick(&w.durations)).sum()
        };
        let rows = format!("source = 3 AND op = 1 AND tid = {tid}");
        let expected = durations(&sql, &rows, &format!("source = 3 AND op = 1 AND pid = {tid}"));
        assert_eq!(own(|d| d.count), expected.count, "waits of {tid}");
        assert_eq!(own(|d| d.sum_ns), expected.sum_ns, "waits of {tid}");
    }
    let all: u64 = waits.iter().map(|wait| wait.durations.count).sum();
    let every = durations(&sql, "source = 3 AND op = 1", "source = 3 AND op = 1");
    assert_eq!(all, every.count);
    (calls.len(), threads.len())
}

#[test]
fn statistics_of_each_schema_are_those_of_sql() {
    for schema in [Schema::V08, Schema::V09, Schema::V10] {
        let mut db = Database::new(schema);
        db.add((0..250).map(|i| Row::launch(7, i * MS, 10 * US + (i * 7919) % 100_000, 1)));
        db.add((0..99).map(|i| Row::copy(7, i * MS + 300 * US, 20 * US + i, 4096).thread(8)));
        db.add((0..30).map(|i| Row::off(8, i * MS, 100 * US + i, 8)));
        db.add([Row::off(9, 0, 5 * MS, 9), Row::launch(10, 0, 3, 1)]);
        assert_eq!(agree(&db.path()), (3, 2));
    }
}

#[test]
fn what_was_counted_and_not_stored_is_added_and_the_rest_is_called_a_sample() {
    let mut db = Database::new(Schema::V08);
    db.add((0..10).map(|i| Row::launch(7, i * MS, 10 * US, 1)));
    db.aggregate((1, 3), 7, [1_000, 10, 20_000_000, 5_000_000]);
    db.aggregate((1, 7), 7, [3, 0, 900, 400]);
    db.aggregate((3, 1), 99, [50, 0, 7_000, 1_000]);
    assert_eq!(agree(&db.path()), (2, 1));
    let trace = Ingero::open(&db.path()).unwrap();
    let calls = trace.calls().unwrap();
    let launches = calls.iter().find(|call| &*call.op == "cudaLaunchKernel").unwrap();
    assert_eq!(launches.durations.completeness, Completeness::Sample { stored: 10 });
    assert_eq!(launches.durations.count, 1_000);
    let copies = calls.iter().find(|call| &*call.op == "cudaMemcpyAsync").unwrap();
    assert_eq!((copies.durations.p50_ns, copies.durations.max_ns), (None, 400));
}

#[test]
fn rows_from_before_counting_began_are_added_to_what_was_counted() {
    let mut db = Database::new(Schema::V08);
    db.add((0..100).map(|i| Row::launch(7, i * MS, 10 * US, 1)));
    db.aggregate((1, 3), 7, [500, 20, 500 * 10 * US, 10 * US]);
    let calls = Ingero::open(&db.path()).unwrap().calls().unwrap();
    assert_eq!(calls[0].durations.count, 580);
    assert_eq!(calls[0].durations.sum_ns, 580 * 10_000);
}

#[test]
fn nodes_of_one_file_are_kept_apart() {
    let mut db = Database::new(Schema::V09);
    db.add((0..5).map(|i| Row::launch(7, i * MS, 10 * US, 1).on("a")));
    db.add((0..6).map(|i| Row::launch(7, i * MS, 30 * US, 1).on("b")));
    let trace = Ingero::open(&db.path()).unwrap();
    let names: Vec<_> = trace.nodes().iter().map(|node| node.name.as_str()).collect();
    assert!(names.ends_with(&["a", "b"]), "{names:?}");
    let counts: Vec<_> = trace.calls().unwrap().iter().map(|call| call.durations.count).collect();
    assert_eq!(counts, [5, 6]);
}

#[test]
fn a_wait_with_the_tid_in_both_columns_is_that_of_the_threads_process() {
    let mut db = Database::new(Schema::V08);
    db.name(7, "trainer");
    db.add([Row::launch(7, 0, 10 * US, 1).thread(8), Row::off(8, MS, MS, 8)]);
    let trace = Ingero::open(&db.path()).unwrap();
    assert_eq!(trace.processes().len(), 1);
    let waits = trace.waits().unwrap();
    assert_eq!((waits[0].process.0, waits[0].tid), (0, Some(8)));
}
