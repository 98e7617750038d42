//! The destination of an export, and what it must not overwrite. A file has its name once it is complete.

mod requests;

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write};
use std::path::{Path, PathBuf};

use gpucause_investigations::recording::is_same_file;
use gpucause_investigations::unfinished_file::UnfinishedFile;
use requests::Requests;

/// The name of standard output.
pub(super) const STANDARD_OUTPUT: &str = "-";

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

fn cannot_create(path: &Path) -> impl FnOnce(io::Error) -> DestinationError {
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists => DestinationError::Exists(path.to_owned()),
        _ => DestinationError::Create { path: path.to_owned(), source },
    }
}

#[derive(Debug)]
pub(super) enum Destination {
    File {
        writer: BufWriter<File>,
        /// `None` of a pipe or a device.
        unfinished: Option<UnfinishedFile>,
        path: PathBuf,
    },
    /// Requests to a collector.
    Requests(Requests),
    StandardOutput(Stdout),
}

/// A complete file, which is not open any more and has no name yet.
#[derive(Debug)]
struct Complete {
    unfinished: UnfinishedFile,
    path: PathBuf,
}

impl Complete {
    fn publish(self) -> Result<(), DestinationError> {
        self.unfinished.publish().map_err(cannot_create(&self.path))
    }
}

impl Destination {
    /// Does the same as [`open`](Self::open) for requests to a collector: further requests go to further files. Standard output must be one
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

    /// Creates `path`. An existing file is kept unless `force`d, and until the new one is complete; the trace file `db` always is.
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
        if db.is_some_and(|db| is_same_file(db, path)) {
            return Err(DestinationError::Source(path.to_owned()));
        }
        // A pipe or a device loses nothing.
        let is_other = fs::metadata(path).is_ok_and(|known| !known.is_file());
        let (unfinished, opened) = if is_other {
            (None, File::options().write(true).open(path))
        } else {
            let unfinished = UnfinishedFile::create(path, force).map_err(cannot_create(path))?;
            let opened = File::options().write(true).open(unfinished.hidden());
            (Some(unfinished), opened)
        };
        let writer = BufWriter::new(opened.map_err(cannot_create(path))?);
        Ok(Self::File { writer, unfinished, path: path.to_owned() })
    }

    /// Completes the output: files take their names. Not called, they are removed.
    pub(super) fn finish(self) -> Result<(), DestinationError> {
        self.close()?.into_iter().try_for_each(Complete::publish)
    }

    /// Writes what is buffered.
    fn close(self) -> Result<Vec<Complete>, DestinationError> {
        match self {
            Self::File { mut writer, unfinished, path } => {
                writer.flush().map_err(cannot_create(&path))?;
                Ok(unfinished.map(|unfinished| Complete { unfinished, path }).into_iter().collect())
            }
            Self::Requests(requests) => requests.close(),
            Self::StandardOutput(mut stdout) => {
                stdout.flush().map_err(cannot_create(Path::new(STANDARD_OUTPUT)))?;
                Ok(Vec::new())
            }
        }
    }

    pub(super) fn sink(&mut self) -> &mut dyn Write {
        match self {
            Self::File { writer, .. } => writer,
            Self::Requests(requests) => requests,
            Self::StandardOutput(stdout) => stdout,
        }
    }

    /// Returns true if anything was written to it.
    pub(super) fn is_begun(&self) -> bool {
        match self {
            Self::File { writer, .. } => {
                !writer.buffer().is_empty()
                    || writer.get_ref().metadata().is_ok_and(|file| file.len() > 0)
            }
            Self::Requests(requests) => requests.is_begun(),
            Self::StandardOutput(_) => true,
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
    pub(super) fn files(&self) -> usize {
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
            destination.finish()
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
        let mut begun = Destination::open(&out, Some(db.as_path()), true).unwrap();
        begun.sink().write_all(b"half").unwrap();
        begun.sink().flush().unwrap();
        drop(begun);
        assert_eq!(
            (fs::read(&out).unwrap(), fs::read_dir(dir.path()).unwrap().count()),
            (b"new".into(), 3)
        );
        write(Path::new("/dev/null"), false).unwrap();
        let nowhere = write(&dir.path().join("none/out"), false).unwrap_err().to_string();
        assert!(nowhere.starts_with("cannot create "), "{nowhere}");
    }
}
