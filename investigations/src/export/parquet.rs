//! Parquet files below a folder, one for each table, node and date, in folders that Hive, Spark, DuckDB and ClickHouse know as
//! partitions.
//!
//! Columns are those of a trace file's view `events` and table `chains`, see `investigations/trace-file.md`.

mod partition;
mod rows;
mod table;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::selection::{Selected, nanos};
use super::stream::{self, Aligned};
use super::{ExportError, Output, Selection, Written};
use gpucause_trace::recording::{NodeChain, NodeIndex, Recording};
use gpucause_trace::unfinished_file::UnfinishedFile;
use partition::Partition;
use table::{Cell, Column, RowGroups};

/// An export to Parquet files. They take their names when all are complete; dropped, they are removed.
#[derive(Debug)]
pub struct ParquetFolder {
    folder: PathBuf,
    overwrite: bool,
    files: Vec<UnfinishedFile>,
}

impl ParquetFolder {
    /// Below `folder`. With `overwrite`, files of an earlier export of the same recording are replaced.
    #[must_use]
    pub const fn new(folder: PathBuf, overwrite: bool) -> Self {
        Self { folder, overwrite, files: Vec::new() }
    }

    /// Writes the selected part of a recording. `progress` is called with the number of events read.
    ///
    /// # Errors
    /// The errors of [`perfetto`](super::perfetto()). Events before damage have been written, as complete files.
    pub fn write(
        &mut self,
        recording: &dyn Recording,
        selection: &Selection,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Written, ExportError> {
        let mut selected = Selected::resolve(selection, recording)?;
        let chains = selected.chains(recording)?;
        self.chains(recording, &chains)?;
        let mut written = Written { events: 0, chains: chains.len() as u64 };
        let mut read = 0;
        for node in (0..).map(NodeIndex).take(recording.nodes().len()) {
            // One node at a time has one open file at a time. With one node there is nothing to leave out.
            selected.filter.node = (recording.nodes().len() > 1).then_some(node);
            let mut before = 0;
            let mut output = Events { folder: self, recording, open: None };
            let passed = stream::each(recording, &selected, &mut output, &mut |seen| {
                read += seen - before;
                before = seen;
                progress(read);
            });
            if !matches!(passed, Err(ExportError::Write(_))) {
                output.finish()?;
            }
            written.events += passed?;
        }
        if written.events == 0 {
            self.without_rows("events", rows::EVENTS, recording)?;
        }
        Ok(written)
    }

    /// A file that says which columns a table would have: a table without files is none, and cannot be asked.
    fn without_rows(
        &mut self,
        table: &str,
        columns: &'static [Column],
        recording: &dyn Recording,
    ) -> io::Result<()> {
        let partition = Partition::first_of(NodeIndex(0), recording);
        self.part(table, columns, recording, partition)?.finish()
    }

    fn chains(
        &mut self,
        recording: &dyn Recording,
        chains: &[NodeChain],
    ) -> Result<(), ExportError> {
        if chains.is_empty() {
            self.without_rows("chains", rows::CHAINS, recording)?;
        }
        let mut partitions = BTreeMap::<_, Vec<&NodeChain>>::new();
        for found in chains {
            let partition = Partition::of(found.node, nanos(found.chain.first_seen));
            partitions.entry(partition).or_default().push(found);
        }
        for (partition, chains) in partitions {
            let mut part = self.part("chains", rows::CHAINS, recording, partition)?;
            for NodeChain { node, chain } in chains {
                let json = serde_json::to_string(chain).unwrap_or_default();
                part.push(&rows::of_chain(recording.node_name(*node), chain, &json))?;
            }
            part.finish()?;
        }
        Ok(())
    }

    /// Creates a hidden file.
    fn part(
        &mut self,
        table: &str,
        columns: &'static [Column],
        recording: &dyn Recording,
        partition: Partition,
    ) -> io::Result<RowGroups<File>> {
        let path = self.folder.join(partition.path(table, recording));
        let named = |error: io::Error| {
            let path = path.display();
            let message = match error.kind() {
                io::ErrorKind::AlreadyExists => format!(
                    "{path} exists - name another folder with -o, or add --force to replace it"
                ),
                _ => format!("{path}: {error}"),
            };
            io::Error::new(error.kind(), message)
        };
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(named)?;
        let file = UnfinishedFile::create(&path, self.overwrite).map_err(named)?;
        let open = File::options().write(true).open(file.hidden()).map_err(named)?;
        self.files.push(file);
        Ok(RowGroups::new(open, table, columns)?)
    }

    /// Number of files.
    #[must_use]
    pub const fn files(&self) -> usize {
        self.files.len()
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Gives the files their names.
    ///
    /// # Errors
    /// When that is not possible, or in the meantime there is a file that must not be overwritten.
    pub fn publish(self) -> io::Result<()> {
        self.files.into_iter().try_for_each(UnfinishedFile::publish)
    }
}

/// The events of one node.
struct Events<'a> {
    folder: &'a mut ParquetFolder,
    recording: &'a dyn Recording,
    open: Option<(Partition, RowGroups<File>)>,
}

impl Output for Events<'_> {
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()> {
        let event = aligned.event;
        let partition = Partition::of(event.id.node, event.start_ns);
        if self.open.as_ref().is_none_or(|(open, _)| *open != partition) {
            self.finish()?;
            let part = self.folder.part("events", rows::EVENTS, self.recording, partition)?;
            self.open = Some((partition, part));
        }
        match &mut self.open {
            Some((_, part)) => rows::of_event(event, self.recording, |row| part.push(row)),
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), |(_, part)| part.finish())
    }
}

#[cfg(test)]
mod tests;
