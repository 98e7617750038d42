use super::*;
use gpucause_abi::Tgid;
use gpucause_abi::sample::SampledFrames;
use gpucause_abi::snapshot::Comm;
use parking_lot::Mutex;
use std::sync::Arc;

/// Gives each chosen thread the same samples of no known place.
#[derive(Debug, Default, Clone)]
struct Fake(Arc<Mutex<(Vec<SampledThread>, u64)>>);

impl Fake {
    fn chosen(&self) -> Vec<(u32, Within)> {
        self.0.lock().0.iter().map(|own| (own.tid.0, own.within)).collect()
    }

    fn calls(&self) -> u64 {
        self.0.lock().1
    }
}

impl StackSampler for Fake {
    fn choose(&self, threads: &[SampledThread]) -> Result<(), SampleError> {
        let mut own = self.0.lock();
        *own = (threads.to_vec(), own.1 + 1);
        drop(own);
        Ok(())
    }

    fn take(&self) -> Result<Vec<Sample>, SampleError> {
        let chosen = self.0.lock().0.clone();
        let sample = |own: SampledThread| Sample {
            process: own.process,
            tid: own.tid,
            frames: SampledFrames::Native(Vec::new()),
            count: 70,
        };
        Ok(chosen.into_iter().map(sample).collect())
    }
}

fn chain(id: &str, cause: &str, tid: u32, holder: Option<u32>) -> Chain {
    let chain = serde_json::json!({"id": id, "cause": cause, "effect": "launch_gap",
        "severity": "low", "victim": {"pid": 7, "tid": tid, "comm": ""},
        "culprit": holder.map(|tid| serde_json::json!({"pid": 7, "comm": "", "tid": tid})),
        "explained": 1.0, "lost_seconds": 1.0, "evidence": {}, "path": [], "sentence": "",
        "fix": "", "first_seen": 1.0, "last_seen": 2.0, "ongoing": true});
    serde_json::from_value(chain).unwrap()
}

fn snapshot(seconds: u64) -> Snapshot {
    // No process of this host has this number.
    let train = ProcessSnapshot::new(ProcId(1), Tgid(7), Comm::default());
    let taken_at = Nanos(seconds * 1_000_000_000);
    Snapshot { taken_at, processes: vec![train], ..Snapshot::default() }
}

#[test]
fn threads_are_sampled_while_their_code_is_a_cause_or_soon_may_be_and_holders_of_locks() {
    let fake = Fake::default();
    let mut code = CodeSampler::new(Box::new(fake.clone()));
    code.update(&[chain("1", "block_io", 7, None)], &[], &snapshot(1));
    assert_eq!(fake.calls(), 0, "nothing is done for other chains");
    code.update(&[], &[(ProcId(1), Tid(7))], &snapshot(2));
    assert_eq!(fake.chosen(), [(7, Within::HostCode)]);
    let chains = [chain("1", "host_code", 7, None), chain("2", "lock_wait", 8, Some(9))];
    code.update(&chains, &[(ProcId(1), Tid(7))], &snapshot(3));
    assert_eq!(fake.chosen(), [(7, Within::HostCode), (9, Within::Anywhere)]);
    let many: Vec<_> = (100..200).map(|tid| (ProcId(1), Tid(tid))).collect();
    code.update(&[], &many, &snapshot(4));
    assert_eq!(fake.chosen().len(), MAX_THREADS);
    code.stop();
    assert_eq!(fake.chosen(), []);
    let calls = fake.calls();
    code.stop();
    code.update(&[], &[], &snapshot(5));
    assert_eq!(fake.calls(), calls, "nothing is done while nothing is sampled");
}

#[test]
fn a_thread_of_a_process_that_has_ended_is_not_sampled() {
    let fake = Fake::default();
    let mut code = CodeSampler::new(Box::new(fake.clone()));
    let mut ended = snapshot(1);
    ended.processes[0].ended = Some(Nanos(1));
    code.update(&[chain("1", "host_code", 7, None)], &[(ProcId(1), Tid(7))], &ended);
    assert_eq!(fake.chosen(), []);
}

fn taken(at: u64, counts: &[(&str, u32, u64)]) -> Taken {
    let place = |&(function, line, count): &(&str, u32, u64)| {
        let file = if function.is_empty() { "" } else { "train.py" };
        (Place { file: file.into(), function: function.into(), line }, count)
    };
    Taken { at: Nanos(at), counts: counts.iter().map(place).collect() }
}

#[test]
fn shares_are_of_all_samples_by_function_with_the_line_that_ran_most() {
    let first = taken(1, &[("load", 42, 30), ("load", 43, 20), ("step", 7, 10), ("", 0, 20)]);
    let second = taken(2, &[("load", 42, 10), ("load", 43, 7), ("log", 3, 2), ("rare", 9, 1)]);
    let shares = shares(&[first, second].into());
    let found: Vec<_> = shares.iter().map(|own| (&*own.function, own.line, own.share)).collect();
    assert_eq!(found, [("load", 42, 0.67), ("step", 7, 0.1), ("log", 3, 0.02), ("rare", 9, 0.01)]);
}

#[test]
fn few_samples_say_nothing() {
    assert_eq!(shares(&[taken(1, &[("load", 42, MIN_SAMPLES - 1)])].into()), []);
    assert_eq!(shares(&[taken(1, &[("load", 42, MIN_SAMPLES)])].into()).len(), 1);
}

#[test]
fn samples_of_more_than_ten_seconds_ago_are_forgotten() {
    let mut code = CodeSampler::new(Box::new(Fake::default()));
    let near = [(ProcId(1), Tid(7))];
    for second in 1..40 {
        code.update(&[], &near, &snapshot(second));
        let kept: u64 = code.threads[&near[0]].iter().flat_map(|own| own.counts.values()).sum();
        assert!(kept <= 70 * 10, "{kept}");
    }
}
