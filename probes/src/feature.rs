//! What the running kernel can do, read from its BTF. Nothing is loaded or attached to find out.

use std::path::Path;

use libbpf_rs::btf::types::{Enum, Func};
use libbpf_rs::btf::{Btf, BtfKind};

/// Where the kernel publishes its types.
pub const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// How entry and return of a library's functions are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMode {
    /// One `uprobe.session` link a library; kernel >= 6.13.
    Session,
    /// A `uprobe.multi` and a `uretprobe.multi` link a library; kernel >= 6.6.
    Multi,
    /// Two perf events a symbol; kernel >= 5.15. Needs CAP_SYS_ADMIN on kernels with the fix for CVE-2025-38466.
    Perf,
}

impl AttachMode {
    /// From most to least wanted.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];

    /// As it is written on the command line and in labels.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Multi => "multi",
            Self::Perf => "perf",
        }
    }
}

/// What the kernel's BTF tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `uprobe.session`.
    pub session: bool,
    /// `uprobe.multi`.
    pub multi: bool,
}

/// The kernel's BTF cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FeatureError {
    /// There is none.
    #[error(
        "{BTF_PATH} does not exist: this kernel was built without CONFIG_DEBUG_INFO_BTF, which gpucause needs; \
         use a distribution kernel >= 5.15"
    )]
    NoBtf,
    /// It cannot be read.
    #[error("{BTF_PATH} cannot be read: {0}")]
    Unreadable(#[from] libbpf_rs::Error),
}

impl Features {
    /// Reads the kernel's BTF.
    ///
    /// # Errors
    /// When the kernel publishes none or it cannot be parsed.
    pub fn detect() -> Result<Self, FeatureError> {
        if !Path::new(BTF_PATH).exists() {
            return Err(FeatureError::NoBtf);
        }
        let btf = Btf::from_vmlinux()?;
        let has_attach_type = |name: &str| {
            btf.type_by_kind::<Enum<'_>>().any(|e| {
                e.kind() == BtfKind::Enum && e.iter().any(|m| m.name.is_some_and(|n| n == name))
            })
        };
        Ok(Self {
            session: btf.type_by_name::<Func<'_>>("bpf_session_is_return").is_some()
                && has_attach_type("BPF_TRACE_UPROBE_SESSION"),
            multi: has_attach_type("BPF_TRACE_UPROBE_MULTI"),
        })
    }

    /// The best way to attach on this kernel.
    #[must_use]
    pub fn best_mode(self) -> AttachMode {
        if self.session {
            AttachMode::Session
        } else if self.multi {
            AttachMode::Multi
        } else {
            AttachMode::Perf
        }
    }
}
