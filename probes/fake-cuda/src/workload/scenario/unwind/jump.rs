//! A non-local jump out of a call: what setjmp and longjmp do, as one function that returns once.
//!
//! `setjmp` itself returns twice, which Rust does not allow of a function. Jumping over frames without destructors is
//! allowed.
#![cfg(target_arch = "x86_64")]

use std::arch::naked_asm;

/// The registers that a function must preserve, and the stack pointer.
#[repr(C)]
pub(super) struct Saved([usize; 7]);

impl Saved {
    pub(super) const fn new() -> Self {
        Self([0; 7])
    }
}

/// Calls `function`; returns 0 when it returns and 1 when [`escape`] left it.
///
/// # Safety
///
/// `saved` is valid for writes until this returns.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn protect(saved: *mut Saved, function: extern "C" fn()) -> u32 {
    naked_asm!(
        "mov [rdi], rbx",
        "mov [rdi + 8], rbp",
        "mov [rdi + 16], r12",
        "mov [rdi + 24], r13",
        "mov [rdi + 32], r14",
        "mov [rdi + 40], r15",
        "mov [rdi + 48], rsp",
        "sub rsp, 8",
        "call rsi",
        "add rsp, 8",
        "xor eax, eax",
        "ret",
    )
}

/// Makes the [`protect`] that filled `saved` return 1.
///
/// # Safety
///
/// That call is on this thread's stack, and no frame above it has a destructor to run.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn escape(saved: *const Saved) -> ! {
    naked_asm!(
        "mov rbx, [rdi]",
        "mov rbp, [rdi + 8]",
        "mov r12, [rdi + 16]",
        "mov r13, [rdi + 24]",
        "mov r14, [rdi + 32]",
        "mov r15, [rdi + 40]",
        "mov rsp, [rdi + 48]",
        "mov eax, 1",
        "ret",
    )
}
