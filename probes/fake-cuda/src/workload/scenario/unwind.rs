//! Leaving a call in odd ways. A callback inside the stand-in's call does the leaving.

mod jump;
mod stacks;

use std::ffi::c_void;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use gpucause_fake_cuda::futex;
use serde_json::{Value, json};

use super::{Setup, join, result};
use crate::caller::{call_bare, given};
use crate::cli::{Common, Leave, Unwind};
use crate::operation::{Effect, Operation, Pool};
use crate::process::{again, fork, thread_id, wait_for};
use crate::session;

/// Operation to call; a callback and a signal handler have no other way to know it.
static OPERATION: OnceLock<Operation> = OnceLock::new();
/// Operation that the signal handler calls.
static QUERY: OnceLock<Operation> = OnceLock::new();
/// Calls that are, or were, inside the callback.
static INSIDE: AtomicU64 = AtomicU64::new(0);
static IN_CHILD: AtomicBool = AtomicBool::new(false);

fn call() {
    if let Some(operation) = OPERATION.get() {
        call_bare(operation);
    }
}

/// Calls of this process: those that began, and those that came back.
#[derive(Default)]
struct Count {
    entered: u64,
    returned: u64,
    children: Vec<Value>,
}

impl Count {
    fn plain(&mut self, calls: u64) {
        for _ in 0..calls {
            call();
        }
        self.entered += calls;
        self.returned += calls;
    }
}

pub(crate) fn run(common: &Common, options: &Unwind) -> Result<()> {
    let setup = Setup::new(common, &options.op)?;
    setup.libraries.must_be_scripted(&options.op)?;
    let mut operation = setup.pattern.operations.first().context("no op")?.clone();
    let name = operation.name;
    session::ready(common, &[thread_id()], &json!({}))?;
    if operation.effect == Effect::Free(Pool::Device) {
        // Something to free, which only the first call that is not left can do.
        operation.slots[0] = given(&mut Operation::new("cudaMalloc", &setup.libraries, common)?);
    }
    OPERATION.get_or_init(|| operation);
    let mut count = Count::default();
    let mut more = json!({});
    match options.kind {
        Leave::Longjmp => longjmp(&setup, options, &mut count)?,
        Leave::Panic => panics(&setup, options, &mut count)?,
        Leave::ThreadExit => thread_exits(&setup, options, &mut count)?,
        Leave::Exec => return exec(&setup, common, options),
        Leave::Kill => kill(&setup, options, &mut count)?,
        Leave::Fork => fork_beside(&setup, options, &mut count)?,
        Leave::ForkInside => fork_inside(&setup, options, &mut count)?,
        Leave::Signal => {
            signal(&setup, common, options, &mut count)?;
            more = json!({ "handler_calls": { "cudaStreamQuery": options.count } });
        }
        Leave::SignalStack => stacks::signal(&setup, common, options, &mut count)?,
        Leave::HigherStack => stacks::higher(&setup, common, options, &mut count)?,
        Leave::LowerStack => stacks::lower(&setup, common, options, &mut count)?,
    }
    if options.kind != Leave::Fork {
        // Removes the callback, so that later calls are ordinary.
        setup.libraries.set(&options.op, "")?;
    }
    count.plain(options.calls);
    let truth = json!({
        "kind": options.kind.to_possible_value().map(|kind| kind.get_name().to_owned()),
        "op": name,
        "entered": count.entered,
        "returned": count.returned,
        "children": count.children,
    });
    session::finish(common, &join(join(result("unwind", &setup.libraries), truth), more))
}

#[cfg(target_arch = "x86_64")]
fn longjmp(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    use std::cell::UnsafeCell;

    thread_local! {
        static SAVED: UnsafeCell<jump::Saved> = const { UnsafeCell::new(jump::Saved::new()) };
    }
    extern "C-unwind" fn leave(_: *mut c_void) {
        let saved = SAVED.with(UnsafeCell::get);
        // SAFETY: `protect` on this thread filled it, and the call's frames have no destructors.
        unsafe { jump::escape(saved) }
    }
    extern "C" fn enter() {
        call();
    }

    setup.libraries.on_call(&options.op, leave)?;
    for _ in 0..options.count {
        let saved = SAVED.with(UnsafeCell::get);
        // SAFETY: the saved registers are this thread's and outlive the call.
        count.returned += u64::from(unsafe { jump::protect(saved, enter) } == 0);
        count.entered += 1;
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn longjmp(_: &Setup, _: &Unwind, _: &mut Count) -> Result<()> {
    bail!("--kind longjmp: written for x86-64 only");
}

fn panics(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    extern "C-unwind" fn leave(_: *mut c_void) {
        std::panic::resume_unwind(Box::new(()));
    }
    setup.libraries.on_call(&options.op, leave)?;
    for _ in 0..options.count {
        count.returned += u64::from(std::panic::catch_unwind(call).is_ok());
        count.entered += 1;
    }
    Ok(())
}

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

// The library's declarations promise that neither function unwinds, which ending a thread does.
unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: Start,
        argument: *mut c_void,
    ) -> i32;
    fn pthread_exit(value: *mut c_void) -> !;
}

extern "C-unwind" fn start_with_call(_: *mut c_void) -> *mut c_void {
    call();
    ptr::null_mut()
}

