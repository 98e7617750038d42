//! Tests of the data that a group keeps of its former members.

use super::*;
use crate::clock::WallClock;
use crate::series::grouping::group;
use gpucause_abi::snapshot::Snapshot;
use parking_lot::Mutex;
use std::io;
use std::time::Duration;

/// A process with so many abandoned calls.
fn process(id: u32, calls: u64) -> ProcessSnapshot {
    let mut process = ProcessSnapshot {
        dispatches: true,
        ..ProcessSnapshot::new(ProcId(id), Tgid(id), Comm([b'p'; COMM_LEN]))
    };
    process.measures.abandoned_calls = calls;
    process
}

/// The observation after these processes, each with its GPUs, were seen.
fn observe(groups: &mut Groups, processes: &[(&ProcessSnapshot, &str)]) -> Observation {
    let own = processes.iter().map(|&(process, _)| process.clone());
    let snapshot = Snapshot { processes: own.collect(), ..Snapshot::default() };
    let clock = WallClock::with_origin(Duration::from_secs(1_000));
    let mut observation = Observation::new(snapshot, Nanos(0), clock);
    let known = processes.iter().filter(|(_, gpus)| !gpus.is_empty());
    observation.gpu_uuids = known.map(|(process, gpus)| (process.id, (*gpus).into())).collect();
    groups.update(&mut observation, 10);
    observation
}

#[test]
fn a_former_member_says_nothing_of_how_launches_are_observed() {
    let mut groups = Groups::default();
    groups.set_by(&[GroupLabel::Comm]);
    let step = |observation: &Observation| group(observation)[0].process.launches.step;
    let mut costly = process(1, 1);
    costly.launches.step = LaunchStep::Sampled { one_in: 64 };
    let other = process(2, 1);
    let both = observe(&mut groups, &[(&costly, ""), (&other, "")]);
    assert_eq!(step(&both), costly.launches.step);
    assert_eq!(step(&observe(&mut groups, &[(&other, "")])), LaunchStep::Full);
}

#[test]
fn a_process_that_uses_more_gpus_later_stays_in_its_group() {
    let mut groups = Groups::default();
    groups.set_by(&[GroupLabel::Comm, GroupLabel::GpuUuid]);
    let calls = |observation: &Observation| -> Vec<(String, u64)> {
        let series = group(observation).into_iter();
        series.map(|own| (own.pid.to_string(), own.process.measures.abandoned_calls)).collect()
    };
    let (a, b) = (process(1, 5), process(2, 7));
    let expected = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|&(pid, calls)| (pid.to_owned(), calls)).collect()
    };
    let seen = observe(&mut groups, &[(&a, ""), (&b, "GPU-b")]);
    assert_eq!(calls(&seen), expected(&[("all", 5), ("GPU-b", 7)]));
    let seen = observe(&mut groups, &[(&a, "GPU-a"), (&b, "GPU-b")]);
    assert_eq!(calls(&seen), expected(&[("GPU-a", 5), ("GPU-b", 7)]));
    for gpus in ["GPU-a,GPU-b", "", "GPU-b"] {
        let seen = observe(&mut groups, &[(&a, gpus), (&b, gpus)]);
        assert_eq!(calls(&seen), expected(&[("GPU-a", 5), ("GPU-b", 7)]), "{gpus:?}");
    }
}

#[test]
fn a_group_began_when_it_did_also_after_an_older_process_joins_it() {
    let mut groups = Groups::default();
    groups.set_by(&[GroupLabel::Comm]);
    let seen_at = |id: u32, first_seen| ProcessSnapshot { first_seen, ..process(id, 1) };
    let (first, older) = (seen_at(1, Nanos(8)), seen_at(2, Nanos(7)));
    assert_eq!(observe(&mut groups, &[(&first, "")]).groups[0].since, Nanos(8));
    assert_eq!(observe(&mut groups, &[(&first, ""), (&older, "")]).groups[0].since, Nanos(8));
    assert_eq!(observe(&mut groups, &[(&older, "")]).groups[0].since, Nanos(8));
}

/// The log of one thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A host with so many live processes of an executable, one that ended, and a worker of the first.
fn host(exe: &str, live: u32) -> Observation {
    let ended = ProcessSnapshot { ended: Some(Nanos(1)), ..process(1_000, 1) };
    let worker = ProcessSnapshot { dispatches: false, ..process(1_001, 0) };
    let processes = (1..=live).map(|id| process(id, 1)).chain([ended, worker]);
    let snapshot = Snapshot { processes: processes.collect(), ..Snapshot::default() };
    let clock = WallClock::with_origin(Duration::from_secs(1_000));
    let mut observation = Observation::new(snapshot, Nanos(0), clock);
    let details = Arc::new(ProcessDetails { exe: exe.into(), ..ProcessDetails::default() });
    let ids = observation.snapshot.processes.iter().map(|process| process.id);
    observation.details = ids.map(|id| (id, Arc::clone(&details))).collect();
    observation
}

#[test]
fn groups_are_suggested_once_for_an_executable_of_more_than_32_live_processes() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let mut suggestions = Suggestions::default();
    let mut lines = |observations: &[Observation]| -> Vec<String> {
        log.0.lock().clear();
        observations.iter().for_each(|observation| suggestions.update(observation));
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    tracing::subscriber::with_default(subscriber, || {
        assert_eq!(lines(&[host("/opt/triton", 32), host("", 40)]), Vec::<String>::new());
        let once = lines(&[host("/opt/triton", 33), host("/opt/triton", 64)]);
        let [line] = &once[..] else { panic!("{once:?}") };
        for part in ["metrics.group_by: [comm]", "/opt/triton", "33"] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(lines(&[host("/opt/vllm", 33)]).len(), 1, "another executable");
    });
}
