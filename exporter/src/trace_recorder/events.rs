//! From the ring's events to the file's: numbers are replaced by names.

use std::collections::HashMap;

use gpucause_abi::ProcId;
use gpucause_abi::event::{Detail, RawCall, RawEvent, RawOffCpu};
use gpucause_abi::op::Class;
use gpucause_abi::snapshot::{Comm, DeviceName};
use gpucause_observe::clock::WallClock;
use gpucause_trace::recording::StackId;
use gpucause_trace::trace::{NewCall, NewEvent, NewKind, NewOffCpu, NewTask, ProcessRef};

/// Names as text, each made once.
#[derive(Debug, Default)]
pub(super) struct Names {
    comms: HashMap<Comm, Box<str>>,
    devices: HashMap<DeviceName, Box<str>>,
    kernels: HashMap<(ProcId, u64), Box<str>>,
    /// Handles without a name, as numbers.
    handles: HashMap<u64, Box<str>>,
}

impl Names {
    /// Names a kernel function; false when it has that name.
    pub(super) fn name_kernel(&mut self, handle: (ProcId, u64), name: &str) -> bool {
        if self.kernels.get(&handle).is_some_and(|own| **own == *name) {
            return false;
        }
        self.kernels.insert(handle, name.into());
        true
    }

    /// Returns true if it launches a kernel function whose name was not requested yet.
    pub(super) fn lacks_kernel_of(&self, event: &RawEvent) -> bool {
        let Detail::Call(RawCall { kernel: Some(handle), .. }) = event.detail else { return false };
        !self.kernels.contains_key(&(event.process, handle)) && !self.handles.contains_key(&handle)
    }

    /// Adds the names that an event needs.
    pub(super) fn register(&mut self, event: &RawEvent) {
        match event.detail {
            Detail::OffCpu(RawOffCpu { by: Some(task), .. }) => {
                self.comms.entry(task.comm).or_insert_with(|| task.comm.to_text().into());
            }
            Detail::Block { device, .. } => {
                self.devices.entry(device).or_insert_with(|| device.to_text().into());
            }
            Detail::Call(RawCall { kernel: Some(handle), .. })
                if !self.kernels.contains_key(&(event.process, handle)) =>
            {
                self.handles.entry(handle).or_insert_with(|| format!("{handle:#x}").into());
            }
            _ => {}
        }
    }

    /// The event of a process of the file; `None` for a call of an op that this version does not know.
    pub(super) fn event(
        &self,
        event: &RawEvent,
        process: ProcessRef,
        stack: Option<StackId>,
        clock: WallClock,
    ) -> Option<NewEvent<'_>> {
        let kind = match event.detail {
            Detail::Call(call) => NewKind::Call(self.call(event.process, &call)?),
            Detail::OffCpu(wait) => NewKind::OffCpu(NewOffCpu {
                reason: Some(wait.reason),
                by: wait.by.and_then(|task| {
                    let comm = self.comms.get(&task.comm)?;
                    Some(NewTask { pid: task.tgid.map(|tgid| tgid.0), comm })
                }),
            }),
            Detail::Block { device, operation, bytes } => NewKind::BlockIo {
                operation,
                bytes,
                device: self.devices.get(&device).map(|name| &**name),
            },
            Detail::Seen(_) | Detail::Forked(_) => NewKind::Start,
            Detail::Execed(_) | Detail::Exited(_) => NewKind::Exit,
            Detail::Reclaim => NewKind::Other("reclaim"),
            Detail::TcpRetransmit => NewKind::TcpRetransmit,
            Detail::OomKill => NewKind::OomKill,
        };
        Some(NewEvent {
            start_ns: clock.unix_nanos(event.start),
            duration_ns: event.duration.0,
            process,
            tid: event.tid.map_or(event.tgid.0, |tid| tid.0),
            kind,
            stack,
        })
    }

    fn call(&self, process: ProcId, call: &RawCall) -> Option<NewCall<'_>> {
        let op = call.op.op()?;
        let kernel = call.kernel.and_then(|handle| {
            self.kernels.get(&(process, handle)).or_else(|| self.handles.get(&handle))
        });
        Some(NewCall {
            api: op.api,
            op: op.name,
            cold: (op.class == Class::Launch).then_some(call.cold),
            outermost: call.outermost,
            code: call.code.cast_signed(),
            off_cpu_ns: Some(call.off_cpu.0),
            bytes: call.bytes,
            copy: call.copy.map(|kind| kind.label()),
            kernel: kernel.map(|name| &**name),
        })
    }
}
