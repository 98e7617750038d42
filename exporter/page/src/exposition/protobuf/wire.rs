//! The wire format of protobuf, written without a message in between: of a page, the label sets alone would be many
//! thousands of small allocations. Fields that have their default value are left out. Fields are numbered up to 15.

use gpucause_abi::Nanos;

const VARINT: u8 = 0;
const DOUBLE: u8 = 1;
const LENGTH: u8 = 2;

/// Writes a number, seven bits a byte, the lowest first.
#[inline]
pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number that stands for a signed one, small where that is near zero.
pub(super) const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

/// Writes an `int32`, `int64`, `uint32`, `uint64` or `enum` field.
pub(super) fn integer(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        out.push(field << 3 | VARINT);
        varint(out, number);
    }
}

/// Writes a `sint32` or `sint64` field.
pub(super) fn signed(out: &mut Vec<u8>, field: u8, number: i64) {
    integer(out, field, zigzag(number));
}

/// Writes a `double` field.
pub(super) fn double(out: &mut Vec<u8>, field: u8, number: f64) {
    if number.to_bits() != 0 {
        out.push(field << 3 | DOUBLE);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Writes a `double` field of seconds: the nearest number to the exact time, as long as that is less than 104 days, so that
/// it is what the text formats read back as.
pub(super) fn seconds(out: &mut Vec<u8>, field: u8, time: Nanos) {
    double(out, field, time.0 as f64 / 1e9);
}

/// Writes a `string` field.
pub(super) fn string(out: &mut Vec<u8>, field: u8, text: &str) {
    if !text.is_empty() {
        out.push(field << 3 | LENGTH);
        varint(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
}

/// Writes a field that is a message or packed numbers, even when it is empty.
pub(super) fn message(out: &mut Vec<u8>, field: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(field << 3 | LENGTH);
    // The length of most messages takes one byte; the content of others is moved up.
    out.push(0);
    let begin = out.len();
    write(out);
    let len = out.len() - begin;
    if len < 0x80 {
        out[begin - 1] = len as u8;
        return;
    }
    let end = out.len();
    varint(out, len as u64);
    let mut prefix = [0; 10];
    let width = out.len() - end;
    prefix[..width].copy_from_slice(&out[end..]);
    out.copy_within(begin..end, begin - 1 + width);
    out.truncate(end - 1 + width);
    out[begin - 1..begin - 1 + width].copy_from_slice(&prefix[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn numbers_are_those_of_the_documentation_of_protobuf() {
        for (number, bytes) in [
            (1, &[1][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (150, &[0x96, 1]),
            (u64::MAX, &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ] {
            assert_eq!(written(|out| varint(out, number)), bytes);
        }
        for (number, coded) in
            [(0, 0), (-1, 1), (1, 2), (-2, 3), (i64::MAX, u64::MAX - 1), (i64::MIN, u64::MAX)]
        {
            assert_eq!(zigzag(number), coded);
        }
        assert_eq!(written(|out| integer(out, 1, 150)), [0x08, 0x96, 1]);
        assert_eq!(written(|out| string(out, 2, "testing")), b"\x12\x07testing");
        assert_eq!(
            written(|out| message(out, 3, |out| integer(out, 1, 150))),
            [0x1a, 3, 8, 0x96, 1]
        );
    }

    #[test]
    fn defaults_are_left_out() {
        for nothing in [
            written(|out| integer(out, 1, 0)),
            written(|out| signed(out, 1, 0)),
            written(|out| double(out, 1, 0.0)),
            written(|out| string(out, 1, "")),
        ] {
            assert!(nothing.is_empty(), "{nothing:?}");
        }
        assert_eq!(written(|out| message(out, 1, |_| {})), [10, 0]);
    }

    #[test]
    fn messages_of_every_length_begin_with_it() {
        for len in [0, 1, 126, 127, 128, 129, 16_383, 16_384, 100_000] {
            let content: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let mut expected = vec![b'x', 10];
            varint(&mut expected, len);
            expected.extend_from_slice(&content);
            let out = written(|out| {
                out.push(b'x');
                message(out, 1, |out| out.extend_from_slice(&content));
            });
            assert!(out == expected, "{len}");
        }
    }

    #[test]
    fn times_are_the_nearest_numbers() {
        for (ns, text) in [(1, "0.000000001"), (123_456_789_012_345, "123456.789012345")] {
            let number = text.parse::<f64>().unwrap();
            assert_eq!(written(|out| seconds(out, 1, Nanos(ns)))[1..], number.to_le_bytes());
        }
    }
}
