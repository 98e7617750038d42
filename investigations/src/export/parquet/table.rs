//! Rows as columns of a Parquet file, a bounded number of them in memory.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type};

/// Rows of a row group, unless their texts take more than that.
const ROWS: usize = 1 << 16;
const TEXT_BYTES: usize = 8 << 20;
/// Values passed to the encoder at a time.
const BATCH: usize = 1024;

/// The definition of a column. Each may have no value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    kind: Kind,
    is_seldom_repeated: bool,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Real,
    /// In microseconds.
    Timestamp,
}

impl Column {
    pub(super) const fn text(name: &'static str) -> Self {
        Self { name, kind: Kind::Text, is_seldom_repeated: false }
    }

    pub(super) const fn integer(name: &'static str) -> Self {
        Self { name, kind: Kind::Integer, is_seldom_repeated: false }
    }

    pub(super) const fn real(name: &'static str) -> Self {
        Self { name, kind: Kind::Real, is_seldom_repeated: false }
    }

    pub(super) const fn timestamp(name: &'static str) -> Self {
        Self { name, kind: Kind::Timestamp, is_seldom_repeated: false }
    }

    /// Differences between its values take less room than a dictionary of them.
    pub(super) const fn seldom_repeated(mut self) -> Self {
        self.is_seldom_repeated = true;
        self
    }

    fn schema(&self) -> Result<Type> {
        let (physical, logical) = match self.kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Integer => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Timestamp => {
                (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS)))
            }
        };
        let column = Type::primitive_type_builder(self.name, physical);
        column.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build()
    }

    const fn encoding_of_differences(&self) -> Encoding {
        match self.kind {
            Kind::Text => Encoding::DELTA_BYTE_ARRAY,
            _ => Encoding::DELTA_BINARY_PACKED,
        }
    }
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell<'a> {
    Null,
    Text(&'a str),
    Integer(i64),
    Real(f64),
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Cell::Text)
    }
}

impl From<u64> for Cell<'_> {
    /// The largest signed number stands for all beyond it, as in a trace file.
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i32> for Cell<'_> {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<bool> for Cell<'_> {
    fn from(flag: bool) -> Self {
        Self::Integer(flag.into())
    }
}

macro_rules! null_for_none {
    ($($kind:ty),+) => { $(
        impl From<Option<$kind>> for Cell<'_> {
            fn from(number: Option<$kind>) -> Self {
                number.map_or(Self::Null, Cell::from)
            }
        }
    )+ };
}
null_for_none!(u64, u32, i32, bool);

/// The values of a column in the next row group, without those that are missing.
#[derive(Debug, Default)]
struct Values {
    /// 1 for a row with a value, else 0.
    levels: Vec<i16>,
    /// All texts one after the other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    integers: Vec<i64>,
    reals: Vec<f64>,
}

impl Values {
    fn push(&mut self, cell: Cell<'_>) {
        self.levels.push((cell != Cell::Null).into());
        match cell {
            Cell::Null => {}
            Cell::Text(text) => {
                self.text.extend_from_slice(text.as_bytes());
                self.ends.push(self.text.len());
            }
            Cell::Integer(number) => self.integers.push(number),
            Cell::Real(number) => self.reals.push(number),
        }
    }

    /// Writes the values, and is empty then.
    fn write(&mut self, kind: Kind, column: &mut SerializedColumnWriter<'_>) -> Result<()> {
        let text = ByteArray::from(mem::take(&mut self.text));
        let (mut present, mut begin) = (0, 0);
        for levels in self.levels.chunks(BATCH) {
            let first = present;
            present += levels.iter().filter(|level| **level == 1).count();
            let own = first..present;
            match kind {
                Kind::Text => {
                    let texts = self.ends[own].iter().map(|end| {
                        let start = mem::replace(&mut begin, *end);
                        text.slice(start, end - start)
                    });
                    let texts: Vec<_> = texts.collect();
                    column.typed::<ByteArrayType>().write_batch(&texts, Some(levels), None)?;
                }
                Kind::Integer | Kind::Timestamp => {
                    let integers = &self.integers[own];
                    column.typed::<Int64Type>().write_batch(integers, Some(levels), None)?;
                }
                Kind::Real => {
                    let reals = &self.reals[own];
                    column.typed::<DoubleType>().write_batch(reals, Some(levels), None)?;
                }
            }
        }
        self.levels.clear();
        self.ends.clear();
        self.integers.clear();
        self.reals.clear();
        Ok(())
    }
}

/// A file that is being written.
pub(super) struct RowGroups<W: Write + Send> {
    columns: &'static [Column],
    values: Vec<Values>,
    writer: SerializedFileWriter<W>,
}

impl<W: Write + Send> RowGroups<W> {
    pub(super) fn new(sink: W, table: &str, columns: &'static [Column]) -> Result<Self> {
        let fields: Result<Vec<_>> =
            columns.iter().map(|column| column.schema().map(Arc::new)).collect();
        let schema = Type::group_type_builder(table).with_fields(fields?).build()?;
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("gpucause version ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true);
        for column in columns.iter().filter(|column| column.is_seldom_repeated) {
            let path = ColumnPath::from(column.name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, column.encoding_of_differences());
        }
        let writer = SerializedFileWriter::new(sink, schema.into(), properties.build().into())?;
        let values = columns.iter().map(|_| Values::default()).collect();
        Ok(Self { columns, values, writer })
    }

    /// Adds a row, with a cell for each column.
    pub(super) fn push(&mut self, row: &[Cell<'_>]) -> io::Result<()> {
        for (values, cell) in self.values.iter_mut().zip(row) {
            values.push(*cell);
        }
        let is_full = self.values.first().is_some_and(|first| first.levels.len() >= ROWS);
        if is_full || self.values.iter().map(|own| own.text.len()).sum::<usize>() >= TEXT_BYTES {
            self.end_group()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
        for (column, values) in self.columns.iter().zip(&mut self.values) {
            if let Some(mut own) = group.next_column()? {
                values.write(column.kind, &mut own)?;
                own.close()?;
            }
        }
        group.close().map(drop)
    }

    /// Completes the file.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.values.iter().any(|values| !values.levels.is_empty()) {
            self.end_group()?;
        }
        self.writer.close()?;
        Ok(())
    }
}
