//! Protobuf in bytes: the fields of a message, each a number or bytes under a tag.

use std::cell::Cell;

use prost::encoding::{WireType, decode_varint, double, encode_key, encode_varint, uint64};

use super::axis::{Axes, OpList};
use super::{Result, SnapshotError};

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    pub(super) ops: OpList,
}

impl Writer {
    pub(super) fn number(&mut self, tag: u32, number: u64) {
        uint64::encode(tag, &number, &mut self.bytes);
    }

    pub(super) fn double(&mut self, tag: u32, number: f64) {
        double::encode(tag, &number, &mut self.bytes);
    }

    pub(super) fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        encode_key(tag, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(bytes.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn numbers(&mut self, tag: u32, numbers: &[u64]) {
        uint64::encode_packed(tag, numbers, &mut self.bytes);
    }

    pub(super) fn message(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        let inner = self.apart(write);
        self.bytes(tag, &inner);
    }

    /// A message, unless it has no fields.
    pub(super) fn used_message(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        let inner = self.apart(write);
        if !inner.is_empty() {
            self.bytes(tag, &inner);
        }
    }

    fn apart(&mut self, write: impl FnOnce(&mut Self)) -> Vec<u8> {
        let start = self.bytes.len();
        write(self);
        self.bytes.split_off(start)
    }
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
    /// Four bytes, as nothing here has.
    Other,
}

/// A message that is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    fields: &'a [(u64, Field<'a>)],
    pub(super) axes: &'a Axes,
    /// Bytes of memory that may still be taken: on the wire a process may be two bytes, and hundreds once it is read, so that a
    /// file that somebody made up could fill all memory by a few megabytes.
    left: &'a Cell<usize>,
}

const DAMAGED: SnapshotError = SnapshotError::Accounts("it is not a message that gpucause writes");

/// Reads a message that has come in these parts.
pub(super) fn read<'a, T>(
    parts: impl IntoIterator<Item = Result<&'a [u8]>>,
    axes: &Axes,
    left: &Cell<usize>,
    made: impl FnOnce(Reader<'_>) -> Result<T>,
) -> Result<T> {
    let mut fields = Vec::new();
    let mut taken = 0;
    for part in parts {
        let mut rest = part?;
        while !rest.is_empty() {
            taken += charge(left, LISTED * size_of::<(u64, Field<'_>)>())?;
            fields.push(field(&mut rest)?);
        }
    }
    let made = made(Reader { fields: &fields, axes, left })?;
    left.set(left.get() + taken);
    Ok(made)
}

/// A growing list is charged for this many entries per entry: the first entry of most lists makes room for four.
const LISTED: usize = 4;

fn charge(left: &Cell<usize>, bytes: usize) -> Result<usize> {
    left.set(left.get().checked_sub(bytes).ok_or(SnapshotError::TooMuch)?);
    Ok(bytes)
}

impl<'a> Reader<'a> {
    /// Returns the reader with lists of labels that have been read.
    pub(super) const fn with(self, axes: &'a Axes) -> Self {
        Self { axes, ..self }
    }

    /// The number under a tag, the last of several; 0 where there is none.
    pub(super) fn number(self, tag: u32) -> Result<u64> {
        Ok(self.known_number(tag)?.unwrap_or(0))
    }

    pub(super) fn known_number(self, tag: u32) -> Result<Option<u64>> {
        self.last(tag, |field| match field {
            Field::Number(number) => Some(number),
            _ => None,
        })
    }

    pub(super) fn double(self, tag: u32) -> Result<f64> {
        let number = self.last(tag, |field| match field {
            Field::Double(number) => Some(number),
            _ => None,
        })?;
        Ok(number.unwrap_or_default())
    }

    pub(super) fn bytes(self, tag: u32) -> Result<&'a [u8]> {
        let bytes = self.last(tag, Field::bytes)?.unwrap_or_default();
        charge(self.left, bytes.len())?;
        Ok(bytes)
    }

    /// Returns the result of `made` for each text under a tag.
    pub(super) fn texts<T>(self, tag: u32, made: impl Fn(&str) -> T) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for bytes in self.each(tag) {
            charge(self.left, LISTED * size_of::<T>())?;
            all.push(made(str::from_utf8(bytes?).map_err(|_| DAMAGED)?));
        }
        Ok(all)
    }

    pub(super) fn numbers(self, tag: u32) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for field in self.fields(tag) {
            match field {
                Field::Number(number) => {
                    charge(self.left, LISTED * size_of::<u64>())?;
                    numbers.push(number);
                }
                Field::Bytes(mut packed) => {
                    let count = packed.iter().filter(|&&byte| byte & 0x80 == 0).count();
                    charge(self.left, count.saturating_mul(LISTED * size_of::<u64>()))?;
                    numbers.reserve(count);
                    while !packed.is_empty() {
                        numbers.push(varint(&mut packed)?);
                    }
                }
                Field::Double(_) | Field::Other => return Err(DAMAGED),
            }
        }
        Ok(numbers)
    }

    /// A message that occurs once; a missing one has no fields.
    pub(super) fn message<T>(
        self,
        tag: u32,
        made: impl FnOnce(Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        read(self.each(tag), self.axes, self.left, made)
    }

    /// Repeated messages; `made` skips one by returning `None`.
    pub(super) fn messages<T>(
        self,
        tag: u32,
        made: impl Fn(Reader<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for bytes in self.each(tag) {
            charge(self.left, LISTED * size_of::<T>())?;
            all.extend(read([bytes], self.axes, self.left, &made)?);
        }
        Ok(all)
    }

    fn each(self, tag: u32) -> impl Iterator<Item = Result<&'a [u8]>> {
        self.fields(tag).map(|field| field.bytes().ok_or(DAMAGED))
    }

    fn last<T>(self, tag: u32, value: impl Fn(Field<'a>) -> Option<T>) -> Result<Option<T>> {
        self.fields(tag).last().map(|field| value(field).ok_or(DAMAGED)).transpose()
    }

    fn fields(self, tag: u32) -> impl Iterator<Item = Field<'a>> {
        let wanted = move |(own, _): &&(u64, Field<'a>)| *own == u64::from(tag);
        self.fields.iter().filter(wanted).map(|&(_, field)| field)
    }
}

impl<'a> Field<'a> {
    const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The next field, and its tag.
fn field<'a>(rest: &mut &'a [u8]) -> Result<(u64, Field<'a>)> {
    let key = varint(rest)?;
    let field = match key & 7 {
        0 => Field::Number(varint(rest)?),
        1 => {
            let (number, after) = rest.split_first_chunk().ok_or(DAMAGED)?;
            *rest = after;
            Field::Double(f64::from_le_bytes(*number))
        }
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| DAMAGED)?;
            let (bytes, after) = rest.split_at_checked(length).ok_or(DAMAGED)?;
            *rest = after;
            Field::Bytes(bytes)
        }
        5 => {
            *rest = rest.get(4..).ok_or(DAMAGED)?;
            Field::Other
        }
        _ => return Err(DAMAGED),
    };
    Ok((key >> 3, field))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    decode_varint(rest).map_err(|_| DAMAGED)
}
