//! One exported function and what its script makes it do.
//!
//! An unscripted call costs one load. A script is a `Plan` that is never freed, so that calls need no lock: a call
//! may stay in an old plan for as long as it likes, and scripts are set a handful of times.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::block::block;
use crate::script::Behaviour;

/// Arguments on which the behaviour of a call may depend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Call {
    /// Bytes that are moved.
    pub bytes: u64,
}

impl Call {
    /// A transfer of this many bytes.
    #[inline]
    pub const fn transfer(bytes: usize) -> Self {
        Self { bytes: bytes as u64 }
    }
}

/// A function of the program that runs inside a call. It may leave the call without returning.
#[derive(Debug, Clone, Copy)]
pub struct Callback {
    /// The function.
    pub function: extern "C-unwind" fn(*mut c_void),
    /// Its argument.
    pub data: *mut c_void,
}

// SAFETY: the data pointer is only handed to the program's own function.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

struct Plan {
    behaviour: Behaviour,
    callback: Option<Callback>,
    calls: AtomicU64,
    /// True if a thread has a plan of its own.
    per_thread: bool,
}

impl Plan {
    fn new(behaviour: Behaviour, callback: Option<Callback>, per_thread: bool) -> &'static Self {
        let calls = AtomicU64::new(0);
        Box::leak(Box::new(Self { behaviour, callback, calls, per_thread }))
    }

    fn act(&self, call: Call) -> c_int {
        let nth = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let behaviour = &self.behaviour;
        let mut ns = behaviour.base_ns;
        if behaviour.bytes_per_ns > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "no copy has 2^53 bytes")]
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates"
            )]
            let copying = (call.bytes as f64 / behaviour.bytes_per_ns) as u64;
            ns = ns.saturating_add(copying);
        }
        if ns > 0
            && let Err(error) = block(behaviour.way, ns)
        {
            eprintln!("gpucause-fake: {}: {error}", behaviour.way.name());
            std::process::abort();
        }
        if behaviour.hang {
            // SAFETY: waits for a signal, touches nothing.
            unsafe { libc::pause() };
        }
        if let Some(callback) = self.callback {
            (callback.function)(callback.data);
        }
        if nth.is_multiple_of(behaviour.ret_every) { behaviour.ret } else { 0 }
    }
}

struct ThreadPlan {
    function: *const Function,
    plan: Cell<&'static Plan>,
    older: Option<&'static ThreadPlan>,
}

thread_local! {
    static THREAD_PLANS: Cell<Option<&'static ThreadPlan>> = const { Cell::new(None) };
}

/// An exported function.
pub struct Function {
    symbol: &'static str,
    plan: AtomicPtr<Plan>,
    per_thread: AtomicBool,
}

impl Function {
    /// A function that does nothing.
    pub const fn new(symbol: &'static str) -> Self {
        Self { symbol, plan: AtomicPtr::new(ptr::null_mut()), per_thread: AtomicBool::new(false) }
    }

