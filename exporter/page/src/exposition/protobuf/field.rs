//! Numbers of the fields of `metrics.proto`, by message.

pub(crate) mod family {
    pub(crate) const NAME: u8 = 1;
    pub(crate) const HELP: u8 = 2;
    pub(crate) const TYPE: u8 = 3;
    pub(crate) const METRIC: u8 = 4;
    pub(crate) const UNIT: u8 = 5;
}
pub(crate) mod metric {
    pub(crate) const LABEL: u8 = 1;
    pub(crate) const GAUGE: u8 = 2;
    pub(crate) const COUNTER: u8 = 3;
    pub(crate) const UNTYPED: u8 = 5;
    pub(crate) const HISTOGRAM: u8 = 7;
}
pub(crate) mod label_pair {
    pub(crate) const NAME: u8 = 1;
    pub(crate) const VALUE: u8 = 2;
}
pub(crate) mod gauge {
    pub(crate) const VALUE: u8 = 1;
}
pub(crate) mod counter {
    pub(crate) const VALUE: u8 = 1;
    pub(crate) const EXEMPLAR: u8 = 2;
    pub(crate) const CREATED_TIMESTAMP: u8 = 3;
}
pub(crate) mod exemplar {
    pub(crate) const LABEL: u8 = 1;
    pub(crate) const VALUE: u8 = 2;
    pub(crate) const TIMESTAMP: u8 = 3;
}
pub(crate) mod histogram {
    pub(crate) const SAMPLE_COUNT: u8 = 1;
    pub(crate) const SAMPLE_SUM: u8 = 2;
    pub(crate) const BUCKET: u8 = 3;
    pub(crate) const SCHEMA: u8 = 5;
    pub(crate) const ZERO_THRESHOLD: u8 = 6;
    pub(crate) const ZERO_COUNT: u8 = 7;
    pub(crate) const POSITIVE_SPAN: u8 = 12;
    pub(crate) const POSITIVE_DELTA: u8 = 13;
    pub(crate) const CREATED_TIMESTAMP: u8 = 15;
}
pub(crate) mod bucket {
    pub(crate) const CUMULATIVE_COUNT: u8 = 1;
    pub(crate) const UPPER_BOUND: u8 = 2;
}
pub(crate) mod bucket_span {
    pub(crate) const OFFSET: u8 = 1;
    pub(crate) const LENGTH: u8 = 2;
}
pub(crate) mod timestamp {
    pub(crate) const SECONDS: u8 = 1;
    pub(crate) const NANOS: u8 = 2;
}
