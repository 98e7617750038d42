//! Slow calls and gaps are blamed only on what the thread's own rows prove.

use gpucause_engine::chain::{Cause, Chain, Effect, Severity};
use gpucause_ingero::Ingero;
use gpucause_investigations::explain::Report;
use gpucause_trace::recording::Recording as _;

use super::fixture::{Database, MS, Row, Schema, US};

fn chains(db: &Database) -> Vec<Chain> {
    let chains = Ingero::open(&db.path()).unwrap().chains().unwrap();
    let chains: Vec<_> = chains.into_iter().map(|chain| chain.chain).collect();
    for chain in &chains {
        assert_numbers_are_evidence(chain);
    }
    chains
}

/// Every number of the sentence is in the evidence, in some unit.
pub(crate) fn assert_numbers_are_evidence(chain: &Chain) {
    for word in chain.sentence.split([' ', '(', ')', ',', ';', ':']) {
        let Ok(number) = word.trim_end_matches('.').parse::<f64>() else { continue };
        let scales = [1.0, 100.0, 1e3, 1e6, 1e9, 1.0 / 1024.0, 1.0 / 1048576.0, 1.0 / 1073741824.0];
        let reported = chain.evidence.0.iter().any(|(_, value)| {
            scales.iter().any(|scale| {
                let scaled = value * scale;
                (scaled - number).abs() <= if scaled >= 10.0 { 0.5 } else { 0.051 }
            })
        });
        assert!(reported, "{number} of {:?} is not in {:?}", chain.sentence, chain.evidence);
    }
}

fn find(chains: &[Chain], effect: Effect) -> &Chain {
    chains
        .iter()
        .find(|chain| chain.effect == effect)
        .unwrap_or_else(|| panic!("no {effect} in {chains:#?}"))
}

/// Launches back to back; every tenth is slow.
fn launches(pid: u32) -> impl Iterator<Item = Row> {
    (0..300).map(move |i| {
        let slow = i % 10 == 5;
        Row::launch(pid, i * 5 * MS, if slow { 4 * MS } else { 10 * US }, 1)
    })
}

fn slow_starts() -> impl Iterator<Item = i64> {
    (0..300).filter(|i| i % 10 == 5).map(|i| i * 5 * MS)
}

#[test]
fn a_task_that_had_the_cpu_inside_slow_launches_is_the_culprit() {
    for schema in [Schema::V08, Schema::V09, Schema::V10] {
        let mut db = Database::new(schema);
        db.name(7, "trainer");
        db.name(50, "fluent-bit");
        db.add(launches(7));
        db.add(slow_starts().map(|at| Row::off(7, at + 100 * US, 3_800 * US, 50)));
        let chains = chains(&db);
        let tail = find(&chains, Effect::LaunchTail);
        assert_eq!(tail.cause, Cause::CpuPreemption, "{tail:#?}");
        let culprit = tail.culprit.as_ref().unwrap();
        assert_eq!((culprit.pid, culprit.comm.as_str()), (50, "fluent-bit"));
        assert!(tail.explained > 0.9 && tail.sentence.contains("fluent-bit"), "{tail:#?}");
    }
}

#[test]
fn another_process_that_sleeps_meanwhile_explains_nothing() {
    let mut db = Database::new(Schema::V08);
    db.add(launches(7));
    db.add(slow_starts().map(|at| Row::off(60, at, 5 * MS, 60)));
    db.add((0..10).map(|i| Row::off(7, i * 5 * MS + MS, 10 * US, 7)));
    let chains = chains(&db);
    let tail = find(&chains, Effect::LaunchTail);
    assert_eq!((tail.cause, tail.culprit.as_ref()), (Cause::Unexplained, None));
    assert!(tail.evidence.get("off_cpu_share_of_excess").unwrap() < 0.01);
}

#[test]
fn waits_of_the_thread_that_lie_between_its_slow_launches_explain_none_of_them() {
    let mut db = Database::new(Schema::V10);
    db.add(launches(7));
    db.add(slow_starts().map(|at| Row::off(7, at + 4_100 * US, 500 * US, 50)));
    let chains = chains(&db);
    assert_eq!(find(&chains, Effect::LaunchTail).cause, Cause::Unexplained);
}

