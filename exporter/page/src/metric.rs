//! The model of a metric. The metrics themselves are rows of `table`.

mod level;
mod table;

pub use level::{Level, LevelError};
pub use table::*;

/// The `reason` that stands for all of them together.
pub const ALL_REASONS: &str = "all";

/// The kind of value a metric has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until what it counts ends.
    Counter,
    /// A value at the time of the scrape.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; the labels are the value. Exposed as a gauge, which every consumer accepts.
    Info,
}

impl Kind {
    /// The word on `# TYPE` lines.
    #[must_use]
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge | Self::Info => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A base unit, which the metric's name then ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Time.
    Seconds,
    /// Size.
    Bytes,
}

impl Unit {
    /// The suffix of the name, and the word on `# UNIT` lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
        }
    }
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Family name, unit included; a counter's `_total` is added by the encoders.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// The unit, where there is one.
    pub unit: Option<Unit>,
    /// The kind of value.
    pub kind: Kind,
    /// The first level that has it.
    pub level: Level,
    /// Position in [`MEASURES`](gpucause_abi::measure::MEASURES) of the number that it exports, if it exports one as it is.
    pub measure: Option<usize>,
    /// Label keys, in the order in which samples give their values.
    pub labels: &'static [&'static str],
}

impl Metric {
    /// The name that queries use: with `_total` on counters.
    #[must_use]
    pub fn query_name(&self) -> String {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{suffix}", self.name)
    }
}

/// The table as Markdown, for `METRICS.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page =
        String::from("| metric | type | level | labels | meaning |\n|---|---|---|---|---|\n");
    for metric in ALL {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        page += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.query_name(),
            metric.kind.type_name(),
            metric.level,
            labels.join(", "),
            metric.help.replace('|', "\\|"),
        );
    }
    page
}

#[cfg(test)]
mod tests;
