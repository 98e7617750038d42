//! Who uses up what the limit of a cgroup, or a program's own CPU mask, leaves.

use super::cgroup::Cgroup;
use super::chains::chain_of;
use super::python::Python;
use super::waiter::observed;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::libraries;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/limits.py");
/// Launches of its process before its pool starts: it is warm then.
const WARM: f64 = 5_000.0;

/// The script with these arguments, in a cgroup from its start on.
fn started(limit: Option<&Cgroup>, arguments: &[&str]) -> Python {
    let enter = "[ -z \"$0\" ] || echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
    let cgroup = limit.map_or(Path::new(""), Cgroup::path);
    let child = Command::new("sh")
        .args(["-c", enter])
        .arg(cgroup)
        .args(["/usr/bin/python3", "-B", SCRIPT])
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn();
    Python(child.expect("python3 is installed"))
}

/// A program that is warm.
fn warm(exporter: &Exporter, limit: Option<&Cgroup>, arguments: &[&str]) -> (Python, String) {
    let library = libraries().join("libcudart.so.12");
    let python = started(limit, &[&[library.to_str().unwrap()], arguments].concat());
    let pid = python.0.id().to_string();
    until("launches", || {
        let launches = exporter.samples().sum("gpucause_launches_total", &[("pid", &pid)]);
        (launches > WARM).then_some(())
    });
    (python, pid)
}

fn go(python: &mut Python) {
    writeln!(python.0.stdin.as_mut().unwrap()).unwrap();
}

fn half_of_a_cpu() -> Cgroup {
    let unified = [("cpu.max", "50000 100000")];
    Cgroup::limited("cpu", &[("cpu.cfs_quota_us", "50000")], &unified).unwrap()
}

/// The chain of the CPU limit with this culprit has these words.
fn is_named(exporter: &Exporter, pid: &str, comm: &str, words: &[&str]) {
    let chain = until(&format!("a chain of the limit that names {comm}"), || {
        chain_of(exporter, pid, "noisy_cgroup").filter(|own| own["culprit"]["comm"] == comm)
    });
    let text = format!("{} {}", chain["sentence"], chain["fix"]);
    for part in words {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_pool_of_threads_that_uses_up_the_cpu_limit_of_its_program_is_named() {
    let (exporter, _keeper) = observed();
    let limit = half_of_a_cpu();
    let (mut python, pid) = warm(&exporter, Some(&limit), &["pool"]);
    go(&mut python);
    let words = [" 3 threads pool of python3 ", "use fewer threads"];
    is_named(&exporter, &pid, "pool", &words);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_worker_or_a_neighbour_that_uses_up_the_cpu_limit_is_named() {
    let (exporter, _keeper) = observed();
    let limit = half_of_a_cpu();
    let (python, pid) = warm(&exporter, Some(&limit), &["nobody"]);
    let indexer = started(Some(&limit), &["", "indexer"]);
    let words = ["indexer (PID ", "Move indexer out of the cgroup"];
    is_named(&exporter, &pid, "indexer", &words);
    drop((indexer, python));
    let (mut python, pid) = warm(&exporter, Some(&limit), &["worker"]);
    go(&mut python);
    is_named(&exporter, &pid, "tokenizer", &["Have its workers do less"]);
}

/// In such a write the thread itself waits for a disk, but it is memory that it lacks.
#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_thread_that_frees_memory_at_the_limit_of_its_cgroup_lacks_memory_and_no_disk() {
    let (exporter, _keeper) = observed();
    let unified = [("memory.max", "67108864")];
    let limits = [("memory.limit_in_bytes", "67108864")];
    let limit = Cgroup::limited("memory", &limits, &unified).unwrap();
    let (mut python, pid) = warm(&exporter, Some(&limit), &["writer"]);
    go(&mut python);
    let chain = until("a chain of the lack of memory", || chain_of(&exporter, &pid, "page_fault"));
    let sentence = chain["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("Page faults and freeing memory for its pages took "),
        "{sentence}"
    );
    let fix = chain["fix"].as_str().unwrap();
    assert!(fix.contains("more memory") || fix.contains("memory limit"), "{fix}");
    let taken = |cause| {
        let labels = [("pid", &*pid), ("cause", cause)];
        exporter.samples().sum("gpucause_causal_chain_seconds_total", &labels)
    };
    let [memory, disk] = ["page_fault", "block_io"].map(taken);
    assert!(disk < memory / 5.0, "{memory} s and {disk} s");
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_job_that_is_on_one_cpu_of_many_by_its_own_mask_is_given_the_command_that_ends_that() {
    let (exporter, _keeper) = observed();
    let (mut python, pid) = warm(&exporter, None, &["cpu-pool"]);
    go(&mut python);
    let all = "may run on CPU 1 only, by their own CPU mask; they may use CPUs 0-";
    until("a chain that says the mask", || {
        let causes = ["cpu_preemption", "runqueue_wait"].into_iter();
        let mut chains = causes.filter_map(|cause| chain_of(&exporter, &pid, cause));
        chains.find(|chain| {
            let fix = chain["fix"].as_str().unwrap();
            fix.contains(all) && fix.contains("taskset -acp 0-")
        })
    });
}
