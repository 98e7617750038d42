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
use std::time::{Duration, Instant};

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
    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError>;
}

/// Families, each of which need not be made before it is asked for.
pub type Families<'a> = Box<dyn Iterator<Item = Family> + 'a>;

/// Families that are made already, since what they tell is found in one go.
fn made<'a>(families: impl IntoIterator<Item = Family, IntoIter: 'a>) -> Families<'a> {
    Box::new(families.into_iter())
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
            let (took, outcome) = collected(collector.as_ref(), &input, page)?;
            durations.push([name.into()], Value::Float(took.as_secs_f64()));
            successes.push([name.into()], Value::Integer(outcome.is_ok().into()));
            if let Err(error) = outcome {
                tracing::warn!(collector = name, %error, "a collector failed; metrics of it are missing from this scrape");
            }
        }
        page.own(durations)?;
        page.own(successes)
    }
}

/// Hands over the families of one collector; how long they took to be made, and whether they all were.
fn collected(
    collector: &dyn Collector,
    input: &Input<'_>,
    page: &mut dyn Sink,
) -> io::Result<(Duration, Result<(), CollectError>)> {
    let mut took = Duration::ZERO;
    let begin = Instant::now();
    let families = catch_unwind(AssertUnwindSafe(|| collector.collect(input)));
    took += begin.elapsed();
    let mut families = match families.unwrap_or(Err(CollectError::Panicked)) {
        Ok(families) => families,
        Err(error) => return Ok((took, Err(error))),
    };
    loop {
        let begin = Instant::now();
        let next = catch_unwind(AssertUnwindSafe(|| families.next()));
        took += begin.elapsed();
        match next {
            Ok(Some(family)) => page.own(family)?,
            Ok(None) => return Ok((took, Ok(()))),
            Err(_) => return Ok((took, Err(CollectError::Panicked))),
        }
    }
}

#[cfg(test)]
mod tests;
