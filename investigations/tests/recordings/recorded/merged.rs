//! Reports of merged files, and of runs that were interrupted or killed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gpucause_engine::Engine;
use gpucause_engine::chain::{Cause, Chain, Loss};
use gpucause_engine::settings::Settings;
use gpucause_investigations::any_format::open;
use gpucause_investigations::explain::{html, markdown, render_report};
use gpucause_investigations::observation::Outcome;
use gpucause_trace::merge::{Input, merge};
use gpucause_trace::trace::{Start, Writer};

use super::{BEGIN, Process, SECOND, TRAINER, chain, pids, record, report};

#[test]
fn a_merged_file_is_limited_to_the_processes_of_all_its_runs_and_not_where_one_recorded_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let job = |id, pid, comm| Process { id, pid, comm, started: pid.into(), ..TRAINER };
    let all = [job(1, 42, "trainer"), job(2, 50, "neighbour"), job(3, 60, "idler")];
    let one = record(&path("1.db"), 0, "42", &all, &[]);
    let other = record(&path("2.db"), 100, "50", &all, &[]);
    let whole = record(&path("3.db"), 200, "", &all, &[]);
    let both = merged(&path("both.db"), &[&one, &other]);
    assert_eq!(pids(&report(&both, &[])), [const { &[42, 50] }; 3].map(Vec::from));
    let three = merged(&path("three.db"), &[&one, &whole]);
    assert_eq!(pids(&report(&three, &[])), [const { &[42, 50, 60] }; 3].map(Vec::from));
}

fn merged(output: &Path, files: &[&Path]) -> PathBuf {
    let input = |path: &&Path| Input::of(path.to_path_buf(), open(path).unwrap());
    let inputs: Vec<_> = files.iter().map(input).collect();
    merge(&inputs, output, false, &mut |_| {}).unwrap();
    output.to_owned()
}

#[test]
fn a_process_of_two_runs_is_one_row_and_shares_are_of_the_time_that_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let slow = Process { id: 5, calls: (990, 4_000), waited: 4 * SECOND, ..TRAINER };
    let reused = Process { id: 6, comm: "later", started: 9, ..TRAINER };
    let one = record(&path("1.db"), 0, "", &[TRAINER], &[]);
    let other = record(&path("2.db"), 1_000, "", &[slow, reused], &[]);
    for files in [[&*one, &*other], [&*other, &*one]] {
        let output = path("merged.db");
        let report = report(&merged(&output, &files), &[]);
        std::fs::remove_file(output).unwrap();
        let node = report.nodes[0].recorded.as_ref().unwrap();
        let waits: Vec<_> = node
            .waits
            .iter()
            .map(|own| (&*own.comm, own.count, own.seconds, own.share_of_recorded))
            .collect();
        assert_eq!(waits, [("trainer", 2, 5.0, 0.25), ("later", 1, 1.0, 0.1)]);
        let mut calls: Vec<_> = node
            .calls
            .iter()
            .map(|own| (&*own.comm, own.count, own.p50_seconds > Some(3e-6)))
            .collect();
        calls.sort_unstable();
        assert_eq!(calls, [("later", 10, false), ("trainer", 1_000, true)]);
        let between: Vec<_> =
            node.between_calls.iter().map(|own| (&*own.comm, own.between_seconds)).collect();
        assert_eq!(between, [("trainer", 8.0), ("later", 4.0)]);
        assert_eq!((node.seconds, node.left_out_seconds), (20.0, None));
        let text = render_report(&report, false);
        assert!(text.contains("UTC, 1001.0 s; 20.0 s were recorded\n"), "{text}");
    }
}

#[test]
fn what_two_runs_observed_at_the_same_time_counts_once_with_the_events_of_the_run_that_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let neighbour = Process { id: 2, pid: 50, comm: "neighbour", started: 8, ..TRAINER };
    // Each recorder has ids of its own.
    let of = |name: &str, after, pids, first: u32| {
        let all = [TRAINER, neighbour].map(|own| Process { id: own.id + first, ..own });
        record(&path(name), after, pids, &all, &[])
    };
    let (one, other) = (of("1.db", 0, "42", 0), of("2.db", 1, "50", 10));
    for (output, files) in [("both.db", [&*one, &*other]), ("back.db", [&*other, &*one])] {
        let report = report(&merged(&path(output), &files), &[]);
        let node = report.nodes[0].recorded.as_ref().unwrap();
        let mut calls: Vec<_> =
            node.calls.iter().map(|own| (&*own.comm, own.count, own.events)).collect();
        calls.sort_unstable();
        assert_eq!(calls, [("neighbour", 10, 2), ("trainer", 10, 2)]);
        let waits: Vec<_> =
            node.waits.iter().map(|own| (own.count, own.seconds, own.share_of_recorded)).collect();
        assert_eq!(waits, [(1, 1.0, 0.1); 2]);
        let between = node.between_calls.iter().map(|own| own.dispatcher_seconds);
        assert_eq!(between.collect::<Vec<_>>(), [8.0, 8.0]);
        assert_eq!((node.seconds, node.left_out_seconds), (11.0, Some(1.0)));
        let note = "\n  Recordings overlap: rows of a process are of one of them, without up to 1.0 s that only another recorded.\n";
        assert!(render_report(&report, false).contains(note));
    }
    let later = of("3.db", 100, "42", 20);
    let three = report(&merged(&path("three.db"), &[&one, &other, &later]), &[42]);
    let trainer = &three.nodes[0].recorded.as_ref().unwrap().calls[0];
    assert_eq!(
        (trainer.pid, trainer.count, trainer.events),
        (42, 20, 4),
        "runs after another add up"
    );
}

