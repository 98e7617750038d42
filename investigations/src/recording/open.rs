//! Which reader a file is for.

use std::path::Path;

use super::{Recording, RecordingError};

/// What opens the files of one program, or says that a file is not of that program.
type Reader = fn(&Path) -> Result<Option<Box<dyn Recording>>, RecordingError>;

const READERS: &[Reader] = &[];

/// Opens a trace file of any program that is known here.
///
/// # Errors
/// When it cannot be opened, is no trace, is damaged, or is of a newer gpucause.
pub fn open(path: &Path) -> Result<Box<dyn Recording>, RecordingError> {
    for reader in READERS {
        if let Some(recording) = reader(path)? {
            return Ok(recording);
        }
    }
    let reason = "no program that is known here wrote it".into();
    Err(RecordingError::NotATrace { path: path.to_owned(), reason })
}
