//! Codes of sources and operations in Ingero's files.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::op::{Api, Class, op_of_symbol};

pub(super) const CUDA: i64 = 1;
pub(super) const HOST: i64 = 3;
pub(super) const DRIVER: i64 = 4;
pub(super) const BLOCK_IO: i64 = 5;
pub(super) const TCP: i64 = 6;

pub(super) const SCHED_SWITCH: i64 = 1;
pub(super) const SCHED_WAKEUP: i64 = 2;
pub(super) const PAGE_ALLOC: i64 = 3;
pub(super) const OOM_KILL: i64 = 4;
pub(super) const EXEC: i64 = 5;
pub(super) const EXIT: i64 = 6;

pub(super) const BLOCK_READ: i64 = 1;
pub(super) const BLOCK_WRITE: i64 = 2;

/// Codes of every version, with NVIDIA's names.
const CALLS: &[(i64, i64, &str)] = &[
    (CUDA, 1, "cudaMalloc"),
    (CUDA, 2, "cudaFree"),
    (CUDA, 3, "cudaLaunchKernel"),
    (CUDA, 4, "cudaMemcpy"),
    (CUDA, 5, "cudaStreamSynchronize"),
    (CUDA, 6, "cudaDeviceSynchronize"),
    (CUDA, 7, "cudaMemcpyAsync"),
    (CUDA, 8, "cudaMallocManaged"),
    (DRIVER, 1, "cuLaunchKernel"),
    (DRIVER, 2, "cuMemcpy"),
    (DRIVER, 3, "cuMemcpyAsync"),
    (DRIVER, 4, "cuCtxSynchronize"),
    (DRIVER, 5, "cuMemAlloc"),
    (DRIVER, 6, "cuMemAllocManaged"),
];

/// A CUDA or NCCL function.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Function {
    pub(super) api: Api,
    pub(super) name: Arc<str>,
    /// `None` for a function that gpucause does not trace.
    pub(super) class: Option<Class>,
}

#[derive(Debug, Default)]
pub(super) struct Codes {
    functions: HashMap<(i64, i64), Function>,
    names: HashMap<(i64, i64), Arc<str>>,
}

impl Codes {
    /// `names` are the file's, for operations of newer versions.
    pub(super) fn new(names: HashMap<(i64, i64), Arc<str>>) -> Self {
        let known = CALLS.iter().map(|&(source, op, name)| ((source, op), Arc::from(name)));
        let of_file = names.iter().map(|(&code, name)| (code, Arc::clone(name)));
        let mut functions = HashMap::new();
        for (code, name) in known.chain(of_file) {
            if let Some(function) = function(name) {
                functions.entry(code).or_insert(function);
            }
        }
        Self { functions, names }
    }

    /// The function of a call.
    pub(super) fn function(&self, source: i64, op: i64) -> Option<&Function> {
        self.functions.get(&(source, op))
    }

    /// The name of an event that is not a call.
    pub(super) fn name(&self, source: i64, op: i64) -> Arc<str> {
        let unknown = || Arc::from(format!("source {source}, operation {op}"));
        self.names.get(&(source, op)).map_or_else(unknown, Arc::clone)
    }
}

fn function(name: Arc<str>) -> Option<Function> {
    let known = op_of_symbol(&name).and_then(|id| id.op());
    let api = match (known, &*name) {
        (Some(op), _) => op.api,
        (None, name) if name.starts_with("nccl") => Api::Nccl,
        (None, name) if name.starts_with("cuda") => Api::Runtime,
        (None, name) if name.starts_with("cu") => Api::Driver,
        _ => return None,
    };
    Some(Function { api, name, class: known.map(|op| op.class) })
}

/// Returns true if the timestamp of an event is its end: the task is back on the CPU, the request is complete.
pub(super) fn reported_at_end(source: i64, op: i64) -> bool {
    (source == HOST && op == SCHED_SWITCH) || source == BLOCK_IO
}

/// The condition of [`reported_at_end`], as SQL.
pub(super) const REPORTED_AT_END: &str = "((source = 3 AND op = 1) OR source = 5)";
