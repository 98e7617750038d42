//! Features of the running kernel, from its BTF. Nothing is loaded or attached.

use std::collections::HashMap;
use std::path::Path;

use libbpf_rs::btf::types::{Enum, Func, FuncProto, Ptr, Struct, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType as _};

/// Where the kernel publishes its types.
pub const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// How entry and return of a library's functions are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMode {
    /// One `uprobe.session` link per library; kernel >= 6.13.
    Session,
    /// A `uprobe.multi` and a `uretprobe.multi` link per library; kernel >= 6.6.
    Multi,
    /// Two perf events per symbol. Needs CAP_SYS_ADMIN on kernels with the fix for CVE-2025-38466.
    Perf,
}

impl AttachMode {
    /// In order of preference.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];

    /// Name on the command line and in labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Multi => "multi",
            Self::Perf => "perf",
        }
    }

    /// Capabilities needed to attach once the programs are loaded. For links these are only those needed to reach other
    /// users' files.
    pub const fn privileges(self) -> &'static [&'static str] {
        match self {
            Self::Session | Self::Multi => {
                &["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_CHECKPOINT_RESTORE"]
            }
            Self::Perf => &[
                "CAP_SYS_PTRACE",
                "CAP_DAC_READ_SEARCH",
                "CAP_CHECKPOINT_RESTORE",
                "CAP_BPF",
                "CAP_PERFMON",
                "CAP_SYS_ADMIN",
            ],
        }
    }
}

/// Features according to BTF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `uprobe.session`.
    pub session: bool,
    /// `uprobe.multi`.
    pub multi: bool,
    /// Map entries can be allocated in scheduler context (Linux 6.1).
    pub map_allocator: bool,
}

/// The kernel's BTF is unusable, or the kernel too old.
#[derive(Debug, thiserror::Error)]
pub enum FeatureError {
    /// No BTF.
    #[error(
        "{BTF_PATH} does not exist: this kernel was built without CONFIG_DEBUG_INFO_BTF, which gpucause needs; \
         use a distribution kernel >= 6.1"
    )]
    NoBtf,
    /// No BPF memory allocator.
    #[error(
        "this kernel is too old: gpucause needs Linux 6.1 or newer, as older kernels can lock up when a program allocates \
         where the scheduler runs; --probe.allow-untested-kernel starts it nevertheless"
    )]
    TooOld,
    /// Unreadable.
    #[error("{BTF_PATH} cannot be read: {0}")]
    Unreadable(#[from] libbpf_rs::Error),
}

impl Features {
    /// Reads the kernel's BTF.
    ///
    /// # Errors
    /// When the kernel publishes none, it cannot be parsed, or the kernel is too old.
    pub fn detect() -> Result<Self, FeatureError> {
        Self::of(&kernel_types()?).require()
    }

    pub(crate) fn of(btf: &Btf<'_>) -> Self {
        let attach_types = btf.type_by_name::<Enum<'_>>("bpf_attach_type");
        let has_attach_type = |name: &str| {
            attach_types
                .as_ref()
                .is_some_and(|e| e.iter().any(|m| m.name.is_some_and(|n| n == name)))
        };
        Self {
            session: has_attach_type("BPF_TRACE_UPROBE_SESSION")
                && btf.type_by_name::<Func<'_>>("bpf_session_is_return").is_some(),
            multi: has_attach_type("BPF_TRACE_UPROBE_MULTI"),
            map_allocator: btf.type_by_name::<Struct<'_>>("bpf_mem_alloc").is_some(),
        }
    }

    /// Rejects kernels that are too old.
    ///
    /// # Errors
    /// When the kernel is too old.
    pub fn require(self) -> Result<Self, FeatureError> {
        self.map_allocator.then_some(self).ok_or(FeatureError::TooOld)
    }

    /// The best attach mode.
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

/// The kernel's types.
pub(crate) fn kernel_types() -> Result<Btf<'static>, FeatureError> {
    if !Path::new(BTF_PATH).exists() {
        return Err(FeatureError::NoBtf);
    }
    Ok(Btf::from_vmlinux()?)
}

/// BTF prefix of tracepoint handler types.
const TRACEPOINT_TYPE: &str = "btf_trace_";

/// The kernel's tracepoints and their number of arguments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracepoints(HashMap<String, usize>);

impl Tracepoints {
    pub(crate) fn of(btf: &Btf<'_>) -> Self {
        let tracepoint = |typedef: Typedef<'_>| {
            let name = typedef.name()?.to_str()?.strip_prefix(TRACEPOINT_TYPE)?.to_owned();
            let handler: Ptr<'_> = btf.type_by_id(typedef.referenced_type_id())?;
            let prototype: FuncProto<'_> = btf.type_by_id(handler.referenced_type_id())?;
            // The first parameter is the handler's context.
            Some((name, prototype.len().saturating_sub(1)))
        };
        Self(btf.type_by_kind::<Typedef<'_>>().filter_map(tracepoint).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn arguments(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn named<const N: usize>(tracepoints: [(&str, usize); N]) -> Self {
        Self(tracepoints.into_iter().map(|(name, count)| (name.to_owned(), count)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_an_allocator_of_map_entries_is_refused_with_the_version_that_is_needed() {
        let running = Features::of(&kernel_types().unwrap());
        assert!(running.require().is_ok(), "{running:?}");
        let old = Features { map_allocator: false, ..running };
        assert!(old.require().unwrap_err().to_string().contains("needs Linux 6.1 or newer"));
    }

    #[test]
    fn arguments_of_the_running_kernels_tracepoints_are_counted() {
        let tracepoints = Tracepoints::of(&kernel_types().unwrap());
        assert!(tracepoints.has("sched_process_exit") && !tracepoints.has("no_such"));
        assert!(tracepoints.arguments("sched_process_fork") == 2);
    }
}
