//! The job of a program that Slurm started is known by its number, and two jobs are never one.

use super::waiter::observed;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries, program};
use std::fs;
use std::path::{Path, PathBuf};

/// The cgroup of a step of a job, as Slurm makes it. It goes when dropped, once its processes have ended.
struct Step {
    root: PathBuf,
    dir: PathBuf,
}

impl Step {
    fn of(job: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let unified = rows.find(|row| row[2] == "cgroup2").expect("cgroups of version 2");
        let root = Path::new(unified[1]).join(format!("gpucause-{}-{job}", std::process::id()));
        let dir = root.join(format!("slurmstepd.scope/{job}/step_0/user/task_0"));
        fs::create_dir_all(&dir).unwrap();
        Self { root, dir }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        for dir in self.dir.ancestors().take_while(|dir| dir.starts_with(&self.root)) {
            until("the end of its processes", || fs::remove_dir(dir).ok());
        }
    }
}

/// A program in a step, with these variables in its environment, that has made a call.
fn launched(step: &Step, environment: &[&str]) -> Workload {
    let program = program();
    let enter = "echo $$ >\"$0/cgroup.procs\" && exec env \"$@\"";
    let paths = [program.to_str().unwrap(), "--libs", libraries().to_str().unwrap()];
    let command = [&["-c", enter, step.dir.to_str().unwrap()], environment, &paths].concat();
    let mut workload =
        Workload::of(Path::new("sh"), &[&command[..], &["calls", "--calls=1"]].concat());
    workload.work();
    workload
}

#[test]
fn a_slurm_job_has_its_number_from_its_cgroup_or_else_from_its_environment_or_its_sluid() {
    let (exporter, _keeper) = observed();
    let jobs: [(&str, &[&str], &str); 4] = [
        ("s5K1KKYAYG5D00", &["SLURM_JOB_ID=4711", "SLURM_PROCID=3"], "4711"),
        ("s5K1KKYAYG5D01", &["SLURM_JOB_ID=4713"], "4713"),
        ("s5K1KKYAYG5D02", &[], "s5K1KKYAYG5D02"),
        ("job_4712", &["SLURM_JOB_ID=4711"], "4712"),
    ];
    let steps = jobs.map(|(cgroup, ..)| Step::of(cgroup));
    let started = steps.iter().zip(jobs).map(|(step, (_, own, _))| launched(step, own));
    let workloads: Vec<_> = started.collect();
    for (workload, (cgroup, _, number)) in workloads.iter().zip(jobs) {
        let labels = [("pid", &*workload.pid())];
        let job = until(&format!("the job of {cgroup}"), || {
            let samples = exporter.samples();
            let info = samples.of("gpucause_process_info", &labels);
            info.first().map(|info| info.label("slurm_job").to_owned())
        });
        assert_eq!(job, number, "{cgroup}");
    }
    drop(workloads);
}
