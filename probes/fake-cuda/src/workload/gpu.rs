//! The calls of a program that feeds a GPU, and how long the stand-in libraries take for them.

use std::ffi::c_void;
use std::hint::black_box;

use anyhow::{Result, bail};
use gpucause_fake_cuda::clock;
use gpucause_fake_cuda::types::Slots;

use crate::caller::call_bare;
use crate::cli::Common;
use crate::kernels::kernels;
use crate::libraries::Libraries;
use crate::operation::Operation;

/// Kernels that a step goes through.
const KERNELS: u32 = 4;
/// Kernels that can be launched for a first time.
const ALL_KERNELS: u32 = 4096;
/// `cudaMemcpyKind`.
const HOST_TO_DEVICE: usize = 1;
const DEVICE_TO_HOST: usize = 2;

/// A step of the loop while nothing is wrong, with times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Host code before the launches.
    pub(crate) host_ns: u64,
    /// Launches.
    pub(crate) launches: u32,
    /// CPU time of each.
    pub(crate) launch_ns: u64,
    /// How long the GPU works on after the last launch.
    pub(crate) gpu_ns: u64,
}

impl Pace {
    /// A training loop that has a CPU for a quarter of its time.
    pub(crate) const STEADY: Self =
        Self { host_ns: 300_000, launches: 16, launch_ns: 15_000, gpu_ns: 2_000_000 };

    /// One that needs a CPU all the time. Launches take their time, back to back: one in a few dozen meets the end of a slice of the
    /// scheduler. The GPU is done when it is asked, so that the thread never sleeps.
    pub(crate) const BUSY: Self =
        Self { host_ns: 400_000, launches: 30, launch_ns: 100_000, gpu_ns: 0 };

    /// Length of a step.
    pub(crate) fn step_ns(&self) -> u64 {
        self.host_ns + u64::from(self.launches) * self.launch_ns + self.gpu_ns
    }
}

/// The open libraries and the calls by name.
pub(crate) struct Gpu {
    pub(crate) libraries: Libraries,
    operations: Vec<Operation>,
    kernels: Vec<usize>,
    next_kernel: usize,
    cold_kernels: usize,
}

/// Functions that every program here may call. NCCL's are opened by the programs that communicate.
const CALLS: [&str; 11] = [
    "cudaLaunchKernel",
    "cudaLaunchKernel_ptsz",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cudaStreamSynchronize",
    "cudaMalloc",
    "cudaFree",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
];

impl Gpu {
    pub(crate) fn open(common: &Common) -> Result<Self> {
        let libraries = Libraries::open(common)?;
        let operations = CALLS.iter().map(|name| Operation::new(name, &libraries, common));
        // Operations have the documented name; the index identifies the exact symbol.
        let operations = operations.collect::<Result<_>>()?;
        let kernels = kernels(ALL_KERNELS).into_iter().map(|kernel| kernel.address).collect();
        let cold_kernels = KERNELS as usize;
        Ok(Self { libraries, operations, kernels, next_kernel: 0, cold_kernels })
    }

    /// Scripts the calls of a step, for all threads.
    pub(crate) fn set_pace(&self, pace: &Pace) -> Result<()> {
        self.libraries.set("cudaLaunchKernel", &format!("spin={}ns", pace.launch_ns))?;
        self.libraries.set("cudaMemcpyAsync", "spin=10us")?;
        self.libraries.set("cudaStreamSynchronize", &format!("poll={}ns", pace.gpu_ns))
    }

    /// Makes a call by its symbol, with arguments in the given slots.
    pub(crate) fn call(&self, symbol: &str, arguments: &[(usize, usize)]) -> Result<()> {
        let position = CALLS.iter().position(|name| *name == symbol);
        let Some(operation) = position.and_then(|at| self.operations.get(at)) else {
            bail!("`{symbol}`: not one of the calls of a program that feeds a GPU")
        };
        let mut operation = operation.clone();
        set(&mut operation.slots, arguments);
        check(symbol, &operation)
    }

    /// Launches the next kernel in turn.
    pub(crate) fn launch(&mut self) -> Result<()> {
        self.next_kernel = (self.next_kernel + 1) % KERNELS as usize;
        self.call("cudaLaunchKernel", &[(0, self.kernels[self.next_kernel])])
    }

    /// Launches a kernel that was never launched before, by a symbol that only such launches use.
    pub(crate) fn launch_new_kernel(&mut self) -> Result<()> {
        let Some(&kernel) = self.kernels.get(self.cold_kernels) else {
            bail!("all {ALL_KERNELS} kernels have been launched")
        };
        self.cold_kernels += 1;
        self.call("cudaLaunchKernel_ptsz", &[(0, kernel)])
    }

    /// Copies to the device and waits for it, as a copy from pageable memory does.
    pub(crate) fn copy_to_device(&self, bytes: usize) -> Result<()> {
        self.call("cudaMemcpy", &[(2, bytes), (3, HOST_TO_DEVICE)])
    }

    /// Copies to the host and waits for it.
    pub(crate) fn copy_to_host(&self, bytes: usize) -> Result<()> {
        self.call("cudaMemcpy", &[(2, bytes), (3, DEVICE_TO_HOST)])
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.call("cudaStreamSynchronize", &[])
    }

    /// Takes device memory; its address.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<usize> {
        let mut address = 0usize;
        self.call("cudaMalloc", &[(0, (&raw mut address) as usize), (1, bytes)])?;
        Ok(black_box(address))
    }

    pub(crate) fn free(&self, address: usize) -> Result<()> {
        self.call("cudaFree", &[(0, address)])
    }

    /// Host code, launches, a small copy.
    pub(crate) fn feed(&mut self, pace: &Pace) -> Result<()> {
        clock::spin(pace.host_ns);
        for _ in 0..pace.launches {
            self.launch()?;
        }
        self.call("cudaMemcpyAsync", &[])
    }

    /// One step of the loop: feeds the GPU and waits for it.
    pub(crate) fn step(&mut self, pace: &Pace) -> Result<()> {
        self.feed(pace)?;
        self.synchronize()
    }

    /// Opens NCCL.
    pub(crate) fn open_collectives(&self) -> Result<()> {
        self.libraries.function("ncclAllReduce").map(|_| ())
    }

    /// A function of NCCL.
    pub(crate) fn collective(&self, symbol: &str, common: &Common) -> Result<Operation> {
        Operation::new(symbol, &self.libraries, common)
    }

    /// Runs a function inside each call of an op.
    pub(crate) fn inside(&self, op: &str, act: extern "C-unwind" fn(*mut c_void)) -> Result<()> {
        self.libraries.on_call(op, act)
    }
}

fn set(slots: &mut Slots, arguments: &[(usize, usize)]) {
    for &(slot, value) in arguments {
        if let Some(value_slot) = slots.get_mut(slot) {
            *value_slot = value;
        }
    }
}

/// Calls, and refuses an error code.
pub(crate) fn check(symbol: &str, operation: &Operation) -> Result<()> {
    match call_bare(operation) {
        0 => Ok(()),
        code => bail!("{symbol} returned {code}"),
    }
}
