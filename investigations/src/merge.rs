//! Several recordings become one file.
//!
//! A node that is in several of them is one node. Ids of events stay where they can: those of a node's second recording go on
//! after those of its first. Clocks are not touched. How far apart two are is told where it was measured; where each was kept
//! by a time service, it is bounded by what the services say; else it is unknown, since a node's own clocks tell nothing of
//! another's.

mod copy;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::recording::{NodeIndex, Recording, RecordingError, is_same_file};
use crate::trace::{Finished, Store, WriteError};
use copy::{Copying, Known};

/// A recording to be merged.
#[derive(Debug)]
pub struct Input {
    /// Where it is, as it is told in errors.
    pub path: PathBuf,
    /// What is in it.
    pub recording: Box<dyn Recording>,
}

/// Why recordings cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One cannot be read.
    #[error(transparent)]
    Read(#[from] RecordingError),
    /// The result cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Two hold the same and more than that.
    #[error(
        "{path} holds a session of {node} that an earlier file holds too, and others that it does not: merge the files \
         that it was made of instead"
    )]
    Overlap {
        /// The later one.
        path: PathBuf,
        /// The node whose session it is.
        node: String,
    },
    /// It would be read and overwritten at once.
    #[error("{0} is one of the files to be merged; name another for the result")]
    Source(PathBuf),
    /// There is nothing to merge.
    #[error("there is nothing to merge: name at least one file")]
    Nothing,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Index of the input that is being read.
    pub input: usize,
    /// Events of it that are done.
    pub events: u64,
    /// Events of it in all.
    pub of: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The file.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// What whoever reads the result should know.
    pub warnings: Vec<Warning>,
}

/// Something that is not as it could be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// It was in an earlier file already.
    #[error("{path}: what it holds of {node} is in an earlier file already, and was left out")]
    Duplicate {
        /// The later file.
        path: PathBuf,
        /// The node.
        node: String,
    },
    /// Nothing tells how far apart two nodes' clocks are.
    #[error(
        "nobody measured how far the clock of {node} is from that of {reference}: times of the two may be compared only \
         as far as their clocks are known to agree"
    )]
    UnknownSkew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
    },
    /// Nobody compared two clocks, but each was kept by a time service.
    #[error(
        "nobody compared the clocks of {node} and {reference}; their time services kept each so close to the true time that \
         they were no further apart than {within_ns} ns when the recordings began"
    )]
    BoundedSkew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
        /// The most that they were apart.
        within_ns: u64,
    },
    /// The clocks are apart.
    #[error(
        "the clock of {node} is {ahead_ns} ns ahead of that of {reference}; times are as each node told them"
    )]
    Skew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
        /// By so much; negative when it is behind.
        ahead_ns: i64,
    },
}

/// A clock that is less apart is as good as in step, in nanoseconds: what NTP reaches.
const IN_STEP_NS: u64 = 10_000_000;

/// Writes all inputs to a new file, and shows `progress` how far it is now and then. A file that could not be completed is
/// taken away again, and one that is to be overwritten goes only when the new one is complete.
///
/// # Errors
/// When one cannot be read, they overlap, or the result cannot be written.
pub fn merge(
    inputs: &[Input],
    output: &Path,
    overwrite: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Merged, MergeError> {
    if inputs.is_empty() {
        return Err(MergeError::Nothing);
    }
    if inputs.iter().any(|input| is_same_file(&input.path, output)) {
        return Err(MergeError::Source(output.to_owned()));
    }
    Store::check(output, overwrite)?;
    let unfinished = Store::beside(output);
    let store = Store::create(&unfinished, false)?;
    let merged = write(inputs, store, progress).and_then(|merged| {
        if overwrite {
            Store::remove(output)?;
        }
        Store::rename(&unfinished, output)?;
        Ok(Merged { path: output.to_owned(), ..merged })
    });
    if merged.is_err() {
        // The error is what there is to tell.
        let _ = Store::remove(&unfinished);
    }
    merged
}

fn write(
    inputs: &[Input],
    store: Store,
    progress: &mut dyn FnMut(Progress),
) -> Result<Merged, MergeError> {
    let mut copying = Copying::new(store);
    let mut seen = HashSet::new();
    let mut warnings = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let left_out = duplicates(input, &mut seen)?;
        warnings.extend(left_out.iter().map(|&node| Warning::Duplicate {
            path: input.path.clone(),
            node: name(&*input.recording, node),
        }));
        let mut step = |events, of| progress(Progress { input: index, events, of });
        copying.copy(&*input.recording, &left_out, &mut step)?;
    }
    warnings.extend(skews(copying.nodes()));
    let Finished { path, events, pruned_events: _ } = copying.finish()?;
    Ok(Merged { path, events, warnings })
}

fn skews(nodes: &[Known]) -> Vec<Warning> {
    let Some((first, others)) = nodes.split_first() else { return Vec::new() };
    others.iter().filter_map(|node| skew(first, node)).collect()
}

/// What was measured counts. Else the errors of both clocks bound it, where each is known: what one node tells of its own does
/// not say which of the two is ahead.
fn skew(first: &Known, other: &Known) -> Option<Warning> {
    let (node, reference) = (other.name.clone(), first.name.clone());
    if let Some(ahead_ns) = other.ahead_ns {
        let apart = ahead_ns.unsigned_abs() > IN_STEP_NS;
        return apart.then_some(Warning::Skew { node, reference, ahead_ns });
    }
    let errors = first.clock_error_ns.zip(other.clock_error_ns);
    match errors.map(|(one, other)| one.saturating_add(other)) {
        None => Some(Warning::UnknownSkew { node, reference }),
        Some(within_ns) if within_ns > IN_STEP_NS => {
            Some(Warning::BoundedSkew { node, reference, within_ns })
        }
        Some(_) => None,
    }
}

/// A session as it is told apart from others: node, start, recorder.
type SessionKey = (String, i64, String);

/// Nodes of which an earlier input holds all that this one does.
fn duplicates(
    input: &Input,
    seen: &mut HashSet<SessionKey>,
) -> Result<HashSet<NodeIndex>, MergeError> {
    let recording = &*input.recording;
    let (mut known, mut new) = (HashSet::new(), HashSet::new());
    let mut added = Vec::new();
    for session in recording.sessions() {
        let node = name(recording, session.node);
        let key = (node, session.started_ns, session.recorder.clone());
        if seen.contains(&key) {
            known.insert(session.node);
        } else {
            new.insert(session.node);
            added.push(key);
        }
    }
    if let Some(&node) = known.intersection(&new).next() {
        let node = name(recording, node);
        return Err(MergeError::Overlap { path: input.path.clone(), node });
    }
    seen.extend(added);
    Ok(known)
}

fn name(recording: &dyn Recording, node: NodeIndex) -> String {
    let node = recording.nodes().get(usize::from(node.0));
    node.map(|node| node.name.clone()).unwrap_or_default()
}
