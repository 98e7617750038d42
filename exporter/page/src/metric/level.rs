//! How much a page has of each process.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A level; each has everything of those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Metrics that rules over a whole fleet read.
    Fleet,
    /// Metrics that all rules, alerts and causal chains read.
    #[default]
    Standard,
    /// Everything.
    Full,
}

impl Level {
    /// Every level.
    pub const ALL: [Self; 3] = [Self::Fleet, Self::Standard, Self::Full];

    /// The word for it in flags, configuration and queries.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }
}

/// Why text is not a [`Level`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown level {0:?}; known levels: fleet, standard, full")]
pub struct LevelError(String);

/// Characters of a level that an error message quotes.
const MAX_QUOTED_CHARS: usize = 64;

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        let known = Self::ALL.into_iter().find(|level| level.label() == text);
        known.ok_or_else(|| LevelError(text.chars().take(MAX_QUOTED_CHARS).collect()))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Serialize for Level {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            serde::de::Error::custom(format!("is {text:?}, and must be fleet, standard or full"))
        })
    }
}
