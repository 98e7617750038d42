//! The files of a spool.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;

/// Ending of the files.
const ENDING: &str = ".otlp";
/// Only the daemon reads what chains say of other users' processes.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// No file of a spool is larger: a full segment and its last record.
const MAX_FILE: u64 = 4 << 20;

/// The key of the first field of a request, with which each record begins.
const FIRST_FIELD: u8 = 1 << 3 | 2;

/// The content that is left of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovered {
    /// Records.
    Whole { bytes: u64, records: u64 },
    /// Nothing, or the beginning of the first record.
    Empty,
    /// Content that is not of a spool, in place of about so many records.
    Damaged { records: u64 },
    /// It cannot be read now, and is left to the next daemon.
    Unread,
}

/// The folder of one daemon.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// Keeps other daemons out.
    _lock: File,
    /// The file that was last written to.
    current: Option<(u64, File)>,
    /// The last error, so that it is logged once.
    failed: Option<io::ErrorKind>,
}

impl Folder {
    /// Creates the folder, and keeps other daemons out of it.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir)?;
        let lock = options().write(true).create(true).truncate(false).open(dir.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another exporter uses it"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { dir: dir.to_owned(), _lock: lock, current: None, failed: None })
    }

    /// Numbers of the files that are there, in order.
    pub(super) fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(ENDING)?.parse().ok());
            let Some(number) = number else { continue };
            // A name of another form, or a link, is not of a spool.
            if self.path(number).file_name() == Some(&name) && entry.file_type()?.is_file() {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Returns the content that is left of a file of an earlier daemon. A record that was only begun is cut off; a file that was read and
    /// has no record is deleted.
    pub(super) fn recover(&self, number: u64) -> Recovered {
        let path = self.path(number);
        let recovered = recovered(&path).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "cannot read a file of the OTLP spool; it stays");
            Recovered::Unread
        });
        if matches!(recovered, Recovered::Empty | Recovered::Damaged { .. }) {
            let _ = std::fs::remove_file(&path);
        }
        recovered
    }

    /// Adds a record to a file that has so many bytes; creates the file when it has none.
    pub(super) fn append(&mut self, number: u64, bytes: u64, record: &[u8]) -> io::Result<()> {
        if bytes == 0 {
            let file = options().append(true).create_new(true).open(self.path(number))?;
            self.current = Some((number, file));
        }
        let Some((_, file)) = self.current.as_mut().filter(|(own, _)| *own == number) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let written = file.write_all(record);
        if written.is_ok() {
            self.failed = None;
            return Ok(());
        }
        // Further records would not be found behind a part of a record.
        let _ = file.set_len(bytes);
        self.current = None;
        if bytes == 0 {
            let _ = std::fs::remove_file(self.path(number));
        }
        written
    }

    /// Logs an error, unless it is the last one again.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if self.failed.replace(error.kind()) != Some(error.kind()) {
            let path = self.dir.display();
            tracing::error!(%path, %error, "cannot write to the OTLP spool; chains wait in memory");
        }
    }

    /// The first bytes of a file.
    pub(super) fn read(&self, number: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let file = options().read(true).open(self.path(number))?;
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content)?;
        let is_whole = whole_records(&content).0 as u64 == bytes;
        if is_whole { Ok(content) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Deletes a file.
    pub(super) fn remove(&mut self, number: u64) {
        self.current.take_if(|(own, _)| *own == number);
        let path = self.path(number);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot delete a file of the OTLP spool");
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:020}{ENDING}"))
    }
}

fn recovered(path: &Path) -> io::Result<Recovered> {
    let file = options().read(true).write(true).open(path)?;
    let mut content = Vec::new();
    (&file).take(MAX_FILE + 1).read_to_end(&mut content)?;
    let (bytes, records) = whole_records(&content);
    let whole = content.get(..bytes).unwrap_or_default();
    let is_other = content.len() as u64 > MAX_FILE
        || content.first().is_some_and(|&first| first != FIRST_FIELD)
        || ExportLogsServiceRequest::decode(whole).is_err();
    if is_other {
        return Ok(Recovered::Damaged { records: records.clamp(1, super::SEGMENT_RECORDS) });
    }
    let bytes = bytes as u64;
    file.set_len(bytes)?;
    Ok(if records == 0 { Recovered::Empty } else { Recovered::Whole { bytes, records } })
}

/// Does not follow a link that another user may have placed there, nor wait for whoever writes to a pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options
}

/// Length of the whole records at the beginning, and how many they are.
fn whole_records(bytes: &[u8]) -> (usize, u64) {
    first_records(bytes, u64::MAX)
}

/// Does the same as [`whole_records`] for so many records at most.
pub(super) fn first_records(bytes: &[u8], most: u64) -> (usize, u64) {
    let (mut rest, mut records) = (bytes, 0);
    while records < most
        && let Some(next) = behind_record(rest)
    {
        (rest, records) = (next, records + 1);
    }
    (bytes.len() - rest.len(), records)
}

/// Returns the bytes behind a record, which is the first field of a request, with its length.
fn behind_record(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.strip_prefix(&[FIRST_FIELD])?;
    let length = prost::decode_length_delimiter(&mut rest).ok()?;
    rest.get(length..)
}
