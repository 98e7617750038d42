//! The scope of a scrape: its collectors and its level.

use gpucause_page::metric::{Level, LevelError};

use super::{Selection, SelectionError};

/// The content of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The collectors.
    pub selection: Selection,
    /// How much they export.
    pub level: Level,
}

/// Why a query is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// Its selection of collectors is.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// Its level is.
    #[error(transparent)]
    Level(#[from] LevelError),
}

impl Scope {
    /// Everything.
    #[must_use]
    pub const fn full() -> Self {
        Self { selection: Selection::All, level: Level::Full }
    }

    /// From the query of a URL; `level` applies where it names none. `known` are the names of all collectors.
    ///
    /// # Errors
    /// When it is invalid.
    pub fn parse(query: &str, known: &[&'static str], level: Level) -> Result<Self, ScopeError> {
        let selection = Selection::parse(query, known)?;
        let mut scope = Self { selection, level };
        for parameter in query.split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if super::selection::decoded(key)? == "level" {
                scope.level = super::selection::decoded(value)?.parse()?;
            }
        }
        Ok(scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sets_the_level_and_an_unknown_one_is_rejected_with_the_known_ones() {
        let parse = |query| Scope::parse(query, &["calls", "dispatch"], Level::Standard);
        assert_eq!(parse("").unwrap().level, Level::Standard);
        assert_eq!(parse("collect[]=calls&level=full").unwrap().level, Level::Full);
        assert_eq!(parse("level=flee%74").unwrap().level, Level::Fleet);
        for wrong in ["level=", "level=all", "level=Full"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.ends_with("known levels: fleet, standard, full"), "{error}");
        }
    }
}
