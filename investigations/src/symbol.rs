//! Names of functions as people write them: demangled, without parameters, bounded.

use std::fmt;

use cpp_demangle::{DemangleOptions, DemangleWrite, Symbol};

/// Characters of a name.
pub const MAX_CHARS: usize = 128;
/// Longest mangled name that is demangled, in bytes. It bounds the time that a name made to be slow takes.
const MAX_MANGLED: usize = 2048;
/// Conversion operators that a mangled name may seem to have: the demangler tries two readings of each. Kernels have none, but
/// types in their template arguments may.
const MAX_CONVERSIONS: usize = 4;

/// Collects what fits.
struct Bounded {
    text: String,
    room: usize,
}

impl DemangleWrite for Bounded {
    fn write_string(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            self.room = self.room.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

/// A function's name from its symbol; `None` for an empty one.
#[must_use]
pub fn function(symbol: &str) -> Option<String> {
    let name = demangled(symbol.as_bytes(), MAX_CHARS);
    let name = one_line(name.as_deref().unwrap_or(symbol), MAX_CHARS);
    (!name.trim().is_empty()).then_some(name)
}

/// What is foreign, as a line of so many characters.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A C++ name without parameters, cut after so many characters; `None` where the symbol is no such name.
#[must_use]
pub fn demangled(symbol: &[u8], most: usize) -> Option<String> {
    if symbol.len() > MAX_MANGLED || !symbol.starts_with(b"_Z") {
        return None;
    }
    // Before a digit it is the end of a name such as that of a namespace `cv`, or harmless.
    let conversions = symbol.windows(3).filter(|w| w.starts_with(b"cv") && !w[2].is_ascii_digit());
    if conversions.count() > MAX_CONVERSIONS {
        return None;
    }
    let parsed = Symbol::new(symbol).ok()?;
    let mut name = Bounded { text: String::new(), room: most };
    let options = DemangleOptions::new().no_params().no_return_type();
    match parsed.structured_demangle(&mut name, &options) {
        Err(_) if name.room > 0 => None,
        _ => Some(name.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_may_be_called_as_it_likes_in_one_line() {
        assert_eq!(function("other").as_deref(), Some("other"));
        assert_eq!(function("_ZN2at5emptyERKi").as_deref(), Some("at::empty"));
        assert_eq!(function("a\u{1b}[2J\n").as_deref(), Some("a?[2J?"));
        assert_eq!(function(" "), None);
    }
}
