//! Kernel functions to launch: host stubs with the symbols that nvcc would give them. Nobody calls them.

use std::hint::black_box;

macro_rules! stubs {
    ($($index:literal $name:ident $symbol:literal;)+) => {
        $(
            #[unsafe(export_name = $symbol)]
            extern "C" fn $name() -> u32 {
                black_box($index)
            }
        )+
        const STUBS: &[(&str, extern "C" fn() -> u32)] = &[$(($symbol, $name)),+];
    };
}

stubs! {
    0 attention "_Z9attentionPKfS0_S0_Pfi";
    1 gemm "_Z10gemm_f16_tPKtS0_Ptiii";
    2 softmax "_Z7softmaxPfi";
    3 layer_norm "_Z9layernormPKfPfi";
    4 rms_norm "_Z8rms_normPKfPfi";
    5 gelu "_Z4geluPfi";
    6 embedding "_Z9embeddingPKiPKfPfi";
    7 adam "_Z9adam_stepPfS_S_i";
}

/// Where the functions without a symbol of their own lie.
static UNNAMED: [u64; 8192] = [0; 8192];

/// A kernel function.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// Its symbol, or its address if it has none.
    pub(crate) name: String,
    /// Address that launches pass.
    pub(crate) address: usize,
}

/// The first `count` kernel functions.
pub(crate) fn kernels(count: u32) -> Vec<Kernel> {
    let named = STUBS.iter().map(|(symbol, stub)| Kernel {
        name: (*symbol).to_owned(),
        address: *stub as *const () as usize,
    });
    let unnamed = UNNAMED.iter().map(|word| {
        let address = std::ptr::from_ref(word) as usize;
        Kernel { name: format!("{address:#x}"), address }
    });
    named.chain(unnamed).take(count as usize).collect()
}
