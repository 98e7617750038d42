//! Queries several nodes at once: their answers, failures, and clock skew to this host.

mod flights;
mod gathered;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_http::client::{Address, Client, Conversation};
use gpucause_trace::trace::Trace;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::node::{AskError, Chains, chains_over, connect, now_over, snapshot, within};

pub use flights::{FetchedFlight, FetchedFlights, flights};
pub use gathered::{GatheredNodes, gather};

/// Limits of a query.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Nodes queried at a time.
    pub parallel: usize,
    /// Time for one node, with connecting.
    pub deadline: Duration,
    /// Readings of a node's clock; the one of the shortest round trip is used.
    pub samples: usize,
    /// Time for all nodes. Those that have not answered by then are failures.
    pub in_all: Duration,
    /// Bytes of chains of all nodes together. What exceeds them is a failure of the node that sent it.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            parallel: 16,
            deadline: Duration::from_secs(10),
            samples: 5,
            in_all: Duration::from_secs(300),
            bytes: 256 << 20,
        }
    }
}

/// Clock skew in seconds that gets a warning when it is certain.
const NOTEWORTHY: f64 = 0.1;
/// Time for further readings of a clock.
const READING: Duration = Duration::from_secs(2);

/// The lead of a node's clock over this host's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockOffset {
    /// Lead in seconds; negative when it is behind.
    pub ahead_seconds: f64,
    /// Largest error of the lead: half the round trip of the reading.
    pub uncertainty_seconds: f64,
}

impl ClockOffset {
    /// From one reading of the node's clock, between sending the request and receiving the answer by this host's clock. All in
    /// seconds since the Unix epoch.
    pub fn of_reading(sent: f64, node: f64, received: f64) -> Self {
        let middle = f64::midpoint(sent, received);
        Self { ahead_seconds: node - middle, uncertainty_seconds: (received - sent).max(0.0) / 2.0 }
    }

    /// The reading of the shortest round trip, whose error is the least.
    pub fn best(readings: &[Self]) -> Option<Self> {
        let by_error =
            |a: &&Self, b: &&Self| a.uncertainty_seconds.total_cmp(&b.uncertainty_seconds);
        readings.iter().min_by(by_error).copied()
    }

    /// Lead over another node's clock in nanoseconds.
    #[expect(clippy::cast_possible_truncation, reason = "a time beyond the range becomes its end")]
    pub(crate) fn ahead_of_ns(&self, other: &Self) -> i64 {
        ((self.ahead_seconds - other.ahead_seconds) * 1e9) as i64
    }

    /// Returns true if the clocks differ by more than the uncertainty, and by more than a tenth of a second.
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
    /// Its clock skew, where its version reports the time.
    pub clock: Option<ClockOffset>,
}

/// A node that did not answer.
#[derive(Debug)]
pub struct NodeFailure {
    /// Its address.
    pub url: Address,
    /// The error.
    pub error: AskError,
}

/// The result of a query to several nodes. Both lists are in the order of the nodes.
#[derive(Debug, Default)]
pub struct FleetAnswer {
    /// Nodes that answered.
    pub answers: Vec<NodeAnswer>,
    /// Nodes that did not.
    pub failures: Vec<NodeFailure>,
}

impl FleetAnswer {
    /// Makes names distinct, in the order of nodes, so that a node has one name in all answers.
    pub(crate) fn make_names_distinct(&mut self) {
        let mut taken = HashSet::new();
        for NodeAnswer { url, chains, .. } in &mut self.answers {
            let name = std::mem::take(&mut chains.node);
            chains.node = distinct(name, url, |name| taken.contains(name));
            taken.insert(chains.node.clone());
        }
    }