#[test]
fn what_one_exporter_wrote_to_two_files_counts_once_and_since_the_process_was_observed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Flight records are like this: the second has all that the first has.
    let later = Process { calls: (25, 1_000), waited: 9 * SECOND / 2, ..TRAINER };
    let mut chain = chain((42, "trainer"), (9, "hog"), 1.0);
    let one = record(&path("1.db"), 0, "", &[TRAINER], std::slice::from_ref(&chain));
    (chain.last_seen, chain.lost_seconds) = (chain.last_seen + 20.0, 5.0);
    let other = record(&path("2.db"), 20, "", &[later], &[chain]);
    let report = report(&merged(&path("merged.db"), &[&one, &other]), &[]);
    let node = report.nodes[0].recorded.as_ref().unwrap();
    let [wait] = &node.waits[..] else { panic!("{:?}", node.waits) };
    assert_eq!((wait.count, wait.seconds, node.calls[0].count), (1, 4.5, 25));
    assert_eq!(wait.share_of_recorded, 0.45);
    let chains: Vec<_> = report.nodes[0].incident.chains().map(|own| own.lost_seconds).collect();
    assert_eq!(chains, [5.0], "the last version");
}

/// Takes out what a recorder of an old version, or one that was killed at once, did not write.
fn without_accounts(path: &Path, ended: bool) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.execute("DELETE FROM looks", []).unwrap();
    if !ended {
        file.execute("UPDATE sessions SET ended_ns = NULL", []).unwrap();
    }
}

#[test]
fn a_run_that_was_interrupted_before_its_first_snapshot_is_not_said_to_have_observed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let interrupted = path("1.db");
    let start = Start { node: "gpu-1".into(), started_ns: BEGIN, ..Start::default() };
    Writer::create(&interrupted, &start).unwrap().finish().unwrap();
    let ended = "UPDATE sessions SET ended_ns = started_ns + 1000000000";
    rusqlite::Connection::open(&interrupted).unwrap().execute(ended, []).unwrap();
    let later = record(&path("2.db"), 20, "", &[TRAINER], &[]);
    for file in [&interrupted, &merged(&path("both.db"), &[&interrupted, &later])] {
        let report = report(file, &[]);
        assert_eq!(report.outcome, Outcome::NotObserved);
        let text = render_report(&report, false);
        assert!(
            text.contains("(the recording was interrupted before anything was observed)"),
            "{text}"
        );
    }
}

/// The time for which the node was recorded, and that of each wait for a lock of 1 s.
fn recorded_seconds(path: &Path) -> (f64, Vec<f64>) {
    let report = report(path, &[]);
    let node = report.nodes[0].recorded.as_ref().unwrap();
    let thousandths = |seconds: f64| (seconds * 1e3).round() / 1e3;
    let of_waits = node.waits.iter().map(|own| thousandths(own.seconds / own.share_of_recorded));
    (thousandths(node.seconds), of_waits.collect())
}

#[test]
fn a_run_that_was_killed_ends_with_its_last_event_also_where_later_runs_follow() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let killed = record(&path("1.db"), 0, "", &[TRAINER], &[]);
    without_accounts(&killed, false);
    let text = render_report(&report(&killed, &[]), false);
    assert!(text.contains(" - no end: still being recorded, or killed"), "{text}");
    let later = record(&path("2.db"), 1_000, "", &[TRAINER], &[]);
    let both = merged(&path("both.db"), &[&killed, &later]);
    assert_eq!(recorded_seconds(&both), (14.001, vec![4.001, 10.0]));
    let parts = &report(&both, &[]).nodes[0].incident.observation.not_fully_observed;
    let begin = BEGIN as f64 / 1e9;
    let parts: Vec<_> =
        parts.iter().map(|part| (part.since - begin, part.until.unwrap() - begin)).collect();
    let [(since, until)] = parts[..] else { panic!("{parts:?}") };
    assert!((since - 4.001).abs() < 0.001 && until == 1_000.0, "{parts:?}: no recorder ran");
    let overlapping = record(&path("3.db"), 4, "", &[TRAINER], &[]);
    let both = merged(&path("overlapping.db"), &[&killed, &overlapping]);
    assert_eq!(recorded_seconds(&both).0, 14.0, "it ends where the next run begins");
}

