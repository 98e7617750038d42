//! The fuzz target for a Prometheus's answer about ranks on other hosts.

use std::collections::HashSet;

use gpucause_abi::ProcId;
use gpucause_engine::peers::RankPlace;
use gpucause_investigations::prometheus::samples;

use super::answer;
use super::job::{Job, LocalRank};

/// The job that the kept answers are about.
pub(super) fn asked() -> Vec<Job> {
    let ranks = vec![LocalRank { process: ProcId(1), pid: 7, rank: 0 }];
    vec![Job { comm: "train".to_owned(), slurm_job: "42".to_owned(), world_size: 4, ranks }]
}

/// Checks that the ranks in an answer are in bounds, and name no process of this host but those that were asked about.
pub(crate) fn answer(data: &[u8]) {
    let Ok(samples) = samples(data) else { return };
    let Ok(jobs) = answer::jobs(&asked(), &samples) else { return };
    for job in jobs.into_iter().flatten() {
        let numbers: HashSet<_> = job.ranks.iter().map(|own| own.rank).collect();
        assert_eq!(numbers.len(), job.ranks.len());
        for own in job.ranks {
            assert!(own.rank < 4 && (0.0..=1.0).contains(&own.waiting_share));
            match own.place {
                RankPlace::Here(process) => assert_eq!((process, own.rank), (ProcId(1), 0)),
                RankPlace::Elsewhere(name) => {
                    assert!(name.len() <= 128 && !name.contains(char::is_control));
                }
            }
        }
    }
}