#[test]
fn a_thread_without_waits_in_the_file_gets_no_cause() {
    let mut db = Database::new(Schema::V08);
    db.add(launches(7).map(|row| row.thread(8)));
    db.add(slow_starts().map(|at| Row::off(7, at, 4 * MS, 50)));
    let chains = chains(&db);
    let tail = find(&chains, Effect::LaunchTail);
    assert_eq!(tail.cause, Cause::Unexplained);
    assert!(tail.sentence.contains("no waits of their threads"), "{}", tail.sentence);
    assert_eq!(tail.evidence.get("off_cpu_share_of_excess"), None);
}

#[test]
fn off_cpu_time_of_which_no_row_tells_the_reason_blames_nobody() {
    let mut db = Database::new(Schema::V08);
    db.add(launches(7));
    db.add(slow_starts().map(|at| Row::off(7, at + 100 * US, 3_800 * US, 7)));
    let chains = chains(&db);
    let tail = find(&chains, Effect::LaunchTail);
    assert_eq!((tail.cause, tail.culprit.as_ref()), (Cause::Unexplained, None));
    assert!(tail.evidence.get("off_cpu_share_of_excess").unwrap() > 0.9);
}

#[test]
fn reads_of_the_thread_inside_its_slow_launches_are_waits_for_the_disk() {
    let mut db = Database::new(Schema::V09);
    db.add(launches(7).map(|row| row.on("a")));
    db.add(slow_starts().flat_map(|at| {
        [
            Row::read(7, at + 100 * US, 3_790 * US).on("a"),
            Row::off(7, at + 100 * US, 3_800 * US, 7).on("a"),
        ]
    }));
    let chains = chains(&db);
    assert_eq!(find(&chains, Effect::LaunchTail).cause, Cause::BlockIo);
}

#[test]
fn first_launches_and_large_copies_are_apart() {
    let mut db = Database::new(Schema::V08);
    db.add(
        (0..200).map(|i| {
            Row::launch(7, i * MS, if i % 50 == 0 { 20 * MS / 25 } else { 10 * US }, i / 50)
        }),
    );
    db.add((0..40).map(|i| {
        let (bytes, time) = if i % 10 == 0 { (64 << 20, 9 * MS / 20) } else { (4096, 20 * US) };
        Row::copy(7, 300 * MS + i * MS, time, bytes)
    }));
    db.add((0..50).map(|i| Row::off(7, 500 * MS + i * MS, 10 * US, 50)));
    let chains = chains(&db);
    let cold = find(&chains, Effect::LaunchTail);
    assert_eq!((cold.cause, cold.evidence.get("cold_launches")), (Cause::ColdStart, Some(4.0)));
    let large = find(&chains, Effect::CopyTail);
    assert_eq!((large.cause, large.evidence.get("large_copies")), (Cause::LargeCopy, Some(4.0)));
    assert!(chains.iter().all(|chain| chain.cause != Cause::CpuPreemption));
}

#[test]
fn few_calls_are_not_called_a_tail() {
    let mut db = Database::new(Schema::V10);
    db.add(
        (0..60).map(|i| Row::launch(7, i * 5 * MS, if i % 10 == 5 { 4 * MS } else { 10 * US }, 1)),
    );
    db.add((0..60).map(|i| Row::off(7, i * 5 * MS + 100 * US, 3 * MS, 50)));
    assert!(chains(&db).iter().all(|chain| chain.effect != Effect::LaunchTail));
}

/// A main thread that waits 90 ms of each 100, and three workers that it started.
fn loader(workers: impl Fn(u32, i64) -> Vec<Row>) -> Database {
    let mut db = Database::new(Schema::V08);
    db.name(7, "python3");
    for worker in [70, 71, 72] {
        db.name(worker, "pt_data_worker");
        db.add([Row::fork(7, -MS, worker)]);
    }
    for i in 0..50 {
        let at = i * 100 * MS;
        db.add([
            Row::launch(7, at, 20 * US, 1),
            Row::off(7, at + 5 * MS, 90 * MS, 7),
            Row::wake(70, at + 95 * MS - 10 * US, 7),
        ]);
        for worker in [70, 71, 72] {
            db.add(workers(worker, at));
        }
    }
    db
}

