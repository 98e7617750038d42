//! Recordings of nodes in one database in memory.

use std::path::PathBuf;

use rusqlite::Connection;

use super::copy::Copying;
use super::{Input, Measured, MergeError};
use crate::recording::Recording;
use crate::trace::{Store, WriteError};

/// A database in memory, with the tables of a trace file. That of snapshots is empty.
#[derive(Debug)]
pub struct Gathering(Copying);

impl Gathering {
    /// Creates an empty one.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new() -> Result<Self, WriteError> {
        Ok(Self(Copying::without_snapshots(Store::in_memory()?)))
    }

    /// Adds the recording of one node, without events, under a name that no other has; `source` is named in errors. The id of the
    /// node's row is the number of recordings added before. A recording that fails leaves nothing behind.
    ///
    /// # Errors
    /// When the recording is damaged, or memory does not suffice.
    pub fn add(
        &mut self,
        name: &str,
        source: PathBuf,
        recording: Box<dyn Recording>,
    ) -> Result<(), MergeError> {
        let measured = Some(Measured { name: name.to_owned(), ahead_ns: None });
        let input = Input { path: source, recording, measured };
        self.0.copy_whole(&input)
    }

    /// The database; no recording can be added to it.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn finish(self) -> Result<Connection, WriteError> {
        self.0.into_connection()
    }
}
