//! Parses lines of `/proc/PID/maps`. Their paths are untrusted.

use super::{Device, Mapping, path_of};

const DELETED: &[u8] = b" (deleted)";

/// Parses a line without newline; `None` unless it is an executable mapping of a named file.
pub fn parse_maps_line(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = field(line)?;
    let (permissions, rest) = field(rest)?;
    // Most lines end here.
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let (offset, rest) = field(rest)?;
    let (device, rest) = field(rest)?;
    let (inode, rest) = rest.iter().position(|&b| b == b' ').map(|end| rest.split_at(end))?;
    let path = &rest[rest.iter().position(|&b| b != b' ')?..];
    if !path.starts_with(b"/") {
        return None;
    }
    let (start, end) = split(range, b'-')?;
    let (major, minor) = split(device, b':')?;
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok().filter(|inode| *inode != 0)?;
    let (path, deleted) = split_deleted(path);
    Some(Mapping {
        start,
        end,
        offset: hex(offset)?,
        device: Device { major: u32::try_from(major).ok()?, minor: u32::try_from(minor).ok()? },
        inode,
        path: path_of(&unescape(path)),
        deleted,
    })
}

/// Strips the kernel's ` (deleted)`; true if it was there. File names may end so too.
pub fn split_deleted(path: &[u8]) -> (&[u8], bool) {
    path.strip_suffix(DELETED).map_or((path, false), |path| (path, true))
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|&b| b == b' ')?;
    Some((&line[..end], &line[end + 1..]))
}

fn split(pair: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = pair.iter().position(|&b| b == separator)?;
    Some((hex(&pair[..at])?, hex(&pair[at + 1..])?))
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The kernel escapes only newlines, as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(NEWLINE) {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}
