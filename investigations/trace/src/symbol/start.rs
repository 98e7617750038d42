//! Where a mangled C++ name begins: what can be read of one whose rest cannot.

/// Compilers give this name to a namespace without one.
const ANONYMOUS: &str = "_GLOBAL__N_";

/// The function, or the class or namespace of it, before the first part of a mangled name that is more than a name; `None` where
/// there is none.
pub(super) fn function(symbol: &[u8], most: usize) -> Option<String> {
    let text = std::str::from_utf8(symbol).unwrap_or_else(|error| {
        std::str::from_utf8(&symbol[..error.valid_up_to()]).unwrap_or_default()
    });
    let encoding = text.strip_prefix("_Z")?;
    // The name of a local entity begins with that of its function, after a `Z`.
    let encoding = encoding.trim_start_matches('Z');
    let nested = encoding.strip_prefix('N');
    let mut rest = match nested {
        Some(nested) => nested.trim_start_matches(['r', 'V', 'K', 'R', 'O']),
        None => encoding,
    };
    let mut name = String::new();
    if let Some(of_std) = rest.strip_prefix("St") {
        (name, rest) = ("std".to_owned(), of_std);
    }
    while let Some((part, after)) = source_name(rest).filter(|_| name.len() < most) {
        let part = if part.starts_with(ANONYMOUS) { "(anonymous namespace)" } else { part };
        name = if name.is_empty() { part.to_owned() } else { format!("{name}::{part}") };
        rest = if nested.is_some() { after } else { "" };
    }
    (!name.is_empty()).then(|| name.chars().take(most).collect())
}

/// A name after its length, and what follows it. An `L` before it says that it is of its file alone.
fn source_name(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('L').unwrap_or(text);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let length: usize = text[..digits].parse().ok()?;
    let (name, rest) = text[digits..].split_at_checked(length)?;
    let is_word = |c: char| c.is_alphanumeric() || "_$.".contains(c);
    (!name.is_empty() && name.chars().all(is_word)).then_some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_before_what_cannot_be_read_is_shown() {
        for (symbol, name) in [
            ("_ZN2at6native18elementwise_kernelILi128E#", "at::native::elementwise_kernel"),
            ("_ZN12_GLOBAL__N_14gemmI#", "(anonymous namespace)::gemm"),
            (
                "_ZN2at45_GLOBAL__N__71ac1640_12_CUDAGraph_cu_8c11d6ca3runI#",
                "at::(anonymous namespace)::run",
            ),
            ("_ZNK2at2GoE#", "at::Go"),
            ("_Z8softmax_I#", "softmax_"),
            ("_ZL4gemmI#", "gemm"),
            ("_ZSt4swapI#", "std::swap"),
            ("_ZNSt6thread5startI#", "std::thread::start"),
            ("_ZZZN2at4copyEvENKUlvE_clEv#", "at::copy"),
            ("_ZN2at6native9eleme", "at::native"),
        ] {
            assert_eq!(function(symbol.as_bytes(), 100).as_deref(), Some(name), "{symbol}");
        }
        assert_eq!(function(b"_ZN2at6native4copyI", 9).as_deref(), Some("at::nativ"));
    }

    #[test]
    fn what_begins_with_no_name_has_none() {
        for symbol in [
            "_Z",
            "_ZN",
            "_Zebra",
            "_ZcvT_I",
            "_Z0",
            "_Z99add",
            "_Z3a-b",
            "_Z99999999999999999999999a",
            "add",
        ] {
            assert_eq!(function(symbol.as_bytes(), 100), None, "{symbol}");
        }
    }
}
