//! Compiles the kernel programs, with the header that gpucause-abi renders.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Failure> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(out.join("abi.h"), gpucause_abi::c_header())?;
    println!("cargo:rerun-if-changed=bpf");
    compile("gpucause", &out)?;
    if env::var_os("CARGO_FEATURE_BENCH").is_some() {
        compile("bench", &out)?;
    }
    Ok(())
}

fn compile(name: &str, out: &Path) -> Result<(), Failure> {
    let target = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("gpucause supports x86_64 and aarch64, not {other}").into()),
    };
    let arguments = [
        OsString::from("-I"),
        out.as_os_str().to_owned(),
        "-Ibpf".into(),
        "-mcpu=v3".into(),
        "-Wall".into(),
        "-Werror".into(),
        format!("-D__TARGET_ARCH_{target}").into(),
    ];
    SkeletonBuilder::new()
        .source(format!("bpf/{name}.bpf.c"))
        .obj(out.join(format!("{name}.bpf.o")))
        .clang_args(arguments)
        .build()
        .map_err(|error| {
            format!("bpf/{name}.bpf.c did not compile; is clang installed? {error:#}").into()
        })
}
