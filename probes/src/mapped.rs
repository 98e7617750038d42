//! Executable file mappings of a process, and the files behind them, in any container and even if deleted.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gpucause_abi::Tgid;
use nix::libc::{ESRCH, O_NOCTTY, O_NONBLOCK};
use thiserror::Error;

mod candidate;
mod line;
mod version;

#[cfg(test)]
mod tests;

pub(crate) use candidate::replaces_code;
pub use candidate::{Candidate, candidate};
pub use line::{parse_maps_line, split_deleted};
pub use version::FileVersion;

/// Device of a mapping as the kernel reports it. On overlay and btrfs it differs from `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// An executable mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// File offset, in bytes.
    pub offset: u64,
    /// Device of the file.
    pub device: Device,
    /// Inode of the file on that device.
    pub inode: u64,
    /// Path as the process sees it, without the kernel's ` (deleted)`.
    pub path: PathBuf,
    /// True if the file was deleted.
    pub deleted: bool,
}

/// The file behind a mapping cannot be reached.
#[derive(Debug, Error)]
pub enum MappedError {
    /// The process ended, or unmapped it.
    #[error("process {0} no longer maps {1:?}")]
    Gone(Tgid, PathBuf),
    /// A special file, such as a device, which must not be opened.
    #[error("{1:?} of process {0} is not a regular file")]
    NotRegular(Tgid, PathBuf),
    /// A file system error or a missing privilege.
    #[error(
        "cannot reach {1:?} of process {0}: {2}; needs CAP_SYS_PTRACE, \
         and CAP_CHECKPOINT_RESTORE for deleted files"
    )]
    Unreachable(Tgid, PathBuf, #[source] io::Error),
}

/// All processes of the host.
///
/// # Errors
/// When /proc cannot be read.
pub fn all_processes() -> io::Result<Vec<Tgid>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process that ends meanwhile is no error.
        let Ok(entry) = entry else { continue };
        if let Some(tgid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            processes.push(Tgid(tgid));
        }
    }
    Ok(processes)
}

/// The executable file mappings of a process; empty when it has ended.
///
/// # Errors
/// When CAP_SYS_PTRACE is missing for another user's process.
pub fn executable_mappings(tgid: Tgid) -> io::Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    match each_line(tgid, |line| mappings.extend(parse_maps_line(line))) {
        Ok(()) => Ok(mappings),
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn each_line(tgid: Tgid, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut maps = BufReader::new(File::open(format!("/proc/{tgid}/maps"))?);
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        each(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// The file behind a mapping: identified, not yet opened.
#[derive(Debug)]
pub struct Located {
    tgid: Tgid,
    mapped_as: PathBuf,
    reach: PathBuf,
    metadata: Metadata,
}

impl Located {
    /// Returns the metadata that `stat` reports for the file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// When it is not a regular file, or no longer reachable.
    pub fn open(&self) -> Result<File, MappedError> {
        let (tgid, path) = (self.tgid, self.mapped_as.clone());
        if !self.metadata.is_file() {
            return Err(MappedError::NotRegular(tgid, path));
        }
        // If a pipe or terminal has replaced the file, opening it must not block or change this process.
        let opened =
            OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(&self.reach);
        let same = |file: File| match file.metadata() {
            Ok(now) if (now.dev(), now.ino()) == (self.metadata.dev(), self.metadata.ino()) => {
                Ok(file)
            }
            Ok(_) => Err(MappedError::Gone(tgid, path.clone())),
            Err(source) => Err(MappedError::Unreachable(tgid, path.clone(), source)),
        };
        match opened {
            Ok(file) => same(file),
            Err(error) if is_gone(&error) => Err(MappedError::Gone(tgid, path)),
            Err(source) => Err(MappedError::Unreachable(tgid, path, source)),
        }
    }
}

/// Finds the file behind a mapping without opening it: through `map_files`, else by its path in the process's root
/// directory, if the inode matches.
///
/// # Errors
/// When the process has ended or its files cannot be reached.
pub fn locate_mapped(tgid: Tgid, mapping: &Mapping) -> Result<Located, MappedError> {
    let located =
        |reach, metadata| Located { tgid, mapped_as: mapping.path.clone(), reach, metadata };
    let mut reach = map_file(tgid, mapping.start, mapping.end);
    let mut found = fs::metadata(&reach);
    if found.as_ref().is_err_and(is_gone) {
        // The loader maps a library whole and then replaces parts, so the range may have changed.
        if let Some((start, end)) = present_range(tgid, mapping) {
            reach = map_file(tgid, start, end);
            found = fs::metadata(&reach);
        }
    }
    let first_error = match found {
        Ok(metadata) => return Ok(located(reach, metadata)),
        Err(error) => error,
    };
    let mut reach = PathBuf::from(format!("/proc/{tgid}/root"));
    // Joining an absolute path would replace the root.
    reach.push(mapping.path.strip_prefix("/").unwrap_or(&mapping.path));
    match fs::metadata(&reach) {
        Ok(metadata) if metadata.ino() == mapping.inode => Ok(located(reach, metadata)),
        Ok(_) | Err(_) if is_gone(&first_error) => {
            Err(MappedError::Gone(tgid, mapping.path.clone()))
        }
        Ok(_) | Err(_) => Err(MappedError::Unreachable(tgid, mapping.path.clone(), first_error)),
    }
}

/// Opens the file behind a mapping; see [`locate_mapped`].
///
/// # Errors
/// When the process has ended, its files cannot be reached, or the file is not regular.
pub fn open_mapped(tgid: Tgid, mapping: &Mapping) -> Result<File, MappedError> {
    locate_mapped(tgid, mapping)?.open()
}

/// Returns true if a process has memory that a file could be mapped in. A process that has ended, and waits for its parent, has
/// none; nor has a first thread that ended before the others, which go on.
pub(crate) fn has_memory(tgid: Tgid) -> bool {
    let threads = || fs::read_dir(format!("/proc/{tgid}/task")).map_or(0, Iterator::count);
    !fs::read_link(format!("/proc/{tgid}/exe")).is_err_and(|error| is_gone(&error)) || threads() > 1
}

fn map_file(tgid: Tgid, start: u64, end: u64) -> PathBuf {
    PathBuf::from(format!("/proc/{tgid}/map_files/{start:x}-{end:x}"))
}

/// The current range of a mapping of the same file that contains the start of `mapping`.
fn present_range(tgid: Tgid, mapping: &Mapping) -> Option<(u64, u64)> {
    let mut range = None;
    each_line(tgid, |line| {
        let Some(now) = parse_maps_line(line) else { return };
        let same = (now.device, now.inode) == (mapping.device, mapping.inode);
        if same && (now.start..now.end).contains(&mapping.start) {
            range = Some((now.start, now.end));
        }
    })
    .ok()?;
    range
}

/// A path from kernel bytes, in any encoding.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    Path::new(std::ffi::OsStr::from_bytes(bytes)).to_path_buf()
}
