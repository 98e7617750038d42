//! What became of a probe.

/// The outcome for one program or library. Disabled, unsupported and broken are different things: only the last is an
/// error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It counts.
    Attached,
    /// It was not wanted.
    Disabled,
    /// This kernel, or this file, cannot have it; the text says what is missing.
    Unsupported(String),
    /// It should have worked; the text says what failed.
    Broken(String),
}

impl Verdict {
    /// The label value on metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Disabled => "disabled",
            Self::Unsupported(_) => "unsupported",
            Self::Broken(_) => "broken",
        }
    }

    /// What is missing or failed.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Attached | Self::Disabled => None,
            Self::Unsupported(reason) | Self::Broken(reason) => Some(reason),
        }
    }
}

/// A program that is not tied to a library, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStatus {
    /// Name of the program, such as `sched_switch`.
    pub program: &'static str,
    /// What became of it.
    pub verdict: Verdict,
}
