//! libFuzzer on one of the readers of foreign input, which `GPUCAUSE_FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use gpucause::fuzzing::{Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("GPUCAUSE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("GPUCAUSE_FUZZ_TARGET={name:?} is no target"))
});

fuzz_target!(|data: &[u8]| TARGET(data));
