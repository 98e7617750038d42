//! Flight records: trace files of the last seconds, in a folder that keeps the newest.

mod folder;
mod requests;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use folder::Folder;
use requests::Requests;

pub use folder::FlightFile;
pub use requests::{FlightRequest, RequestError};

/// Settings of the flight recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightSettings {
    /// The folder of the files.
    pub dir: PathBuf,
    /// How far a file goes back; also the least time between two files of the same cause.
    pub time: Duration,
    /// Files that are kept.
    pub max_files: usize,
}

/// No files can be created in the folder.
#[derive(Debug, thiserror::Error)]
#[error("--flight-recorder.dir {path}: {1}", path = .0.display())]
pub struct FolderError(PathBuf, #[source] io::Error);

/// The files, and how many there were so far, by outcome.
#[derive(Debug)]
pub struct FlightRecords {
    pub(crate) folder: Folder,
    pub(crate) written: AtomicU64,
    pub(crate) suppressed: AtomicU64,
    pub(crate) failed: AtomicU64,
    requests: Requests,
}

impl FlightRecords {
    /// Returns the records in this folder, which keeps so many files.
    #[must_use]
    pub fn in_dir(dir: PathBuf, max_files: usize) -> Self {
        let (written, suppressed, failed, requests) = Default::default();
        Self { folder: Folder::new(dir, max_files), written, suppressed, failed, requests }
    }

    /// The files that are there, newest first; none when the folder cannot be read.
    #[must_use]
    pub fn files(&self) -> Vec<FlightFile> {
        self.folder.listed().unwrap_or_default()
    }

    /// Opens one of [`files`](Self::files) by its name.
    ///
    /// # Errors
    /// When it is not among them, or cannot be read.
    pub fn open(&self, name: &str) -> io::Result<File> {
        self.folder.open(name)
    }

    /// The requests of clients, for who writes the files. The first call counts.
    pub fn accept_requests(&self) -> mpsc::Receiver<FlightRequest> {
        self.requests.accept()
    }

    /// Has the recorder write a file now.
    ///
    /// # Errors
    /// When there is no recorder, it was asked before a moment ago, or the file cannot be written.
    pub async fn record(&self) -> Result<FlightFile, RequestError> {
        self.requests.ask().await
    }

    /// Files so far by the label of their outcome.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("written", count(&self.written)),
            ("suppressed", count(&self.suppressed)),
            ("failed", count(&self.failed)),
        ]
    }
}

/// Checks whether files can be created in a folder.
///
/// # Errors
/// When they cannot.
pub fn check(dir: &Path) -> Result<(), FolderError> {
    Folder::check(dir).map_err(|error| FolderError(dir.to_owned(), error))
}
