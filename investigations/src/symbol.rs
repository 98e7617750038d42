//! Readable names of functions: demangled, without parameters, of bounded length.

use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, Symbol};
use rustc_demangle::try_demangle;

/// Longest name, in characters.
pub const MAX_CHARS: usize = 128;
/// Longest mangled name that is demangled, in bytes. Bounds the time for hostile names.
const MAX_MANGLED: usize = 2048;
/// Bytes of `17h`, a hash and `E`.
const HASH: usize = 20;
/// Most apparent conversion operators in a mangled name: the demangler tries two readings of each. Template arguments of
/// kernels may have some.
const MAX_CONVERSIONS: usize = 4;
/// What nvcc puts where a lambda's type stands for one that runs on the GPU: `Unvdl` for a `__device__` one, `Unvdtl` where it
/// states what it returns, `Unvhdl` for a `__host__ __device__` one. Demanglers of C++ do not know them.
const DEVICE_LAMBDAS: [&[u8]; 3] = [b"Unvdl", b"Unvdtl", b"Unvhdl"];
/// Most ends of nested names and template arguments that a device lambda stands in.
const MAX_ENDS: usize = 8;

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

/// A C++ name without parameters or a Rust name without hash, truncated to `most` characters; `None` for other symbols.
pub fn demangled(symbol: &[u8], most: usize) -> Option<String> {
    if symbol.len() > MAX_MANGLED {
        return None;
    }
    if is_rust(symbol) {
        return rust(symbol, most);
    }
    if !symbol.starts_with(b"_Z") {
        return None;
    }
    // Before a digit, `cv` ends a name, such as that of a namespace, or is harmless.
    let conversions = symbol.windows(3).filter(|w| w.starts_with(b"cv") && !w[2].is_ascii_digit());
    if conversions.count() > MAX_CONVERSIONS {
        return None;
    }
    let parsed = Symbol::new(symbol.to_vec()).ok().or_else(|| until_device_lambda(symbol))?;
    let mut name = Bounded { text: String::new(), remaining: most };
    let options = DemangleOptions::new().no_params().no_return_type();
    match parsed.structured_demangle(&mut name, &options) {
        Err(_) if name.remaining > 0 => None,
        _ => Some(name.text),
    }
}

/// The name of a kernel until the first device lambda in its template arguments, which stands as the first lambda of its function,
/// without parameters: two of one function have one name. Later arguments are left out.
fn until_device_lambda(symbol: &[u8]) -> Option<Symbol<Vec<u8>>> {
    // It stands after the end of the function that it is in.
    let is_lambda = |at: &usize| {
        let is_kind = |kind: &&[u8]| symbol[*at..].starts_with(kind);
        symbol[..*at].ends_with(b"E") && DEVICE_LAMBDAS.iter().any(is_kind)
    };
    let at = (0..symbol.len()).find(is_lambda)?;
    // What is open there is not known, but only the right number of ends makes a name.
    (1..=MAX_ENDS).find_map(|ends| {
        let closed = [&symbol[..at], b"UlvE_", &b"E".repeat(ends), b"vv"].concat();
        Symbol::new(closed).ok()
    })
}

/// Whether it is a symbol of rustc: of its own scheme, or of the one of C++ with a hash as the last part.
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
    fn kernels_of_device_lambdas_are_named_until_the_lambda() {
        // As nvcc 13.5 names `elementwise_kernel` of three kinds of lambdas.
        let start = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_7BinaryFIfEEEEvRNS_18TensorIteratorBaseERKT_E";
        let lambda = "at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryF<float> >(at::TensorIteratorBase&, at::native::BinaryF<float> const&)::{lambda()#1}>";
        for end in [
            "Unvdl2_PFvS6_RKS4_ES2_IS4_E2_PfSA_EEviT1_",
            "Unvdtl2_PFvS6_RKS4_ES2_IS4_Ef3_PfSA_EEviT1_",
            "Unvhdl0_0_0_2_PFvS6_RKS4_ES2_IS4_E1_viEPfSA_EEviT1_",
        ] {
            let name = demangled(format!("{start}{end}").as_bytes(), 1000);
            assert_eq!(name.as_deref(), Some(lambda), "{end}");
        }
        let within_lambdas = b"_ZN2at6native18elementwise_kernelILi1ELi2EZZZNS0_36_GLOBAL__N__62220b4d_4_l_cu_0439d8fc5innerERNS_18TensorIteratorBaseEENKUlvE_clEvENKUlvE_clEvEUnvhdl0_0_0_0_PFvS4_ENS2_5innerE1_ffEEEviT1_";
        let name = demangled(within_lambdas, 1000);
        assert!(name.is_some_and(|name| name.starts_with("at::native::elementwise_kernel<1, 2, ")
            && name.ends_with("::{lambda()#1}>")));
        for other in ["_Z1kUnvdl", "_Z12xUnvdlyyyyyy$"] {
            assert_eq!(demangled(other.as_bytes(), 1000), None);
        }
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
