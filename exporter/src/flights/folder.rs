//! The folder of flight records: their names, and how many are kept.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use nix::fcntl::OFlag;

/// Names of flight records begin with this. Files that do are deleted when there are too many.
const PREFIX: &str = "flight-";
const ENDING: &str = ".db";
/// Suffixes of the files that SQLite keeps beside a file.
const BESIDE: [&str; 4] = ["", "-wal", "-shm", "-journal"];
/// Length of the parts of a name that are not chosen here, in bytes.
const MAX_PART: usize = 80;

/// The folder.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    max_files: usize,
}

/// A complete file.
#[derive(Debug, Clone, PartialEq)]
pub struct FlightFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, in seconds since the Unix epoch.
    pub written: f64,
}

/// The paths of one file.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    /// Where it is until it is complete: the same for all.
    pub(crate) partial: PathBuf,
}

/// The text without characters that could lead out of the folder or control a terminal.
fn plain(text: &str) -> String {
    let plain = text.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') => c,
        _ => '_',
    });
    plain.take(MAX_PART).collect()
}

/// Returns the entry of a complete file in the list.
fn listed(at: SystemTime, path: &Path) -> Option<FlightFile> {
    let name = path.file_name()?.to_str()?.to_owned();
    let written = at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
    Some(FlightFile { name, bytes: fs::metadata(path).ok()?.len(), written })
}

fn removed(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Folder {
    pub(crate) const fn new(dir: PathBuf, max_files: usize) -> Self {
        Self { dir, max_files }
    }

    /// Checks whether files can be created there.
    pub(crate) fn check(dir: &Path) -> io::Result<()> {
        let probe = dir.join(format!(".{PREFIX}{}", std::process::id()));
        // `create_new` follows no link that another user has placed there.
        fs::File::create_new(&probe)?;
        fs::remove_file(&probe)
    }

    fn partial(&self) -> PathBuf {
        self.dir.join(format!(".{PREFIX}partial"))
    }

    /// Removes an incomplete file.
    pub(crate) fn remove_partial(&self) {
        for suffix in BESIDE {
            let mut path = self.partial().into_os_string();
            path.push(suffix);
            if let Err(error) = removed(Path::new(&path)) {
                tracing::warn!(path = %path.display(), %error, "cannot remove an incomplete flight record");
            }
        }
    }

    /// The paths of a file by node, time in seconds since the Unix epoch, and reason.
    pub(crate) fn destination(&self, node: &str, unix_seconds: f64, reason: &str) -> Destination {
        let name = format!("{PREFIX}{}-{unix_seconds:.3}-{}", plain(node), plain(reason));
        Destination { path: self.dir.join(format!("{name}{ENDING}")), partial: self.partial() }
    }

    /// Renames a complete file; deletes the oldest when there are too many.
    pub(crate) fn publish(&self, destination: &Destination) -> io::Result<FlightFile> {
        fs::rename(&destination.partial, &destination.path)?;
        let written = fs::metadata(&destination.path)?.modified()?;
        if let Err(error) = self.remove_oldest() {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove old flight records");
        }
        listed(written, &destination.path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files = self.files()?;
        files.sort();
        let excess = files.len().saturating_sub(self.max_files);
        files[..excess].iter().try_for_each(|(_, path)| removed(path))
    }

    /// The complete files, newest first.
    pub(crate) fn listed(&self) -> io::Result<Vec<FlightFile>> {
        let mut files = self.files()?;
        files.sort();
        Ok(files.into_iter().rev().filter_map(|(at, path)| listed(at, &path)).collect())
    }

    /// Opens a file of this name that is one of [`listed`](Self::listed), so that no name leads out of the folder.
    pub(crate) fn open(&self, name: &str) -> io::Result<fs::File> {
        let is_listed = self.listed()?.iter().any(|file| file.name == name);
        if !is_listed {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Not through a link that another user has placed there to a file that only this daemon may read, and without waiting for
        // whoever writes to a pipe.
        let file = fs::File::options()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(self.dir.join(name))?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The files, with the times at which they were written. Links, pipes and folders of such names are not of this recorder.
    fn files(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_own = name
                .to_str()
                .is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(ENDING));
            if !is_own {
                continue;
            }
            match entry.metadata() {
                Ok(known) if known.is_file() => files.push((known.modified()?, entry.path())),
                // Removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_are_deleted_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes.db"), "mine").unwrap();
        let folder = Folder::new(dir.path().to_owned(), 2);
        for (second, about) in [(1.0, "a"), (2.0, "b"), (3.0, "c")] {
            let destination = folder.destination("gpu-1", second, about);
            fs::write(&destination.partial, about).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs_f64(second);
            fs::File::options()
                .write(true)
                .open(&destination.partial)
                .unwrap()
                .set_modified(at)
                .unwrap();
            folder.publish(&destination).unwrap();
        }
        let kept = ["flight-gpu-1-2.000-b.db", "flight-gpu-1-3.000-c.db", "notes.db"];
        assert_eq!(names(dir.path()), kept);
    }

    #[test]
    fn only_files_of_the_list_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(dir.path().join(name), name).unwrap();
        ["notes.db", "flight-a.db", ".flight-partial"].into_iter().for_each(write);
        std::os::unix::fs::symlink("notes.db", dir.path().join("flight-link.db")).unwrap();
        fs::create_dir(dir.path().join("flight-x")).unwrap();
        let pipe = dir.path().join("flight-pipe.db");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let folder = Folder::new(dir.path().to_owned(), 9);
        let listed = folder.listed().unwrap();
        let own = listed.iter().find(|file| file.name == "flight-a.db").unwrap();
        assert_eq!(own.bytes, 11);
        let text = |name: &str| io::read_to_string(folder.open(name)?);
        assert_eq!(text("flight-a.db").unwrap(), "flight-a.db");
        for name in ["notes.db", "flight-x/../notes.db", "", "..", "flight-b.db"] {
            assert_eq!(text(name).unwrap_err().kind(), io::ErrorKind::NotFound, "{name}");
        }
        assert!(text("flight-link.db").is_err(), "a link leads out of the folder");
        assert!(text("flight-pipe.db").is_err(), "nobody writes to the pipe");
        assert_eq!(listed.len(), 1);
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let folder = Folder::new("/records".into(), 1);
        let destination =
            folder.destination("../../etc", 1.5, &format!("a/\u{1b}[2J{}", "x".repeat(300)));
        assert_eq!(destination.path.parent(), Some(Path::new("/records")));
        let name = destination.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("flight-.._.._etc-1.500-a___2Jxxx"), "{name}");
        assert!(name.len() < 200, "{name}");
    }

    #[test]
    fn nothing_is_left_of_a_file_that_was_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), 1);
        let destination = folder.destination("n", 1.0, "a");
        for suffix in ["", "-wal", "-shm"] {
            fs::write(format!("{}{suffix}", destination.partial.display()), "").unwrap();
        }
        folder.remove_partial();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_folder_in_which_no_file_can_be_created_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        Folder::check(dir.path()).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
        assert!(Folder::check(&dir.path().join("missing")).is_err());
    }
}
