//! How this binary was built.

/// The package version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The source revision; `unknown` when built outside a checkout.
pub const REVISION: &str = env!("GPUCAUSE_REVISION");
/// The compiler's version.
pub const RUST_VERSION: &str = env!("GPUCAUSE_RUST_VERSION");
/// The text that `--version` prints after the name.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("GPUCAUSE_REVISION"),
    ", rust ",
    env!("GPUCAUSE_RUST_VERSION"),
    ")"
);
