//! Several nodes asked at once: which answered, which did not and why, and how far their clocks are from this host's.

mod live;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::http::{Address, Client, Conversation};
use crate::node::{AskError, Chains, chains_over, connect, metrics, now_over, within};

pub use live::LiveChains;

/// What asking may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Nodes that are asked at a time.
    pub parallel: usize,
    /// Time for one node, from the first attempt to connect on.
    pub deadline: Duration,
    /// Times that a node's clock is read. The median is taken.
    pub samples: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { parallel: 16, deadline: Duration::from_secs(10), samples: 5 }
    }
}

/// Clocks that differ by more are worth a warning, when it is certain that they do.
const NOTEWORTHY: f64 = 0.1;
/// Time that further readings of a clock may take.
const READING: Duration = Duration::from_secs(2);

/// How far a node's clock is ahead of this host's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockOffset {
    /// By so many seconds; negative when it is behind.
    pub ahead_seconds: f64,
    /// The truth is no further from that: half the round trip of the reading.
    pub uncertainty_seconds: f64,
}

impl ClockOffset {
    /// By one reading: what the node's clock said at some time between two moments of this host's, all in seconds since the
    /// Unix epoch.
    #[must_use]
    pub fn of_reading(sent: f64, node: f64, received: f64) -> Self {
        let middle = f64::midpoint(sent, received);
        Self { ahead_seconds: node - middle, uncertainty_seconds: (received - sent).max(0.0) / 2.0 }
    }

    /// The median reading; of an even number the lower middle one, so that it is one that was made.
    #[must_use]
    pub fn median(mut readings: Vec<Self>) -> Option<Self> {
        readings.sort_by(|a, b| a.ahead_seconds.total_cmp(&b.ahead_seconds));
        readings.get(readings.len().checked_sub(1)? / 2).copied()
    }

    /// Whether the clocks certainly differ, and by more than a tenth of a second.
    #[must_use]
    pub fn is_noteworthy(&self) -> bool {
        let ahead = self.ahead_seconds.abs();
        ahead > NOTEWORTHY && ahead > self.uncertainty_seconds
    }
}

/// A node that answered.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeAnswer {
    /// Its address.
    pub url: Address,
    /// Its chains.
    pub chains: Chains,
    /// Its clock, when it tells the time.
    pub clock: Option<ClockOffset>,
}

/// A node that did not.
#[derive(Debug)]
pub struct NodeFailure {
    /// Its address.
    pub url: Address,
    /// Why not.
    pub error: AskError,
}

/// What became of a question to several nodes. Both lists are in the order in which the nodes were named.
#[derive(Debug, Default)]
pub struct FleetAnswer {
    /// Those that answered.
    pub answers: Vec<NodeAnswer>,
    /// Those that did not.
    pub failures: Vec<NodeFailure>,
}

impl FleetAnswer {
    /// A line for each clock that is worth a warning.
    #[must_use]
    pub fn clock_warnings(&self) -> Vec<String> {
        let warning = |answer: &NodeAnswer| {
            let clock = answer.clock.filter(ClockOffset::is_noteworthy)?;
            let way = if clock.ahead_seconds > 0.0 { "ahead of" } else { "behind" };
            Some(format!(
                "the clock of {} is {:.3} s {way} this host's (+- {:.3} s)",
                answer.url,
                clock.ahead_seconds.abs(),
                clock.uncertainty_seconds
            ))
        };
        self.answers.iter().filter_map(warning).collect()
    }
}

/// Asks every node for its chains, several at a time, each with a deadline of its own. A node that fails takes no other with it.
pub async fn chains(nodes: &[Client], limits: Limits) -> FleetAnswer {
    all(nodes, limits, |node| alone(node, limits), |_, ()| {}).await
}

/// Asks every node for its page of metrics too, and shows each to `take` as it comes, so that never more of them are kept than
/// nodes are asked at a time.
pub async fn pages(
    nodes: &[Client],
    limits: Limits,
    take: &mut (dyn FnMut(&NodeAnswer, &str) + Send),
) -> FleetAnswer {
    let shown = |answer: &NodeAnswer, page: String| take(answer, &page);
    all(nodes, limits, |node| with_page(node, limits), shown).await
}

/// Chains, and the clock where the node tells the time.
type Told = (Chains, Option<ClockOffset>);

async fn alone(node: Client, limits: Limits) -> Result<(Told, ()), AskError> {
    Ok((ask(&node, limits).await?, ()))
}

