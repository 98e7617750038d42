//! The code in stacks of processes: files, functions and lines of Python.

pub mod frames;
pub(crate) mod functions;
pub mod python;
