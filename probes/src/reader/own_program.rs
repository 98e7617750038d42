//! Programs that user space runs directly, to change map entries without overwriting concurrent counts of the kernel.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use libbpf_rs::Object;

use super::ReadError;

/// Such a program; `None` inside if the kernel rejected it.
#[derive(Debug)]
pub(super) struct OwnProgram {
    name: &'static str,
    program: Option<OwnedFd>,
}

impl OwnProgram {
    pub(super) fn of(object: &Object, name: &'static str) -> Result<Self, ReadError> {
        let program = object.progs().find(|program| program.name() == name);
        let program = program.filter(|program| program.as_fd().as_raw_fd() >= 0);
        let duplicated = program.map(|program| program.as_fd().try_clone_to_owned()).transpose();
        let program = duplicated.map_err(|source| ReadError::Run(name, source))?;
        Ok(Self { name, program })
    }

    pub(super) fn is_there(&self) -> bool {
        self.program.is_some()
    }

    /// Runs the program and returns its result; 0 if it is not loaded.
    pub(super) fn run(&self, arguments: &[u64]) -> Result<u32, ReadError> {
        let Some(program) = &self.program else { return Ok(0) };
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            ctx_in: arguments.as_ptr().cast(),
            ctx_size_in: u32::try_from(size_of_val(arguments)).unwrap_or(0),
            ..Default::default()
        };
        // SAFETY: the options have their own size, and point to arguments that outlive the call.
        let failed =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if failed != 0 {
            let source = io::Error::from_raw_os_error(-failed);
            return Err(ReadError::Run(self.name, source));
        }
        Ok(options.retval)
    }
}
