//! Names of kernels that nvcc mangles in a way of its own: with lambdas that run on the GPU.

use super::whole;

/// nvcc writes these in place of the type of a lambda that runs on the GPU: `Unvdl` for a `__device__` one, `Unvdtl` where it states
/// what it returns, `Unvhdl` for a `__host__ __device__` one. Demanglers of C++ do not know them.
const DEVICE_LAMBDAS: [&[u8]; 3] = [b"Unvdl", b"Unvdtl", b"Unvhdl"];
/// Most ends of nested names and template arguments that a device lambda stands in.
const MAX_ENDS: usize = 6;
/// Most functions, apart from the kernel, whose template arguments a device lambda stands in.
const MAX_FUNCTIONS: usize = 2;
/// Stands for the lambda where it is not known what follows it.
const PLACE: &str = "$lambda";
const LAMBDA: &str = "{lambda()#1}";

/// The name of a kernel until the first device lambda in its template arguments, which stands as the first lambda of its function,
/// without parameters: two of one function have one name. Later arguments are left out; where the lambda is an argument of
/// another function in them, so is the rest of that.
pub(super) fn until(symbol: &[u8], most: usize) -> Option<String> {
    // It stands after the end of the function that it is in.
    let is_lambda = |at: &usize| {
        let is_kind = |kind: &&[u8]| symbol[*at..].starts_with(kind);
        symbol[..*at].ends_with(b"E") && DEVICE_LAMBDAS.iter().any(is_kind)
    };
    let at = (0..symbol.len()).find(is_lambda)?;
    let start = &symbol[..at];
    let of_kernel = closed(&[start, b"UlvE_"].concat(), 0, most);
    of_kernel.or_else(|| {
        let place = [start, PLACE.len().to_string().as_bytes(), PLACE.as_bytes()].concat();
        // The text before the lambda is the same, whatever ends make it a name.
        let named = |functions| closed(&place, functions, most + PLACE.len());
        let text = (1..=MAX_FUNCTIONS).find_map(named)?;
        let until = text.split_once(PLACE).map(|(before, _)| format!("{before}{LAMBDA}..."));
        Some(until.unwrap_or(text).chars().take(most).collect())
    })
}

/// The name that ends after a lambda in the template arguments of so many functions within those of the kernel. What is open
/// there is not known, but only the right number of ends makes a name.
fn closed(start: &[u8], functions: usize, most: usize) -> Option<String> {
    (1..=MAX_ENDS).find_map(|ends| {
        let ended = [start, &b"E".repeat(ends), b"vv"].concat();
        match functions.checked_sub(1) {
            None => whole(&ended, most),
            Some(functions) => closed(&[&ended[..], b"EUlvE_"].concat(), functions, most),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::demangled;

    #[test]
    fn kernels_of_device_lambdas_are_named_until_the_lambda() {
        // nvcc 13.5 gives `elementwise_kernel` these names for three kinds of lambdas.
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
        for (other, name) in [("_Z1kUnvdl", "k"), ("_Z12xUnvdlyyyyyy$", "xUnvdlyyyyyy")] {
            assert_eq!(demangled(other.as_bytes(), 1000).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_lambda_within_another_function_of_the_arguments_ends_the_name() {
        let start = "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZNS0_27converting_copy_kernel_cudaIbdEEvRNS_18TensorIteratorBaseEE";
        let end = "Unvhdl0_1_0_0_PFvS5_ES3_IbdE1_dbEEEvS5_RKT_EUnvhdl0_0_0_3_PFvS5_RKS8_ES2_IS8_E1_viE16OffsetCalculatorILi2EjLb0EESt5arrayIPcLm2EESC_EEviT1_";
        let name = "at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::converting_copy_kernel_cuda<bool, double>(at::TensorIteratorBase&)::{lambda()#1}...";
        let symbol = format!("{start}{end}");
        assert_eq!(demangled(symbol.as_bytes(), 1000).as_deref(), Some(name));
        for most in 0..name.len() {
            assert_eq!(demangled(symbol.as_bytes(), most).as_deref(), Some(&name[..most]));
        }
    }
}