    /// The exported name.
    pub const fn symbol(&self) -> &'static str {
        self.symbol
    }

    /// Does what the script says and returns its code.
    #[inline(always)]
    pub fn run(&self, call: Call) -> c_int {
        if self.plan.load(Ordering::Relaxed).is_null() {
            return 0;
        }
        self.run_scripted(call)
    }

    /// [`Self::run`] for a call without arguments that matter.
    #[inline(always)]
    pub fn plain(&self) -> c_int {
        self.run(Call::default())
    }

    fn plan(&self) -> Option<&'static Plan> {
        let plan = self.plan.load(Ordering::Acquire);
        // SAFETY: the pointer is null or a plan, and plans are never freed.
        unsafe { plan.as_ref() }
    }

    #[inline(never)]
    fn run_scripted(&self, call: Call) -> c_int {
        let Some(plan) = self.plan() else { return 0 };
        let own = if plan.per_thread { self.thread_plan() } else { None };
        match own {
            Some(own) => {
                plan.calls.fetch_add(1, Ordering::Relaxed);
                own.plan.get().act(call)
            }
            None => plan.act(call),
        }
    }

    fn thread_plan(&self) -> Option<&'static ThreadPlan> {
        let mut entry = THREAD_PLANS.get();
        while let Some(this) = entry {
            if ptr::eq(this.function, self) {
                return entry;
            }
            entry = this.older;
        }
        None
    }

    fn install(&self, plan: Option<&'static Plan>) {
        let plan = plan.map_or(ptr::null_mut(), |plan| ptr::from_ref(plan).cast_mut());
        self.plan.store(plan, Ordering::Release);
    }

    /// Sets the behaviour of all threads; `None` clears it. Scripts of single threads stay.
    pub fn set(&self, behaviour: Option<Behaviour>) {
        let per_thread = self.per_thread.load(Ordering::Relaxed);
        let behaviour = if per_thread { Some(behaviour.unwrap_or_default()) } else { behaviour };
        self.install(behaviour.map(|behaviour| Plan::new(behaviour, None, per_thread)));
    }

    /// Sets the behaviour of this thread. Resets the function's call count.
    pub fn set_thread(&self, behaviour: Behaviour) {
        let plan = Plan::new(behaviour, None, false);
        match self.thread_plan() {
            Some(entry) => entry.plan.set(plan),
            None => {
                let (plan, older) = (Cell::new(plan), THREAD_PLANS.get());
                let entry = ThreadPlan { function: self, plan, older };
                THREAD_PLANS.set(Some(Box::leak(Box::new(entry))));
            }
        }
        if !self.per_thread.swap(true, Ordering::Relaxed) {
            let (behaviour, callback) =
                self.plan().map_or((Behaviour::default(), None), |p| (p.behaviour, p.callback));
            self.install(Some(Plan::new(behaviour, callback, true)));
        }
    }

    /// Runs the program's function inside each call, after the scripted time.
    pub fn on_call(&self, callback: Callback) {
        let behaviour = self.plan().map(|plan| plan.behaviour).unwrap_or_default();
        let per_thread = self.per_thread.load(Ordering::Relaxed);
        self.install(Some(Plan::new(behaviour, Some(callback), per_thread)));
    }

    /// Calls since the script was last set; 0 without a script.
    #[cfg(test)]
    fn calls(&self) -> u64 {
        self.plan().map_or(0, |plan| plan.calls.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::script::parse_spec;

    fn spec(text: &str) -> Behaviour {
        parse_spec("op", text).expect("the spec is right")
    }

    #[test]
    fn an_unscripted_function_returns_zero() {
        assert_eq!(Function::new("f").plain(), 0);
    }

    #[test]
    fn every_nth_call_returns_the_code() {
        let function = Function::new("f");
        function.set(Some(spec("ret=2@3")));
        let codes: Vec<c_int> = (0..7).map(|_| function.plain()).collect();
        assert_eq!(codes, [0, 0, 2, 0, 0, 2, 0]);
        assert_eq!(function.calls(), 7);
        function.set(None);
        assert_eq!((function.plain(), function.calls()), (0, 0));
    }

    #[test]
    fn a_thread_may_have_its_own_script() {
        static FUNCTION: Function = Function::new("f");
        FUNCTION.set(Some(spec("ret=1")));
        std::thread::spawn(|| {
            FUNCTION.set_thread(spec("ret=2"));
            assert_eq!(FUNCTION.plain(), 2);
            FUNCTION.set_thread(spec(""));
            assert_eq!(FUNCTION.plain(), 0);
        })
        .join()
        .expect("the thread's calls do what it set");
        assert_eq!(FUNCTION.plain(), 1);
        assert_eq!(FUNCTION.calls(), 3);
        FUNCTION.set(Some(spec("ret=3")));
        assert_eq!(FUNCTION.plain(), 3);
    }

    #[test]
    fn copies_take_time_by_their_size() {
        let function = Function::new("f");
        function.set(Some(spec("sleep=1ms,gbps=1")));
        let start = clock::monotonic_ns();
        function.run(Call::transfer(2_000_000));
        assert!(clock::monotonic_ns() - start >= 3_000_000);
    }

    #[test]
    fn a_callback_runs_inside_the_call() {
        extern "C-unwind" fn note(data: *mut c_void) {
            let count = data.cast::<AtomicU64>();
            // SAFETY: the test passes a counter that outlives the calls.
            unsafe { &*count }.fetch_add(1, Ordering::Relaxed);
        }
        let count = AtomicU64::new(0);
        let function = Function::new("f");
        function
            .on_call(Callback { function: note, data: ptr::from_ref(&count).cast_mut().cast() });
        function.plain();
        function.plain();
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
