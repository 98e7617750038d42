//! CUDA libraries in the loader's folders, whether or not a process maps them now.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gpucause_probes::elf::{LibraryImage, read_library};
use gpucause_probes::entry_points::entry_points;
use gpucause_probes::mapped::{Candidate, candidate};

use super::{Point, State};

/// Where Debian, Ubuntu, Fedora and NVIDIA's own packages put them.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/cuda/lib64",
    "/opt/cuda/lib64",
];

/// A point for each library, links to the same file left out.
pub(super) fn report() -> Vec<Point> {
    let mut files: Vec<PathBuf> = FOLDERS
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok())
        .filter(|path| candidate(path) == Some(Candidate::Library))
        .collect();
    files.sort();
    files.dedup();
    files.iter().flat_map(|path| points(path)).collect()
}

fn points(path: &Path) -> Vec<Point> {
    let read = File::open(path).map_err(|error| error.to_string());
    let read = read.and_then(|file| read_library(&file).map_err(|error| error.to_string()));
    let (state, detail) = match &read {
        Ok(image) if image.sites.is_empty() => {
            (State::Unsupported, "no traced functions".to_owned())
        }
        Ok(image) => {
            (State::Ok, format!("installed: {} functions can be probed", image.sites.len()))
        }
        Err(error) => (State::Unsupported, error.clone()),
    };
    let subject = path.to_string_lossy().into_owned();
    let mut points = vec![Point::new(state, subject, detail)];
    if let Ok(image) = &read
        && is_driver(path)
    {
        points.push(handed_out(path, image));
    }
    points.extend(
        read.ok().and_then(|image| slow_launch(path, image.slow_sites().map(|site| &*site.symbol))),
    );
    points
}

fn is_driver(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"))
}

/// Checks that every function that the driver hands out is probed.
fn handed_out(path: &Path, image: &LibraryImage) -> Point {
    let (state, detail) = match entry_points(path, image) {
        Ok(found) if found.compared == 0 => {
            (State::Unsupported, "hands out no function at all".to_owned())
        }
        Ok(found) if found.not_probed.is_empty() => {
            let compared = found.compared;
            (State::Ok, format!("every function that it hands out is probed ({compared} compared)"))
        }
        Ok(found) => {
            let names: Vec<_> = found.not_probed.into_iter().collect();
            let names = names.join(", ");
            (
                State::Unsupported,
                format!(
                    "hands out functions that are NOT PROBED, and whose calls are not counted: {names} - report this \
                     version of the driver"
                ),
            )
        }
        Err(error) => {
            (State::Unsupported, format!("cannot query the functions that it hands out: {error}"))
        }
    };
    let subject = format!("driver entries {}", path.to_string_lossy());
    Point::new(state, subject, detail)
}

/// The launch functions of most programs.
const LAUNCHES: [&str; 4] =
    ["cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC"];

/// A warning for a library whose single-stepped functions include launches.
pub(super) fn slow_launch<'a>(path: &Path, slow: impl Iterator<Item = &'a str>) -> Option<Point> {
    let is_launch = |symbol: &&str| LAUNCHES.contains(&symbol.trim_end_matches("_ptsz"));
    let launches: Vec<_> = slow.filter(is_launch).collect();
    let detail = format!(
        "EACH LAUNCH IS SINGLE-STEPPED: a probe at {} costs about 10 times as much; the probe budget then samples launches",
        launches.join(", ")
    );
    let subject = format!("launches {}", path.to_string_lossy());
    let point = Point::new(State::Unsupported, subject, detail);
    (!launches.is_empty()).then(|| point.advise("report this version of the library"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_that_is_single_stepped_is_reported_and_other_functions_are_not() {
        let path = Path::new("/usr/lib64/libcuda.so.999");
        let line = |slow: &[&'static str]| slow_launch(path, slow.iter().copied());
        assert_eq!(line(&["cuInit", "cuMemAlloc_v2"]), None);
        let line = line(&["cuInit", "cuLaunchKernel_ptsz", "cuLaunchKernelEx"]).unwrap();
        assert_eq!(line.state, State::Unsupported);
        assert!(line.detail.contains("at cuLaunchKernel_ptsz, cuLaunchKernelEx costs"));
    }

    #[test]
    fn a_file_that_cannot_be_loaded_is_reported() {
        let line = handed_out(Path::new("/proc/self/status"), &LibraryImage::default());
        assert_eq!(line.state, State::Unsupported);
        assert!(line.detail.ends_with("hands out: it cannot be loaded"), "{}", line.detail);
    }
}
