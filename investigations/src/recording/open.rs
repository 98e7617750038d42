//! Finds out what a trace file is, and opens it with its reader.

use std::path::Path;

use super::{Recording, RecordingError};
use crate::ingero::Ingero;

type Recogniser = fn(&Path) -> Result<Box<dyn Recording>, RecordingError>;

/// Each says [`RecordingError::NotATrace`] of what it does not know.
const RECOGNISERS: &[Recogniser] = &[|path| Ok(Box::new(Ingero::open(path)?))];

/// Opens a trace file, whichever program wrote it.
///
/// # Errors
/// When the file cannot be read, or is no trace that is known.
pub fn open(path: &Path) -> Result<Box<dyn Recording>, RecordingError> {
    let mut refused = None;
    for recognise in RECOGNISERS {
        match recognise(path) {
            Err(error @ RecordingError::NotATrace { .. }) => refused = Some(error),
            settled => return settled,
        }
    }
    Err(refused.unwrap_or_else(|| RecordingError::NotATrace {
        path: path.to_path_buf(),
        reason: "no reader knows it".into(),
    }))
}
