//! `.ci/test-kernels` sets this for the tests that it runs on other kernels, in emulated machines.

use gpucause_probes::feature::AttachMode;

/// Returns true if the processor is emulated: what takes seconds elsewhere takes minutes.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os("GPUCAUSE_TEST_EMULATED").is_some()
}

/// How all tests attach that do not choose, where GPUCAUSE_TEST_MODE names a mode.
pub(crate) fn forced_mode() -> Option<AttachMode> {
    let label = std::env::var("GPUCAUSE_TEST_MODE").ok()?;
    AttachMode::ALL.into_iter().find(|mode| mode.label() == label)
}
