//! The name of this host.

/// The name of this host; empty when it is not UTF-8.
pub fn node_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
