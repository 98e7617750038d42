//! Readable names of functions: demangled, without parameters, of bounded length.

use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, Symbol};
use rustc_demangle::try_demangle;

mod device_lambda;
mod start;

/// Longest name, in characters.
pub const MAX_CHARS: usize = 128;
/// Longest mangled name that is read as a whole, in bytes. Bounds the time for hostile names. PyTorch has some of 2300.
const MAX_MANGLED: usize = 4096;
/// Bytes of `17h`, a hash and `E`.
const HASH: usize = 20;
/// Most apparent conversion operators in a mangled name: the demangler tries two readings of each. Template arguments of
/// kernels may have some.
const MAX_CONVERSIONS: usize = 4;
/// A buffer of bounded length.
struct Bounded {
    text: String,
    remaining: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
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

/// A C++ name without parameters or a Rust name without hash, truncated to `most` characters; `None` for other symbols. Of a C++
/// name that cannot be read to its end, the function before the first part that cannot.
pub fn demangled(symbol: &[u8], most: usize) -> Option<String> {
    if is_rust(symbol) {
        return if symbol.len() > MAX_MANGLED { None } else { rust(symbol, most) };
    }
    if !symbol.starts_with(b"_Z") {
        return None;
    }
    let read = || whole(symbol, most).or_else(|| device_lambda::until(symbol, most));
    let name = if is_readable(symbol) { read() } else { None };
    name.or_else(|| start::function(symbol, most))
}

/// Returns true if the time to read the symbol is bounded.
fn is_readable(symbol: &[u8]) -> bool {
    // Before a digit, `cv` ends a name, such as that of a namespace, or is harmless.
    let conversions = symbol.windows(3).filter(|w| w.starts_with(b"cv") && !w[2].is_ascii_digit());
    symbol.len() <= MAX_MANGLED && conversions.count() <= MAX_CONVERSIONS
}

/// A C++ name as far as `most` characters go; `None` for one that cannot be read to its end.
fn whole(symbol: &[u8], most: usize) -> Option<String> {
    let parsed = Symbol::new(symbol).ok()?;
    let mut name = Bounded { text: String::new(), remaining: most };
    let options = DemangleOptions::new().no_params().no_return_type();
    match parsed.structured_demangle(&mut name, &options) {
        Err(_) if name.remaining > 0 => None,
        _ => Some(name.text),
    }
}

/// Returns true for a symbol of rustc: of its own scheme, or of the one of C++ with a hash as the last part.
fn is_rust(symbol: &[u8]) -> bool {
    let has_hash = |w: &[u8]| {
        w.starts_with(b"17h") && w[3..19].iter().all(u8::is_ascii_hexdigit) && w.ends_with(b"E")
    };
    symbol.starts_with(b"_R") || (symbol.starts_with(b"_ZN") && symbol.windows(HASH).any(has_hash))
}

fn rust(symbol: &[u8], most: usize) -> Option<String> {
    let parsed = try_demangle(std::str::from_utf8(symbol).ok()?).ok()?;
    let mut name = Bounded { text: String::new(), remaining: most };
    match write!(name, "{parsed:#}") {
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

    #[test]
    fn names_of_rust_have_neither_hash_nor_escapes() {
        let legacy = "_ZN8workload3Gpu4call28_$u7b$$u7b$closure$u7d$$u7d$17h5f35f8eb24ff2453E";
        for (symbol, name) in [
            (legacy, "workload::Gpu::call::{{closure}}"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN3foo17h05af221e174051e9E.llvm.123", "foo"),
        ] {
            assert_eq!(function(symbol).as_deref(), Some(name));
        }
        assert_eq!(demangled(legacy.as_bytes(), 12).as_deref(), Some("workload::Gp"));
        assert_eq!(demangled(b"_Rx", 12), None, "which is no symbol of rustc");
    }
}
