//! One thread's calls and the truth about them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::hint::black_box;

use anyhow::Result;
use gpucause_abi::op::Api;
use gpucause_fake_cuda::types::call_at;
use serde_json::{Map, Value, json};

use crate::cli::{Common, Handles};
use crate::kernels::{Kernel, kernels};
use crate::libraries::Libraries;
use crate::operation::{Effect, Operation, Pattern, Pool};

/// Frees that fail one after the other before the rest is left.
const REFUSALS: u32 = 3;

/// Calls an op once without accounting: for frames that may be left without returning.
#[inline(always)]
pub(crate) fn call_bare(operation: &Operation) -> c_int {
    call_at(operation.address, &operation.slots)
}

/// Kernels that a thread launches.
#[derive(Debug, Clone)]
pub(crate) struct Launchable {
    kernels: Vec<Kernel>,
    /// The driver's handles for them, if the driver is called.
    handles: Vec<usize>,
    /// Calls that were made to get the handles, by op.
    setup: BTreeMap<&'static str, u64>,
}

impl Launchable {
    /// Lists the kernels; for a pattern with driver launches asks the driver for their handles.
    pub(crate) fn new(pattern: &Pattern, libraries: &Libraries, common: &Common) -> Result<Self> {
        let kernels = kernels(common.kernels);
        let mut setup = BTreeMap::new();
        let mut handles = Vec::new();
        let by_driver =
            |op: &Operation| op.api == Api::Driver && matches!(op.effect, Effect::Launch(_));
        if pattern.operations.iter().any(by_driver) {
            let mut asking = Asking::new(common.handles, libraries, common, &mut setup)?;
            for kernel in &kernels {
                handles.push(asking.handle(kernel, &mut setup)?);
            }
        }
        Ok(Self { kernels, handles, setup })
    }
}

/// Asks for handles of kernels, by one call or two.
struct Asking {
    first: Operation,
    second: Option<Operation>,
    module: usize,
    by_name: bool,
}

impl Asking {
    fn new(
        how: Handles,
        libraries: &Libraries,
        common: &Common,
        setup: &mut BTreeMap<&'static str, u64>,
    ) -> Result<Self> {
        let (load, first, second) = match how {
            Handles::Module => (Some("cuModuleLoadData"), "cuModuleGetFunction", None),
            Handles::Library => (Some("cuLibraryLoadData"), "cuLibraryGetKernel", None),
            Handles::Kernel => {
                (Some("cuLibraryLoadData"), "cuLibraryGetKernel", Some("cuKernelGetFunction"))
            }
            Handles::Symbol => (None, "cudaGetFuncBySymbol", None),
        };
        let operation = |name| Operation::new(name, libraries, common);
        let mut module = 0;
        if let Some(name) = load {
            let mut load = operation(name)?;
            module = given(&mut load);
            setup.insert(load.name, 1);
        }
        let second = second.map(operation).transpose()?;
        Ok(Self { first: operation(first)?, second, module, by_name: load.is_some() })
    }

    fn handle(
        &mut self,
        kernel: &Kernel,
        setup: &mut BTreeMap<&'static str, u64>,
    ) -> Result<usize> {
        let name = std::ffi::CString::new(kernel.name.as_str())?;
        self.first.slots[1] = if self.by_name { self.module } else { kernel.address };
        self.first.slots[2] = name.as_ptr() as usize;
        let mut handle = given(&mut self.first);
        *setup.entry(self.first.name).or_default() += 1;
        if let Some(second) = &mut self.second {
            second.slots[1] = handle;
            handle = given(second);
            *setup.entry(second.name).or_default() += 1;
        }
        Ok(handle)
    }
}

/// Calls an op that stores a handle through its first argument; the handle.
pub(crate) fn given(operation: &mut Operation) -> usize {
    let mut handle = 0usize;
    operation.slots[0] = (&raw mut handle) as usize;
    call_bare(operation);
    black_box(handle)
}

/// A thread's state and counts.
pub(crate) struct Caller {
    pattern: Pattern,
    launchable: Launchable,
    next: usize,
    next_kernel: usize,
    calls: Vec<u64>,
    errors: BTreeMap<(&'static str, c_int), u64>,
    launches: Vec<u64>,
    driver_launches: Vec<u64>,
    copied: BTreeMap<&'static str, u64>,
    communicated: BTreeMap<&'static str, u64>,
    live: [Vec<(usize, u64)>; 2],
    allocated: u64,
    freed: u64,
    /// Where calls store results; a pitched pointer has four words.
    out: [usize; 4],
}

impl Caller {
    pub(crate) fn new(pattern: &Pattern, launchable: &Launchable) -> Self {
        Self {
            calls: vec![0; pattern.operations.len()],
            pattern: pattern.clone(),
            launchable: launchable.clone(),
            next: 0,
            next_kernel: 0,
            errors: BTreeMap::new(),
            launches: vec![0; launchable.kernels.len()],
            driver_launches: vec![0; launchable.kernels.len()],
            copied: BTreeMap::new(),
            communicated: BTreeMap::new(),
            live: [Vec::new(), Vec::new()],
            allocated: 0,
            freed: 0,
            out: [0; 4],
        }
    }

    /// Calls one op of the pattern, by index.
    pub(crate) fn step_of(&mut self, index: usize) -> c_int {
        self.call(index)
    }

