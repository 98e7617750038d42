//! Metrics whose names are not ours: DCGM's, of an upstream page or of NVML. They have a place of their own on the page,
//! after our families, and no name of ours, so that nothing in them can change what we say.

use std::sync::Arc;

/// The prefix of foreign names. None of our names has it.
pub const PREFIX: &str = "DCGM_";

/// The kind of value that a foreign metric says to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignKind {
    /// Only grows. Its name need not end in `_total`.
    Counter,
    /// A value at a moment.
    Gauge,
    /// Not said.
    Untyped,
}

impl ForeignKind {
    /// The word on `# TYPE` lines of the text format.
    #[must_use]
    pub const fn text_name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Untyped => "untyped",
        }
    }

    /// The word of OpenMetrics, where the name of a counter's samples must end in `_total`: one that is to keep another
    /// name is of no known kind there.
    #[must_use]
    pub const fn openmetrics_name(self) -> &'static str {
        match self {
            Self::Counter | Self::Untyped => "unknown",
            Self::Gauge => "gauge",
        }
    }
}

/// Keys and values, no key twice.
pub type Labels = Box<[(Arc<str>, Arc<str>)]>;

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignSample {
    /// Its labels.
    pub labels: Labels,
    /// Its value.
    pub value: f64,
}

/// A metric and its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignFamily {
    /// The name, as queries use it: [`PREFIX`], then letters, digits and `_`.
    pub name: Arc<str>,
    /// Help text; empty where there is none.
    pub help: Arc<str>,
    /// The kind of value.
    pub kind: ForeignKind,
    /// The series; no two have the same labels.
    pub samples: Vec<ForeignSample>,
}
