//! Calls on another stack than that of the call in which they are made.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use libc::{getcontext, makecontext, swapcontext, ucontext_t};

use super::{Count, Setup, call};
use crate::caller::call_bare;
use crate::cli::{Common, Unwind};
use crate::operation::Operation;

const STACK: usize = 256 << 10;

/// Operation that is called on the other stack.
static INNER: OnceLock<Operation> = OnceLock::new();
/// True while the thread is on the other stack.
static ELSEWHERE: AtomicBool = AtomicBool::new(false);
static FIRST: Context = Context(UnsafeCell::new(MaybeUninit::uninit()));
static OTHER: Context = Context(UnsafeCell::new(MaybeUninit::uninit()));

struct Context(UnsafeCell<MaybeUninit<ucontext_t>>);

// SAFETY: one thread uses them.
unsafe impl Sync for Context {}

impl Context {
    fn at(&self) -> *mut ucontext_t {
        self.0.get().cast()
    }
}

fn call_inner() {
    if let Some(operation) = INNER.get() {
        call_bare(operation);
    }
}

/// Goes on on the other of the two stacks, where that was left.
fn switch() {
    let (from, to) = if ELSEWHERE.fetch_xor(true, Ordering::Relaxed) {
        (&OTHER, &FIRST)
    } else {
        (&FIRST, &OTHER)
    };
    // SAFETY: the context was made by `make_other`, or filled by the switch that left it.
    unsafe { swapcontext(from.at(), to.at()) };
}

extern "C-unwind" fn switch_inside(_: *mut c_void) {
    switch();
}

/// Makes the other stack, in a mapping of its own and so below that of the first thread, to begin with `start`.
fn make_other(start: extern "C" fn()) -> Result<()> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), STACK, access, flags, -1, 0) };
    // SAFETY: the context is valid for writes.
    if stack == libc::MAP_FAILED || unsafe { getcontext(OTHER.at()) } != 0 {
        bail!("no second stack: {}", io::Error::last_os_error());
    }
    // SAFETY: `getcontext` has filled it.
    let other = unsafe { &mut *OTHER.at() };
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = STACK;
    // SAFETY: the context is complete, its stack is never unmapped, and the function never returns.
    unsafe { makecontext(other, start, 0) };
    Ok(())
}

fn prepare(setup: &Setup, common: &Common, options: &Unwind) -> Result<()> {
    let inner = Operation::new(&options.inner, &setup.libraries, common)?;
    INNER.get_or_init(|| inner);
    Ok(())
}

/// Prepares the inner operation, a second stack that `run` begins on, and calls that change the stack before they return.
fn prepare_switches(
    setup: &Setup,
    common: &Common,
    options: &Unwind,
    run: extern "C" fn(),
) -> Result<()> {
    prepare(setup, common, options)?;
    make_other(run)?;
    setup.libraries.on_call(&options.op, switch_inside)
}

/// The call is on the lower stack and has not returned when the inner one begins and returns on the higher.
pub(super) fn higher(
    setup: &Setup,
    common: &Common,
    options: &Unwind,
    count: &mut Count,
) -> Result<()> {
    extern "C" fn run() {
        loop {
            call();
            switch();
        }
    }
    prepare_switches(setup, common, options, run)?;
    for _ in 0..options.count {
        switch();
        call_inner();
        switch();
    }
    count.entered += options.count;
    count.returned += options.count;
    Ok(())
}

/// The call is on the higher stack and returns while the inner one, which began later, is on the lower.
pub(super) fn lower(
    setup: &Setup,
    common: &Common,
    options: &Unwind,
    count: &mut Count,
) -> Result<()> {
    extern "C" fn run() {
        loop {
            call_inner();
            switch();
        }
    }
    prepare_switches(setup, common, options, run)?;
    setup.libraries.on_call(&options.inner, switch_inside)?;
    for _ in 0..options.count {
        call();
        switch();
    }
    setup.libraries.set(&options.inner, "")?;
    count.entered += options.count;
    count.returned += options.count;
    Ok(())
}

/// The inner call is a signal handler's, whose stack lies above that of the call.
pub(super) fn signal(
    setup: &Setup,
    common: &Common,
    options: &Unwind,
    count: &mut Count,
) -> Result<()> {
    extern "C" fn handle(_: libc::c_int) {
        call_inner();
    }
    extern "C-unwind" fn interrupt(_: *mut c_void) {
        // SAFETY: sends a signal that has a handler to this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    #[inline(never)]
    fn call_below() {
        call();
    }
    prepare(setup, common, options)?;
    // In this frame, and so above those of the calls made from here.
    let mut stack = [MaybeUninit::<u8>::uninit(); STACK];
    let alternative =
        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK };
    // SAFETY: zeroes are a value of this structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler calls a function of the stand-in, which needs no lock.
    let installed =
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    // SAFETY: the stack lives until it is disabled below.
    let given = unsafe { libc::sigaltstack(&raw const alternative, std::ptr::null_mut()) };
    if installed != 0 || given != 0 {
        bail!("no signal stack: {}", io::Error::last_os_error());
    }
    setup.libraries.on_call(&options.op, interrupt)?;
    for _ in 0..options.count {
        call_below();
    }
    count.entered += options.count;
    count.returned += options.count;
    let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..alternative };
    // SAFETY: disables the stack, which is not in use.
    unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
    Ok(())
}
