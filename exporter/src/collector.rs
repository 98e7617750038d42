//! Turns an observation into families: one collector a group of metrics, none of which can break another.

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
mod probes;
mod processes;
mod selection;
mod series;
mod waits;

use crate::family::{Exported, Family, Sink, Value};
use crate::metric::{SCRAPE_COLLECTOR_DURATION, SCRAPE_COLLECTOR_SUCCESS};
use crate::observation::Observation;
pub use selection::{Selection, SelectionError};
use series::Series;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The collector that metrics under names which are not ours belong to.
pub const FOREIGN: &str = "gpus";

/// What collectors read.
#[derive(Debug)]
pub struct Input<'a> {
    /// The observation.
    pub observation: &'a Observation,
    /// Its processes, as far as they are exported.
    pub series: Vec<Series<'a>>,
}

/// Why a collector has no families to give.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A source of it could not be read.
    #[error("cannot read {0}")]
    Unreadable(&'static str),
    /// It has a bug, which the log shows.
    #[error("the collector panicked")]
    Panicked,
}

/// Makes the families of one group of metrics.
pub trait Collector: Send + Sync {
    /// The `collector` label.
    fn name(&self) -> &'static str;

    /// The families.
    ///
    /// # Errors
    /// When there is nothing true to say; the other collectors are not concerned.
    fn collect(&self, input: &Input<'_>) -> Result<Vec<Family>, CollectError>;
}

/// The collectors that make up a page.
pub struct Collectors(Vec<Box<dyn Collector>>);

impl std::fmt::Debug for Collectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Default for Collectors {
    /// All there are.
    fn default() -> Self {
        Self(vec![
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
    /// These and no others.
    #[must_use]
    pub fn new(collectors: Vec<Box<dyn Collector>>) -> Self {
        Self(collectors)
    }

    /// The names of the collectors.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|collector| collector.name()).collect()
    }

    /// Every collector's families, then how each collector fared.
    #[must_use]
    pub fn gather(&self, observation: &Observation) -> Vec<Family> {
        let mut gathered = Exported::default();
        // What keeps them cannot fail.
        let _ = self.write(observation, &Selection::All, &mut gathered);
        gathered.own
    }

    /// The same of the selected collectors only, each family handed over before the next collector makes more.
    ///
    /// # Errors
    /// Those of `page`.
    pub fn write(
        &self,
        observation: &Observation,
        selection: &Selection,
        page: &mut dyn Sink,
    ) -> io::Result<()> {
        let input = Input { observation, series: series::group(observation) };
        let mut durations = Family::new(&SCRAPE_COLLECTOR_DURATION);
        let mut successes = Family::new(&SCRAPE_COLLECTOR_SUCCESS);
        for collector in self.0.iter().filter(|collector| selection.includes(collector.name())) {
            let name = collector.name();
            let begin = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| collector.collect(&input)))
                .unwrap_or(Err(CollectError::Panicked));
            durations.push([name.into()], Value::Float(begin.elapsed().as_secs_f64()));
            successes.push([name.into()], Value::Integer(result.is_ok().into()));
            match result {
                Ok(families) => families.into_iter().try_for_each(|family| page.own(family))?,
                Err(error) => {
                    tracing::warn!(collector = name, %error, "a collector failed; its metrics are missing from this scrape");
                }
            }
        }
        page.own(durations)?;
        page.own(successes)
    }
}

#[cfg(test)]
mod tests;
