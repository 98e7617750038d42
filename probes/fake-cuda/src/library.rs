//! A stand-in library: its functions by name, its script, and the macros that export both.

use std::ffi::c_int;

use gpucause_abi::op::{Api, OpId, op_of_symbol};

use crate::block;
use crate::function::{Callback, Function};
use crate::scratch;
use crate::script::{self, Behaviour, Clause, ScriptError};
use crate::types::Text;

/// The environment variable that holds the script.
const SCRIPT_VARIABLE: &str = "GPUCAUSE_FAKE";

/// Everything that one library exports.
pub struct Library {
    /// The file name that programs open.
    pub name: &'static str,
    /// The layer whose functions it has.
    pub api: Api,
    /// Its functions.
    pub functions: &'static [&'static [&'static Function]],
    /// Function that applies `nest` in this library.
    pub nest: Option<fn(bool) -> Result<(), String>>,
}

/// The layer that a function name belongs to.
fn layer_of(op: &str) -> Option<Api> {
    if op.starts_with("cuda") {
        Some(Api::Runtime)
    } else if op.starts_with("cu") {
        Some(Api::Driver)
    } else if op.starts_with("nccl") {
        Some(Api::Nccl)
    } else {
        None
    }
}

fn documented_name(symbol: &'static str) -> &'static str {
    op_of_symbol(symbol).and_then(OpId::op).map_or(symbol, |op| op.name)
}

impl Library {
    fn named<'a>(&self, op: &'a str) -> impl Iterator<Item = &'static Function> + use<'a> {
        self.functions.iter().copied().flatten().copied().filter(move |function| {
            op == "*" || function.symbol() == op || documented_name(function.symbol()) == op
        })
    }

    fn for_each(&self, op: &str, act: impl Fn(&'static Function)) -> Result<(), ScriptError> {
        let mut found = false;
        for function in self.named(op) {
            found = true;
            act(function);
        }
        if found { Ok(()) } else { Err(ScriptError::Op(op.into())) }
    }

    fn apply(&self, clause: Clause) -> Result<(), ScriptError> {
        match clause {
            Clause::Dir(dir) => scratch::set_dir(dir),
            Clause::Nest(on) => {
                if let Some(nest) = self.nest {
                    let setting = format!("nest={}", u8::from(on));
                    nest(on).map_err(|reason| ScriptError::Setting { setting, reason })?;
                }
            }
            Clause::Function { op, behaviour } => match layer_of(&op) {
                Some(layer) if layer != self.api => {}
                _ => self.for_each(&op, |function| function.set(Some(behaviour)))?,
            },
        }
        Ok(())
    }

    /// Applies a script; clauses for other layers are left to their libraries.
    ///
    /// # Errors
    ///
    /// When the script is not of the grammar or names a function that this library should have and does not.
    pub fn follow(&self, script: &str) -> Result<(), ScriptError> {
        script::parse(script)?.into_iter().try_for_each(|clause| self.apply(clause))
    }

    /// Follows the script of the environment. A process with a wrong script ends with code 64: its test would otherwise
    /// measure something else.
    pub fn load(&self) {
        if let Ok(script) = std::env::var(SCRIPT_VARIABLE)
            && let Err(error) = self.follow(&script)
        {
            eprintln!("gpucause-fake: {}: {SCRIPT_VARIABLE}: {error}", self.name);
            // SAFETY: ends the process.
            unsafe { libc::_exit(64) };
        }
    }

    fn spec(op: &str, spec: &str) -> Result<Option<Behaviour>, ScriptError> {
        if spec.trim().is_empty() {
            return Ok(None);
        }
        script::parse_spec(op, spec).map(Some)
    }

    /// Creates the resources of scripted calls on this thread in advance.
    fn prepare(behaviour: Behaviour) -> Result<(), ScriptError> {
        block::prepare(behaviour.way).map_err(|error| ScriptError::Setting {
            setting: behaviour.way.name().into(),
            reason: error.to_string(),
        })
    }

    /// Sets what a function does, or a setting.
    ///
    /// # Errors
    ///
    /// When the library does not have the function or the spec is wrong.
    pub fn set(&self, op: &str, spec: &str) -> Result<(), ScriptError> {
        if let Some(setting) = script::parse_setting(op, spec)? {
            return self.apply(setting);
        }
        let behaviour = Self::spec(op, spec)?;
        Self::prepare(behaviour.unwrap_or_default())?;
        self.for_each(op, |function| function.set(behaviour))
    }

    /// Sets what a function does on the calling thread.
    ///
    /// # Errors
    ///
    /// When the library does not have the function or the spec is wrong.
    pub fn set_thread(&self, op: &str, spec: &str) -> Result<(), ScriptError> {
        let behaviour = Self::spec(op, spec)?.unwrap_or_default();
        Self::prepare(behaviour)?;
        self.for_each(op, |function| function.set_thread(behaviour))
    }

    fn report(&self, result: Result<(), ScriptError>) -> c_int {
        match result {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("gpucause-fake: {}: {error}", self.name);
                -1
            }
        }
    }

    /// `gpucause_fake_set`.
    pub fn c_set(&self, op: Text, spec: Text) -> c_int {
        let (op, spec) = (op.read().unwrap_or(""), spec.read().unwrap_or(""));
        self.report(self.set(op, spec))
    }

    /// `gpucause_fake_set_thread`.
    pub fn c_set_thread(&self, op: Text, spec: Text) -> c_int {
        let (op, spec) = (op.read().unwrap_or(""), spec.read().unwrap_or(""));
        self.report(self.set_thread(op, spec))
    }

    /// `gpucause_fake_on_call`.
    pub fn c_on_call(&self, op: Text, callback: Callback) -> c_int {
        let op = op.read().unwrap_or("");
        self.report(self.for_each(op, |function| function.on_call(callback)))
    }
}

/// Exports C functions. Each line lists one or more symbols with the arguments and the body that they share:
/// `[cudaFree] (address: usize) |function| free(function, address);`. The body sees the symbol's own [`Function`]. Also
/// defines `FUNCTIONS`, the module's part of [`Library::functions`].
///
/// The functions may be unwound: a callback may leave a call by `pthread_exit`.
#[macro_export]
macro_rules! exports {
    ($([$($symbol:ident)+] $arguments:tt |$function:ident| $body:expr;)+) => {
        mod statics {
            $($(
                #[allow(non_upper_case_globals, reason = "named as the exported function")]
                pub(super) static $symbol: $crate::function::Function =
                    $crate::function::Function::new(stringify!($symbol));
            )+)+
        }
        /// Functions that this module exports.
        pub(crate) static FUNCTIONS: &[&$crate::function::Function] =
            &[$($(&statics::$symbol),+),+];
        $($($crate::export_one!($symbol $arguments $function $body);)+)+
    };
}

/// One function of [`exports!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_one {
    ($symbol:ident ($($argument:ident: $type:ty),* $(,)?) $function:ident $body:expr) => {
        #[cfg_attr(not(target_arch = "aarch64"), unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the C name")]
        extern "C-unwind" fn $symbol($($argument: $type),*) -> ::std::ffi::c_int {
            let $function = &statics::$symbol;
            $body
        }
        // There a probe works without a risk on a branch: the first instruction, or like in NVIDIA's libraries one behind those that
        // save registers, where no argument can be on the stack.
        #[cfg(target_arch = "aarch64")]
        const _: () = {
            const ARGUMENTS: &[&str] = &[$(stringify!($argument)),*];
            #[unsafe(naked)]
            #[unsafe(export_name = stringify!($symbol))]
            extern "C-unwind" fn exported($(_: $type),*) -> ::std::ffi::c_int {
                ::std::arch::naked_asm!(
                    ".cfi_startproc",
                    ".if {arguments} > 6",
                    "b {function}",
                    ".else",
                    "stp x29, x30, [sp, #-16]!",
                    ".cfi_def_cfa_offset 16",
                    ".cfi_offset 29, -16",
                    ".cfi_offset 30, -8",
                    "mov x29, sp",
                    "bl {function}",
                    "ldp x29, x30, [sp], #16",
                    ".cfi_restore 30",
                    ".cfi_restore 29",
                    ".cfi_def_cfa_offset 0",
                    "ret",
                    ".endif",
                    ".cfi_endproc",
                    arguments = const ARGUMENTS.len(),
                    function = sym $symbol,
                )
            }
        };
    };
}

/// Exports the control functions of a [`Library`] and follows the environment's script when the library is loaded.
#[macro_export]
macro_rules! control {
    ($library:ident) => {
        extern "C" fn load_script() {
            $library.load();
        }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static LOAD_SCRIPT: extern "C" fn() = load_script;

        #[unsafe(no_mangle)]
        extern "C" fn gpucause_fake_set(
            op: $crate::types::Text,
            spec: $crate::types::Text,
        ) -> ::std::ffi::c_int {
            $library.c_set(op, spec)
        }

        #[unsafe(no_mangle)]
        extern "C" fn gpucause_fake_set_thread(
            op: $crate::types::Text,
            spec: $crate::types::Text,
        ) -> ::std::ffi::c_int {
            $library.c_set_thread(op, spec)
        }

        #[unsafe(no_mangle)]
        extern "C" fn gpucause_fake_on_call(
            op: $crate::types::Text,
            function: extern "C-unwind" fn(*mut ::std::ffi::c_void),
            data: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            $library.c_on_call(op, $crate::function::Callback { function, data })
        }
    };
}
