//! The data model of the exposition: collectors produce families, encoders write them.
//!
//! Samples have no timestamps: with one, Prometheus would not mark a vanished series as stale.

use crate::foreign;
use crate::metric::{Kind, Metric};
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use std::io;
use std::sync::Arc;

/// A label's value, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelValue {
    /// Known at compile time.
    Fixed(&'static str),
    /// Used by many samples, such as a process's name.
    Shared(Arc<str>),
}

impl LabelValue {
    /// The value as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Fixed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl From<&'static str> for LabelValue {
    fn from(text: &'static str) -> Self {
        Self::Fixed(text)
    }
}

impl From<&Arc<str>> for LabelValue {
    fn from(text: &Arc<str>) -> Self {
        Self::Shared(Arc::clone(text))
    }
}

impl From<String> for LabelValue {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

/// A sample's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Integer(u64),
    /// A measured number.
    Float(f64),
    /// A time in seconds, exact to the nanosecond.
    Seconds(Nanos),
    /// A distribution of times in seconds.
    Histogram(Histogram),
}

/// Maximum characters of an exemplar's label, key and value together: OpenMetrics parsers reject the whole page otherwise.
const MAX_EXEMPLAR_CHARS: usize = 128;

/// The origin of a counter's last increase, for formats with exemplars.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// Its one label.
    pub key: &'static str,
    /// The label's value.
    pub value: Arc<str>,
    /// The increase.
    pub amount: f64,
    /// When, in seconds since the Unix epoch.
    pub at: f64,
}

impl Exemplar {
    /// Returns true if the exemplar may be exposed.
    pub(crate) fn is_short(&self) -> bool {
        self.key.len() + self.value.chars().count() <= MAX_EXEMPLAR_CHARS
    }
}

/// One series of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// One value for each of the metric's label keys, in their order.
    pub labels: Box<[LabelValue]>,
    /// The value.
    pub value: Value,
    /// When a counter or histogram began at zero, in seconds since the Unix epoch. It distinguishes a restart from a reused PID.
    pub created: Option<f64>,
    /// The origin of the last increase.
    pub exemplar: Option<Box<Exemplar>>,
}

impl Sample {
    /// Returns true if OpenMetrics has a `_created` line for the sample.
    pub(crate) const fn is_created(&self, family: &Family) -> bool {
        self.created.is_some() && matches!(family.metric.kind, Kind::Counter | Kind::Histogram)
    }
}

/// A metric and its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name, help, kind and label keys.
    pub metric: &'static Metric,
    /// The series; no two have the same labels.
    pub samples: Vec<Sample>,
}

/// Consumes the families of a page, in page order.
pub trait Sink {
    /// Consumes a family of gpucause.
    ///
    /// # Errors
    /// When the destination is gone, such as a client that hung up.
    fn own(&mut self, family: Family) -> io::Result<()>;

    /// The series that a family is on this page.
    fn series(&self, family: &Family) -> usize {
        family.samples.len()
    }

    /// Consumes families of DCGM, after all others.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    fn foreign(&mut self, families: &[Arc<foreign::ForeignFamily>]) -> io::Result<()>;
}

/// All families of a page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exported {
    /// Families of gpucause.
    pub own: Vec<Family>,
    /// Families of DCGM, which follow.
    pub foreign: Vec<Arc<foreign::ForeignFamily>>,
}

impl From<Vec<Family>> for Exported {
    fn from(own: Vec<Family>) -> Self {
        Self { own, foreign: Vec::new() }
    }
}

impl Sink for Exported {
    fn own(&mut self, family: Family) -> io::Result<()> {
        self.own.push(family);
        Ok(())
    }

    fn foreign(&mut self, families: &[Arc<foreign::ForeignFamily>]) -> io::Result<()> {
        self.foreign.extend_from_slice(families);
        Ok(())
    }
}

impl Family {
    /// A family without samples.
    #[must_use]
    pub const fn new(metric: &'static Metric) -> Self {
        Self { metric, samples: Vec::new() }
    }

    /// Adds a sample without a start time, such as a gauge.
    pub fn push<const N: usize>(&mut self, labels: [LabelValue; N], value: Value) {
        self.push_created(labels, value, None);
    }

    /// Adds a sample that began at zero at `created`, in seconds since the Unix epoch.
    pub fn push_created<const N: usize>(
        &mut self,
        labels: [LabelValue; N],
        value: Value,
        created: Option<f64>,
    ) {
        debug_assert_eq!(N, self.metric.labels.len(), "labels of {}", self.metric.name);
        self.samples.push(Sample { labels: Box::new(labels), value, created, exemplar: None });
    }

    /// Sets the exemplar of the last sample.
    pub fn set_exemplar(&mut self, exemplar: Option<Exemplar>) {
        if let Some(last) = self.samples.last_mut() {
            last.exemplar = exemplar.map(Box::new);
        }
    }

    /// A family of one sample without labels.
    #[must_use]
    pub fn single(metric: &'static Metric, value: Value, created: Option<f64>) -> Self {
        let mut family = Self::new(metric);
        family.push_created([], value, created);
        family
    }
}
