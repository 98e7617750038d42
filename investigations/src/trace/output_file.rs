//! Creates, replaces and removes trace files.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use super::write_error::WriteError;
use crate::unfinished_file::{BESIDE_DATABASE, with_suffix};

pub(crate) fn cannot_create(path: &Path) -> impl FnOnce(std::io::Error) -> WriteError {
    move |source| match source.kind() {
        ErrorKind::AlreadyExists => WriteError::Exists(path.to_owned()),
        _ => WriteError::Create(path.to_owned(), source),
    }
}

/// Whether a file could be created here. Changes nothing.
///
/// # Errors
/// When a file exists that may not be overwritten, or none can be created in that folder.
pub fn check(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(WriteError::Exists(path.to_owned()));
    }
    let mut attempt = path.as_os_str().to_owned();
    attempt.push(format!(".{}", std::process::id()));
    File::create_new(&attempt).map_err(cannot_create(path))?;
    fs::remove_file(&attempt).map_err(cannot_create(path))
}

/// Creates an empty file. SQLite itself would open an existing one, or follow a symbolic link.
pub(super) fn create(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    if overwrite {
        remove(path)?;
    }
    File::create_new(path).map(drop).map_err(cannot_create(path))
}

/// Removes a file and those that SQLite keeps beside it.
fn remove(path: &Path) -> Result<(), WriteError> {
    for suffix in [&[""], BESIDE_DATABASE].concat() {
        let name = with_suffix(path, suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(cannot_create(&name)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
