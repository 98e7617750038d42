//! Data of a Prometheus server on the jobs of this host: on their ranks here and on other hosts.

use gpucause_abi::ProcId;

/// Jobs with ranks on this host and on others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Peers {
    /// How long ago Prometheus was asked, in seconds.
    pub age_seconds: f64,
    /// The jobs.
    pub jobs: Vec<PeerJob>,
}

/// A job. Its ranks have a number each; of those on other hosts, the ones that wait least are enough.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PeerJob {
    /// How many ranks it has.
    pub world_size: u32,
    /// Known ranks.
    pub ranks: Vec<PeerRank>,
}

/// A rank of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerRank {
    /// Its number.
    pub rank: u32,
    /// Share of its dispatcher threads' time in collectives and waits for the GPU, 0 to 1.
    pub waiting_share: f64,
    /// Where it is.
    pub place: RankPlace,
}

/// Where a rank is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankPlace {
    /// A process of this host.
    Here(ProcId),
    /// A process of another host, which Prometheus has under this `instance`.
    Elsewhere(String),
}
