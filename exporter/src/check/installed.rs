//! CUDA libraries that are installed where the loader looks, whether or not a process maps them now.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gpucause_probes::elf::read_library;
use gpucause_probes::mapped::{Candidate, candidate};

use super::{Line, State};

/// Where Debian, Ubuntu, Fedora and NVIDIA's own packages put them.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/cuda/lib64",
    "/opt/cuda/lib64",
];

/// A line for each library, links to the same file left out.
pub(super) fn report() -> Vec<Line> {
    let mut files: Vec<PathBuf> = FOLDERS
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok())
        .filter(|path| candidate(path) == Some(Candidate::Library))
        .collect();
    files.sort();
    files.dedup();
    files.iter().map(|path| line(path)).collect()
}

fn line(path: &Path) -> Line {
    let read = File::open(path).map_err(|error| error.to_string());
    let read = read.and_then(|file| read_library(&file).map_err(|error| error.to_string()));
    let (state, detail) = match read {
        Ok(image) if image.sites.is_empty() => {
            (State::Unsupported, "no traced functions".to_owned())
        }
        Ok(image) => {
            (State::Ok, format!("installed: {} functions can be probed", image.sites.len()))
        }
        Err(error) => (State::Unsupported, error),
    };
    Line { state, subject: path.to_string_lossy().into_owned(), detail, blocks: false }
}
