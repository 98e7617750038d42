//! Why the programs are not in the kernel.

use crate::feature::{AttachMode, FeatureError};

/// The programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel lacks what every program needs.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// The kernel lacks the requested attach mode.
    #[error("this kernel has no uprobe {} - leave --probe.mode out to use the best it has", .0.label())]
    NoSuchMode(AttachMode),
    /// The process may not load programs.
    #[error(
        "not permitted to load eBPF programs - grant CAP_BPF and CAP_PERFMON in the host's user namespace (root and the systemd unit have them), \
         and check that kernel lockdown is not in confidentiality mode"
    )]
    NotPermitted,
    /// libbpf or the kernel refused.
    #[error("eBPF programs could not be {step}: {source}; {detail}")]
    Refused {
        /// The step that failed.
        step: &'static str,
        /// The error of libbpf.
        source: libbpf_rs::Error,
        /// The last lines of libbpf's own log.
        detail: String,
    },
    /// A map or program that must exist does not.
    #[error("the compiled programs lack {0}")]
    Incomplete(&'static str),
}
