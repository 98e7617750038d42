//! Snapshots of live nodes in one database, which is read like a trace file.

use gpucause_http::client::{Address, Client};
use gpucause_trace::merge::{Gathering, MergeError};
use gpucause_trace::recording::RecordingError;
use gpucause_trace::trace::{Trace, WriteError};
use rusqlite::{Connection, params};

use super::{ClockOffset, FleetAnswer, Limits, NodeAnswer, snapshots};
use crate::node::AskError;

/// Why the snapshot of a node is not in the database.
const FULL: &str = "those of all nodes take more memory than the limit";

/// All that live nodes know now.
#[derive(Debug)]
pub struct GatheredNodes {
    /// The tables of a trace file, in memory.
    pub connection: Connection,
    /// The nodes that answered, with distinct names, and those that did not.
    pub answer: FleetAnswer,
}

/// Queries every node, and gathers their snapshots. Clocks are relative to the first node's. A node whose snapshot is damaged, or
/// does not fit into memory, is one that did not answer.
///
/// # Errors
/// When memory does not suffice for an empty database.
pub async fn gather(nodes: &[Client], limits: Limits) -> Result<GatheredNodes, WriteError> {
    let mut gathering = Gathering::new()?;
    let mut arrived = Vec::new();
    let mut add = |node: &NodeAnswer, trace: Trace| {
        // Addresses of other users of a node look alike.
        let name = arrived.len().to_string();
        let added = gathering.add(&name, node.url.to_string().into(), Box::new(trace));
        added.map_err(|error| failure(&node.url, &error))?;
        arrived.push(node.url.clone());
        Ok(())
    };
    let mut answer = snapshots(nodes, limits, &mut add).await;
    answer.make_names_distinct();
    let connection = gathering.finish()?;
    let arranged = arrange(&connection, &arrived, &answer.answers);
    arranged.map_err(|source| WriteError::Write("the tables of live nodes".into(), source))?;
    Ok(GatheredNodes { connection, answer })
}

impl GatheredNodes {
    /// The database as a recording.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn recording(self) -> Result<Trace, RecordingError> {
        Trace::of("live nodes".as_ref(), self.connection)
    }
}

fn failure(url: &Address, error: &MergeError) -> AskError {
    match error {
        MergeError::Read(RecordingError::Busy(_)) | MergeError::Write(_) => {
            AskError::OutOfMemory(url.clone(), FULL.to_owned())
        }
        other => AskError::BadSnapshot(url.clone(), other.to_string()),
    }
}

/// Gives nodes the places, names and clocks that they have in the order of nodes, whichever arrived first.
fn arrange(
    connection: &Connection,
    arrived: &[Address],
    answers: &[NodeAnswer],
) -> rusqlite::Result<()> {
    connection.execute_batch(
        "BEGIN; CREATE TABLE places (given INTEGER PRIMARY KEY, place INTEGER NOT NULL)",
    )?;
    let reference = answers.first().and_then(|first| first.clock);
    for (given, url) in (0i64..).zip(arrived) {
        let Some((place, node)) = (0i64..).zip(answers).find(|(_, node)| node.url == *url) else {
            continue;
        };
        let ahead = node.clock.zip(reference);
        let ahead_ns = ahead.map(|(own, first): (ClockOffset, _)| own.ahead_of_ns(&first));
        connection.execute("INSERT INTO places VALUES (?, ?)", [given, place])?;
        connection.execute(
            "UPDATE nodes SET name = ?, clock_ahead_ns = ? WHERE id = ?",
            params![node.chains.node, ahead_ns, given],
        )?;
    }
    for table in ["sessions", "processes", "chains"] {
        connection.execute_batch(&format!(
            "UPDATE {table} SET node = (SELECT place FROM places WHERE given = node)"
        ))?;
    }
    // No two have the same number in between.
    connection.execute_batch(
        "UPDATE nodes SET id = -1 - (SELECT place FROM places WHERE given = id);
         UPDATE nodes SET id = -1 - id;
         DROP TABLE places; COMMIT",
    )
}
