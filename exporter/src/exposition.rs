//! The ways a page can be written, and the choice between them.

pub mod gzip;
pub mod ladder;
pub mod native;
pub mod negotiate;
pub mod openmetrics;
pub mod protobuf;
pub mod text;

mod foreign;
mod line;
mod page;

use crate::family::Exported;
use std::io;

/// A format that pages can be written in.
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
    /// Every format; of those liked equally the first is chosen.
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

    /// Writes the page to `sink`, piece by piece.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write(self, exported: &Exported, sink: &mut dyn io::Write) -> io::Result<()> {
        match self {
            Self::Text => text::write(exported, sink),
            Self::OpenMetrics => openmetrics::write(exported, sink),
            Self::Protobuf => protobuf::write(exported, sink),
        }
    }

    /// The page as a whole.
    #[must_use]
    pub fn encode(self, exported: &Exported) -> Vec<u8> {
        let mut page = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = self.write(exported, &mut page);
        page
    }
}
