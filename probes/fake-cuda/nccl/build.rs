//! Gives the library the name that programs link against, and each traced function its `pnccl` alias.
//!
//! The alias is made by the linker, so that both names have one address, as in the real library. rustc's own list of exports
//! hides symbols that it did not compile, so a second list names them.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

use gpucause_abi::op::{Api, OPS};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    let mut list = String::from("{ global:");
    for op in OPS.iter().filter(|op| op.api == Api::Nccl) {
        let name = op.name;
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=p{name}={name}");
        let _ = write!(list, " p{name};");
    }
    list.push_str(" };\n");
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let path = Path::new(&out).join("aliases.list");
    fs::write(&path, list)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    Ok(())
}
