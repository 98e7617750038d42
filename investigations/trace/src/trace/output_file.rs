//! Creates, replaces and removes trace files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::write_error::WriteError;
use crate::unfinished_file::{BESIDE_DATABASE, create_private, with_suffix};

pub(crate) fn cannot_create(path: &Path) -> impl FnOnce(std::io::Error) -> WriteError {
    move |source| match source.kind() {
        ErrorKind::AlreadyExists => WriteError::Exists(path.to_owned()),
        _ => WriteError::Create(path.to_owned(), source),
    }
}

/// Checks if a file could be created here. Changes nothing.
///
/// # Errors
/// When a file exists that may not be overwritten, or none can be created in that folder.
pub fn check(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(WriteError::Exists(path.to_owned()));
    }
    let attempt = with_suffix(path, &format!(".{}", std::process::id()));
    create_private(&attempt).map_err(cannot_create(path))?;
    fs::remove_file(&attempt).map_err(cannot_create(path))
}

/// Creates an empty file that only its owner may read; one that replaces another has that one's mode. SQLite itself would open an
/// existing one, follow a symbolic link, or let everybody read it.
pub(super) fn create(path: &Path, overwrite: bool) -> Result<(), WriteError> {
    let known = path.symlink_metadata().ok().filter(|known| overwrite && known.is_file());
    if overwrite {
        remove(path)?;
    }
    let file = create_private(path).map_err(cannot_create(path))?;
    match known {
        Some(known) => file.set_permissions(known.permissions()).map_err(cannot_create(path)),
        None => Ok(()),
    }
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
