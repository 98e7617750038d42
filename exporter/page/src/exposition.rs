//! The exposition formats, and their negotiation.

pub mod bucket_bounds;
pub mod classic_buckets;
pub mod gzip;
pub mod native;
pub mod negotiate;
pub mod openmetrics;
pub mod protobuf;
pub mod text;

mod foreign;
mod line;
mod page;

use crate::family::{Exported, Family, Sample, Sink, Value};
use crate::foreign::ForeignFamily;
use crate::metric::Level;
use bucket_bounds::BOUNDS;
pub use classic_buckets::ClassicBuckets;
use page::Page;
use std::io;
use std::sync::Arc;

/// An exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus' protobuf messages, delimited; the only one with native histograms.
    Protobuf,
}

impl Format {
    /// Every format, the preferred one of equal quality first.
    pub const ALL: [Self; 3] = [Self::Text, Self::OpenMetrics, Self::Protobuf];

    /// The exact media type; Prometheus 3 refuses a page without a known one.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// A writer of a page of this level in this format, with these classic buckets, to `sink`.
    #[must_use]
    pub fn writer(
        self,
        level: Level,
        buckets: ClassicBuckets,
        sink: &mut dyn io::Write,
    ) -> Writer<'_> {
        let form = match self {
            Self::Text => Form::Text,
            // Prometheus makes a series of each such line.
            Self::OpenMetrics => Form::OpenMetrics((level == Level::Full).then(Default::default)),
            Self::Protobuf => Form::Protobuf(protobuf::Buffers::default()),
        };
        Writer { page: Page::new(sink), form, buckets }
    }

    /// Writes the page with all classic buckets to `sink` in chunks.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write(self, exported: &Exported, sink: &mut dyn io::Write) -> io::Result<()> {
        let mut writer = self.writer(Level::Full, ClassicBuckets::All, sink);
        exported.own.iter().try_for_each(|family| writer.family(family))?;
        writer.foreign(&exported.foreign)?;
        writer.finish()
    }

    /// The whole page, with all classic buckets.
    #[must_use]
    pub fn encode(self, exported: &Exported) -> Vec<u8> {
        let mut page = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = self.write(exported, &mut page);
        page
    }
}

/// Writes a page family by family. Families without samples are left out.
pub struct Writer<'a> {
    page: Page<'a>,
    form: Form,
    buckets: ClassicBuckets,
}

/// The state that each format carries from one family to the next.
enum Form {
    Text,
    /// With `_created` lines, if at all.
    OpenMetrics(Option<openmetrics::CreatedLine>),
    Protobuf(protobuf::Buffers),
}

impl Writer<'_> {
    /// Writes one family.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn family(&mut self, family: &Family) -> io::Result<()> {
        if family.samples.is_empty() {
            return Ok(());
        }
        let (page, buckets) = (&mut self.page, self.buckets);
        match &mut self.form {
            Form::Text => text::family(family, page, buckets),
            Form::OpenMetrics(created) => {
                openmetrics::family(family, page, buckets, created.as_mut())
            }
            Form::Protobuf(buffers) => protobuf::family(family, page, buckets, buffers),
        }
    }

    /// Ends the page.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<()> {
        if let Form::OpenMetrics(_) = self.form {
            self.page.buffer.extend_from_slice(openmetrics::END);
        }
        self.page.flush()
    }
}

impl Sink for Writer<'_> {
    fn own(&mut self, family: Family) -> io::Result<()> {
        self.family(&family)
    }

    fn series(&self, family: &Family) -> usize {
        let is_native = matches!(self.form, Form::Protobuf(_));
        let has_created = matches!(self.form, Form::OpenMetrics(Some(_)));
        let series = |sample: &Sample| {
            let Value::Histogram(_) = sample.value else { return 1 };
            let buckets = self.buckets.has(family, sample);
            let finite =
                BOUNDS.iter().filter(|bound| buckets && bound.is_of(family.metric)).count();
            // Sum and count, and +Inf in a family of buckets. A client of native histograms makes one series of all that, and classic
            // ones of classic buckets.
            match (is_native, finite) {
                (true, 0) => 1,
                (true, finite) => 1 + finite + 3,
                (false, finite) => finite + 2 + usize::from(self.buckets.has_any(family.metric)),
            }
        };
        let created = family.samples.iter().filter(|own| has_created && own.is_created(family));
        family.samples.iter().map(series).sum::<usize>() + created.count()
    }

    fn foreign(&mut self, families: &[Arc<ForeignFamily>]) -> io::Result<()> {
        match &mut self.form {
            Form::Text => foreign::text(families, &mut self.page),
            Form::OpenMetrics(_) => foreign::openmetrics(families, &mut self.page),
            Form::Protobuf(buffers) => foreign::protobuf(families, &mut self.page, buffers),
        }
    }
}
