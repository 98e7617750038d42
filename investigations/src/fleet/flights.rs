//! Flight records of several nodes, written at the same time and fetched.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{ChainsAndClock, ClockOffset, Limits, NodeAnswer, NodeFailure, all, ask};
use crate::http::{Address, Client};
use crate::merge::{Input, Measured};
use crate::node::{AskError, Flight, download, record_flight, within};
use crate::recording::{self, NodeIndex};
use crate::unfinished_file::UnfinishedFile;

/// Nodes that are asked at a time: their records are to be of the same time.
const PARALLEL: usize = 128;
/// Time for a node to write its record: what its server takes at most, and a little more.
const WRITING: Duration = Duration::from_secs(35);
/// Time to fetch one record.
const FETCHING: Duration = Duration::from_secs(120);
/// Between tries to fetch a record while the node sends another one.
const RETRY: Duration = Duration::from_millis(500);

/// A node's record in a file beside the output, which is removed when this is dropped.
#[derive(Debug)]
pub struct FetchedFlight {
    /// The node's address.
    pub url: Address,
    /// Its clock skew, where it could be measured.
    pub clock: Option<ClockOffset>,
    file: UnfinishedFile,
}

/// The records, in the order of the nodes, and the nodes without one.
#[derive(Debug, Default)]
pub struct FetchedFlights {
    /// Records.
    pub flights: Vec<FetchedFlight>,
    /// Nodes that have none.
    pub failures: Vec<NodeFailure>,
}

/// Has all nodes write a flight record at once and fetches these into files beside `output`.
pub async fn flights(nodes: &[Client], limits: Limits, output: &Path) -> FetchedFlights {
    let mut written: Vec<(Address, Flight)> = Vec::new();
    let at_once = Limits { parallel: PARALLEL, ..limits };
    let take = |answer: &NodeAnswer, flight| written.push((answer.url.clone(), flight));
    let answer = all(nodes, at_once, |node| with_flight(node, limits), take).await;
    let permits = Arc::new(Semaphore::new(limits.parallel.max(1)));
    let mut tasks = JoinSet::new();
    for (index, own) in answer.answers.into_iter().enumerate() {
        let node = nodes.iter().find(|node| *node.address() == own.url).cloned();
        let flight = written.iter().position(|(url, _)| *url == own.url);
        let (Some(node), Some(flight)) = (node, flight) else { continue };
        let (flight, permits) = (written.swap_remove(flight).1, Arc::clone(&permits));
        let path = beside(output, index);
        tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            (index, own, fetch(&node, &flight, &path).await)
        });
    }
    let mut fetched = Vec::new();
    let mut failures = answer.failures;
    while let Some(done) = tasks.join_next().await {
        // As in `all`.
        let (index, own, file) =
            done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let NodeAnswer { url, clock, .. } = own;
        match file {
            Ok(file) => fetched.push((index, FetchedFlight { url, clock, file })),
            Err(error) => failures.push(NodeFailure { url, error }),
        }
    }
    fetched.sort_by_key(|(index, _)| *index);
    FetchedFlights { flights: fetched.into_iter().map(|(_, flight)| flight).collect(), failures }
}

fn beside(output: &Path, index: usize) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{index}"));
    output.with_file_name(name)
}

async fn with_flight(node: Client, limits: Limits) -> Result<(ChainsAndClock, Flight), AskError> {
    let answer = ask(&node, limits).await?;
    Ok((answer, within(WRITING, &node, record_flight(&node)).await?))
}

/// Fetches a record, once the node has sent those that others fetch.
async fn fetch(node: &Client, flight: &Flight, path: &Path) -> Result<UnfinishedFile, AskError> {
    let not_stored = |error: io::Error| AskError::NotStored(node.address().clone(), error);
    let file = UnfinishedFile::create(path, false).map_err(not_stored)?;
    let begin = Instant::now();
    loop {
        let mut out = std::fs::File::create(file.hidden()).map_err(not_stored)?;
        let left = FETCHING.saturating_sub(begin.elapsed());
        match within(left, node, download(node, flight, &mut out)).await {
            Err(AskError::Refused(_, 503, _)) if begin.elapsed() + RETRY < FETCHING => {
                sleep(RETRY).await;
            }
            done => return done.map(|()| file),
        }
    }
}

