//! Files that take their name only when they are complete. Until then they are hidden in the same folder; they are removed on
//! failure, and by [`remove_all`] on a signal, so that neither half a file is left nor a previous one lost.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

/// Suffixes of the files that SQLite keeps beside a database.
pub(crate) const BESIDE_DATABASE: &[&str] = &["-wal", "-shm", "-journal"];
/// Bytes of the file's name that its hidden name has: 255 are the limit of most file systems.
const MAX_NAME: usize = 180;

/// The hidden files of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is not complete yet; dropped, it is removed.
#[derive(Debug)]
pub struct UnfinishedFile {
    hidden: PathBuf,
    path: PathBuf,
    overwrite: bool,
}

/// Mode of new files: their stacks and names are of processes of all users.
const OWNER_ONLY: u32 = 0o600;

/// Creates a file that only its owner may read. SQLite gives the files that it keeps beside a database the mode of that.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(OWNER_ONLY).open(path)
}

fn exists() -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, "the file exists")
}

/// Removes every unfinished file of this process, and keeps new ones from being created and complete ones from taking their
/// name: for a process that is about to end.
pub fn remove_all() {
    let all = ALL.lock();
    all.iter().for_each(|hidden| remove(hidden));
    MutexGuard::leak(all);
}

/// Removes a hidden file and what SQLite keeps beside it. There is nobody to report a failure to.
fn remove(hidden: &Path) {
    let _ = fs::remove_file(hidden);
    for suffix in BESIDE_DATABASE {
        let _ = fs::remove_file(with_suffix(hidden, suffix));
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl UnfinishedFile {
    /// Creates an empty hidden file for `path`.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] for a file that must not be overwritten; otherwise when the folder is not writable, or
    /// `path` is not a regular file: a device must not be replaced, and what a symbolic link leads to is not for whoever made the
    /// link to choose.
    pub fn create(path: &Path, overwrite: bool) -> io::Result<Self> {
        let known = path.symlink_metadata().ok();
        if known.is_some() && !overwrite {
            return Err(exists());
        }
        if known.as_ref().is_some_and(|known| !known.is_file()) {
            let reason =
                "it is no regular file; of a symbolic link, name the file that it leads to";
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        let name = path.file_name().ok_or(ErrorKind::IsADirectory)?;
        // Locked until it is created: see `remove_all`.
        let mut all = ALL.lock();
        let (hidden, file) = create_hidden(path, name.as_bytes())?;
        all.push(hidden.clone());
        drop(all);
        let unfinished = Self { hidden, path: path.to_owned(), overwrite };
        if let Some(known) = known {
            // The new file is as private as the one that it replaces.
            file.set_permissions(known.permissions())?;
        }
        Ok(unfinished)
    }

    /// The hidden file.
    #[must_use]
    pub fn hidden(&self) -> &Path {
        &self.hidden
    }

    /// Gives the complete file its name, in place of a previous file of that name.
    ///
    /// # Errors
    /// When that is not possible, or in the meantime there is a file that must not be overwritten.
    pub fn publish(self) -> io::Result<()> {
        self.take_name(&[])
    }

    /// Works like [`publish`](Self::publish), in place of a database and the files that SQLite keeps beside it.
    pub(crate) fn publish_database(self) -> io::Result<()> {
        self.take_name(BESIDE_DATABASE)
    }

    fn take_name(self, beside: &[&str]) -> io::Result<()> {
        // After a crash of the host the name must not lead to an empty file.
        File::open(&self.hidden)?.sync_all()?;
        // Locked: a signal finds it hidden or complete.
        let mut all = ALL.lock();
        if self.overwrite {
            // First: SQLite would apply them to the new file.
            for suffix in beside {
                match fs::remove_file(with_suffix(&self.path, suffix)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            fs::rename(&self.hidden, &self.path)?;
        } else {
            rename_new(&self.hidden, &self.path)?;
        }
        all.retain(|other| *other != self.hidden);
        drop(all);
        Ok(())
    }
}

fn create_hidden(path: &Path, name: &[u8]) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    for attempt in 0_u32.. {
        let mut hidden = b".".to_vec();
        hidden.extend(&name[..name.len().min(MAX_NAME)]);
        hidden.extend(format!(".{process}.{attempt}.partial").bytes());
        let hidden = path.with_file_name(std::ffi::OsString::from_vec(hidden));
        match create_private(&hidden) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (hidden, file)),
        }
    }
    Err(exists())
}

/// Renames a file, unless there is one of that name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    // A link, as opposed to a rename, never replaces a file.
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no hard links.
        Err(_) if to.symlink_metadata().is_ok() => Err(exists()),
        Err(_) => fs::rename(from, to),
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        let mut all = ALL.lock();
        let hidden = all.iter().position(|other| *other == self.hidden);
        if let Some(hidden) = hidden {
            remove(&all.swap_remove(hidden));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_once_it_is_complete_and_is_removed_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let unfinished = UnfinishedFile::create(&path, false).unwrap();
        fs::write(unfinished.hidden(), "new").unwrap();
        assert!(!path.exists());
        unfinished.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"new".into(), vec!["out".into()])
        );
        let unfinished = UnfinishedFile::create(&path, true).unwrap();
        fs::write(with_suffix(unfinished.hidden(), "-wal"), "half").unwrap();
        drop(unfinished);
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"new".into(), vec!["out".into()])
        );
    }

    #[test]
    fn a_file_is_replaced_only_where_that_is_asked_for_even_if_it_came_late() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let unfinished = UnfinishedFile::create(&path, false).unwrap();
        fs::write(&path, "of another").unwrap();
        assert_eq!(unfinished.publish().unwrap_err().kind(), ErrorKind::AlreadyExists);
        let refused = UnfinishedFile::create(&path, false).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path()).len()),
            (b"of another".into(), 1)
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        UnfinishedFile::create(&path, true).unwrap().publish().unwrap();
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.len(), new.permissions().mode() & 0o777), (0, 0o640));
    }

    #[test]
    fn a_database_is_replaced_with_what_sqlite_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for name in ["out", "out-wal", "out-shm"] {
            fs::write(folder.path().join(name), "old").unwrap();
        }
        UnfinishedFile::create(&path, true).unwrap().publish_database().unwrap();
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn neither_a_link_nor_a_folder_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for path in [&link, folder.path()] {
            let refused = UnfinishedFile::create(path, true).unwrap_err();
            assert!(refused.to_string().contains("no regular file"), "{refused}");
        }
        assert_eq!((fs::read(&target).unwrap(), names(folder.path()).len()), (b"kept".into(), 2));
    }

    #[test]
    fn the_longest_name_has_a_hidden_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x".repeat(255));
        let [one, other] = [0, 1].map(|_| UnfinishedFile::create(&path, false).unwrap());
        assert_ne!(one.hidden(), other.hidden());
        one.publish().unwrap();
        assert!(other.publish().is_err() && path.exists());
        assert_eq!(names(folder.path()).len(), 1);
    }
}
