//! Where in its program a sampled thread was: the line of Python, else the function of a file.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::python::PythonLayout;
use gpucause_abi::sample::{Sample, SampledFrames};
use gpucause_abi::{ProcId, Tgid};
use gpucause_probes::mapped::FileVersion;
use gpucause_trace::recording::StackFrame;

use crate::stacks::frames::{Frames, Module};
use crate::stacks::functions::Functions;
use crate::stacks::python::PythonProcesses;

/// Parts of paths of files that users do not write: packages and Python's own library.
const PACKAGES: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
/// Beginnings of names of files whose functions every program calls.
const RUNTIME: [&str; 5] = ["libc.", "libc-", "libm.", "libpthread", "ld-linux"];

/// A function of a file, and in Python the line. Without a file where nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) function: String,
    pub(super) line: u32,
}

/// Data about the processes with samples.
#[derive(Debug, Default)]
pub(super) struct Places {
    frames: Frames,
    pythons: PythonProcesses,
    functions: Functions,
}

/// The frame of a native stack that stands for it.
#[derive(Debug)]
struct Native {
    path: String,
    module: Arc<Module>,
    address: u64,
}

impl Places {
    /// Where the Python frames of a process are, if it runs Python that can be read.
    pub(super) fn python(&mut self, id: ProcId, tgid: Tgid) -> Option<PythonLayout> {
        self.pythons.find(&mut self.frames, (id, tgid), |_| Ok(()));
        self.pythons.layout(id)
    }

    /// Removes ended processes, and names of code whose addresses may be reused.
    pub(super) fn retain(&mut self, lives: impl Fn(ProcId) -> bool) {
        self.pythons.forget(|id| !lives(id), |_| Ok(()));
        self.pythons.forget_code();
        self.frames.forget(|id| !lives(id));
    }

    /// Where the thread was in each of these samples of a process.
    pub(super) fn of(&mut self, tgid: Tgid, samples: &[&Sample]) -> Vec<Place> {
        let native: Vec<_> = samples.iter().map(|sample| self.native(tgid, sample)).collect();
        // At once for each file: what is not known yet takes a pass over its symbols.
        let mut addresses = HashMap::<FileVersion, (&Module, Vec<u64>)>::new();
        for Native { module, address, .. } in native.iter().flatten() {
            let of_file = addresses.entry(module.version).or_insert_with(|| (module, Vec::new()));
            of_file.1.push(*address);
        }
        for (module, addresses) in addresses.into_values() {
            self.functions.find(module, &addresses);
        }
        let place = |(sample, native): (&&Sample, Option<Native>)| match &sample.frames {
            SampledFrames::Python(raw) => {
                own_frame(self.pythons.frames(sample.process, raw)).map(in_python)
            }
            SampledFrames::Native(_) => native.map(|own| Place {
                function: self
                    .functions
                    .name(&own.module, own.address)
                    .as_deref()
                    .unwrap_or("")
                    .into(),
                file: own.path,
                line: 0,
            }),
        };
        samples.iter().zip(native).map(place).map(Option::unwrap_or_default).collect()
    }

    fn native(&mut self, tgid: Tgid, sample: &Sample) -> Option<Native> {
        let SampledFrames::Native(addresses) = &sample.frames else { return None };
        let found = self.frames.stack(sample.process, tgid, addresses);
        let with_module = found.stack.frames.into_iter().zip(found.modules).enumerate();
        let mut known = with_module.filter_map(|(depth, (frame, module))| {
            // Callers are known by where they go on: that may be another function.
            let address = frame.module_address?.saturating_sub(u64::from(depth > 0));
            Some(Native { path: frame.module?, module: module?, address })
        });
        let innermost = known.next()?;
        if !is_runtime(&innermost.path) {
            return Some(innermost);
        }
        Some(known.find(|own| !is_runtime(&own.path)).unwrap_or(innermost))
    }
}

fn is_runtime(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    RUNTIME.iter().any(|begin| name.starts_with(begin))
}

/// The innermost frame of the user's own code; of any where there is none.
fn own_frame(frames: Vec<StackFrame>) -> Option<StackFrame> {
    let is_own = |frame: &StackFrame| {
        let file = frame.file.as_deref().unwrap_or_default();
        !file.starts_with("<frozen ") && !PACKAGES.iter().any(|part| file.contains(part))
    };
    let at = frames.iter().position(is_own).unwrap_or(0);
    frames.into_iter().nth(at)
}

fn in_python(frame: StackFrame) -> Place {
    Place {
        file: frame.file.unwrap_or_default(),
        function: frame.function.unwrap_or_default(),
        line: frame.line.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_users_that_called_a_package_and_the_packages_where_nobody_did() {
        let frame = |file: &str| StackFrame { file: Some(file.into()), ..StackFrame::default() };
        let file = |files: &[&str]| {
            let frames = files.iter().map(|file| frame(file)).collect();
            own_frame(frames).and_then(|frame| frame.file)
        };
        let json = "/usr/lib/python3.11/json/decoder.py";
        let torch = "/v/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py";
        let found = file(&["<frozen codecs>", json, "/home/me/dataset.py", torch, "/home/me/x.py"]);
        assert_eq!(found.as_deref(), Some("/home/me/dataset.py"));
        assert_eq!(file(&[json, torch]).as_deref(), Some(json));
        assert_eq!(file(&[]), None);
    }

    #[test]
    fn functions_of_the_c_library_stand_for_no_program() {
        for path in ["/lib/libc.so.6", "/lib/libm.so.6", "/lib/libpthread-2.28.so", "/libc-2.28.so"]
        {
            assert!(is_runtime(path), "{path}");
        }
        assert!(!is_runtime("/lib/libcrypto.so.3") && !is_runtime("/opt/libmkl.so"));
    }
}