#[test]
fn time_in_which_two_recorders_ran_counts_once_for_processes_without_accounts() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let files = [(0, "1.db"), (2, "2.db")].map(|(after, name)| {
        let file = record(&path(name), after, "", &[TRAINER], &[]);
        without_accounts(&file, true);
        file
    });
    let both = merged(&path("both.db"), &files.each_ref().map(PathBuf::as_path));
    assert_eq!(recorded_seconds(&both), (12.0, vec![12.0, 12.0]));
}

#[test]
fn of_two_versions_of_a_chain_that_were_seen_last_at_once_the_one_that_has_ended_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let version = |ongoing, seconds| Chain {
        ongoing: Some(ongoing),
        ..chain((42, "trainer"), (9, "hog"), seconds)
    };
    let of = |name: &str, after, version| record(&path(name), after, "", &[TRAINER], &[version]);
    let ongoing = of("1.db", 0, version(true, 5.0));
    let longer = of("2.db", 20, version(true, 6.0));
    let ended = of("3.db", 40, version(false, 5.0));
    for (files, kept) in [
        ([&*ongoing, &*ended], (Some(false), 5.0)),
        ([&*ended, &*ongoing], (Some(false), 5.0)),
        ([&*longer, &*ongoing], (Some(true), 6.0)),
    ] {
        let output = path("merged.db");
        let report = report(&merged(&output, &files), &[]);
        std::fs::remove_file(output).unwrap();
        let chains: Vec<_> =
            report.nodes[0].incident.chains().map(|own| (own.ongoing, own.lost_seconds)).collect();
        assert_eq!(chains, [kept]);
    }
}

#[test]
fn a_cause_that_two_runs_found_in_a_process_is_one_chain_and_another_process_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let of = |id: &str, started, (after, seconds): (f64, f64)| {
        let mut own = chain((42, "trainer"), (9, "hog"), seconds);
        (own.id, own.victim.started) = (id.into(), started);
        (own.first_seen, own.last_seen) = (own.first_seen + after, own.last_seen + after);
        own.losses = vec![Loss { pid: Some(9), comm: "hog".into(), seconds }];
        own.sentence = format!("It waited {seconds} s. {}", own.when());
        own
    };
    let run =
        |name: &str, after, chains: &[Chain]| record(&path(name), after, "", &[TRAINER], chains);
    // An engine keeps apart what it found long after the first had ended.
    let (ended, again) = (of("ended", Some(7.0), (-900.0, 1.0)), of("1", Some(7.0), (0.0, 3.0)));
    let first = run("1.db", 0, &[ended, again]);
    let other = of("other", Some(8.0), (20.0, 2.0));
    let second = run("2.db", 20, &[of("2", Some(7.0), (20.0, 5.0)), other]);
    let old = run("3.db", 40, &[of("3", None, (40.0, 1.0)), of("2", Some(7.0), (20.0, 5.0))]);
    let unknown = run("4.db", 60, &[of("4", None, (60.0, 1.0))]);
    let both = merged(&path("merged.db"), &[&unknown, &second, &first, &old]);
    let report = report(&both, &[]);
    let mut chains: Vec<_> = report.nodes[0].incident.chains().collect();
    chains.sort_by(|a, b| a.id.cmp(&b.id));
    let rows: Vec<_> = chains.iter().map(|own| (&*own.id, own.lost_seconds)).collect();
    assert_eq!(rows, [("2", 8.0), ("3", 1.0), ("4", 1.0), ("ended", 1.0), ("other", 2.0)]);
    let begin = BEGIN as f64 / 1e9;
    assert_eq!((chains[0].first_seen, chains[0].last_seen), (begin + 1.0, begin + 29.0));
    assert_eq!(chains[0].losses, [Loss { pid: Some(9), comm: "hog".into(), seconds: 8.0 }]);
    assert_eq!(chains[0].sentence, format!("It waited 5 s. {}", chains[0].when()));
}

/// A chain of a data loader, as the engine of this version finds it in the accounts of a case.
fn chain_of_data_loader() -> Chain {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/dataloader.db");
    let mut engine = Engine::new(Settings::default());
    let evaluated = open(&case).unwrap().snapshots(&mut |own| {
        engine.evaluate(&own.input);
        ControlFlow::Continue(())
    });
    evaluated.unwrap();
    let chains = engine.chains();
    let of_loader = chains.iter().find(|own| own.cause == Cause::DataloaderStarvation);
    Chain::clone(of_loader.unwrap())
}

