//! The series of a process: which process a `pid` and `comm` pair stands for.
//!
//! A PID is reused by later processes, and the pair by a process that executes its own program again. Images of one process are
//! merged, so that counters never decrease. Of different processes only the youngest is exported; the others have exited. Workers are
//! part of the process that they work for.

use crate::observation::{Group, Observation};
use crate::series::merge::merge_accounts;
use crate::workers::{Owners, is_worker};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::OTHER_PROCESS;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The accounts behind one `pid` and `comm` pair.
#[derive(Debug)]
pub struct Series<'a> {
    /// The `pid` label.
    pub pid: Arc<str>,
    /// The `comm` label.
    pub comm: Arc<str>,
    /// Every image of the process, the latest last; [`OTHER_PROCESS`] for `other`.
    pub images: Vec<ProcId>,
    /// The accounts; identity and end are those of the latest image.
    pub process: Cow<'a, ProcessSnapshot>,
    /// Start of the accounts, in seconds since the Unix epoch.
    pub created: Option<f64>,
}

/// The labels of the processes beyond the cardinality limit.
const OTHER: &str = "other";

/// The exported processes, by PID and name, and then those aggregated into `other`.
pub fn group(observation: &Observation) -> Vec<Series<'_>> {
    let mut groups: BTreeMap<(Tgid, String), Vec<&ProcessSnapshot>> = BTreeMap::new();
    let mut workers = workers(observation);
    let processes = &observation.snapshot.processes;
    let grouped: HashSet<ProcId> =
        observation.groups.iter().flat_map(|group| &group.members).copied().collect();
    let has_series =
        |process: &&ProcessSnapshot| !is_worker(process) && !grouped.contains(&process.id);
    for process in processes.iter().filter(has_series) {
        groups.entry((process.tgid, process.comm.to_text())).or_default().push(process);
    }
    let all_groups = grouped_series(observation, &mut workers);
    let individual = groups.into_iter().filter_map(|((tgid, comm), mut images)| {
        let youngest = images.iter().map(|image| image.started_boottime).max()?;
        images.retain(|image| image.started_boottime == youngest);
        images.sort_by_key(|image| (image.first_seen, image.id));
        let first_seen = images.first()?.first_seen;
        Some(Series {
            pid: tgid.to_string().into(),
            comm: comm.into(),
            images: images.iter().map(|image| image.id).collect(),
            process: merged(&images, &mut workers)?,
            created: Some(observation.clock.unix_seconds(first_seen)),
        })
    });
    let other = observation.overflow.as_ref().map(|process| Series {
        pid: OTHER.into(),
        comm: OTHER.into(),
        images: vec![OTHER_PROCESS],
        process: Cow::Borrowed(process),
        created: Some(observation.clock.unix_seconds(observation.since)),
    });
    let individual: Vec<_> = individual.collect();
    individual.into_iter().chain(all_groups).chain(other).collect()
}

/// The accounts of workers, by the process that they work for.
fn workers(observation: &Observation) -> HashMap<ProcId, Vec<&ProcessSnapshot>> {
    let mut workers: HashMap<ProcId, Vec<&ProcessSnapshot>> = HashMap::new();
    for (owner, sum) in &observation.former_workers {
        workers.entry(*owner).or_default().push(sum);
    }
    let processes = &observation.snapshot.processes;
    if processes.iter().any(is_worker) {
        let owners = Owners::of(processes);
        for worker in processes {
            if let Some(owner) = owners.get(worker.id) {
                workers.entry(owner).or_default().push(worker);
            }
        }
    }
    workers
}

/// The series of groups.
fn grouped_series<'a>(
    observation: &'a Observation,
    workers: &mut HashMap<ProcId, Vec<&'a ProcessSnapshot>>,
) -> Vec<Series<'a>> {
    if observation.groups.is_empty() {
        return Vec::new();
    }
    let processes = &observation.snapshot.processes;
    let by_id: HashMap<ProcId, &ProcessSnapshot> =
        processes.iter().map(|process| (process.id, process)).collect();
    let series = |group: &'a Group| {
        let mut sum = group.former.clone();
        for process in group.members.iter().filter_map(|id| by_id.get(id)) {
            merge_accounts(&mut sum, process);
            sum.dispatchers.extend(process.dispatchers.iter().cloned());
            for worker in workers.remove(&process.id).into_iter().flatten() {
                merge_accounts(&mut sum, worker);
            }
        }
        Series {
            pid: Arc::clone(&group.pid),
            comm: Arc::clone(&group.comm),
            images: group.members.iter().copied().chain([group.id]).collect(),
            process: Cow::Owned(sum),
            created: Some(observation.clock.unix_seconds(group.since)),
        }
    };
    observation.groups.iter().map(series).collect()
}

/// One process's accounts over all its images, the latest last, with its workers.
fn merged<'a>(
    images: &[&'a ProcessSnapshot],
    workers: &mut HashMap<ProcId, Vec<&'a ProcessSnapshot>>,
) -> Option<Cow<'a, ProcessSnapshot>> {
    let (&latest, earlier) = images.split_last()?;
    let workers: Vec<_> =
        images.iter().filter_map(|image| workers.remove(&image.id)).flatten().collect();
    if earlier.is_empty() && workers.is_empty() {
        return Some(Cow::Borrowed(latest));
    }
    let mut sum = latest.clone();
    for image in earlier.iter().copied().chain(workers) {
        merge_accounts(&mut sum, image);
    }
    Some(Cow::Owned(sum))
}
