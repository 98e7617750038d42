//! The destination of an export, and what it must not overwrite.

mod requests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write};
use std::path::{Path, PathBuf};

use gpucause_investigations::recording::is_same_file;
use requests::Requests;

/// The name of standard output.
const STANDARD_OUTPUT: &str = "-";

/// Why a destination is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum DestinationError {
    /// A terminal may interpret the output as commands.
    #[error("standard output is a terminal - name a file with -o, pipe it, or add --force")]
    Terminal,
    /// It would be overwritten.
    #[error("{} exists - name another file with -o, or add --force to overwrite it", .0.display())]
    Exists(PathBuf),
    /// It would be overwritten while it is read.
    #[error("{} is the trace file itself - name another file with -o", .0.display())]
    Source(PathBuf),
    /// The kernel refuses.
    #[error("cannot create {}: {source}", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Debug)]
pub(super) enum Destination {
    File {
        writer: BufWriter<File>,
        path: PathBuf,
    },
    /// Requests to a collector.
    Requests(Requests),
    StandardOutput(Stdout),
}

impl Destination {
    /// As [`open`](Self::open), for requests to a collector: further requests go to further files. Standard output must be one
    /// request.
    pub(super) fn open_for_requests(
        path: &Path,
        db: Option<&Path>,
        force: bool,
    ) -> Result<Self, DestinationError> {
        let first = Self::open(path, db, force)?;
        let db = db.map(Path::to_owned);
        Ok(Self::Requests(Requests::new(first, path.to_owned(), db, force)))
    }

    /// Creates `path`. An existing file is kept unless `force`d; the trace file `db` always is.
    pub(super) fn open(
        path: &Path,
        db: Option<&Path>,
        force: bool,
    ) -> Result<Self, DestinationError> {
        if path.as_os_str() == STANDARD_OUTPUT {
            let stdout = io::stdout();
            if stdout.is_terminal() && !force {
                return Err(DestinationError::Terminal);
            }
            return Ok(Self::StandardOutput(stdout));
        }
        let mut options = OpenOptions::new();
        options.write(true);
        match fs::metadata(path) {
            // A pipe or a device loses nothing.
            Ok(known) if !known.is_file() => {}
            Ok(_) => {
                if db.is_some_and(|db| is_same_file(db, path)) {
                    return Err(DestinationError::Source(path.to_owned()));
                }
                if !force {
                    return Err(DestinationError::Exists(path.to_owned()));
                }
                options.truncate(true);
            }
            Err(_) => {
                options.create_new(true);
            }
        }
        let file = options.open(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => DestinationError::Exists(path.to_owned()),
            _ => DestinationError::Create { path: path.to_owned(), source },
        })?;
        Ok(Self::File { writer: BufWriter::new(file), path: path.to_owned() })
    }

    pub(super) fn sink(&mut self) -> &mut dyn Write {
        match self {
            Self::File { writer, .. } => writer,
            Self::Requests(requests) => requests,
            Self::StandardOutput(stdout) => stdout,
        }
    }

    /// Removes a file that nothing was written to.
    pub(super) fn abandon(&mut self) {
        if let Self::Requests(requests) = self {
            requests.abandon();
        } else if let Self::File { writer, path } = self
            && writer.get_ref().metadata().is_ok_and(|file| file.is_file() && file.len() == 0)
            && writer.buffer().is_empty()
        {
            // At worst an empty file is left.
            let _ = fs::remove_file(path);
        }
    }

    pub(super) fn is_standard_output(&self) -> bool {
        match self {
            Self::File { .. } => false,
            Self::Requests(requests) => requests.is_standard_output(),
            Self::StandardOutput(_) => true,
        }
    }

    /// The number of files.
    pub(super) const fn files(&self) -> usize {
        match self {
            Self::Requests(requests) => requests.files(),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_overwritten_only_when_forced_and_the_source_never() {
        let dir = tempfile::tempdir().unwrap();
        let (db, out) = (dir.path().join("trace.db"), dir.path().join("out"));
        fs::write(&db, "source").unwrap();
        let write = |path: &Path, force| -> Result<(), DestinationError> {
            let mut destination = Destination::open(path, Some(db.as_path()), force)?;
            destination.sink().write_all(b"new").unwrap();
            destination.sink().flush().unwrap();
            Ok(())
        };
        write(&out, false).unwrap();
        fs::write(&out, "old and longer").unwrap();
        let refused = write(&out, false).unwrap_err().to_string();
        assert!(refused.contains("--force") && refused.contains("out exists"), "{refused}");
        assert_eq!(fs::read(&out).unwrap(), b"old and longer");
        write(&out, true).unwrap();
        assert_eq!(fs::read(&out).unwrap(), b"new");
        let link = dir.path().join("link");
        fs::hard_link(&db, &link).unwrap();
        for same in [&db, &link] {
            assert!(matches!(write(same, true), Err(DestinationError::Source(_))));
        }
        assert_eq!(fs::read(&db).unwrap(), b"source");
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        Destination::open(&empty, Some(db.as_path()), false).unwrap().abandon();
        let mut begun = Destination::open(&full, Some(db.as_path()), false).unwrap();
        begun.sink().write_all(b"begun").unwrap();
        begun.abandon();
        assert_eq!((empty.exists(), full.exists()), (false, true));
        write(Path::new("/dev/null"), false).unwrap();
        let nowhere = write(&dir.path().join("none/out"), false).unwrap_err().to_string();
        assert!(nowhere.starts_with("cannot create "), "{nowhere}");
    }
}
