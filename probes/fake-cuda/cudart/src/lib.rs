//! A stand-in for `libcudart.so.12`: the traced functions of the CUDA runtime with NVIDIA's names and arguments, doing
//! what the script says. Grammar and control functions: `gpucause_fake_cuda`.
#![allow(unsafe_code, reason = "the library speaks C")]

mod copy;
mod driver;
mod error;
mod launch;
mod memory;
mod other;
mod stream;

use gpucause_fake_cuda::Api;
use gpucause_fake_cuda::Library;

static LIBRARY: Library = Library {
    name: "libcudart.so.12",
    api: Api::Runtime,
    functions: &[
        launch::FUNCTIONS,
        copy::FUNCTIONS,
        memory::FUNCTIONS,
        stream::FUNCTIONS,
        error::FUNCTIONS,
        other::FUNCTIONS,
    ],
    nest: Some(driver::nest),
};

gpucause_fake_cuda::control!(LIBRARY);
