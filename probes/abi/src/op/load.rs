//! Classes of calls, by which they are observed less so that probes keep to their budget.

use super::{Api, Class, CopyKind, Direction, Op};
use crate::state::shared_enum;

shared_enum! {
    /// Class of a call-probe hit for the budget.
    LoadClass, "LOAD" {
        /// A launch by the runtime.
        Runtime = "runtime",
        /// A launch by the driver.
        Driver = "driver",
        /// A call within another one that is left at entry.
        Nested = "nested",
        /// Asks for what nothing here reads: left first.
        Query = "query",
        /// Hands over work without a wait for it, or asks for its state: counted, with its bytes, and sampled.
        Async = "async",
        /// All others: what may wait is timed to the last.
        Wait = "wait",
    }
}

/// Parts of the names of ops that nothing here reads.
const QUERIES: [&str; 4] =
    ["Occupancy", "FuncGetAttribute", "FuncSetAttribute", "KernelSetAttribute"];

impl Op {
    /// Returns the class of its calls for the budget.
    pub fn load_class(&self) -> LoadClass {
        let is_query = self.name == "cuKernelGetFunction"
            || QUERIES.iter().any(|part| self.name.contains(part));
        match (self.class, self.api) {
            (Class::Launch, Api::Runtime) => LoadClass::Runtime,
            (Class::Launch, _) => LoadClass::Driver,
            (Class::Init, _) if is_query => LoadClass::Query,
            (Class::Event | Class::Memset, _) => LoadClass::Async,
            (Class::Memcpy, _) if self.may_copy_to_host() => LoadClass::Wait,
            (Class::Memcpy | Class::Free, _) if self.name.ends_with("Async") => LoadClass::Async,
            (Class::Init, _)
                if self.name.contains("EventCreate") || self.name.ends_with("EventDestroy") =>
            {
                LoadClass::Async
            }
            _ => LoadClass::Wait,
        }
    }

    /// Such a copy waits for the GPU within the call where that memory is not pinned, whatever its name says.
    const fn may_copy_to_host(&self) -> bool {
        use CopyKind::{D2d, H2d, P2p};
        match self.args.direction() {
            None | Some(Direction::Fixed(H2d | D2d | P2p)) => false,
            Some(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{OpId, op_of_symbol};
    use crate::record::LOADS;

    #[test]
    fn what_waits_is_no_class_that_is_sampled() {
        let class = |name| op_of_symbol(name).and_then(OpId::op).unwrap().load_class();
        for name in [
            "cudaStreamSynchronize",
            "cudaMemcpy",
            "cudaMemcpyAsync",
            "cuMemcpyDtoHAsync",
            "cuMemcpy2DAsync",
            "cudaFree",
            "cuMemAlloc",
            "cudaGraphLaunch",
            "ncclAllReduce",
            "cuModuleLoadData",
        ] {
            assert_eq!(class(name), LoadClass::Wait, "{name}");
        }
        for name in [
            "cuMemcpyHtoDAsync",
            "cudaMemcpyPeerAsync",
            "cudaMemPrefetchAsync",
            "cuMemsetD8Async",
            "cudaFreeAsync",
            "cudaEventRecord",
            "cuEventQuery",
            "cudaEventCreateWithFlags",
        ] {
            assert_eq!(class(name), LoadClass::Async, "{name}");
        }
        for name in
            ["cuKernelGetFunction", "cudaFuncGetAttributes", "cudaOccupancyMaxActiveClusters"]
        {
            assert_eq!(class(name), LoadClass::Query, "{name}");
        }
        assert_eq!(class("cudaLaunchKernel"), LoadClass::Runtime);
        assert_eq!(class("cuLaunchKernelEx"), LoadClass::Driver);
        assert!(LoadClass::COUNT <= LOADS && LOADS.is_power_of_two());
    }
}