    /// Makes the pattern's next call.
    #[inline]
    pub(crate) fn step(&mut self) -> c_int {
        let index = self.pattern.order[self.next];
        self.next += 1;
        if self.next == self.pattern.order.len() {
            self.next = 0;
        }
        self.call(index)
    }

    #[inline]
    fn call(&mut self, index: usize) -> c_int {
        let operation = &self.pattern.operations[index];
        let (address, effect, mut slots) = (operation.address, operation.effect, operation.slots);
        match effect {
            Effect::Launch(slot) => slots[slot] = self.kernel(operation.api),
            Effect::Allocate(..) => slots[0] = self.out.as_mut_ptr() as usize,
            Effect::Give(slot) => slots[slot] = self.out.as_mut_ptr() as usize,
            Effect::Free(pool) => {
                slots[0] = self.live[pool as usize].last().map_or(0, |live| live.0);
            }
            Effect::None | Effect::Copy(_) | Effect::Communicate(_) | Effect::Reset => {}
        }
        let code = call_at(address, &slots);
        self.calls[index] += 1;
        self.account(index, code);
        code
    }

    #[inline]
    fn kernel(&mut self, api: Api) -> usize {
        let chosen = self.next_kernel;
        self.next_kernel += 1;
        if self.next_kernel == self.launchable.kernels.len() {
            self.next_kernel = 0;
        }
        if api == Api::Driver {
            self.driver_launches[chosen] += 1;
            return self.launchable.handles[chosen];
        }
        self.launches[chosen] += 1;
        self.launchable.kernels[chosen].address
    }

    #[inline]
    fn account(&mut self, index: usize, code: c_int) {
        let operation = &self.pattern.operations[index];
        if code != 0 && code != operation.pending_code() {
            *self.errors.entry((operation.name, code)).or_default() += 1;
            return;
        }
        match operation.effect {
            Effect::Copy(kind) => *self.copied.entry(kind).or_default() += operation.bytes,
            Effect::Communicate(bytes) => {
                *self.communicated.entry(operation.name).or_default() += bytes;
            }
            Effect::Allocate(pool, bytes) => {
                let [address, ..] = black_box(self.out);
                self.live[pool as usize].push((address, bytes));
                if pool == Pool::Device {
                    self.allocated += bytes;
                }
            }
            Effect::Free(pool) => {
                if let Some((_, bytes)) = self.live[pool as usize].pop()
                    && pool == Pool::Device
                {
                    self.freed += bytes;
                }
            }
            Effect::Reset => {
                let lost = self.live[Pool::Device as usize].drain(..);
                self.freed += lost.map(|(_, bytes)| bytes).sum::<u64>();
            }
            Effect::None | Effect::Launch(_) | Effect::Give(_) => {}
        }
    }

    /// Frees what is left, with the pattern's own free ops.
    pub(crate) fn free_all(&mut self) {
        for index in 0..self.pattern.operations.len() {
            let Effect::Free(pool) = self.pattern.operations[index].effect else { continue };
            let mut refusals = 0;
            while !self.live[pool as usize].is_empty() && refusals < REFUSALS {
                refusals = if self.call(index) == 0 { 0 } else { refusals + 1 };
            }
        }
    }

    /// The truth about this thread's calls.
    pub(crate) fn truth(&self) -> Value {
        let mut calls: Map<String, Value> = Map::new();
        for (operation, &count) in self.pattern.operations.iter().zip(&self.calls) {
            let before = calls.get(operation.name).and_then(Value::as_u64).unwrap_or(0);
            calls.insert(operation.name.into(), json!(before + count));
        }
        let mut errors: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
        for ((name, code), count) in &self.errors {
            errors.entry(name).or_default().insert(code.to_string(), *count);
        }
        let by_name = |launches: &[u64]| -> Map<String, Value> {
            let launched = self.launchable.kernels.iter().zip(launches);
            launched
                .filter(|(_, count)| **count > 0)
                .map(|(kernel, &count)| (kernel.name.clone(), json!(count)))
                .collect()
        };
        json!({
            "calls": calls,
            "errors": errors,
            "kernels": by_name(&self.launches),
            "driver_kernels": by_name(&self.driver_launches),
            "copied_bytes": self.copied,
            "nccl_bytes": self.communicated,
            "allocated_bytes": self.allocated,
            "freed_bytes": self.freed,
        })
    }

    pub(crate) fn setup_calls(launchable: &Launchable) -> Value {
        json!(launchable.setup)
    }
}

/// Adds the truths of several threads: numbers are summed, objects merged.
pub(crate) fn sum(truths: &[Value]) -> Value {
    truths.iter().fold(json!({}), |total, truth| add(&total, truth))
}

fn add(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let mut total = a.clone();
            for (key, value) in b {
                let before = total.get(key).cloned().unwrap_or(Value::Null);
                total.insert(key.clone(), add(&before, value));
            }
            Value::Object(total)
        }
        (Value::Number(a), Value::Number(b)) => {
            json!(a.as_u64().unwrap_or(0) + b.as_u64().unwrap_or(0))
        }
        (_, b) => b.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truths_add_up() {
        let total = sum(&[
            json!({"calls": {"a": 1, "b": 2}, "bytes": 5}),
            json!({"calls": {"a": 10, "c": 1}, "bytes": 5}),
        ]);
        assert_eq!(total, json!({"calls": {"a": 11, "b": 2, "c": 1}, "bytes": 10}));
    }
}
