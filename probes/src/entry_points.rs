//! Checks that the driver hands out only probed functions.
//!
//! The CUDA runtime and most frameworks get driver functions from `cuGetProcAddress`. Drivers up to 555 return exported
//! functions, which are probed; another driver would be observed only in part. This asks the host's own driver, without a
//! GPU, in a child process that contains side effects of loading it.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_abi::op::{Api, OPS};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use thiserror::Error;

use crate::elf::LibraryImage;

/// Timeout of the child; it needs 0.1 s.
const DEADLINE: Duration = Duration::from_secs(10);
/// Queried CUDA versions: each that changed a function's ABI, and those of current runtimes.
const VERSIONS: [c_int; 14] =
    [2000, 3020, 4000, 5050, 6050, 7000, 8000, 10000, 11000, 11030, 12000, 12080, 13000, 13050];
/// `CU_GET_PROC_ADDRESS_DEFAULT`, `_LEGACY_STREAM` and `_PER_THREAD_DEFAULT_STREAM`.
const FLAGS: [u64; 3] = [0, 1, 2];
/// Last line of a child that completed.
const END: &str = ".";

/// The result of the check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryPoints {
    /// Compared answers.
    pub compared: usize,
    /// Ops with an unprobed entry point.
    pub not_probed: BTreeSet<String>,
}

/// The check failed.
#[derive(Debug, Error)]
pub enum EntryPointError {
    /// The driver cannot be loaded or lacks the function.
    #[error("{0}")]
    Refused(String),
    /// The child ended early.
    #[error("the process that loaded it ended early: {0}")]
    Crashed(String),
    /// The child timed out.
    #[error("the process that loaded it did not end within {} s", DEADLINE.as_secs())]
    TimedOut,
    /// The child could not be started.
    #[error("cannot start a process: {0}")]
    Fork(#[from] io::Error),
}

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// Compares what the driver at `path` returns for each op with the probed functions in it.
///
/// # Errors
/// When the driver cannot be loaded or asked.
pub fn entry_points(path: &Path, image: &LibraryImage) -> Result<EntryPoints, EntryPointError> {
    let (answer, mut question) = io::pipe()?;
    // SAFETY: the child loads a library and writes to a pipe, for which glibc is ready in a child of many threads, and ends
    // without running what this program has for its own end.
    let child = match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(answer);
            let _ = question.write_all(ask(path, image).as_bytes());
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
    };
    drop(question);
    let text = read_all(answer);
    if text.is_err() {
        let _ = kill(child, Signal::SIGKILL);
    }
    let ended = waitpid(child, None).map_err(io::Error::from)?;
    parse(&text?, ended)
}

/// Reads the pipe until it is closed.
fn read_all(mut pipe: PipeReader) -> Result<String, EntryPointError> {
    let started = Instant::now();
    let mut text = Vec::new();
    loop {
        let left = DEADLINE.saturating_sub(started.elapsed());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let ready = poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], left);
        if ready.map_err(io::Error::from)? == 0 {
            return Err(EntryPointError::TimedOut);
        }
        let mut piece = [0; 4096];
        match pipe.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            length => text.extend(&piece[..length]),
        }
    }
}

fn parse(text: &str, ended: WaitStatus) -> Result<EntryPoints, EntryPointError> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let rest: Vec<&str> = lines.collect();
    match (first.parse(), rest.split_last()) {
        (Ok(compared), Some((&END, names))) => {
            let not_probed = names.iter().map(|&name| name.to_owned()).collect();
            Ok(EntryPoints { compared, not_probed })
        }
        (Err(_), Some((&END, []))) => Err(EntryPointError::Refused(first.to_owned())),
        _ => Err(EntryPointError::Crashed(format!("{ended:?}"))),
    }
}

/// Loads the driver into this process. Returns the number of answers and the unprobed ops, or an error, and [`END`].
fn ask(path: &Path, image: &LibraryImage) -> String {
    match answers(path, image) {
        Ok(EntryPoints { compared, not_probed }) => {
            let names: String = not_probed.iter().map(|name| format!("{name}\n")).collect();
            format!("{compared}\n{names}{END}\n")
        }
        Err(reason) => format!("{}\n{END}\n", reason.replace('\n', " ")),
    }
}

fn answers(path: &Path, image: &LibraryImage) -> Result<EntryPoints, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a terminated path; what the library does when it is loaded is why this is a process of its own.
    let driver = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if driver.is_null() {
        return Err("it cannot be loaded".to_owned());
    }
    let find = |symbol: &str| {
        let symbol = CString::new(symbol).ok()?;
        // SAFETY: the handle is open and the name terminated.
        let address = unsafe { libc::dlsym(driver, symbol.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let get = find("cuGetProcAddress_v2").or_else(|| find("cuGetProcAddress"));
    let Some(get) = get else { return Err("it has no cuGetProcAddress".to_owned()) };
    // SAFETY: the driver's function has this type; the older one takes one argument less, which the callee does not notice.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(get) };
    let probed: BTreeSet<usize> = image
        .sites
        .iter()
        .filter_map(|site| find(&site.symbol))
        .map(|address| address as usize)
        .collect();
    let mut found = EntryPoints::default();
    for op in OPS.iter().filter(|op| op.api == Api::Driver) {
        let Ok(symbol) = CString::new(op.name) else { continue };
        for (version, flags) in VERSIONS.into_iter().flat_map(|v| FLAGS.map(|flags| (v, flags))) {
            let (mut address, mut status) = (std::ptr::null_mut(), 0);
            // SAFETY: the name is terminated and both results have a place.
            let code =
                unsafe { get(symbol.as_ptr(), &raw mut address, version, flags, &raw mut status) };
            if code != 0 || address.is_null() {
                continue;
            }
            found.compared += 1;
            if !probed.contains(&(address as usize)) {
                found.not_probed.insert(op.name.to_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDED: WaitStatus = WaitStatus::StillAlive;

    #[test]
    fn a_child_that_ended_early_is_no_answer() {
        for text in ["", "12\n", "12\ncuInit\n", "12\ncuInit\nx"] {
            assert!(matches!(parse(text, ENDED), Err(EntryPointError::Crashed(_))), "{text:?}");
        }
        let found = parse("12\ncuInit\n.\n", ENDED).unwrap();
        assert_eq!(found.compared, 12);
        assert_eq!(found.not_probed.into_iter().collect::<Vec<_>>(), ["cuInit"]);
    }

    #[test]
    fn what_is_no_driver_says_so() {
        let refusal = |path: &str| {
            entry_points(Path::new(path), &LibraryImage::default()).unwrap_err().to_string()
        };
        assert_eq!(refusal("/proc/self/status"), "it cannot be loaded");
        assert_eq!(refusal("libc.so.6"), "it has no cuGetProcAddress");
    }
}