impl FetchedFlights {
    /// The records as inputs of a merge: clocks are relative to the first, and a name that occurs again gets the address appended, so
    /// that no node is taken for another one. Records that cannot be read become failures.
    pub fn open(&mut self) -> Vec<Input> {
        let mut inputs: Vec<Input> = Vec::new();
        let mut reference = None;
        let flights = std::mem::take(&mut self.flights);
        for flight in flights {
            let recording = match recording::open(flight.file.hidden()) {
                Ok(recording) if recording.nodes().len() == 1 => recording,
                other => {
                    let why = other.map_or_else(
                        |error| error.to_string(),
                        |recording| format!("it has {} nodes", recording.nodes().len()),
                    );
                    self.fail(flight, why);
                    continue;
                }
            };
            let mut name = recording.node_name(NodeIndex(0)).to_owned();
            let is_known = |own: &Input| own.measured.as_ref().is_some_and(|of| of.name == name);
            if inputs.iter().any(is_known) {
                name = format!("{name} ({})", flight.url);
            }
            let reference = *reference.get_or_insert(flight.clock);
            let ahead_ns = flight.clock.zip(reference);
            let ahead_ns = ahead_ns.map(|(own, first)| own.ahead_of_ns(&first));
            let path = flight.file.hidden().to_owned();
            inputs.push(Input { path, recording, measured: Some(Measured { name, ahead_ns }) });
            self.flights.push(flight);
        }
        inputs
    }

    /// Moves the record at this path to the failures, if there is one.
    pub fn reject(&mut self, path: &Path, why: &str) -> bool {
        let Some(index) = self.flights.iter().position(|own| own.file.hidden() == path) else {
            return false;
        };
        let flight = self.flights.remove(index);
        self.fail(flight, why.to_owned());
        true
    }

    fn fail(&mut self, flight: FetchedFlight, why: String) {
        let error = AskError::BadFlight(flight.url.clone(), why);
        self.failures.push(NodeFailure { url: flight.url, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::{MergeError, merge};

    const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cases/cpu-contention.db");

    fn fetched(output: &Path, port: u16, ahead_seconds: f64) -> FetchedFlight {
        let url = Address::parse(&format!("http://gpu:{port}"), [80, 443]).unwrap();
        let file = UnfinishedFile::create(&beside(output, port.into()), false).unwrap();
        std::fs::copy(CASE, file.hidden()).unwrap();
        let clock = Some(ClockOffset { ahead_seconds, uncertainty_seconds: 0.1 });
        FetchedFlight { url, clock, file }
    }

    #[test]
    fn a_damaged_record_is_left_out_and_clocks_are_relative_to_the_first_node() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("job.db");
        let [one, bad, two] =
            [(1, -1.5), (2, 0.0), (3, 2.0)].map(|(port, ahead)| fetched(&output, port, ahead));
        let database = rusqlite::Connection::open(bad.file.hidden()).unwrap();
        database.execute("UPDATE looks SET accounts = x'00'", []).unwrap();
        drop(database);
        let mut all = FetchedFlights { flights: vec![one, bad, two], failures: Vec::new() };
        let merged = merge(&all.open(), &output, false, &mut |_| {});
        let Err(MergeError::Read(error)) = merged else { panic!("{merged:?}") };
        assert!(all.reject(error.path(), &error.to_string()), "{error}");
        assert!(!all.reject(error.path(), "again"));
        merge(&all.open(), &output, false, &mut |_| {}).unwrap();
        let failed = all.failures[0].error.to_string();
        assert!(
            failed.starts_with("the flight record of http://gpu:2 cannot be read: "),
            "{failed}"
        );

        let merged = recording::open(&output).unwrap();
        let [first, second] = merged.nodes() else { panic!("{:?}", merged.nodes()) };
        assert_eq!((first.clock_ahead_ns, second.clock_ahead_ns), (Some(0), Some(3_500_000_000)));
        assert_eq!(second.name, format!("{} (http://gpu:3)", first.name));
        drop(all);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "records are removed");
    }
}
