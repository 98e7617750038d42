//! Keeps the last observation for those who can share it, together with the chains that were found until then.

use std::sync::Arc;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::Findings;

use crate::chains::Chains;
use crate::chains::by_group::FindingsByGroup;
use crate::clock::monotonic_now;
use crate::observation::Observation;
use crate::pipeline::{AccountSource, Pipeline, Sampled};
use crate::scrape_times::ScrapeTimes;
use crate::series::settings::SeriesSettings;

/// A page shows the last observation if its snapshot is younger than this, and else a new one.
pub(crate) const SHARED_FOR: Nanos = Nanos(100_000_000);

/// An expected page is sampled so long before, in addition to what the last sample took: a scrape may come early.
const EARLY: Nanos = Nanos(20_000_000);

/// The earliest: a scrape may come late.
const EARLIEST: Nanos = Nanos(80_000_000);

/// An observation, and the chains that were found until then.
#[derive(Debug)]
pub struct Explained {
    /// The observation.
    pub observation: Arc<Observation>,
    /// The chains until then.
    pub findings: Findings,
}

/// Makes observations of one source, and keeps the last one with its chains.
#[derive(Debug)]
pub struct Observer<S> {
    pipeline: Pipeline<S>,
    chains: Arc<Chains>,
    by_group: FindingsByGroup,
    /// The last observation, until it is too old for a page or something makes it wrong.
    latest: Option<Arc<Explained>>,
    scrapes: ScrapeTimes,
    /// Duration of the last sample.
    sampled_in: Nanos,
}

impl<S: AccountSource> Observer<S> {
    /// An observer of this pipeline, with the chains that are found in its observations.
    pub fn new(pipeline: Pipeline<S>, chains: Arc<Chains>) -> Self {
        Self {
            pipeline,
            chains,
            by_group: FindingsByGroup::default(),
            latest: None,
            scrapes: ScrapeTimes::default(),
            sampled_in: Nanos(0),
        }
    }

    /// Where its snapshots come from.
    pub const fn source(&mut self) -> &mut S {
        &mut self.pipeline.source
    }

    /// Between observations: names the kernels that processes launched, while those processes live.
    pub fn name_launched(&mut self, processes: Vec<ProcessSnapshot>) {
        self.pipeline.name_launched(processes);
    }

    /// The chains of these processes are evaluated. Those that had ended need not be kept for that any more.
    pub fn set_evaluated(&mut self, processes: &[ProcessSnapshot]) {
        let ended = processes.iter().filter(|process| process.ended.is_some());
        self.pipeline.set_evaluated(ended.map(|process| process.id));
    }

    /// The kernel functions that have names, by process and handle.
    pub fn kernel_names(&self) -> Vec<(ProcId, u64, Arc<str>)> {
        self.pipeline.kernel_names()
    }

    /// Applies other settings from now on.
    pub fn configure(&mut self, settings: &SeriesSettings) {
        self.pipeline.configure(settings);
        self.forget_latest();
    }

    /// Between observations: deletes the accounts of ended processes whose retention is over, if there are any.
    pub fn reap(&mut self, now: Nanos, ended: &[(ProcId, Nanos)]) -> Result<(), S::Error> {
        let reaped = self.pipeline.reap(now, ended);
        if !matches!(reaped, Ok(None)) {
            // It may show processes that are part of `other` from now on.
            self.forget_latest();
        }
        self.chains.aggregate(&reaped?.unwrap_or_default());
        Ok(())
    }

    fn sample(&mut self) -> Result<Explained, S::Error> {
        let Sampled { observation, aggregated, left } = self.pipeline.sample()?;
        self.chains.aggregate(&aggregated);
        let mut findings = self.chains.findings();
        self.by_group.update(&observation.groups, &left, &mut findings);
        Ok(Explained { observation: Arc::new(observation), findings })
    }

    /// The next observation is a new one, however young the last is.
    pub(crate) fn forget_latest(&mut self) {
        self.latest = None;
    }

    /// Returns true if an observation is kept for later pages.
    pub(crate) const fn keeps_latest(&self) -> bool {
        self.latest.is_some()
    }

    /// The last observation, if its snapshot is not older than `not_before`, or else a new one.
    pub fn observe(&mut self, not_before: Nanos) -> Result<Arc<Explained>, S::Error> {
        let is_young = |own: &Arc<Explained>| own.observation.snapshot.taken_at >= not_before;
        // Taken away: the old one and a new one would need twice the memory.
        if let Some(latest) = self.latest.take().filter(is_young) {
            self.latest = Some(Arc::clone(&latest));
            return Ok(latest);
        }
        let begin = monotonic_now();
        let explained = Arc::new(self.sample()?);
        self.sampled_in = monotonic_now().less(begin);
        self.latest = Some(Arc::clone(&explained));
        Ok(explained)
    }

    /// Does the same as [`observe`](Self::observe); the processes count as exported.
    pub fn export(&mut self, not_before: Nanos) -> Result<Arc<Explained>, S::Error> {
        let explained = self.observe(not_before)?;
        self.pipeline.set_exported(&explained.observation.snapshot.processes);
        Ok(explained)
    }

    /// The observation for a page that is requested at `now`.
    pub(crate) fn page(&mut self, now: Nanos) -> Result<Arc<Explained>, S::Error> {
        self.scrapes.requested(now);
        self.export(Nanos((now.0 + 1).saturating_sub(SHARED_FOR.0)))
    }

    /// When to take a sample for the next page that is expected after `now`.
    pub(crate) fn next_sample(&mut self, now: Nanos) -> Option<Nanos> {
        let early = Nanos(self.sampled_in.0 + EARLY.0).min(EARLIEST);
        Some(self.scrapes.next(now)?.less(early))
    }

    /// A new observation, or how long to wait with it where it would delay a page.
    pub fn observe_between_pages(
        &mut self,
        now: Nanos,
    ) -> Result<Result<Arc<Explained>, Nanos>, S::Error> {
        match self.scrapes.busy_for(now) {
            Nanos(0) => self.observe(now).map(Ok),
            wait => Ok(Err(wait)),
        }
    }

    /// Takes that sample, if there is none that the page could show.
    pub(crate) fn sample_early(&mut self, now: Nanos) -> Result<(), S::Error> {
        let Some(expected) = self.scrapes.next(now) else { return Ok(()) };
        self.scrapes.served();
        self.observe(expected.less(EARLIEST)).map(drop)
    }
}
