//! Readable names of functions: demangled, without parameters, of bounded length.

use std::fmt;

use cpp_demangle::{DemangleOptions, DemangleWrite, Symbol};

/// Longest name, in characters.
pub const MAX_CHARS: usize = 128;
/// Longest mangled name that is demangled, in bytes. Bounds the time for hostile names.
const MAX_MANGLED: usize = 2048;
/// Most apparent conversion operators in a mangled name: the demangler tries two readings of each. Template arguments of
/// kernels may have some.
const MAX_CONVERSIONS: usize = 4;

/// A buffer of bounded length.
struct Bounded {
    text: String,
    remaining: usize,
}

impl DemangleWrite for Bounded {
    fn write_string(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            self.remaining = self.remaining.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

/// A function's name from its symbol; `None` for an empty one.
pub fn function(symbol: &str) -> Option<String> {
    let name = demangled(symbol.as_bytes(), MAX_CHARS);
    let name = one_line(name.as_deref().unwrap_or(symbol), MAX_CHARS);
    (!name.trim().is_empty()).then_some(name)
}

/// Untrusted text as one line of at most `most` characters.
pub fn one_line(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A C++ name without parameters, truncated to `most` characters; `None` for other symbols.
pub fn demangled(symbol: &[u8], most: usize) -> Option<String> {
    if symbol.len() > MAX_MANGLED || !symbol.starts_with(b"_Z") {
        return None;
    }
    // Before a digit, `cv` ends a name, such as that of a namespace, or is harmless.
    let conversions = symbol.windows(3).filter(|w| w.starts_with(b"cv") && !w[2].is_ascii_digit());
    if conversions.count() > MAX_CONVERSIONS {
        return None;
    }
    let parsed = Symbol::new(symbol).ok()?;
    let mut name = Bounded { text: String::new(), remaining: most };
    let options = DemangleOptions::new().no_params().no_return_type();
    match parsed.structured_demangle(&mut name, &options) {
        Err(_) if name.remaining > 0 => None,
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
