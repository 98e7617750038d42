//! Folders of partitions, as Hive names them.
//!
//! No key is the name of a column: Arrow, and with it pandas, refuses to read a column that is in the files and in their paths.

use std::fmt::Write as _;
use std::path::PathBuf;

use gpucause_engine::utc::utc;

use gpucause_trace::recording::{NodeIndex, Recording};
use gpucause_trace::trace::fnv1a;

/// The name of a partition whose value is empty.
const EMPTY: &str = "__HIVE_DEFAULT_PARTITION__";
/// Hive and Spark escape these characters, beside control characters.
const ESCAPED: &str = "\"#%'*/:=?\\\u{7f}{}[]^";
/// Bytes of a value: of 255 that most file systems allow a name, `host=` takes some, and the hash of a longer value.
const MAX_VALUE: usize = 200;

/// Data of one node and day. Days are in UTC, by the clock of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partition {
    node: NodeIndex,
    day: i64,
}

impl Partition {
    const SECONDS: i64 = 24 * 60 * 60;

    /// Returns the partition of a time in nanoseconds since the Unix epoch.
    pub(super) const fn of(node: NodeIndex, at_ns: i64) -> Self {
        Self { node, day: at_ns.div_euclid(Self::SECONDS * 1_000_000_000) }
    }

    /// The day on which a node's recording began.
    pub(super) fn first_of(node: NodeIndex, recording: &dyn Recording) -> Self {
        Self::of(node, begun(node, recording))
    }

    /// The path of a recording's file. It is the same at each export, and another for another recording of the node.
    pub(super) fn path(self, table: &str, recording: &dyn Recording) -> PathBuf {
        let begun = begun(self.node, recording);
        let node = escaped(recording.node_name(self.node));
        #[expect(clippy::cast_precision_loss, reason = "whole days of some centuries are exact")]
        let date = utc((self.day * Self::SECONDS) as f64, true);
        let date = date.split(' ').next().unwrap_or_default();
        format!("{table}/host={node}/date={date}/part-{begun}.parquet").into()
    }
}

/// When the first session of a node began.
fn begun(node: NodeIndex, recording: &dyn Recording) -> i64 {
    let sessions = recording.sessions().iter().filter(|session| session.node == node);
    sessions.map(|session| session.started_ns).min().unwrap_or(0)
}

/// A partition's value as part of a path.
fn escaped(value: &str) -> String {
    if value.is_empty() {
        return EMPTY.into();
    }
    let mut escaped = String::new();
    for character in value.chars() {
        if escaped.len() >= MAX_VALUE {
            // Still longer than any value that is not cut, so that they differ.
            let _ = write!(escaped, "-{:016x}", fnv1a(value.as_bytes()));
            break;
        }
        if character.is_ascii_control() || ESCAPED.contains(character) {
            // A `String` can always be written to.
            let _ = write!(escaped, "%{:02X}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::{BEGIN, MadeUp};

    #[test]
    fn a_name_cannot_leave_its_folder() {
        assert_eq!(escaped("gpu-1.eu west"), "gpu-1.eu west");
        assert_eq!(escaped("../a/b=c%\n"), "..%2Fa%2Fb%3Dc%25%0A");
        assert_eq!(escaped("\0*?[x]{}\\ü"), "%00%2A%3F%5Bx%5D%7B%7D%5Cü");
        assert_eq!(escaped(""), EMPTY);
    }

    #[test]
    fn a_long_name_is_cut_and_stays_another_than_those_that_begin_alike() {
        let whole = "x".repeat(MAX_VALUE);
        assert_eq!(escaped(&whole), whole);
        for unit in ["x", "/", "ü", "\u{1f980}"] {
            let [one, other] = ["1", "2"].map(|end| escaped(&(unit.repeat(300) + end)));
            for name in [&one, &other] {
                assert!(name.len() > MAX_VALUE && "host=".len() + name.len() <= 255, "{name}");
            }
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_day_begins_at_midnight_of_utc() {
        let made_up = MadeUp::new();
        // 2023-11-14T22:13:20Z.
        let midnight = BEGIN + 6400 * 1_000_000_000;
        let path = |at| Partition::of(NodeIndex(0), at).path("events", &made_up);
        let of =
            |date| PathBuf::from(format!("events/host=gpu-1/date={date}/part-{BEGIN}.parquet"));
        assert_eq!(path(midnight - 1), of("2023-11-14"));
        assert_eq!(path(midnight), of("2023-11-15"));
        assert_eq!((path(-1), path(i64::MAX)), (of("1969-12-31"), of("2262-04-11")));
    }
}
