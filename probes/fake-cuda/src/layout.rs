//! Installs the built libraries under the names that programs open.

use std::path::Path;
use std::{fs, io};

/// Package, the file that Cargo makes of it, and the name that CUDA programs open.
pub const LIBRARIES: [(&str, &str, &str); 4] = [
    ("gpucause-fake-cudart", "libcudart.so", "libcudart.so.12"),
    ("gpucause-fake-cuda-driver", "libcuda.so", "libcuda.so.1"),
    ("gpucause-fake-nccl", "libnccl.so", "libnccl.so.2"),
    ("gpucause-fake-nvml", "libnvidia_ml.so", "libnvidia-ml.so.1"),
];

/// Copies the stand-in libraries from a Cargo target directory (such as `target/debug`) to `to`, which is made if it
/// does not exist. A library that is already there is replaced by rename, so that a process that maps it keeps its own.
///
/// # Errors
///
/// When a library has not been built (the message says how), or a file operation fails.
pub fn lay_out(from_target_dir: &Path, to: &Path) -> io::Result<()> {
    let named = |path: &Path, error: &io::Error, advice: &str| {
        io::Error::new(error.kind(), format!("{}: {error}{advice}", path.display()))
    };
    fs::create_dir_all(to).map_err(|error| named(to, &error, ""))?;
    for (package, built, name) in LIBRARIES {
        let from = from_target_dir.join(built);
        let target = to.join(name);
        let partial = to.join(format!(".{name}.{}", std::process::id()));
        fs::copy(&from, &partial).map_err(|error| {
            named(&from, &error, &format!(" (build it with `cargo build -p {package}`)"))
        })?;
        fs::rename(&partial, &target).map_err(|error| named(&target, &error, ""))?;
    }
    Ok(())
}
