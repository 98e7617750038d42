//! Merges recordings into one file.
//!
//! Nodes of the same name become one; event ids of its later recordings continue after those of the earlier. Timestamps are not
//! changed. The warnings report clock skew: as measured, else bounded by the errors that the nodes' time services reported,
//! else unknown.

mod chains;
mod copy;
mod gathering;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::recording::{NodeIndex, Recording, RecordingError, is_same_file};
use crate::trace::{Finished, Store, WriteError, output_file};
use crate::unfinished_file::UnfinishedFile;
use copy::{Copying, Known};

pub use gathering::Gathering;

/// A recording to be merged.
#[derive(Debug)]
pub struct Input {
    /// Its path, for errors.
    pub path: PathBuf,
    /// Its content.
    pub recording: Box<dyn Recording>,
    /// Name and clock lead of its only node.
    pub measured: Option<Measured>,
}

/// A node whose recording was fetched from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Its name in the merged file.
    pub name: String,
    /// Lead of its clock over that of the first input's node, where it was measured.
    pub ahead_ns: Option<i64>,
}

impl Input {
    /// A recording alone.
    pub fn of(path: PathBuf, recording: Box<dyn Recording>) -> Self {
        Self { path, recording, measured: None }
    }

    fn node_name(&self, node: NodeIndex) -> &str {
        match &self.measured {
            Some(measured) => &measured.name,
            None => self.recording.node_name(node),
        }
    }
}

/// Why recordings cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// An input cannot be read.
    #[error(transparent)]
    Read(#[from] RecordingError),
    /// The result cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An input holds sessions of earlier inputs and others of the same node.
    #[error(
        "{0} holds a session of {1} that an earlier file also holds, and further sessions - merge the original files \
         instead"
    )]
    Overlap(PathBuf, String),
    /// The output is one of the inputs.
    #[error("{0} is one of the files to be merged - choose another output file")]
    Source(PathBuf),
    /// There are no inputs.
    #[error("nothing to merge - name at least one file")]
    Nothing,
}

/// Progress of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Index of the current input.
    pub input: usize,
    /// Events of it that were copied.
    pub events: u64,
    /// Events in it.
    pub of: u64,
}

/// A merged file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The file.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Inputs that are in it.
    pub files: usize,
    /// Limitations that its readers should know.
    pub warnings: Vec<Warning>,
}

/// A limitation of a merged file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// An input repeats an earlier one.
    #[error("{path}: its sessions of {node} are in an earlier file already; skipped")]
    Duplicate {
        /// The later file.
        path: PathBuf,
        /// The node.
        node: String,
    },
    /// An input has a session without an end.
    #[error(
        "{0} is still being recorded, or its recorder was killed: only what was written until now is merged"
    )]
    NoEnd(PathBuf),
    /// The skew between two clocks is unknown.
    #[error(
        "the clock skew between {node} and {reference} was not measured; compare their times with caution"
    )]
    UnknownSkew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
    },
    /// The skew was not measured, but both nodes' time services reported their error.
    #[error(
        "the clock skew between {node} and {reference} was not measured; their time services bound it to {within_ns} ns at \
         the start of the recordings"
    )]
    BoundedSkew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
        /// Largest possible skew, in nanoseconds.
        within_ns: u64,
    },
    /// The clocks differ.
    #[error(
        "the clock of {node} is {ahead_ns} ns ahead of {reference}'s; timestamps are not corrected"
    )]
    Skew {
        /// The node.
        node: String,
        /// The first node.
        reference: String,
        /// Lead in nanoseconds; negative when it is behind.
        ahead_ns: i64,
    },
}

/// Skew in nanoseconds that gets no warning: the accuracy of NTP.
const IN_STEP_NS: u64 = 10_000_000;

/// Writes all inputs to a new file. An incomplete output is removed, and an existing one is replaced only by a complete one.
///
/// # Errors
/// When an input cannot be read, inputs overlap, or the output cannot be written.
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
    let unfinished =
        UnfinishedFile::create(output, overwrite).map_err(output_file::cannot_create(output))?;
    let merged = write(inputs, &unfinished, progress).map_err(named(output))?;
    unfinished.publish_database().map_err(output_file::cannot_create(output))?;
    Ok(Merged { path: output.to_owned(), ..merged })
}

/// Merges one input into a file beside `output` that is removed again, to see whether it can be merged.
///
/// # Errors
/// As those of [`merge`].
pub fn try_alone(input: &Input, output: &Path) -> Result<(), MergeError> {
    let file = UnfinishedFile::create(output, true).map_err(output_file::cannot_create(output))?;
    write(std::slice::from_ref(input), &file, &mut |_| {}).map(drop).map_err(named(output))
}

/// Errors with the name of the output in place of that of its unfinished file.
fn named(output: &Path) -> impl FnOnce(MergeError) -> MergeError {
    move |error| match error {
        MergeError::Write(error) => error.of_output(output).into(),
        other => other,
    }
}

fn write(
    inputs: &[Input],
    file: &UnfinishedFile,
    progress: &mut dyn FnMut(Progress),
) -> Result<Merged, MergeError> {
    let mut copying = Copying::new(Store::in_empty(file.hidden())?);
    let mut seen = HashSet::new();
    let (mut warnings, mut files) = (Vec::new(), 0);
    for (index, input) in inputs.iter().enumerate() {
        let left_out = duplicates(input, &mut seen)?;
        files += usize::from(left_out.len() < input.recording.nodes().len());
        warnings.extend(left_out.iter().map(|&node| Warning::Duplicate {
            path: input.path.clone(),
            node: input.node_name(node).to_owned(),
        }));
        let has_no_end = input.recording.sessions().iter().any(|own| own.ended_ns.is_none());
        warnings.extend(has_no_end.then(|| Warning::NoEnd(input.path.clone())));
        let mut step = |events, of| progress(Progress { input: index, events, of });
        copying.copy(input, &left_out, &mut step)?;
    }
    warnings.extend(skews(copying.nodes()));
    let Finished { path, events, .. } = copying.finish()?;
    Ok(Merged { path, events, files, warnings })
}

fn skews(nodes: &[Known]) -> Vec<Warning> {
    let Some((first, others)) = nodes.split_first() else { return Vec::new() };
    others.iter().filter_map(|node| skew(first, node)).collect()
}

/// The measured skew, else the bound by the errors of both clocks, where both are known.
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

/// Node, start, recorder.
type SessionKey = (String, i64, String);

/// Nodes whose sessions are all in earlier inputs.
fn duplicates(
    input: &Input,
    seen: &mut HashSet<SessionKey>,
) -> Result<HashSet<NodeIndex>, MergeError> {
    let recording = &*input.recording;
    let (mut known, mut new) = (HashSet::new(), HashSet::new());
    let mut added = Vec::new();
    for session in recording.sessions() {
        let node = input.node_name(session.node).to_owned();
        let key = (node, session.started_ns, session.recorder.clone());
        if seen.contains(&key) {
            known.insert(session.node);
        } else {
            new.insert(session.node);
            added.push(key);
        }
    }
    if let Some(&node) = known.intersection(&new).next() {
        let node = input.node_name(node).to_owned();
        return Err(MergeError::Overlap(input.path.clone(), node));
    }
    seen.extend(added);
    Ok(known)
}
