//! Fixtures, damaged fixtures, and the test binary with flipped bytes.

use super::fixture::{CODE_OFFSET, Function, cuda_library, file_of, function, library};
use super::*;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

fn read(bytes: &[u8]) -> Result<LibraryImage, ElfError> {
    read_library(&file_of(bytes))
}

fn sites(image: &LibraryImage) -> Vec<(&str, u64)> {
    image.sites.iter().map(|site| (site.symbol.as_str(), site.offset - CODE_OFFSET)).collect()
}

#[test]
fn exported_functions_become_file_offsets() {
    let image = read(&cuda_library(&[0xde, 0xad, 0x0f])).unwrap();
    assert_eq!(sites(&image), [("cudaMalloc", 0), ("cudaFree", 16)]);
    assert_eq!(image.build_id.as_deref(), Some("dead0f"));
    assert!(image.sites.iter().all(|site| site.op.op().unwrap().name == site.symbol));
    assert_eq!((image.unplaced, image.folded), (0, 0));
}

/// Turns a library's exports into local symbols.
fn module(functions: &[Function]) -> Vec<u8> {
    let mut bytes = library(functions, &[0x55; 32], &[1]);
    let sections = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let exports = SHT_DYNSYM.0.to_le_bytes();
    let header =
        (sections..bytes.len() - 8).step_by(64).find(|&at| bytes[at + 4..at + 8] == exports);
    let kind = header.unwrap() + 4;
    bytes[kind..kind + 4].copy_from_slice(&SHT_SYMTAB.0.to_le_bytes());
    bytes
}