    /// A line for each noteworthy clock skew.
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

/// Fetches the chains of every node, several at a time, each with its own deadline. Failures do not affect other nodes.
pub async fn chains(nodes: &[Client], limits: Limits) -> FleetAnswer {
    all(nodes, limits, |node| chains_only(node, limits), |_, ()| Ok(())).await
}

/// Fetches a snapshot of every node too, and passes it to `take` on arrival. A node that `take` refuses is one that did not answer.
pub async fn snapshots(
    nodes: &[Client],
    limits: Limits,
    take: &mut (dyn FnMut(&NodeAnswer, Trace) -> Result<(), AskError> + Send),
) -> FleetAnswer {
    all(nodes, limits, |node| with_snapshot(node, limits), take).await
}

/// The name of a node; one that is taken gets the address appended, so that no node is counted as another, whatever both call themselves.
pub(crate) fn distinct(mut name: String, url: &Address, is_taken: impl Fn(&str) -> bool) -> String {
    while is_taken(&name) {
        name = format!("{name} ({url})");
    }
    name
}

/// Runs the request to each address, several at a time, and passes each result to `take` on arrival, with the request's index.
async fn each<T, Asked>(
    requests: impl Iterator<Item = (Address, Asked)>,
    limits: Limits,
    mut take: impl FnMut(usize, Address, Result<T, AskError>),
) where
    T: Send + 'static,
    Asked: Future<Output = Result<T, AskError>> + Send + 'static,
{
    let end = Instant::now() + limits.in_all;
    let permits = Arc::new(Semaphore::new(limits.parallel.max(1)));
    let mut tasks = JoinSet::new();
    for (index, (url, asked)) in requests.enumerate() {
        let permits = Arc::clone(&permits);
        tasks.spawn(async move {
            // The semaphore is never closed. A permit is held until the node has answered.
            let asked = async { (permits.acquire_owned().await, asked.await).1 };
            let late = |_| Err(AskError::NotInTime(url.clone(), limits.in_all));
            let result = timeout_at(end, asked).await.unwrap_or_else(late);
            (index, url, result)
        });
    }
    while let Some(done) = tasks.join_next().await {
        // Tasks are not cancelled, so an error is a panic, and a bug here.
        let (index, url, result) =
            done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        take(index, url, result);
    }
}

/// Chains, their size in bytes, and the clock.
type ChainsAndClock = (Chains, usize, Option<ClockOffset>);

async fn chains_only(node: Client, limits: Limits) -> Result<(ChainsAndClock, ()), AskError> {
    Ok((ask(&node, limits).await?, ()))
}

async fn with_snapshot(node: Client, limits: Limits) -> Result<(ChainsAndClock, Trace), AskError> {
    let begin = Instant::now();
    let answer = ask(&node, limits).await?;
    let left = limits.deadline.saturating_sub(begin.elapsed());
    Ok((answer, within(left, &node, snapshot(&node)).await?))
}

/// Queries every node, and passes to `take` what `ask` fetched besides chains.
async fn all<T, Asked>(
    nodes: &[Client],
    limits: Limits,
    ask: impl Fn(Client) -> Asked,
    mut take: impl FnMut(&NodeAnswer, T) -> Result<(), AskError>,
) -> FleetAnswer
where
    T: Send + 'static,
    Asked: Future<Output = Result<(ChainsAndClock, T), AskError>> + Send + 'static,
{
    let (mut results, mut left) = (Vec::with_capacity(nodes.len()), limits.bytes);
    let requests = nodes.iter().map(|node| (node.address().clone(), ask(node.clone())));
    each(requests, limits, |index, url, result| {
        let result = result.and_then(|((chains, bytes, clock), more)| {
            let answer = NodeAnswer { url: url.clone(), chains, clock };
            left = left.checked_sub(bytes).ok_or_else(|| {
                let why = format!("all answers together exceed {} MiB", limits.bytes >> 20);
                AskError::OutOfMemory(url.clone(), why)
            })?;
            take(&answer, more)?;
            Ok(answer)
        });
        results.push((index, result.map_err(|error| NodeFailure { url, error })));
    })
    .await;
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

async fn ask(node: &Client, limits: Limits) -> Result<ChainsAndClock, AskError> {
    let begin = Instant::now();
    let url = node.address();
    let first = async {
        let mut conversation = connect(node).await?;
        let sent = here();
        let (chains, bytes) = chains_over(&mut conversation, url).await?;
        let reading = chains.now.map(|now| ClockOffset::of_reading(sent, now, here()));
        Ok((conversation, chains, bytes, reading))
    };
    let (mut conversation, chains, bytes, reading) = within(limits.deadline, node, first).await?;
    let Some(reading) = reading else { return Ok((chains, bytes, None)) };
    let mut readings = vec![reading];
    let left = limits.deadline.saturating_sub(begin.elapsed()).min(READING);
    // After the timeout, the readings so far are enough.
    let _ = timeout(left, read(&mut conversation, url, limits.samples, &mut readings)).await;
    Ok((chains, bytes, ClockOffset::best(&readings)))
}

/// Reads the clock until there are `samples` readings, or one fails.
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
    fn readings_that_were_held_up_do_not_move_the_best_one() {
        let readings = [clock(0.5, 0.6), clock(4.0, 4.1), clock(0.02, 0.01)];
        assert_eq!(ClockOffset::best(&readings), Some(clock(0.02, 0.01)));
        assert_eq!(ClockOffset::best(&[]), None);
    }

    #[test]
    fn only_a_difference_that_is_certain_and_large_is_noteworthy() {
        assert!(clock(-5.0, 0.1).is_noteworthy());
        assert!(!clock(0.09, 0.001).is_noteworthy());
        assert!(!clock(3.0, 3.5).is_noteworthy());
    }
}
