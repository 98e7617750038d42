//! How long ranks on other hosts wait, by a Prometheus that scrapes them: asked in the background while a job has ranks here and
//! elsewhere. It is not trusted, and nothing waits for it.

mod answer;
mod args;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod job;
mod settings;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::Snapshot;
use gpucause_engine::peers::{PeerJob, Peers};
use gpucause_investigations::prometheus::Prometheus;
use gpucause_observe::process_details::Details;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::MissedTickBehavior;

use job::Job;

pub use args::PeersArgs;
pub(crate) use job::RULES;
pub use settings::{PeersError, PeersSettings, PeersUrl};

/// Between two requests.
pub const ASK_EVERY: Duration = Duration::from_secs(15);
/// An older answer is not used.
const STALE_AFTER: Duration = Duration::from_secs(45);
/// Time for a request, with connecting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes: some thousand ranks, where two for each job and those of this host are asked for.
const MAX_ANSWER: usize = 512 << 10;
/// Answers in a row that leave a job out until it is logged: four minutes. Through scrapes and rules, the ranks of a job that begins take
/// about two to become known.
const UNKNOWN_LOGGED: u32 = 16;

/// The outcomes of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PeersState {
    /// Answers that could be used.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Age of the answer in use; `None` while there is none.
    pub age: Option<Duration>,
}

#[derive(Debug)]
struct State {
    /// Time for a request.
    timeout: Duration,
    settings: PeersSettings,
    /// The jobs of this host with ranks on others.
    jobs: Vec<Job>,
    answer: Option<(Peers, Instant)>,
    answered: u64,
    failed: u64,
    /// True if requests fail, as it was last logged.
    is_failing: Option<bool>,
    /// Names of jobs with their number of ranks, and how many answers in a row left them out. Not counted on once it is logged.
    left_out: HashMap<(String, u32), u32>,
}

impl Default for State {
    fn default() -> Self {
        let (settings, jobs, answer, answered, failed) = Default::default();
        let (is_failing, left_out) = Default::default();
        Self { timeout: TIMEOUT, settings, jobs, answer, answered, failed, is_failing, left_out }
    }
}

/// The ranks on other hosts, as last heard.
#[derive(Debug, Default)]
pub struct PeerRanks {
    state: Mutex<State>,
}

impl PeerRanks {
    /// Applies other settings from now on. What another Prometheus said is forgotten.
    pub fn configure(&self, settings: &PeersSettings) {
        let mut state = self.state();
        if state.settings != *settings {
            settings.clone_into(&mut state.settings);
            (state.answer, state.is_failing) = (None, None);
            state.left_out.clear();
            drop(state);
            if let Some(warning) = settings.warning() {
                tracing::warn!("{warning}");
            }
        }
    }

    /// Takes the jobs to ask for from a snapshot. Without an address, there are none.
    pub(crate) fn update(&self, snapshot: &Snapshot, details: &Details) {
        let mut state = self.state();
        state.jobs = match state.settings.url {
            Some(_) => job::across_hosts(&snapshot.processes, details),
            None => Vec::new(),
        };
    }

    /// Returns the ranks that are known at `now`, unless the answer is too old.
    pub(crate) fn known(&self, now: Instant) -> Peers {
        let (age, answer) = {
            let state = self.state();
            (state.age(now), state.answer.clone())
        };
        let known = answer
            .zip(age)
            .map(|((peers, _), age)| Peers { age_seconds: age.as_secs_f64(), ..peers });
        known.unwrap_or_default()
    }

    /// Returns the outcomes of the requests; `None` without an address.
    #[must_use]
    pub fn counts(&self, now: Instant) -> Option<PeersState> {
        let state = self.state();
        let State { answered, failed, .. } = *state;
        state.settings.url.as_ref()?;
        Some(PeersState { answered, failed, age: state.age(now) })
    }

    /// Asks every 15 s, until aborted.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.ask().await;
        }
    }

    /// Asks once, if a job has ranks on other hosts.
    async fn ask(&self) {
        let (settings, jobs, timeout) = {
            let state = self.state();
            (state.settings.clone(), state.jobs.clone(), state.timeout)
        };
        if settings.url.is_none() || jobs.is_empty() {
            self.state().left_out.clear();
            return;
        }
        // Before the request: an answer is not younger than its question.
        let asked = Instant::now();
        let answer = request(&settings, &jobs, timeout).await;
        let mut state = self.state();
        if state.settings == settings {
            state.record(&jobs, answer, asked);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn age(&self, now: Instant) -> Option<Duration> {
        let (_, at) = self.answer.as_ref()?;
        Some(now.saturating_duration_since(*at)).filter(|age| *age <= STALE_AFTER)
    }

    /// Records the answer about each job.
    fn record(
        &mut self,
        jobs: &[Job],
        answer: Result<Vec<Option<PeerJob>>, String>,
        asked: Instant,
    ) {
        let found = match answer {
            Ok(found) => found,
            Err(error) => {
                self.failed += 1;
                if self.is_failing.replace(true) != Some(true) {
                    tracing::warn!(error, "cannot compare ranks on other hosts (--peers.url)");
                }
                return;
            }
        };
        self.answered += 1;
        self.log_left_out(jobs, &found);
        let jobs: Vec<_> = found.into_iter().flatten().collect();
        if !jobs.is_empty() {
            if self.is_failing.replace(false) != Some(false) {
                tracing::info!("ranks on other hosts are compared by Prometheus");
            }
            self.answer = Some((Peers { age_seconds: 0.0, jobs }, asked));
            return;
        }
        self.answer = None;
    }

    /// Logs once of each job that its ranks on other hosts stay unknown.
    fn log_left_out(&mut self, jobs: &[Job], found: &[Option<PeerJob>]) {
        let previous = std::mem::take(&mut self.left_out);
        for (job, found) in jobs.iter().zip(found) {
            let name = (job.name(), job.world_size);
            let count = match (previous.get(&name).copied().unwrap_or(0), found) {
                (UNKNOWN_LOGGED, _) => UNKNOWN_LOGGED,
                (_, Some(_)) => 0,
                (count, None) => count + 1,
            };
            if count == UNKNOWN_LOGGED && previous.get(&name) != Some(&count) {
                tracing::warn!(
                    "the Prometheus of peers.url does not know all ranks of job {}: it lacks rules/, does not scrape all nodes of the \
                     job, or a rank makes no NCCL calls - see `gpucause check`",
                    name.0
                );
            }
            self.left_out.insert(name, count);
        }
    }
}

/// Asks for these jobs. Reads the files of the settings: a password may have changed.
async fn request(
    settings: &PeersSettings,
    jobs: &[Job],
    timeout: Duration,
) -> Result<Vec<Option<PeerJob>>, String> {
    let settings = settings.clone();
    let client = tokio::task::spawn_blocking(move || settings.client());
    let client = client.await.map_err(|error| error.to_string())?;
    let client = client.map_err(|error| error.to_string())?.ok_or("there is no address")?;
    let asked = job::query(jobs);
    let samples =
        Prometheus::new(client).with_timeout(timeout).query_within(&asked, MAX_ANSWER).await;
    let samples = samples.map_err(|error| error.to_string())?;
    answer::jobs(jobs, &samples)
}

#[cfg(test)]
mod tests;
