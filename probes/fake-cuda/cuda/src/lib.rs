//! A stand-in for `libcuda.so.1`: the traced functions of the CUDA driver with NVIDIA's names and arguments, doing what
//! the script says. Grammar and control functions: `gpucause_fake_cuda`.
#![allow(unsafe_code, reason = "the library speaks C")]

mod context;
mod copy;
mod memory;
mod other;

use gpucause_fake_cuda::{Api, Library};

static LIBRARY: Library = Library {
    name: "libcuda.so.1",
    api: Api::Driver,
    functions: &[copy::FUNCTIONS, memory::FUNCTIONS, context::FUNCTIONS, other::FUNCTIONS],
    nest: None,
};

gpucause_fake_cuda::control!(LIBRARY);
