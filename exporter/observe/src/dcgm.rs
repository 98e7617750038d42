//! Merges a dcgm-exporter's page. It is fetched in the background: no scrape waits for it, and an error affects DCGM's metrics
//! only.

mod fetch;
mod page;
mod url;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_http::client::{Client, TrustError};
use gpucause_page::foreign::{ForeignFamily, ForeignSample, PREFIX};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::MissedTickBehavior;

pub use fetch::FetchError;
use fetch::REASONS;
pub use page::{PageError, parse};
pub use url::{PageUrl, UrlError};

/// Fetch intervals after which a page is too old to be exported.
const STALE_AFTER: u32 = 3;
/// Fields with the throttle reasons of a GPU's clock; the first is the name in recent versions of DCGM.
const REASON_FIELDS: [&str; 2] = ["FI_DEV_CLOCKS_EVENT_REASONS", "FI_DEV_CLOCK_THROTTLE_REASONS"];

/// Fields with the utilization of a GPU: as a percentage, and as a ratio in recent versions of DCGM.
pub const UTILIZATION_FIELDS: [&str; 2] = ["FI_DEV_GPU_UTIL", "FI_DEV_GPU_UTIL_RATIO"];

/// State of the upstream page.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamState {
    /// True if the last fetch succeeded.
    pub up: bool,
    /// Age of the exported page; `None` while there is none.
    pub age: Option<Duration>,
    /// True if the page has the utilization of GPUs under a name that rules know.
    pub has_utilization: Option<bool>,
    /// Failed fetches, by reason.
    pub failures: Vec<(&'static str, u64)>,
}

/// The upstream page as last fetched.
#[derive(Debug)]
pub struct Upstream {
    client: Client,
    interval: Duration,
    cached: Mutex<Cached>,
}

#[derive(Debug, Default)]
struct Cached {
    page: Option<(Vec<Arc<ForeignFamily>>, Instant)>,
    health: Health,
    failures: [u64; REASONS.len()],
}

/// The health that was last logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Untried,
    Good,
    /// `stale` unless the last page is still exported.
    Failing {
        reason: usize,
        stale: bool,
    },
}

impl Upstream {
    /// The page at `url`, fetched every `interval`. TLS certificates are verified against the authorities of `ca_file`, or else
    /// those that this host trusts.
    ///
    /// # Errors
    /// When the authorities cannot be read.
    pub fn new(
        url: PageUrl,
        ca_file: Option<&Path>,
        interval: Duration,
    ) -> Result<Self, TrustError> {
        Ok(Self { client: Client::new(url.into(), ca_file)?, interval, cached: Mutex::default() })
    }

    /// Fetches the page once: the number of its metrics, and whether the utilization of GPUs is among them.
    ///
    /// # Errors
    /// When there is no page.
    pub async fn probe(&self) -> Result<(usize, bool), FetchError> {
        let families = fetch::families(&self.client).await?;
        Ok((families.len(), families.iter().any(is_utilization)))
    }

    /// Fetches the page until aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let fetched = fetch::families(&self.client).await;
            self.record(fetched, Instant::now());
        }
    }

    /// DCGM's metrics, and their state.
    #[must_use]
    pub fn view(&self, now: Instant) -> (Vec<Arc<ForeignFamily>>, UpstreamState) {
        let cached = self.cached();
        let page = cached.page.as_ref().filter(|(_, at)| !self.is_stale(*at, now));
        let families = page.map(|(families, _)| families.clone()).unwrap_or_default();
        let state = UpstreamState {
            up: cached.health == Health::Good,
            age: page.map(|(_, at)| now.saturating_duration_since(*at)),
            has_utilization: page.map(|_| families.iter().any(|family| is_utilization(family))),
            failures: REASONS.iter().copied().zip(cached.failures).collect(),
        };
        drop(cached);
        (families, state)
    }

    fn is_stale(&self, at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(at) > self.interval * STALE_AFTER
    }

    fn record(&self, fetched: Result<Vec<ForeignFamily>, FetchError>, now: Instant) {
        let mut cached = self.cached();
        let previous = cached.health;
        let url = self.client.address();
        match fetched {
            Ok(families) => {
                let has_utilization = families.iter().any(is_utilization);
                cached.page = Some((families.into_iter().map(Arc::new).collect(), now));
                cached.health = Health::Good;
                drop(cached);
                if previous != Health::Good {
                    tracing::info!(%url, "dcgm-exporter's metrics are on the page");
                    if !has_utilization {
                        tracing::warn!(%url, "they have no GPU utilization under a name that rules and dashboards know");
                    }
                }
            }
            Err(error) => {
                let reason = error.reason();
                if let Some(count) = cached.failures.get_mut(reason) {
                    *count += 1;
                }
                if cached.page.as_ref().is_some_and(|(_, at)| self.is_stale(*at, now)) {
                    cached.page = None;
                }
                let stale = cached.page.is_none();
                let health = Health::Failing { reason, stale };
                cached.health = health;
                drop(cached);
                if previous == health {
                    return;
                }
                if stale {
                    tracing::warn!(%url, %error, "dcgm-exporter's metrics are missing from the page");
                } else {
                    tracing::warn!(%url, %error, "fetching dcgm-exporter's page failed; the last page is still exported");
                }
            }
        }
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.cached.lock()
    }
}

fn is_utilization(family: &ForeignFamily) -> bool {
    let field = family.name.strip_prefix(PREFIX);
    field.is_some_and(|field| UTILIZATION_FIELDS.contains(&field)) && !family.samples.is_empty()
}

/// The throttle reasons of each GPU by UUID; `None` if the page has none.
pub fn clock_reasons(families: &[Arc<ForeignFamily>]) -> impl Iterator<Item = (&str, Option<u64>)> {
    let gpus = families.iter().flat_map(|family| &family.samples).filter_map(uuid);
    let reasons = families.iter().filter(|family| {
        family.name.strip_prefix(PREFIX).is_some_and(|field| REASON_FIELDS.contains(&field))
    });
    let known = reasons.flat_map(|family| &family.samples).filter_map(|sample| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate"
        )]
        let bits = sample.value as u64;
        Some((uuid(sample)?, Some(bits)))
    });
    gpus.map(|uuid| (uuid, None)).chain(known)
}

fn uuid(sample: &ForeignSample) -> Option<&str> {
    let label = sample.labels.iter().find(|(key, _)| matches!(&**key, "UUID" | "uuid"));
    label.map(|(_, uuid)| &**uuid).filter(|uuid| !uuid.is_empty())
}

#[cfg(test)]
mod tests;
