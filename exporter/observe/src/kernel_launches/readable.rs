//! Names of kernels as people write them: demangled, without parameters, bounded.

use std::sync::Arc;

pub use gpucause_trace::symbol::{MAX_CHARS, demangled, function, one_line};

/// Prefix of the host function that nvcc and clang make for a kernel.
const STUB: &str = "__device_stub__";

/// A kernel's name from the symbol that a module or an executable has for it. C++ names keep their template arguments and
/// lose their parameters. `None` for a name that is empty, or one that stands for something else.
pub fn readable(symbol: &[u8]) -> Option<Arc<str>> {
    let stub = mangled_stub(symbol).unwrap_or(symbol);
    let kernel = stub.strip_prefix(STUB.as_bytes()).unwrap_or(stub);
    // The last underscore belongs to the mangled name of the kernel as well: __device_stub__Z3addPf.
    let mangled = stub.strip_prefix(&STUB.as_bytes()[..STUB.len() - 1]).unwrap_or(stub);
    let name = demangled(mangled, MAX_CHARS);
    let name = name.unwrap_or_else(|| String::from_utf8_lossy(kernel).into_owned());
    let name = one_line(&name, MAX_CHARS);
    (!name.trim().is_empty() && !super::RESERVED.contains(&name.as_str())).then(|| name.into())
}

/// The stub of a symbol that is mangled as the function that it is.
fn mangled_stub(symbol: &[u8]) -> Option<&[u8]> {
    let function = symbol.strip_prefix(b"_Z")?;
    let function = function.strip_prefix(b"L").unwrap_or(function);
    let digits = function.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let length: usize = std::str::from_utf8(&function[..digits]).ok()?.parse().ok()?;
    let name = function[digits..].get(..length)?;
    name.starts_with(STUB.as_bytes()).then_some(name)
}

#[cfg(test)]
mod tests {
    use gpucause_abi::record::KERNEL_NAME_LEN;
    use proptest::prelude::*;

    use super::*;

    fn text(symbol: &str) -> String {
        readable(symbol.as_bytes()).unwrap().as_ref().to_owned()
    }

    #[test]
    fn cpp_names_lose_their_parameters_and_keep_template_arguments() {
        assert_eq!(text("_Z9my_kernelPfi"), "my_kernel");
        assert_eq!(text("_Z9my_kernelIfEvPT_i"), "my_kernel<float>");
        assert_eq!(text("_ZN2at6native6reduceILi512ELi4EEEvPfi"), "at::native::reduce<512, 4>");
        assert_eq!(text("_ZN12_GLOBAL__N_14gemmEPKf"), "(anonymous namespace)::gemm");
    }

    #[test]
    fn the_stub_of_a_kernel_has_the_name_of_the_kernel() {
        assert_eq!(text("__device_stub__Z9my_kernelPfi"), "my_kernel");
        assert_eq!(text("_Z24__device_stub__my_kernelPfi"), "my_kernel");
        assert_eq!(
            text("__device_stub__ZN2at1kIZNS_2goEvEUnvdl0_PFvvES1_1_EEvT_"),
            "at::k<at::go()::{lambda()#1}>"
        );
    }

    #[test]
    fn the_stub_of_a_kernel_may_be_mangled_itself() {
        let kernel = "ZN2at4cuda45_GLOBAL__N__71ac1640_12_CUDAGraph_cu_8c11d6ca29set_conditional_handle_kernelEyPKb";
        let name = "at::cuda::(anonymous namespace)::set_conditional_handle_kernel";
        for start in ["_Z108__device_stub__", "_ZL108__device_stub__"] {
            assert_eq!(text(&format!("{start}{kernel}yPKb")), name);
        }
    }

    #[test]
    fn kernels_of_pytorch_are_named_by_their_functions() {
        // The file has kernels of PyTorch 2.15 for CUDA 13.
        let kernels = include_str!("pytorch_kernels.tsv").lines().map(|line| line.split_once('\t'));
        for (symbol, name) in kernels.map(Option::unwrap) {
            assert_eq!(text(symbol), name, "{symbol}");
            // Only this beginning is kept of the name of a kernel that is asked for by name.
            let kept = &symbol["__device_stub_".len()..][..symbol.len().min(KERNEL_NAME_LEN) - 14];
            let function = name.split_once('<').map_or(name, |(function, _)| function);
            assert!(text(kept).starts_with(function), "{kept}");
        }
    }

    #[test]
    fn a_name_made_to_take_for_ever_stays_as_it_is() {
        for part in ["cvT_I", "cvSaI", "cvPT_I1a"] {
            let name = format!("_Z{}", part.repeat(300));
            assert!(name.starts_with(&text(&name)), "{part}");
        }
        assert_eq!(
            text("_ZN2cv4cuda6device5mergeIN2cv3MatEEEvT_"),
            "cv::cuda::device::merge<cv::Mat>"
        );
    }

    #[test]
    fn names_that_are_not_mangled_stay_as_they_are() {
        assert_eq!(text("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
        assert_eq!(text("_Zebra"), "_Zebra");
        assert_eq!(text("Zoom"), "Zoom");
    }

    #[test]
    fn hostile_names_become_one_bounded_line_of_text() {
        assert_eq!(text("a\nb\u{7f}c"), "a?b?c");
        assert_eq!(readable(b"x\xff").as_deref(), Some("x\u{fffd}"));
        assert_eq!(text(&"\u{e9}".repeat(500)).chars().count(), MAX_CHARS);
        assert_eq!(readable(b""), None);
        assert_eq!(readable(b"  "), None);
    }

    #[test]
    fn a_kernel_does_not_take_the_name_of_the_others() {
        assert_eq!(readable(b"other"), None);
        assert_eq!(readable(b"unknown"), None);
        assert_eq!(readable(b"_Z5otherv"), None);
    }

    #[test]
    fn a_long_template_is_cut() {
        let arguments = "f".repeat(200);
        let name = text(&format!("_Z1kI{arguments}EvPf"));
        assert!(name.starts_with("k<float, float, float"), "{name}");
        assert_eq!(name.chars().count(), MAX_CHARS);
    }

    #[test]
    fn a_name_that_grows_without_end_takes_no_time() {
        // Each argument is a pair of the one before: twice as long.
        let mut symbol = String::from("_Z1kI1aS_IS_S_E");
        for reference in ["S0_", "S1_", "S2_", "S3_", "S4_", "S5_", "S6_", "S7_", "S8_", "S9_"] {
            symbol += &format!("S_I{reference}{reference}{reference}{reference}E");
        }
        let begin = std::time::Instant::now();
        assert!(readable(format!("{symbol}Evv").as_bytes()).is_some());
        let deep = format!("_Z1k{}i", "P".repeat(2000));
        assert!(readable(deep.as_bytes()).is_some());
        let nested = format!("_Z{}1kv", "N".repeat(2000));
        assert!(readable(nested.as_bytes()).is_some());
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_short_line_or_nothing(tail in prop::collection::vec(any::<u8>(), 0..200)) {
            for start in [&b"_Z"[..], b"__device_stub__Z", b""] {
                if let Some(name) = readable(&[start, &tail].concat()) {
                    prop_assert!(name.chars().count() <= MAX_CHARS);
                    prop_assert!(!name.chars().any(char::is_control));
                }
            }
        }

        #[test]
        fn anything_that_looks_mangled_ends(tail in "[A-Z0-9_a-z]{0,120}") {
            readable(format!("_Z{tail}").as_bytes());
        }
    }
}
