//! Trace files: recordings of nodes, read and written.

pub mod database;
pub mod merge;
pub mod recording;
pub mod symbol;
pub mod trace;
pub mod unfinished_file;