#[test]
fn workers_that_are_busy_while_the_main_thread_waits_for_them_starve_it() {
    let busy = loader(|worker, at| {
        vec![
            Row::read(worker, at + 5 * MS, 80 * MS),
            Row::off(worker, at + 5 * MS, 80 * MS, worker),
        ]
    });
    let chains = chains(&busy);
    let gap = find(&chains, Effect::LaunchGap);
    assert_eq!(gap.cause, Cause::DataloaderStarvation, "{gap:#?}");
    assert_eq!(gap.culprit.as_ref().map(|culprit| culprit.comm.as_str()), Some("pt_data_worker"));
    assert!(gap.sentence.contains("reading from disk"), "{}", gap.sentence);
}

#[test]
fn workers_that_idle_themselves_are_not_to_blame() {
    let idle = loader(|worker, at| vec![Row::off(worker, at + MS, 95 * MS, worker)]);
    let chains = chains(&idle);
    assert_eq!(find(&chains, Effect::LaunchGap).cause, Cause::Unexplained);
}

#[test]
fn a_main_thread_that_runs_between_calls_was_kept_by_nobody() {
    let mut db = Database::new(Schema::V08);
    db.add((0..50).map(|i| Row::launch(7, i * 100 * MS, 20 * US, 1)));
    db.add((0..50).map(|i| Row::off(7, i * 100 * MS + MS, MS, 50)));
    let chains = chains(&db);
    let gap = find(&chains, Effect::LaunchGap);
    assert_eq!((gap.cause, gap.culprit.as_ref()), (Cause::Unexplained, None));
    assert!(gap.sentence.contains("ran its own code"), "{}", gap.sentence);
}

#[test]
fn ids_of_chains_are_the_same_at_each_look() {
    let mut db = Database::new(Schema::V10);
    db.add(launches(7));
    let ids = || -> Vec<String> { chains(&db).into_iter().map(|chain| chain.id).collect() };
    let mut unique = ids();
    assert_eq!(unique, ids());
    unique.dedup();
    assert_eq!(unique.len(), ids().len());
}

/// The chains that the report has.
fn findings(db: &Database) -> Vec<Chain> {
    let report = Report::of(&db.path(), &Ingero::open(&db.path()).unwrap()).unwrap();
    let incidents = report.nodes.into_iter().map(|node| node.incident);
    incidents.flat_map(|own| own.root_cause.into_iter().chain(own.others)).collect()
}

#[test]
fn what_cost_nothing_is_no_finding_of_the_report() {
    let mut db = Database::new(Schema::V08);
    db.add((0..50).map(|i| Row::launch(7, i * 100 * MS, 20 * US, 1)));
    db.add((0..50).map(|i| Row::off(7, i * 100 * MS + MS, MS, 50)));
    assert_eq!(find(&chains(&db), Effect::LaunchGap).cause, Cause::Unexplained);
    assert_eq!(findings(&db), []);
    // A chain that is known to have taken time is a finding.
    let starved = loader(|worker, at| {
        vec![
            Row::read(worker, at + 5 * MS, 80 * MS),
            Row::off(worker, at + 5 * MS, 80 * MS, worker),
        ]
    });
    assert_eq!(find(&findings(&starved), Effect::LaunchGap).cause, Cause::DataloaderStarvation);
}

#[test]
fn a_process_without_any_call_loses_no_time_and_is_no_finding_of_the_report() {
    let mut db = Database::new(Schema::V08);
    db.name(9, "backup");
    db.add((0..50).flat_map(|i| {
        let at = i * 10 * MS;
        [Row::read(9, at, 9 * MS), Row::off(9, at, 9 * MS, 9)]
    }));
    let all = chains(&db);
    let disk = find(&all, Effect::LaunchGap);
    assert_eq!((disk.cause, disk.severity), (Cause::BlockIo, Severity::Low));
    assert!(disk.evidence.get("disk_seconds").unwrap() > 0.4, "{disk:#?}");
    assert_eq!((disk.lost_seconds, disk.attributed_seconds()), (0.0, 0.0));
    assert_eq!(findings(&db), []);
}
