//! The one model of what is exported: collectors make it, encoders write it.
//!
//! There is no sample timestamp: an explicit one would stop Prometheus from marking a vanished series as stale.

use crate::foreign;
use crate::metric::Metric;
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use std::io;
use std::sync::Arc;

/// A label's value. The two cheap forms carry what nearly all labels are made of.
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

/// Characters that an exemplar's label may have, key and value together: OpenMetrics refuses a page with more as a whole.
const MAX_EXEMPLAR_CHARS: usize = 128;

/// What a counter's last increase came from, for the formats that know exemplars.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// Its one label.
    pub key: &'static str,
    /// The label's value.
    pub value: Arc<str>,
    /// By how much it raised the counter.
    pub amount: f64,
    /// When, in seconds since the Unix epoch.
    pub at: f64,
}

impl Exemplar {
    /// Whether it may be exposed.
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
    /// When a counter or histogram began at zero, in seconds since the Unix epoch. It tells a restart from a reused PID.
    pub created: Option<f64>,
    /// What the last increase came from.
    pub exemplar: Option<Box<Exemplar>>,
}

/// A metric and its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name, help, kind and label keys.
    pub metric: &'static Metric,
    /// The series; no two have the same labels.
    pub samples: Vec<Sample>,
}

/// Takes the families of a page, in their order. What was taken needs not be kept: a page may tell of very many series.
pub trait Sink {
    /// Takes one of our families.
    ///
    /// # Errors
    /// When it goes nowhere any more, as when the client is gone.
    fn own(&mut self, family: Family) -> io::Result<()>;

    /// Takes those that have other names, after all of ours.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    fn foreign(&mut self, families: &[Arc<foreign::Family>]) -> io::Result<()>;
}

/// Everything that a page tells, kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exported {
    /// Our families.
    pub own: Vec<Family>,
    /// Those that have other names, which come after ours.
    pub foreign: Vec<Arc<foreign::Family>>,
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

    fn foreign(&mut self, families: &[Arc<foreign::Family>]) -> io::Result<()> {
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

    /// Adds a sample that has no beginning, such as a gauge.
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

    /// Tells what the sample that was added last came from.
    pub fn set_exemplar(&mut self, exemplar: Option<Exemplar>) {
        if let Some(last) = self.samples.last_mut() {
            last.exemplar = exemplar.map(Box::new);
        }
    }

    /// With one sample that has no labels.
    #[must_use]
    pub fn single(metric: &'static Metric, value: Value, created: Option<f64>) -> Self {
        let mut family = Self::new(metric);
        family.push_created([], value, created);
        family
    }
}
