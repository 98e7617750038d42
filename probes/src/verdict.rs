//! The outcome of attaching a probe.

/// The outcome for a program or library. Only `Broken` is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramVerdict {
    /// Attached.
    Attached,
    /// Not requested.
    Disabled,
    /// Not supported by this kernel or file; with the reason.
    Unsupported(String),
    /// Failed; with the reason.
    Broken(String),
}

impl ProgramVerdict {
    /// The label value on metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Disabled => "disabled",
            Self::Unsupported(_) => "unsupported",
            Self::Broken(_) => "broken",
        }
    }

    /// The reason, if unsupported or broken.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Attached | Self::Disabled => None,
            Self::Unsupported(reason) | Self::Broken(reason) => Some(reason),
        }
    }
}

/// The status of a host-wide program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStatus {
    /// Name of the program, such as `sched_switch`.
    pub program: &'static str,
    /// Its outcome.
    pub verdict: ProgramVerdict,
}
