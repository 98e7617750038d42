//! Errors in documents.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A position in a text; both numbers count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

/// An error in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Its position in the text.
    pub position: Option<Position>,
    /// Key, value and accepted values.
    pub problem: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "line {}: {}", position.line, self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// Complaints as one line.
#[must_use]
pub fn in_one_line(complaints: &[Complaint]) -> String {
    complaints.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why a configuration file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is invalid.
    #[error("{}", lines(.path, .complaints))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The errors in it.
        complaints: Vec<Complaint>,
    },
}

impl ConfigError {
    /// Returns true if there is no such file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

fn lines(path: &Path, complaints: &[Complaint]) -> String {
    let line = |complaint: &Complaint| match complaint.position {
        Some(position) => format!("{}:{}: {}", path.display(), position.line, complaint.problem),
        None => format!("{}: {}", path.display(), complaint.problem),
    };
    complaints.iter().map(line).collect::<Vec<_>>().join("\n")
}