async fn with_page(node: Client, limits: Limits) -> Result<(Told, String), AskError> {
    let begin = Instant::now();
    let told = ask(&node, limits).await?;
    let left = limits.deadline.saturating_sub(begin.elapsed());
    Ok((told, within(left, &node, metrics(&node)).await?))
}

/// Asks every node, and shows `take` what it told beside its chains.
async fn all<T, Asked>(
    nodes: &[Client],
    limits: Limits,
    ask: impl Fn(Client) -> Asked,
    mut take: impl FnMut(&NodeAnswer, T),
) -> FleetAnswer
where
    T: Send + 'static,
    Asked: Future<Output = Result<(Told, T), AskError>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.parallel.max(1)));
    let mut tasks = JoinSet::new();
    for (index, node) in nodes.iter().cloned().enumerate() {
        let places = Arc::clone(&places);
        let (url, asked) = (node.address().clone(), ask(node));
        tasks.spawn(async move {
            // Never closed, so it is always had.
            let _place = places.acquire_owned().await;
            (index, url, asked.await)
        });
    }
    let mut results = Vec::with_capacity(nodes.len());
    while let Some(done) = tasks.join_next().await {
        // A task ends by itself or by a panic, which is none of a node's.
        let (index, url, told) =
            done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let told = told.map(|((chains, clock), more)| {
            let answer = NodeAnswer { url: url.clone(), chains, clock };
            take(&answer, more);
            answer
        });
        results.push((index, told.map_err(|error| NodeFailure { url, error })));
    }
    results.sort_by_key(|(index, _)| *index);
    let mut all = FleetAnswer::default();
    for (_, result) in results {
        match result {
            Ok(answer) => all.answers.push(answer),
            Err(failure) => all.failures.push(failure),
        }
    }
    all
}

async fn ask(node: &Client, limits: Limits) -> Result<Told, AskError> {
    let begin = Instant::now();
    let url = node.address();
    let first = async {
        let mut conversation = connect(node).await?;
        let sent = here();
        let chains = chains_over(&mut conversation, url).await?;
        let reading = chains.now.map(|now| ClockOffset::of_reading(sent, now, here()));
        Ok((conversation, chains, reading))
    };
    let (mut conversation, chains, reading) = within(limits.deadline, node, first).await?;
    let Some(reading) = reading else { return Ok((chains, None)) };
    let mut readings = vec![reading];
    let left = limits.deadline.saturating_sub(begin.elapsed()).min(READING);
    // What was read until then is enough.
    let _ = timeout(left, read(&mut conversation, url, limits.samples, &mut readings)).await;
    Ok((chains, ClockOffset::median(readings)))
}

/// Reads the clock until there are so many readings, or it cannot be read.
async fn read(
    node: &mut Conversation<'_>,
    url: &Address,
    samples: usize,
    readings: &mut Vec<ClockOffset>,
) {
    while readings.len() < samples {
        let sent = here();
        let Some(now) = now_over(node, url).await else { return };
        readings.push(ClockOffset::of_reading(sent, now, here()));
    }
}

fn here() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(ahead_seconds: f64, uncertainty_seconds: f64) -> ClockOffset {
        ClockOffset { ahead_seconds, uncertainty_seconds }
    }

    #[test]
    fn a_reading_is_right_to_within_half_its_round_trip() {
        let offset = ClockOffset::of_reading(100.0, 105.3, 100.4);
        assert!((offset.ahead_seconds - 5.1).abs() < 1e-9);
        assert!((offset.uncertainty_seconds - 0.2).abs() < 1e-9);
    }

    #[test]
    fn the_median_reading_is_not_moved_by_one_that_was_held_up() {
        let readings = vec![clock(0.01, 0.01), clock(4.0, 4.1), clock(0.02, 0.01)];
        assert_eq!(ClockOffset::median(readings), Some(clock(0.02, 0.01)));
        assert_eq!(
            ClockOffset::median(vec![clock(2.0, 0.0), clock(1.0, 0.0)]),
            Some(clock(1.0, 0.0))
        );
        assert_eq!(ClockOffset::median(Vec::new()), None);
    }

    #[test]
    fn only_a_difference_that_is_certain_and_large_is_noteworthy() {
        assert!(clock(-5.0, 0.1).is_noteworthy());
        assert!(!clock(0.09, 0.001).is_noteworthy());
        assert!(!clock(3.0, 3.5).is_noteworthy());
    }
}
