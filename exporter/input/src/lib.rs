//! Input that users write: documents, durations, small files. Errors name the key, its position, the value and the accepted values.

pub mod complaint;
pub mod document;
pub mod duration;
pub mod nearest;
mod outline;
pub mod password;
mod reader;
mod refusals;
pub mod text_file;
