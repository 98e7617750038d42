//! Requests to a collector, in files that are each within the size limit of a request.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Complete, Destination, DestinationError};

/// Maximum bytes of a request. A collector takes 20 MiB by default.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A file, and further ones whose names end in `.2`, `.3` and so on. They take their names together.
#[derive(Debug)]
pub(in crate::cli::export) struct Requests {
    current: Box<Destination>,
    /// Files before the current one.
    complete: Vec<Complete>,
    path: PathBuf,
    db: Option<PathBuf>,
    force: bool,
    /// Bytes in the current file.
    written: usize,
}

fn path_of(first: &Path, number: usize) -> PathBuf {
    let mut path = first.as_os_str().to_owned();
    path.push(format!(".{number}"));
    path.into()
}

impl Requests {
    pub(super) fn new(first: Destination, path: PathBuf, db: Option<PathBuf>, force: bool) -> Self {
        Self { current: Box::new(first), complete: Vec::new(), path, db, force, written: 0 }
    }

    pub(super) fn close(mut self) -> Result<Vec<Complete>, DestinationError> {
        self.complete.extend(self.current.close()?);
        Ok(self.complete)
    }

    pub(super) fn is_begun(&self) -> bool {
        !self.complete.is_empty() || self.current.is_begun()
    }

    pub(super) fn is_standard_output(&self) -> bool {
        self.current.is_standard_output()
    }

    pub(super) fn files(&self) -> usize {
        self.complete.len() + 1
    }

    fn next_file(&mut self) -> io::Result<()> {
        if self.is_standard_output() {
            return Err(io::Error::other(
                "the export is larger than one request of a collector - name a file with -o, or select less",
            ));
        }
        self.current.sink().flush()?;
        let path = path_of(&self.path, self.files() + 1);
        let next = Destination::open(&path, self.db.as_deref(), self.force);
        let next = next.map_err(io::Error::other)?;
        let last = std::mem::replace(&mut *self.current, next);
        self.complete.extend(last.close().map_err(io::Error::other)?);
        self.written = 0;
        Ok(())
    }
}

impl Write for Requests {
    /// Takes a whole request, which stays in one file.
    fn write(&mut self, request: &[u8]) -> io::Result<usize> {
        if self.written > 0 && self.written + request.len() > MAX_BYTES {
            self.next_file()?;
        }
        self.current.sink().write_all(request)?;
        self.written += request.len();
        Ok(request.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.sink().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_too_large_for_one_request_goes_on_in_further_files_of_whole_requests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.otlp");
        let mut destination = Destination::open_for_requests(&path, None, false).unwrap();
        let request = vec![7; 3 << 20];
        for _ in 0..12 {
            destination.sink().write_all(&request).unwrap();
        }
        assert_eq!(destination.files(), 3);
        destination.finish().unwrap();
        let sizes = ["a.otlp", "a.otlp.2", "a.otlp.3"]
            .map(|name| fs::metadata(dir.path().join(name)).unwrap().len());
        assert_eq!(sizes, [15 << 20, 15 << 20, 6 << 20]);
    }

    #[test]
    fn a_further_file_that_exists_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.otlp");
        fs::write(path_of(&path, 2), "old").unwrap();
        let mut destination = Destination::open_for_requests(&path, None, false).unwrap();
        let request = vec![7; MAX_BYTES];
        destination.sink().write_all(&request).unwrap();
        let refused = destination.sink().write_all(&request).unwrap_err().to_string();
        assert!(refused.contains("a.otlp.2 exists"), "{refused}");
        drop(destination);
        assert_eq!(fs::read(path_of(&path, 2)).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the first file is removed");
    }
}
