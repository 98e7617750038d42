//! Recordings of nodes in one database in memory.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rusqlite::Connection;

use super::copy::Copying;
use super::{Input, Measured, MergeError};
use crate::recording::{Recording, RecordingError};
use crate::trace::{Store, WriteError};

/// A database in memory, with the tables of a trace file.
#[derive(Debug)]
pub struct Gathering {
    copying: Copying,
    is_full: bool,
}

impl Gathering {
    /// Creates an empty one.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new() -> Result<Self, WriteError> {
        Ok(Self { copying: Copying::new(Store::in_memory()?), is_full: false })
    }

    /// Adds the recording of one node, without events, under a name that no other has; `source` is named in errors. The id of the
    /// node's row is the number of recordings added before. A recording that fails leaves nothing behind.
    ///
    /// # Errors
    /// When the recording is damaged, or memory does not suffice for it or an earlier one.
    pub fn add(
        &mut self,
        name: &str,
        source: PathBuf,
        recording: Box<dyn Recording>,
    ) -> Result<(), MergeError> {
        if self.is_full {
            return Err(RecordingError::Busy(source).into());
        }
        // Damage must not be found halfway.
        read_all(&*recording)?;
        let measured = Some(Measured { name: name.to_owned(), ahead_ns: None });
        let input = Input { path: source, recording, measured };
        let copied = self.copying.copy_whole(&input);
        self.is_full = copied.is_err();
        copied
    }

    /// The database; no recording can be added to it.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn finish(self) -> Result<Connection, WriteError> {
        self.copying.into_connection()
    }
}

fn read_all(recording: &dyn Recording) -> Result<(), RecordingError> {
    recording.snapshots(&mut |_| ControlFlow::Continue(()))?;
    recording.kernel_names()?;
    recording.calls()?;
    recording.waits()?;
    recording.chains().map(drop)
}
