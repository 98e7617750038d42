//! The answer of Prometheus, as far as it can be true: a job is left out when something about it cannot.

use std::collections::{BTreeMap, HashSet};

use gpucause_engine::peers::{PeerJob, PeerRank, RankPlace};
use gpucause_investigations::prometheus::Sample;

use super::job::{Job, LEAST, LocalRank};

/// Samples of an answer that are read at most.
const MAX_SAMPLES: usize = 2_048;
/// The largest share that is possible: rates are extrapolated.
const MOST_SHARE: f64 = 1.05;
/// Characters of a host's name that are shown at most.
const MAX_NAME: usize = 128;

/// Returns the answer about each of these jobs; `None` where it has nothing usable.
///
/// # Errors
/// When more is said than can be of them.
pub(super) fn jobs(asked: &[Job], samples: &[Sample]) -> Result<Vec<Option<PeerJob>>, String> {
    if samples.len() > MAX_SAMPLES {
        return Err(format!("{} series are more than {MAX_SAMPLES}", samples.len()));
    }
    Ok(asked.iter().map(|job| compared(job, samples)).collect())
}

fn label<'a>(sample: &'a Sample, name: &str) -> &'a str {
    sample.labels.get(name).map_or("", String::as_str)
}

/// The samples of a job. Those of another scrape job or namespace with the same names are of another one: this host's has a rank with
/// a PID of its own.
fn compared(job: &Job, samples: &[Sample]) -> Option<PeerJob> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Sample>> = BTreeMap::new();
    let world_size = job.world_size.to_string();
    let is_of_job = |own: &&Sample| {
        label(own, "comm") == job.comm
            && label(own, "slurm_job") == job.slurm_job
            && label(own, "world_size") == world_size
    };
    for sample in samples.iter().filter(is_of_job) {
        groups.entry((label(sample, "job"), label(sample, "namespace"))).or_default().push(sample);
    }
    let mut own = groups.into_values().filter_map(|group| ranks(job, &group));
    let ranks = own.next()?;
    own.next().is_none().then_some(PeerJob { world_size: job.world_size, ranks })
}

/// The ranks of a group, if all of this host are among them, and those on other hosts are known, too.
fn ranks(job: &Job, group: &[&Sample]) -> Option<Vec<PeerRank>> {
    if !group.iter().any(|own| label(own, "__name__") == LEAST) {
        return None;
    }
    let local = |sample: &Sample| {
        let is_it = |own: &&LocalRank| {
            label(sample, "pid") == own.pid.to_string()
                && label(sample, "rank") == own.rank.to_string()
        };
        job.ranks.iter().find(is_it)
    };
    let mut instances = group.iter().filter(|own| local(own).is_some());
    let here = label(instances.next()?, "instance");
    // Another instance has the same rank and PID: nobody knows which is this host.
    if instances.any(|own| label(own, "instance") != here) {
        return None;
    }
    let mut ranks = Vec::with_capacity(group.len());
    for sample in group {
        let rank: u32 = label(sample, "rank").parse().ok()?;
        if rank >= job.world_size || !(0.0..=MOST_SHARE).contains(&sample.value) {
            return None;
        }
        let waiting_share = sample.value.min(1.0);
        let place = match local(sample) {
            Some(own) => RankPlace::Here(own.process),
            // A process that has just ended, or just begun.
            None if label(sample, "instance") == here => return None,
            None => RankPlace::Elsewhere(shown(label(sample, "instance"))),
        };
        let new = PeerRank { rank, waiting_share, place };
        // One that is among those that wait least and here, too.
        if !ranks.contains(&new) {
            ranks.push(new);
        }
    }
    let numbers: HashSet<u32> = ranks.iter().map(|own| own.rank).collect();
    let is_known =
        |own: &LocalRank| ranks.iter().any(|rank| rank.place == RankPlace::Here(own.process));
    (numbers.len() == ranks.len() && job.ranks.iter().all(is_known)).then_some(ranks)
}

/// A name for texts: what does not show as itself is replaced.
fn shown(name: &str) -> String {
    let safe = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    match name.trim() {
        "" => "an unnamed host".to_owned(),
        name => name.chars().take(MAX_NAME).map(safe).collect(),
    }
}
