//! The CUDA libraries of this process: opened by path, functions by name, scripts of the stand-ins.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use gpucause_abi::op::{Api, op_of_symbol};

use crate::cli::Common;

/// An open library; it stays open.
#[derive(Debug, Clone, Copy)]
struct Handle(*mut c_void);

// SAFETY: the loader's handles are for any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

type Set = extern "C" fn(*const c_char, *const c_char) -> c_int;
type OnCall = extern "C" fn(*const c_char, extern "C-unwind" fn(*mut c_void), *mut c_void) -> c_int;

/// The libraries, opened as they are needed.
#[derive(Debug)]
pub(crate) struct Libraries {
    dir: Option<PathBuf>,
    runtime_path: PathBuf,
    runtime: Option<Handle>,
    others: Mutex<[Option<Handle>; 2]>,
}

fn last_error() -> String {
    // SAFETY: returns null or a message that stays until the next loader call of this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "unknown loader error".into();
    }
    // SAFETY: not null, so a terminated string.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

fn open(path: &Path) -> Result<Handle> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: a terminated path; the initialisers of CUDA libraries may run at any time.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        bail!("{}: {} (see --libs and --cudart)", path.display(), last_error());
    }
    Ok(Handle(handle))
}

impl Handle {
    fn find(self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open and the name is terminated.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

impl Libraries {
    /// Sets the script in the environment of the stand-ins, then opens the runtime unless disabled.
    pub(crate) fn open(common: &Common) -> Result<Self> {
        if let Some(script) = &common.script {
            let script = CString::new(script.as_str())?;
            // SAFETY: both strings are terminated, and there is one thread so far.
            unsafe { libc::setenv(c"GPUCAUSE_FAKE".as_ptr(), script.as_ptr(), 1) };
        }
        let dir = common.libs.clone();
        let runtime_path = common.cudart.clone().unwrap_or_else(|| {
            let names =
                ["libcudart.so.12", "libcudart.so.13"].map(|name| in_dir(dir.as_deref(), name));
            let [first, _] = &names;
            names.iter().find(|path| path.exists()).unwrap_or(first).clone()
        });
        let runtime = if common.driver_only { None } else { Some(open(&runtime_path)?) };
        Ok(Self { dir, runtime_path, runtime, others: Mutex::new([None; 2]) })
    }

    pub(crate) fn runtime_path(&self) -> String {
        self.runtime_path.to_string_lossy().into_owned()
    }

    #[expect(clippy::significant_drop_tightening, reason = "the slot is part of what is locked")]
    fn handle(&self, symbol: &str) -> Result<Handle> {
        let api = op_of_symbol(symbol).and_then(gpucause_abi::op::OpId::op).map(|op| op.api);
        let (index, file) = match api {
            Some(Api::Driver) => (0, "libcuda.so.1"),
            Some(Api::Nccl) => (1, "libnccl.so.2"),
            _ => {
                return self.runtime.with_context(|| format!("`{symbol}`: not with --driver-only"));
            }
        };
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut others[index];
        match slot {
            Some(handle) => Ok(*handle),
            None => Ok(*slot.insert(open(&in_dir(self.dir.as_deref(), file))?)),
        }
    }

    /// The address of a function, in the library that its name belongs to.
    pub(crate) fn function(&self, symbol: &str) -> Result<usize> {
        let address = self.handle(symbol)?.find(symbol);
        address.map(|address| address as usize).with_context(|| {
            format!("`{symbol}`: the library has no such function ({})", self.runtime_path())
        })
    }

    /// Refuses an op whose library is not a stand-in.
    pub(crate) fn must_be_scripted(&self, op: &str) -> Result<()> {
        if self.is_scripted(op)? {
            return Ok(());
        }
        bail!("`{op}`: its library is not a stand-in, it cannot be scripted");
    }

    /// Returns true if the op's library is a stand-in.
    pub(crate) fn is_scripted(&self, op: &str) -> Result<bool> {
        Ok(self.handle(op)?.find("gpucause_fake_set").is_some())
    }

    fn call_set(&self, library: Handle, control: &str, op: &str, spec: &str) -> Result<()> {
        let address = library.find(control).with_context(|| {
            format!("`{op}`: its library is not a stand-in, it cannot be scripted")
        })?;
        // SAFETY: the stand-in's control functions have this type.
        let set: Set = unsafe { std::mem::transmute(address) };
        let (c_op, c_spec) = (CString::new(op)?, CString::new(spec)?);
        if set(c_op.as_ptr(), c_spec.as_ptr()) != 0 {
            bail!("`{op}:{spec}`: refused by the stand-in library");
        }
        Ok(())
    }

    /// Scripts an op for all threads; an empty spec also removes its callback.
    pub(crate) fn set(&self, op: &str, spec: &str) -> Result<()> {
        self.call_set(self.handle(op)?, "gpucause_fake_set", op, spec)
    }

    /// Changes a setting in the library of an op.
    pub(crate) fn set_in(&self, setting: &str, op: &str, value: &str) -> Result<()> {
        self.call_set(self.handle(op)?, "gpucause_fake_set", setting, value)
    }

    /// Scripts an op for the calling thread.
    pub(crate) fn set_thread(&self, op: &str, spec: &str) -> Result<()> {
        self.call_set(self.handle(op)?, "gpucause_fake_set_thread", op, spec)
    }

    /// Runs a function inside each call of an op, with null as its argument.
    pub(crate) fn on_call(
        &self,
        op: &str,
        callback: extern "C-unwind" fn(*mut c_void),
    ) -> Result<()> {
        self.must_be_scripted(op)?;
        let address =
            self.handle(op)?.find("gpucause_fake_on_call").context("gpucause_fake_on_call")?;
        // SAFETY: the stand-in's control function has this type.
        let on_call: OnCall = unsafe { std::mem::transmute(address) };
        let op = CString::new(op)?;
        if on_call(op.as_ptr(), callback, ptr::null_mut()) != 0 {
            bail!("{}: refused by the stand-in library", op.to_string_lossy());
        }
        Ok(())
    }
}

fn in_dir(dir: Option<&Path>, name: &str) -> PathBuf {
    dir.map_or_else(|| PathBuf::from(name), |dir| dir.join(name))
}