#[test]
fn a_module_is_searched_for_a_runtime_among_its_local_functions() {
    let runtime = [function("cudaLaunchKernel", 0), function("cudaMalloc", 16)];
    let read = |bytes: &[u8]| read_module(&file_of(bytes)).unwrap();
    assert_eq!(sites(&read(&module(&runtime))), [("cudaLaunchKernel", 0), ("cudaMalloc", 16)]);
    assert_eq!(sites(&read(&module(&runtime[1..]))), [], "no runtime");
    assert_eq!(sites(&read(&library(&runtime, &[0x55; 32], &[1]))), [], "exports");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn functions_that_hand_their_calls_to_a_pointer_are_no_runtime() {
    // At 0: jmp *0x5555(%rip), then what never runs. At 16: push %rbp all along.
    let mut code = [0x55; 32];
    code[..6].copy_from_slice(&[0xff, 0x25, 0x55, 0x55, 0, 0]);
    let of_size = |name, at, size| Function { size, ..function(name, at) };
    for size in [0, 8] {
        let stub = [of_size("cudaLaunchKernel", 0, size), function("cudaMalloc", 16)];
        let file = file_of(&library(&stub, &code, &[1]));
        assert_eq!(sites(&read_program(&file).unwrap()), [("cudaMalloc", 16)]);
        // NVIDIA's driver begins so.
        assert_eq!(read_library(&file).unwrap().sites.len(), 2);
        let mut module = module(&stub);
        module[CODE_OFFSET as usize..][..code.len()].copy_from_slice(&code);
        assert_eq!(sites(&read_module(&file_of(&module)).unwrap()), [("cudaMalloc", 16)]);
    }
}

#[test]
fn an_alias_of_one_function_is_one_site() {
    let weak = Function { info: 0x22, ..function("ncclReduce", 0) };
    let image = read(&library(&[function("pncclReduce", 0), weak], &[0x55; 32], &[1])).unwrap();
    assert_eq!(sites(&image), [("ncclReduce", 0)]);
    assert_eq!(image.folded, 0);
}

#[test]
fn a_symbol_that_points_into_another_function_is_no_site() {
    // Functions of a fixture are 8 bytes long.
    let functions = [function("other", 0), function("cudaMalloc", 1), function("cudaFree", 16)];
    let image = read(&library(&functions, &[0x55; 32], &[1])).unwrap();
    assert_eq!(sites(&image), [("cudaFree", 16)]);
    assert_eq!(image.misplaced, ["cudaMalloc"]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_symbol_within_an_instruction_is_no_site_where_the_function_around_it_has_no_size() {
    // push %rbp; mov $0x55555555,%eax; ret; then nothing but push %rbp
    let mut code = [0x55; 64];
    (code[1], code[6]) = (0xb8, 0xc3);
    let unsized_ = |name, at| Function { size: 0, ..function(name, at) };
    for (at, misplaced) in [(1, false), (2, true), (5, true), (6, false), (16, false)] {
        let functions =
            [unsized_("other", 0), unsized_("cudaMalloc", at), function("cudaFree", 32)];
        let image = read(&library(&functions, &code, &[1])).unwrap();
        assert_eq!(image.misplaced == ["cudaMalloc"], misplaced, "{at}");
        assert_eq!(image.sites.len(), if misplaced { 1 } else { 2 }, "{at}");
    }
}

#[test]
fn variants_at_other_addresses_are_sites_of_the_same_op() {
    let functions = [function("cuMemAlloc", 0), function("cuMemAlloc_v2", 16)];
    let image = read(&library(&functions, &[0x55; 32], &[1])).unwrap();
    assert_eq!(sites(&image), [("cuMemAlloc", 0), ("cuMemAlloc_v2", 16)]);
    assert_eq!(image.sites[0].op, image.sites[1].op);
}

#[test]
fn ops_that_share_code_count_as_one_of_them() {
    let functions = [function("cuMemMap", 0), function("cuMemUnmap", 0)];
    let image = read(&library(&functions, &[0x55; 32], &[1])).unwrap();
    assert_eq!(sites(&image), [("cuMemMap", 0)]);
    assert_eq!(image.folded, 1);
}

#[test]
fn undefined_symbols_and_data_are_no_sites() {
    let undefined = Function { section: 0, address: 0, ..function("cudaFree", 0) };
    let data = Function { info: 0x11, ..function("cudaMalloc", 0) };
    let image = read(&library(&[undefined, data], &[0x55; 32], &[1])).unwrap();
    assert_eq!(image.sites, []);
    assert_eq!(image.unplaced, 0);
}

#[test]
fn a_function_outside_the_code_is_counted() {
    let far = Function { address: u64::MAX, ..function("cudaMemset", 0) };
    let functions = [function("cudaFree", 39), far, function("cudaMalloc", 31)];
    let image = read(&library(&functions, &[0x55; 32], &[1])).unwrap();
    assert_eq!(sites(&image), [("cudaMalloc", 31)]);
    assert_eq!(image.unplaced, 2);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn slow_prologues_are_named_and_landing_pads_skipped() {
    let mut code = vec![0x55; 48];
    code[16..20].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
    code[32..36].copy_from_slice(&[0x48, 0x83, 0xec, 0x08]);
    let functions =
        [function("cudaMalloc", 0), function("cudaFree", 16), function("cudaMemset", 32)];
    let image = read(&library(&functions, &code, &[1])).unwrap();
    assert_eq!(sites(&image), [("cudaMalloc", 0), ("cudaFree", 20), ("cudaMemset", 32)]);
    let slow: Vec<_> = image.slow_sites().map(|site| site.symbol.as_str()).collect();
    assert_eq!(slow, ["cudaMemset"]);
}

#[test]
fn a_text_file_is_not_elf() {
    for bytes in [&b""[..], b"\x7fE", b"#!/bin/sh\n"] {
        assert!(matches!(read(bytes), Err(ElfError::NotElf)), "{bytes:?}");
    }
}

#[test]
fn a_file_of_another_kind_of_machine_is_unsupported() {
    for (at, value) in [(4, 1), (5, 2), (18, 3)] {
        let mut bytes = cuda_library(&[1]);
        bytes[at] = value;
        assert!(matches!(read(&bytes), Err(ElfError::Unsupported { .. })), "byte {at}");
    }
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let bytes = cuda_library(&[1]);
    for len in (4..bytes.len()).step_by(7) {
        let error = read(&bytes[..len]).unwrap_err();
        assert!(matches!(error, ElfError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
fn enormous_tables_of_a_sparse_file_are_refused() {
    // Offset of the size field of the symbol and string sections, from the end.
    for from_end in [128 - 32, 64 - 32] {
        let mut bytes = cuda_library(&[1]);
        let at = bytes.len() - from_end;
        bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let file = file_of(&bytes);
        file.set_len(1 << 41).unwrap();
        let error = read_library(&file).unwrap_err();
        assert!(matches!(error, ElfError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn this_very_program_has_no_traced_functions() {
    let image = read_library(&File::open("/proc/self/exe").unwrap()).unwrap();
    assert_eq!(image.sites, []);
}

/// A copy of the test binary, made by a real compiler and linker.
static REAL: LazyLock<(File, Vec<u8>)> = LazyLock::new(|| {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    (file_of(&bytes), bytes)
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn flipped_bytes_of_a_library_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = cuda_library(&[1, 2, 3]);
        for (at, value) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        // Half of the cases are also truncated.
        let len = keep.index(bytes.len() * 2).min(bytes.len());
        let file = file_of(&bytes[..len]);
        drop((read_program(&file), read_module(&file), kernel_handles(&file)));
        if let Ok(image) = read(&bytes[..len]) {
            prop_assert!(image.sites.iter().all(|site| site.offset < bytes.len() as u64));
        }
    }
}

proptest! {
    // Each case searches megabytes of symbols.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn flipped_headers_of_a_real_file_never_panic(
        flips in prop::collection::vec((any::<bool>(), 16usize..1024, any::<u8>()), 1..6),
    ) {
        let (file, bytes) = &*REAL;
        // Linkers put section headers last.
        let positions: Vec<usize> = flips
            .iter()
            .map(|(front, at, _)| if *front { *at } else { bytes.len() - at })
            .collect();
        for (at, (_, _, value)) in positions.iter().zip(&flips) {
            file.write_all_at(&[*value], *at as u64).unwrap();
        }
        let read = read_library(file);
        drop((read_module(file), kernel_handles(file)));
        for at in &positions {
            file.write_all_at(&bytes[*at..=*at], *at as u64).unwrap();
        }
        prop_assert!(read.is_err() || read.is_ok_and(|image| image.sites.is_empty()));
    }
}
