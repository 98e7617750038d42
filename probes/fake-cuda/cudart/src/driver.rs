//! The driver functions that the runtime calls when the script says `nest=1`.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpucause_fake_cuda::types::{call_at, slots};

/// One function of libcuda, or none while the script does not nest.
pub(crate) struct Entry {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Entry {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Calls the driver; 0 when the runtime stands alone.
    #[inline(always)]
    pub(crate) fn call<const N: usize>(&self, arguments: [usize; N]) -> c_int {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() { 0 } else { call_driver(address, &arguments) }
    }

    /// Returns true if calls reach the driver.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        !self.address.load(Ordering::Relaxed).is_null()
    }
}

#[inline(never)]
fn call_driver(address: *mut c_void, given: &[usize]) -> c_int {
    call_at(address as usize, &slots(given))
}

macro_rules! entries {
    ($($name:ident = $symbol:literal;)+) => {
        $(pub(crate) static $name: Entry = Entry::new($symbol);)+
        static ENTRIES: &[&Entry] = &[$(&$name),+];
    };
}

entries! {
    LAUNCH = c"cuLaunchKernel";
    COPY = c"cuMemcpy";
    COPY_ASYNC = c"cuMemcpyAsync";
    HOST_TO_DEVICE = c"cuMemcpyHtoD_v2";
    HOST_TO_DEVICE_ASYNC = c"cuMemcpyHtoDAsync_v2";
    DEVICE_TO_HOST = c"cuMemcpyDtoH_v2";
    DEVICE_TO_HOST_ASYNC = c"cuMemcpyDtoHAsync_v2";
    DEVICE_TO_DEVICE = c"cuMemcpyDtoD_v2";
    DEVICE_TO_DEVICE_ASYNC = c"cuMemcpyDtoDAsync_v2";
    SET_BYTES = c"cuMemsetD8_v2";
    SET_BYTES_ASYNC = c"cuMemsetD8Async";
    ALLOCATE = c"cuMemAlloc_v2";
    ALLOCATE_ASYNC = c"cuMemAllocAsync";
    FREE = c"cuMemFree_v2";
    FREE_ASYNC = c"cuMemFreeAsync";
    WAIT_CONTEXT = c"cuCtxSynchronize";
    WAIT_STREAM = c"cuStreamSynchronize";
    WAIT_EVENT = c"cuEventSynchronize";
    QUERY_STREAM = c"cuStreamQuery";
    QUERY_EVENT = c"cuEventQuery";
    RECORD_EVENT = c"cuEventRecord";
    LAUNCH_GRAPH = c"cuGraphLaunch";
}

/// The driver beside this library, as a path for `dlopen`.
fn beside() -> Option<CString> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: any address may be asked for, and `info` is valid for writes.
    let found = unsafe { libc::dladdr(ptr::from_ref(ENTRIES).cast(), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the name while the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_str().ok()?;
    let path = Path::new(name).parent()?.join("libcuda.so.1");
    path.exists().then(|| CString::new(path.into_os_string().into_encoded_bytes()).ok())?
}

fn open() -> Result<*mut c_void, String> {
    let path = beside().unwrap_or_else(|| c"libcuda.so.1".to_owned());
    // SAFETY: loads a library by a terminated path; its initialisers only read the environment.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("{} does not load", path.to_string_lossy()));
    }
    Ok(handle)
}

/// Makes the runtime call the driver, or stop doing so.
pub(crate) fn nest(on: bool) -> Result<(), String> {
    let handle = if on { open()? } else { ptr::null_mut() };
    for entry in ENTRIES {
        let mut address = ptr::null_mut();
        if on {
            // SAFETY: the handle is open and the name is terminated.
            address = unsafe { libc::dlsym(handle, entry.name.as_ptr()) };
            if address.is_null() {
                return Err(format!("libcuda.so.1 lacks {}", entry.name.to_string_lossy()));
            }
        }
        entry.address.store(address, Ordering::Release);
    }
    Ok(())
}