#[test]
fn a_fix_with_times_says_that_they_are_of_the_last_recording_where_the_chain_is_of_several() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let own = chain_of_data_loader();
    let files = [(0, "1.db"), (1_000, "2.db"), (2_000, "3.db")].map(|(after, name)| {
        let mut own = Chain { id: name.into(), ..own.clone() };
        own.first_seen += after as f64;
        own.last_seen += after as f64;
        record(&path(name), after, "", &[TRAINER], &[own])
    });
    let [one, other, third] = files.each_ref().map(PathBuf::as_path);
    let both = merged(&path("both.db"), &[one, other]);
    let again = merged(&path("again.db"), &[third, &both]);
    let all = merged(&path("all.db"), &[one, other, third]);
    let fix = |file: &Path| {
        let report = report(file, &[]);
        let chains: Vec<_> = report.nodes[0].incident.chains().collect();
        let [chain] = chains[..] else { panic!("{chains:?}") };
        (chain.attributed_seconds() / own.attributed_seconds(), chain.fix.clone())
    };
    let of_chain = "In all of this chain the workers computed for ";
    assert_eq!(fix(one), (1.0, own.fix.clone()));
    assert!(own.fix.contains(of_chain), "{}", own.fix);
    let of_last =
        "All times in this fix are of the last recording only, in which the workers computed for ";
    let expected = own.fix.replace(of_chain, of_last);
    for (file, runs) in [(both, 2.0), (again, 3.0), (all, 3.0)] {
        let (sum, fix) = fix(&file);
        assert!((sum - runs).abs() < 0.01, "{sum} is not of {runs} recordings");
        assert_eq!(fix, expected);
    }
}

#[test]
fn totals_and_chains_that_end_before_the_last_event_are_said_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // The last event ends after 4.001 s.
    let run = |name: &str, snapshot_after: f64, ended: bool| {
        let file = record(&path(name), 0, "", &[TRAINER], &[]);
        let database = rusqlite::Connection::open(&file).unwrap();
        let at = BEGIN as f64 / 1e9 + snapshot_after;
        database.execute("UPDATE looks SET unix_seconds = ?", [at]).unwrap();
        if !ended {
            database.execute("UPDATE sessions SET ended_ns = NULL", []).unwrap();
        }
        file
    };
    let killed = run("killed.db", 1.5, false);
    let later = record(&path("later.db"), 1_000, "", &[TRAINER], &[]);
    let both = merged(&path("both.db"), &[&killed, &later]);
    for (file, behind) in [
        (&killed, Some("2.5")),
        (&both, Some("2.5")),
        (&run("full.db", 1.5, true), Some("2.5")),
        (&run("soon.db", 3.7, false), Some("0.3")),
        (&run("ended.db", 3.7, true), None),
        (&run("whole.db", 10.0, true), None),
        (&run("no end.db", 10.0, false), None),
    ] {
        let report = report(file, &[]);
        let json = serde_json::to_value(&report).unwrap();
        let seconds = json["nodes"][0]["recorded"]["behind_seconds"].as_f64();
        assert_eq!(seconds.map(|own| format!("{own:.1}")).as_deref(), behind);
        let seconds = behind.unwrap_or_default();
        let line =
            format!("Totals and chains end {seconds} s before the last event of their recording.");
        for text in [render_report(&report, false), markdown::of(&report), html::of(&report)] {
            assert_eq!(text.contains(&line), behind.is_some(), "{line} {text}");
        }
    }
}

#[test]
fn totals_are_behind_events_of_the_processes_that_are_shown_alone() {
    let folder = tempfile::tempdir().unwrap();
    let neighbour = Process { id: 2, pid: 50, comm: "neighbour", started: 8, ..TRAINER };
    let file = record(&folder.path().join("1.db"), 0, "", &[TRAINER, neighbour], &[]);
    let database = rusqlite::Connection::open(&file).unwrap();
    let at = BEGIN as f64 / 1e9 + 1.5;
    database.execute("UPDATE looks SET unix_seconds = ?", [at]).unwrap();
    let quiet = "DELETE FROM event WHERE thread IN (SELECT threads.id FROM threads JOIN processes \
                 ON processes.id = process WHERE pid = 50)";
    assert!(database.execute(quiet, []).unwrap() > 0);
    let behind = |pids: &[u32]| {
        let report = report(&file, pids);
        report.nodes[0].recorded.as_ref().unwrap().behind_seconds.is_some()
    };
    assert_eq!([behind(&[]), behind(&[42]), behind(&[50])], [true, true, false]);
}
