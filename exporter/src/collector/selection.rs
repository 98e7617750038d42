//! Which collectors a scrape selects, by `collect[]` or `exclude[]` in its query.

/// Characters of a name that an error message quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// The collectors of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selection {
    /// Every one.
    #[default]
    All,
    /// These.
    Only(Vec<&'static str>),
    /// Every one but these.
    Without(Vec<&'static str>),
}

/// Why a query is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// It includes and excludes.
    #[error("collect[] and exclude[] cannot be combined; use one of them")]
    Combined,
    /// It names an unknown collector.
    #[error("unknown collector {name:?}; known collectors: {known}")]
    Unknown {
        /// The name, truncated.
        name: String,
        /// The known names.
        known: String,
    },
    /// It is not valid.
    #[error("{0:?} in the query is not percent-encoded UTF-8 text")]
    Malformed(String),
}

impl Selection {
    /// From the query of a URL; parameters of other names are ignored. `known` are the names of all collectors.
    ///
    /// # Errors
    /// When it is invalid: nobody would notice a page with more or fewer collectors.
    pub fn parse(query: &str, known: &[&'static str]) -> Result<Self, SelectionError> {
        let (mut only, mut without) = (Vec::new(), Vec::new());
        for parameter in query.split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let names = match decoded(key)?.as_str() {
                "collect[]" => &mut only,
                "exclude[]" => &mut without,
                _ => continue,
            };
            let requested = decoded(value)?;
            let Some(&name) = known.iter().find(|name| **name == requested) else {
                return Err(SelectionError::Unknown {
                    name: truncated(&requested),
                    known: known.join(", "),
                });
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        match (only.is_empty(), without.is_empty()) {
            (true, true) => Ok(Self::All),
            (false, true) => Ok(Self::Only(only)),
            (true, false) => Ok(Self::Without(without)),
            (false, false) => Err(SelectionError::Combined),
        }
    }

    /// Returns true if a collector is part of it.
    #[must_use]
    pub fn includes(&self, collector: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&collector),
            Self::Without(names) => !names.contains(&collector),
        }
    }
}

/// Decodes the text of a form: `+` is a blank, `%XX` any byte.
pub(crate) fn decoded(text: &str) -> Result<String, SelectionError> {
    let malformed = || SelectionError::Malformed(truncated(text));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = digit().zip(digit()).ok_or_else(malformed)?;
                u8::try_from(high << 4 | low).map_err(|_| malformed())?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

fn truncated(text: &str) -> String {
    text.chars().take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests;
