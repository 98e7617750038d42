//! Creates, replaces and removes trace files.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::write_error::WriteError;

fn cannot_create(path: &Path) -> impl FnOnce(std::io::Error) -> WriteError {
    move |source| WriteError::Create(path.to_owned(), source)
}

/// Whether a file could be created here. Changes nothing.
///
/// # Errors
/// When a file exists that may not be overwritten, or none can be created in that folder.
pub fn check(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(WriteError::Exists(path.to_owned()));
    }
    let attempt = unfinished(path);
    File::create_new(&attempt).map_err(cannot_create(path))?;
    fs::remove_file(&attempt).map_err(cannot_create(path))
}

/// Where a file is written until it is complete: in the same folder, by a name that no other process uses.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

/// Creates an empty file. SQLite itself would open an existing one, or follow a symbolic link.
pub(super) fn create(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    if overwrite {
        remove(path)?;
    }
    match File::create_new(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(WriteError::Exists(path.to_owned()))
        }
        Err(error) => Err(cannot_create(path)(error)),
    }
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), WriteError> {
    fs::rename(from, to).map_err(cannot_create(to))
}

/// Removes a file and those that SQLite keeps beside it.
pub(crate) fn remove(path: &Path) -> Result<(), WriteError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(cannot_create(Path::new(&name))(error));
            }
            _ => {}
        }
    }
    Ok(())
}
