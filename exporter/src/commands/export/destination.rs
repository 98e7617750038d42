//! The destination of an export, and what it must not overwrite. A file has its name once it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write};
use std::path::{Path, PathBuf};

use gpucause_trace::recording::is_same_file;
use gpucause_trace::unfinished_file::UnfinishedFile;

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
    StandardOutput(Stdout),
}

impl Destination {
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

    /// Completes the output: a file takes its name. One that is not completed is removed.
    pub(super) fn finish(self) -> Result<(), DestinationError> {
        match self {
            Self::File { mut writer, unfinished, path } => {
                writer.flush().map_err(cannot_create(&path))?;
                drop(writer);
                unfinished.map_or(Ok(()), UnfinishedFile::publish).map_err(cannot_create(&path))
            }
            Self::StandardOutput(mut stdout) => {
                stdout.flush().map_err(cannot_create(Path::new(STANDARD_OUTPUT)))
            }
        }
    }

    pub(super) fn sink(&mut self) -> &mut dyn Write {
        match self {
            Self::File { writer, .. } => writer,
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
            Self::StandardOutput(_) => true,
        }
    }

    pub(super) const fn is_standard_output(&self) -> bool {
        matches!(self, Self::StandardOutput(_))
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
