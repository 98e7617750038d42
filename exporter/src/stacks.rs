//! What stacks of processes are in: files, functions and lines of Python.

pub(crate) mod frames;
pub(crate) mod functions;
pub(crate) mod python;
