//! Trace files: recordings of nodes, read, written and merged; and readable names of the functions in them.

pub mod database;
pub mod merge;
pub mod recording;
pub mod symbol;
pub mod trace;
pub mod unfinished_file;
