//! Where pages come from.

use crate::collector::Selection;
use crate::family::Sink;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use std::io;

/// What the server asks for families. Called from several threads.
pub trait Source: Send + Sync + 'static {
    /// The names of the collectors that a scrape can select. Must not block.
    fn collectors(&self) -> Vec<&'static str>;

    /// Hands over what the selected collectors have to export now. May block.
    ///
    /// # Errors
    /// When there is no page at all to give, or it goes nowhere: a part that is missing is told within the page.
    fn scrape(&self, selection: &Selection, page: &mut dyn Sink) -> Result<(), ScrapeError>;

    /// The causal chains that were found, the worst first. Must not block for long.
    fn chains(&self) -> Vec<Chain>;

    /// Whether processes are observed, and since when. Must not block.
    fn observation(&self) -> ObservationState;

    /// Whether scrapes are worth making. Must not block.
    fn ready(&self) -> Readiness;
}

/// Whether the daemon does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// There are no probes, because none are wanted.
    Disabled,
    /// It does not, for this reason.
    NotReady(String),
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the page: {0}")]
pub struct ScrapeError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl From<io::Error> for ScrapeError {
    fn from(error: io::Error) -> Self {
        Self(Box::new(error))
    }
}
