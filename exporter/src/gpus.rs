//! What is known of the GPUs themselves, of whichever source there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::clock_watch::{ClockWatch, holds_clock_down};
use crate::dcgm::{self, Upstream};
use crate::foreign::Family;

/// The sources.
#[derive(Debug, Default)]
pub struct Gpus {
    upstream: Option<Arc<Upstream>>,
    clocks: Mutex<ClockWatch>,
}

/// What a page tells of GPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// How the upstream page does, where there is to be one.
    pub dcgm: Option<dcgm::State>,
    /// Metrics under DCGM's names.
    pub families: Vec<Arc<Family>>,
}

impl Gpus {
    /// With these sources.
    #[must_use]
    pub fn new(upstream: Option<Arc<Upstream>>) -> Self {
        Self { upstream, clocks: Mutex::default() }
    }

    /// The upstream page, where there is to be one.
    #[must_use]
    pub const fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.as_ref()
    }

    /// What is known now. Waits for no driver and no peer.
    #[must_use]
    pub fn view(&self) -> View {
        let Some(upstream) = &self.upstream else { return View::default() };
        let (families, state) = upstream.view(Instant::now());
        View { dcgm: Some(state), families }
    }

    /// The share of the time since the last call in which each GPU ran below its clock; of none where nobody knows.
    pub fn throttled(&self) -> HashMap<String, f64> {
        let now = Instant::now();
        let Some(upstream) = &self.upstream else { return HashMap::new() };
        let (families, _) = upstream.view(now);
        let mut reasons = dcgm::clock_reasons(&families).peekable();
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.peek().is_none() {
            clocks.note(now, std::iter::empty());
        } else {
            clocks.note(now, reasons.map(|(gpu, bits)| (gpu, bits.is_some_and(holds_clock_down))));
        }
        clocks.shares(now)
    }
}
