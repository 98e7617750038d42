//! The code in stacks of processes: files, functions and lines of Python.

pub(crate) mod frames;
pub(crate) mod functions;
pub(crate) mod python;
