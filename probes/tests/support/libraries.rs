//! Library files made for a test.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpucause_abi::Tgid;
use gpucause_probes::elf::read_library;
use gpucause_probes::mapped::executable_mappings;

/// Functions that begin with a push, as those of the real libraries do. Each returns its argument plus `SHIFT`;
/// `PADDING` bytes of code come before them.
pub(crate) const PLAIN: &str = include_str!("plain.c");

/// Functions then begin with a push.
pub(crate) const WITHOUT_LANDING_PADS: Option<&str> =
    if cfg!(target_arch = "x86_64") { Some("-fcf-protection=none") } else { None };

/// Compiles a shared object; missing directories are made. Never overwrites a file.
pub(crate) fn build_library(path: &Path, source: &str, options: &[&str]) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    let text = path.with_added_extension("c");
    fs::write(&text, source).expect("written");
    let partial = path.with_added_extension("partial");
    let built = Command::new("cc")
        .args(["-O0", "-g0", "-fPIC", "-shared", "-fno-omit-frame-pointer"])
        .args(WITHOUT_LANDING_PADS)
        .args(["-Wl,-soname,libcudart.so.12", "-o"])
        .arg(&partial)
        .args(options)
        .arg(&text)
        .status()
        .expect("cc must be installed");
    assert!(built.success());
    fs::remove_file(text).expect("removed");
    fs::rename(partial, path).expect("renamed");
}

/// Where in the file the probe of a function belongs.
pub(crate) fn probe_offset(library: &Path, function: &str) -> u64 {
    let image = read_library(&fs::File::open(library).expect("readable")).expect("a library");
    image.sites.iter().find(|site| site.symbol == function).expect("traced").offset
}

/// The byte at an offset of a library: in the file, and in the code that a process has mapped.
pub(crate) fn code_at(pid: u32, library: &Path, offset: u64) -> [u8; 2] {
    let inode = library.metadata().expect("exists").ino();
    let mapping = executable_mappings(Tgid(pid)).expect("readable").into_iter().find(|mapping| {
        let length = mapping.end - mapping.start;
        mapping.inode == inode && (mapping.offset..mapping.offset + length).contains(&offset)
    });
    let mapping = mapping.expect("the code is mapped");
    let read = |path: &Path, at: u64| {
        let mut byte = [0];
        let file = fs::File::open(path).expect("readable");
        file.read_exact_at(&mut byte, at).expect("a byte");
        byte[0]
    };
    let memory = PathBuf::from(format!("/proc/{pid}/mem"));
    [read(library, offset), read(&memory, mapping.start + offset - mapping.offset)]
}
