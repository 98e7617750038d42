//! A dcgm-exporter's page beside our own metrics. It is fetched in the background: no scrape waits for it, and whatever is
//! wrong with it costs its own metrics only.

mod fetch;
mod page;
mod url;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpucause_investigations::http::{Client, TrustError};
use tokio::time::MissedTickBehavior;

use crate::foreign::{Family, PREFIX, Sample};
use fetch::{FetchError, REASONS};
pub use page::{PageError, parse};
pub use url::{PageUrl, UrlError};

/// So many intervals after it was fetched, a page is too old to be told.
const STALE_AFTER: u32 = 3;
/// Reasons for a GPU's clock, as bits; the first name is what recent versions of DCGM call it.
const REASON_FIELDS: [&str; 2] = ["FI_DEV_CLOCKS_EVENT_REASONS", "FI_DEV_CLOCK_THROTTLE_REASONS"];

/// What a page tells of the upstream page.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Whether the last attempt brought a page.
    pub up: bool,
    /// Age of the page that is told; `None` while there is none.
    pub age: Option<Duration>,
    /// Attempts that brought none, by reason.
    pub failures: Vec<(&'static str, u64)>,
}

/// The upstream page as last fetched.
#[derive(Debug)]
pub struct Upstream {
    client: Client,
    interval: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    page: Option<(Vec<Arc<Family>>, Instant)>,
    health: Health,
    failures: [u64; REASONS.len()],
}

/// What the log was last told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Untried,
    Good,
    /// Failing for a reason, the last page being still told or not.
    Failing {
        reason: usize,
        stale: bool,
    },
}

impl Upstream {
    /// Of this address, to be fetched so often. Over TLS it is believed to whom the authorities of `ca_file`, or else those
    /// that this host trusts, have given a certificate; they are read once.
    ///
    /// # Errors
    /// When the authorities cannot be read.
    pub fn new(
        url: PageUrl,
        ca_file: Option<&Path>,
        interval: Duration,
    ) -> Result<Self, TrustError> {
        Ok(Self { client: Client::new(url.into(), ca_file)?, interval, kept: Mutex::default() })
    }

    /// Fetches the page for ever.
    pub async fn follow(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let fetched = fetch::families(&self.client).await;
            self.take(fetched, Instant::now());
        }
    }

    /// DCGM's metrics, and how it stands with them.
    #[must_use]
    pub fn view(&self, now: Instant) -> (Vec<Arc<Family>>, State) {
        let kept = self.kept();
        let page = kept.page.as_ref().filter(|(_, at)| !self.is_stale(*at, now));
        let families = page.map(|(families, _)| families.clone()).unwrap_or_default();
        let state = State {
            up: kept.health == Health::Good,
            age: page.map(|(_, at)| now.saturating_duration_since(*at)),
            failures: REASONS.iter().copied().zip(kept.failures).collect(),
        };
        drop(kept);
        (families, state)
    }

    fn is_stale(&self, at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(at) > self.interval * STALE_AFTER
    }

    fn take(&self, fetched: Result<Vec<Family>, FetchError>, now: Instant) {
        let mut kept = self.kept();
        let before = kept.health;
        let url = self.client.address();
        match fetched {
            Ok(families) => {
                kept.page = Some((families.into_iter().map(Arc::new).collect(), now));
                kept.health = Health::Good;
                drop(kept);
                if before != Health::Good {
                    tracing::info!(%url, "dcgm-exporter's metrics are on the page");
                }
            }
            Err(error) => {
                let reason = error.reason();
                if let Some(count) = kept.failures.get_mut(reason) {
                    *count += 1;
                }
                if kept.page.as_ref().is_some_and(|(_, at)| self.is_stale(*at, now)) {
                    kept.page = None;
                }
                let stale = kept.page.is_none();
                let health = Health::Failing { reason, stale };
                kept.health = health;
                drop(kept);
                if before == health {
                    return;
                }
                if stale {
                    tracing::warn!(%url, %error, "dcgm-exporter's metrics are missing from the page");
                } else {
                    tracing::warn!(%url, %error, "dcgm-exporter's page was not fetched; the last one is still told");
                }
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reasons for which each GPU's clock is what it is, by UUID, as far as a page tells; without them `None`.
pub fn clock_reasons(families: &[Arc<Family>]) -> impl Iterator<Item = (&str, Option<u64>)> {
    let gpus = families.iter().flat_map(|family| &family.samples).filter_map(uuid);
    let reasons = families.iter().filter(|family| {
        family.name.strip_prefix(PREFIX).is_some_and(|field| REASON_FIELDS.contains(&field))
    });
    let told = reasons.flat_map(|family| &family.samples).filter_map(|sample| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float is cut to the range of an integer"
        )]
        let bits = sample.value as u64;
        Some((uuid(sample)?, Some(bits)))
    });
    gpus.map(|uuid| (uuid, None)).chain(told)
}

fn uuid(sample: &Sample) -> Option<&str> {
    let label = sample.labels.iter().find(|(key, _)| matches!(&**key, "UUID" | "uuid"));
    label.map(|(_, uuid)| &**uuid).filter(|uuid| !uuid.is_empty())
}

#[cfg(test)]
mod tests;
