//! Turns the content of a page into families, with one collector per group of metrics. A failing collector does not affect others.

mod calls;
mod chains;
mod daemon;
mod dispatch;
mod gpus;
mod host;
mod kernels;
mod launches;
mod memory;
mod offcpu;
#[cfg(test)]
mod over_time;
mod probes;
mod processes;
mod scope;
mod selection;
mod waits;

use gpucause_observe::observation::Observation;
use gpucause_observe::series::grouping::{self, Series};
use gpucause_page::family::{Exported, Family, Sink, Value};
use gpucause_page::metric::{
    Level, SCRAPE_COLLECTOR_DURATION, SCRAPE_COLLECTOR_SUCCESS, SCRAPE_SERIES,
};

use crate::daemon_state::DaemonState;
use gpucause_engine::Findings;
pub use scope::{Scope, ScopeError};
pub(crate) use selection::decoded;
pub use selection::{Selection, SelectionError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The collector of metrics under DCGM's names.
pub const FOREIGN: &str = "gpus";

/// The content of a page.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// The observation.
    pub observation: &'a Observation,
    /// The chains until then.
    pub findings: &'a Findings,
    /// State of the daemon itself.
    pub daemon: &'a DaemonState,
}

static NO_FINDINGS: Findings =
    Findings { chains: Vec::new(), counts: Vec::new(), stalls: Vec::new() };

/// An observation alone.
impl<'a> From<&'a Observation> for Content<'a> {
    fn from(observation: &'a Observation) -> Self {
        Self { observation, findings: &NO_FINDINGS, daemon: &DaemonState::PLAIN }
    }
}

/// The input of collectors.
#[derive(Debug)]
pub struct Input<'a> {
    /// The observation.
    pub observation: &'a Observation,
    /// The chains until then.
    pub findings: &'a Findings,
    /// State of the daemon itself.
    pub daemon: &'a DaemonState,
    /// Its exported processes.
    pub series: Vec<Series<'a>>,
    /// How much of it is exported.
    pub level: Level,
}

impl<'a> Input<'a> {
    fn of(content: Content<'a>, level: Level) -> Self {
        let Content { observation, findings, daemon } = content;
        Self { observation, findings, daemon, series: grouping::group(observation), level }
    }
}

/// Why a collector fails.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A source could not be read.
    #[error("cannot read {0}")]
    Unreadable(&'static str),
    /// A bug; see the log.
    #[error("the collector panicked")]
    Panicked,
}

/// Produces the families of one group of metrics.
pub trait Collector: Send + Sync {
    /// The `collector` label.
    fn name(&self) -> &'static str;

    /// The families.
    ///
    /// # Errors
    /// When its source fails.
    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError>;
}

/// Families, which may be produced lazily.
pub type Families<'a> = Box<dyn Iterator<Item = Family> + 'a>;

/// Families that are produced together.
fn eager<'a>(families: impl IntoIterator<Item = Family, IntoIter: 'a>) -> Families<'a> {
    Box::new(families.into_iter())
}

/// The collectors of a page.
pub struct Collectors(Vec<Box<dyn Collector>>);

impl std::fmt::Debug for Collectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Default for Collectors {
    fn default() -> Self {
        Self(vec![
            Box::new(launches::Launches),
            Box::new(calls::Errors),
            Box::new(calls::Calls),
            Box::new(dispatch::Dispatch),
            Box::new(waits::Waits),
            Box::new(kernels::Kernels),
            Box::new(memory::Memory),
            Box::new(offcpu::Offcpu),
            Box::new(host::Host),
            Box::new(chains::Chains),
            Box::new(processes::Processes),
            Box::new(probes::Probes),
            Box::new(gpus::Gpus),
            Box::new(daemon::Daemon::default()),
        ])
    }
}

impl Collectors {
    /// Only these.
    #[must_use]
    pub fn new(collectors: Vec<Box<dyn Collector>>) -> Self {
        Self(collectors)
    }

    /// The names of the collectors.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|collector| collector.name()).collect()
    }

    /// Every collector's families at the full level, then duration and success of each collector.
    #[must_use]
    pub fn collect<'a>(&self, content: impl Into<Content<'a>>) -> Vec<Family> {
        let mut exported = Exported::default();
        // `Exported` cannot fail.
        let _ = self.write(content, &Scope::full(), &mut exported);
        exported.own
    }

    /// Writes the families of the selected collectors, as far as they are of the level, one by one; then those under DCGM's names.
    ///
    /// # Errors
    /// Those of `page`.
    pub fn write<'a>(
        &self,
        content: impl Into<Content<'a>>,
        scope: &Scope,
        page: &mut dyn Sink,
    ) -> io::Result<()> {
        let level = scope.level;
        let input = Input::of(content.into(), level);
        let observation = input.observation;
        let foreign =
            observation.gpus.families.iter().map(|family| family.samples.len()).sum::<usize>();
        let mut durations = Family::new(&SCRAPE_COLLECTOR_DURATION);
        let mut series = Family::new(&SCRAPE_SERIES);
        let mut successes = Family::new(&SCRAPE_COLLECTOR_SUCCESS);
        for collector in self.0.iter().filter(|own| scope.selection.includes(own.name())) {
            let name = collector.name();
            let (took, own, outcome) = run(collector.as_ref(), &input, page)?;
            let count = if name == FOREIGN { own + foreign } else { own };
            if count > 0 {
                series.push([name.into()], Value::Integer(count as u64));
            }
            durations.push([name.into()], Value::Float(took.as_secs_f64()));
            successes.push([name.into()], Value::Integer(outcome.is_ok().into()));
            if let Err(error) = outcome {
                tracing::warn!(collector = name, %error, "a collector failed; its metrics are missing from this scrape");
            }
        }
        for family in [durations, series, successes] {
            if family.metric.level <= level {
                page.own(family)?;
            }
        }
        if scope.selection.includes(FOREIGN) {
            page.foreign(&observation.gpus.families)?;
        }
        Ok(())
    }
}

/// Writes the families of one collector; returns the time to produce them, their series, and whether all were produced.
fn run(
    collector: &dyn Collector,
    input: &Input<'_>,
    page: &mut dyn Sink,
) -> io::Result<(Duration, usize, Result<(), CollectError>)> {
    let (mut took, mut series) = (Duration::ZERO, 0);
    let start = Instant::now();
    let families = catch_unwind(AssertUnwindSafe(|| collector.collect(input)));
    took += start.elapsed();
    let mut families = match families.unwrap_or(Err(CollectError::Panicked)) {
        Ok(families) => families,
        Err(error) => return Ok((took, 0, Err(error))),
    };
    loop {
        let start = Instant::now();
        let next = catch_unwind(AssertUnwindSafe(|| families.next()));
        took += start.elapsed();
        match next {
            Ok(Some(family)) if family.metric.level > input.level => {}
            Ok(Some(family)) => {
                series += page.series(&family);
                page.own(family)?;
            }
            Ok(None) => return Ok((took, series, Ok(()))),
            Err(_) => return Ok((took, series, Err(CollectError::Panicked))),
        }
    }
}

#[cfg(test)]
mod tests;
