//! Flight records of several nodes, written at the same time and fetched.

use std::io;
use std::path::Path;
use std::time::Duration;

use gpucause_http::client::{Address, Client};
use tokio::time::{Instant, sleep};

use super::{
    ChainsAndClock, ClockOffset, FleetAnswer, Limits, NodeAnswer, NodeFailure, all, ask, distinct,
    each,
};
use crate::any_format;
use crate::node::{AskError, Flight, download, record_flight, within};
use gpucause_trace::merge::{self, Input, Measured};
use gpucause_trace::recording::NodeIndex;
use gpucause_trace::unfinished_file::UnfinishedFile;

/// Nodes that are asked at a time: their records are to be of the same time.
const PARALLEL: usize = 128;
/// Time for a node to write its record: what its server takes at most, and a little more.
const WRITING: Duration = Duration::from_secs(35);
/// Time to fetch one record; `in_all` of the limits is that for all.
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
    let take = |answer: &NodeAnswer, flight| {
        written.push((answer.url.clone(), flight));
        Ok(())
    };
    let FleetAnswer { answers, mut failures } =
        all(nodes, at_once, |node| with_flight(node, limits), take).await;
    let requests = answers.into_iter().filter_map(|NodeAnswer { url, clock, .. }| {
        let node = nodes.iter().find(|node| *node.address() == url)?.clone();
        let flight = written.iter().position(|(own, _)| *own == url)?;
        let (flight, output) = (written.swap_remove(flight).1, output.to_owned());
        Some((url, async move { Ok((clock, fetch(&node, &flight, &output).await?)) }))
    });
    let mut fetched = Vec::new();
    each(requests, limits, |index, url, result| match result {
        Ok((clock, file)) => fetched.push((index, FetchedFlight { url, clock, file })),
        Err(error) => failures.push(NodeFailure { url, error }),
    })
    .await;
    fetched.sort_by_key(|(index, _)| *index);
    FetchedFlights { flights: fetched.into_iter().map(|(_, flight)| flight).collect(), failures }
}

async fn with_flight(node: Client, limits: Limits) -> Result<(ChainsAndClock, Flight), AskError> {
    let answer = ask(&node, limits).await?;
    Ok((answer, within(WRITING, &node, record_flight(&node)).await?))
}

/// Fetches a record, once the node has sent those that others fetch.
async fn fetch(node: &Client, flight: &Flight, output: &Path) -> Result<UnfinishedFile, AskError> {
    let not_stored = |error: io::Error| AskError::NotStored(node.address().clone(), error);
    // Only its hidden file is used, and no two have the same.
    let file = UnfinishedFile::create(output, true).map_err(not_stored)?;
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
            let recording = match any_format::open(flight.file.hidden()) {
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
            let name = recording.node_name(NodeIndex(0)).to_owned();
            let names = || inputs.iter().filter_map(|own| own.measured.as_ref());
            let is_taken = |name: &str| names().any(|own| own.name == name);
            let name = distinct(name, &flight.url, is_taken);
            let reference = *reference.get_or_insert(flight.clock);
            let ahead_ns = flight.clock.zip(reference);
            let ahead_ns = ahead_ns.map(|(own, first)| own.ahead_of_ns(&first));
            let path = flight.file.hidden().to_owned();
            inputs.push(Input { path, recording, measured: Some(Measured { name, ahead_ns }) });
            self.flights.push(flight);
        }
        inputs
    }

    /// Moves the records that cannot be merged to the failures; `output` is what they are to become. Takes as long as a merge.
    pub fn leave_out_damaged(&mut self, output: &Path) {
        for input in self.open() {
            let Err(error) = merge::try_alone(&input, output) else { continue };
            let own = self.flights.iter().position(|own| own.file.hidden() == input.path);
            if let Some(own) = own {
                let flight = self.flights.remove(own);
                self.fail(flight, error.to_string());
            }
        }
    }

    fn fail(&mut self, flight: FetchedFlight, why: String) {
        let error = AskError::BadFlight(flight.url.clone(), why);
        self.failures.push(NodeFailure { url: flight.url, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_trace::merge::{MergeError, merge};

    const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cases/cpu-contention.db");

    fn fetched(output: &Path, port: u16, ahead_seconds: f64) -> FetchedFlight {
        let url = Address::parse(&format!("http://gpu:{port}"), [80, 443]).unwrap();
        let file = UnfinishedFile::create(output, true).unwrap();
        std::fs::copy(CASE, file.hidden()).unwrap();
        let clock = Some(ClockOffset { ahead_seconds, uncertainty_seconds: 0.1 });
        FetchedFlight { url, clock, file }
    }

    fn change(flight: &FetchedFlight, sql: &str) {
        rusqlite::Connection::open(flight.file.hidden()).unwrap().execute_batch(sql).unwrap();
    }

    #[test]
    fn damaged_records_are_left_out_and_clocks_are_relative_to_the_first_node() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("job.db");
        let flights = [(1, 0.5), (2, -1.5), (3, 0.0), (4, 2.0)];
        let flights = flights.map(|(port, ahead)| fetched(&output, port, ahead));
        change(&flights[0], "UPDATE looks SET accounts = x'00'");
        // No key: the event cannot be written twice.
        let twice = "CREATE TABLE copy AS SELECT * FROM event; DROP TABLE event; CREATE TABLE event AS SELECT * FROM copy; \
                     INSERT INTO event SELECT * FROM copy";
        change(&flights[2], twice);
        let mut all = FetchedFlights { flights: flights.into(), failures: Vec::new() };
        let merged = merge(&all.open(), &output, false, &mut |_| {});
        assert!(matches!(merged, Err(MergeError::Read(_))), "{merged:?}");
        all.leave_out_damaged(&output);
        merge(&all.open(), &output, false, &mut |_| {}).unwrap();
        let failed: Vec<_> = all.failures.iter().map(|own| own.error.to_string()).collect();
        assert_eq!(failed.len(), 2, "{failed:?}");
        for (failed, port) in failed.iter().zip([1, 3]) {
            let begin = format!("the flight record of http://gpu:{port} cannot be read: ");
            assert!(failed.starts_with(&begin), "{failed}");
        }

        let merged = any_format::open(&output).unwrap();
        let [first, second] = merged.nodes() else { panic!("{:?}", merged.nodes()) };
        assert_eq!((first.clock_ahead_ns, second.clock_ahead_ns), (Some(0), Some(3_500_000_000)));
        assert_eq!(second.name, format!("{} (http://gpu:4)", first.name));
        drop(all);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "records are removed");
    }

    #[test]
    fn a_node_that_calls_itself_as_another_would_be_called_is_not_merged_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("job.db");
        let flights = [3, 1, 2].map(|port| fetched(&output, port, 0.0));
        for (flight, name) in flights.iter().zip(["gpu (http://gpu:2)", "gpu", "gpu"]) {
            change(flight, &format!("UPDATE nodes SET name = '{name}'"));
        }
        let mut all = FetchedFlights { flights: flights.into(), failures: Vec::new() };
        merge(&all.open(), &output, false, &mut |_| {}).unwrap();
        let merged = any_format::open(&output).unwrap();
        let names: Vec<_> = merged.nodes().iter().map(|own| &*own.name).collect();
        assert_eq!(names, ["gpu (http://gpu:2)", "gpu", "gpu (http://gpu:2) (http://gpu:2)"]);
    }
}