fn start_thread() -> Result<libc::pthread_t> {
    let mut thread = 0;
    // SAFETY: the thread's function takes nothing; its frames have no destructors.
    let code =
        unsafe { pthread_create(&raw mut thread, ptr::null(), start_with_call, ptr::null_mut()) };
    if code != 0 {
        bail!("a thread does not start: {}", io::Error::from_raw_os_error(code));
    }
    Ok(thread)
}

fn thread_exits(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    extern "C-unwind" fn leave(_: *mut c_void) {
        // SAFETY: the thread's frames have no destructors.
        unsafe { pthread_exit(ptr::null_mut()) }
    }
    setup.libraries.on_call(&options.op, leave)?;
    for _ in 0..options.count {
        let thread = start_thread()?;
        // SAFETY: the thread was started and not joined.
        unsafe { libc::pthread_join(thread, ptr::null_mut()) };
        count.entered += 1;
    }
    Ok(())
}

/// The first call stays in; later ones pass.
extern "C-unwind" fn first_stays(_: *mut c_void) {
    if INSIDE.fetch_add(1, Ordering::Release) == 0 {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
}

fn wait_until_inside() {
    let never = std::sync::atomic::AtomicU32::new(0);
    while INSIDE.load(Ordering::Acquire) == 0 {
        futex::wait(&never, 0, Some(1_000_000));
    }
}

fn exec(setup: &Setup, common: &Common, options: &Unwind) -> Result<()> {
    setup.libraries.on_call(&options.op, first_stays)?;
    start_thread()?;
    wait_until_inside();
    let before =
        json!({ "pid": std::process::id(), "op": options.op, "entered": 1, "returned": 0 });
    println!("exec {before}");
    io::stdout().flush()?;
    let calls = format!("--calls={}", options.calls);
    let mut command = again(["calls", "--op", &options.op, &calls])?;
    command.arg(format!("--cudart={}", setup.libraries.runtime_path()));
    if let Some(libs) = &common.libs {
        command.arg("--libs").arg(libs);
    }
    if common.hold {
        command.arg("--hold");
    }
    Err(command.exec().into())
}

/// Forks a process that makes so many calls. Calls of the stand-ins need no lock.
fn fork_calls(calls: u64) -> Result<u32> {
    fork(|| {
        (0..calls).for_each(|_| call());
        Ok(())
    })
}

fn kill(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    static INSIDE_PIPE: OnceLock<io::PipeWriter> = OnceLock::new();
    extern "C-unwind" fn stay(_: *mut c_void) {
        if let Some(mut pipe) = INSIDE_PIPE.get() {
            let _ = pipe.write(&[1]);
        }
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let (mut inside, end) = io::pipe()?;
    INSIDE_PIPE.get_or_init(|| end);
    setup.libraries.on_call(&options.op, stay)?;
    for _ in 0..options.count {
        let pid = fork_calls(1)?;
        io::Read::read_exact(&mut inside, &mut [0])?;
        // SAFETY: the child has not been waited for, so the PID is its own.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        wait_for(pid)?;
        count.children.push(json!({ "pid": pid, "entered": 1, "returned": 0 }));
    }
    Ok(())
}

/// One call stays for good; children are forked beside it.
fn fork_beside(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    setup.libraries.on_call(&options.op, first_stays)?;
    start_thread()?;
    wait_until_inside();
    count.entered += 1;
    for _ in 0..options.count {
        let pid = fork_calls(options.calls)?;
        let status = wait_for(pid)?;
        count.children.push(child_truth(pid, status, options.calls, 0));
    }
    Ok(())
}

fn child_truth(pid: u32, status: i32, calls: u64, inherited: u64) -> Value {
    json!({ "pid": pid, "status": status, "entered": calls, "returned": calls + inherited })
}

/// The call that forks returns in the parent and in the child.
fn fork_inside(setup: &Setup, options: &Unwind, count: &mut Count) -> Result<()> {
    static CHILD: AtomicU64 = AtomicU64::new(0);
    extern "C-unwind" fn split(_: *mut c_void) {
        if IN_CHILD.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the child makes calls of the stand-ins and ends with `_exit`.
        match unsafe { libc::fork() } {
            0 => IN_CHILD.store(true, Ordering::Relaxed),
            pid => CHILD.store(u64::try_from(pid).unwrap_or(0), Ordering::Relaxed),
        }
    }
    setup.libraries.on_call(&options.op, split)?;
    for _ in 0..options.count {
        call();
        if IN_CHILD.load(Ordering::Relaxed) {
            (0..options.calls).for_each(|_| call());
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        count.entered += 1;
        count.returned += 1;
        let pid = u32::try_from(CHILD.swap(0, Ordering::Relaxed))?;
        if pid == 0 {
            bail!("fork inside a call failed");
        }
        let status = wait_for(pid)?;
        count.children.push(child_truth(pid, status, options.calls, 1));
    }
    Ok(())
}

fn signal(setup: &Setup, common: &Common, options: &Unwind, count: &mut Count) -> Result<()> {
    extern "C" fn handle(_: libc::c_int) {
        if let Some(query) = QUERY.get() {
            call_bare(query);
        }
    }
    extern "C-unwind" fn interrupt(_: *mut c_void) {
        // SAFETY: sends a signal that has a handler to this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    let query = Operation::new("cudaStreamQuery", &setup.libraries, common)?;
    QUERY.get_or_init(|| query);
    let handler = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler calls a function of the stand-in, which needs no lock.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    setup.libraries.on_call(&options.op, interrupt)?;
    for _ in 0..options.count {
        call();
        count.entered += 1;
        count.returned += 1;
    }
    Ok(())
}
