//! Names and attributes of events and chains, the same in every format.

use std::borrow::Cow;

use gpucause_abi::op::{Abi, Api, OPS};
use gpucause_engine::chain::Chain;

use gpucause_trace::recording::{Call, Event, Kind, OffCpu, Recording, Stack};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Detail<'a> {
    /// Text.
    Text(Cow<'a, str>),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// Yes or no.
    Flag(bool),
}

impl<'a> From<&'a str> for Detail<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Detail<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Detail<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Names and values.
pub type Details<'a> = Vec<(Cow<'static, str>, Detail<'a>)>;

/// The name of an event's slice.
pub(super) fn name(kind: &Kind) -> &str {
    match kind {
        Kind::Call(call) => &call.op,
        Kind::OffCpu(OffCpu { reason, .. }) => reason.map_or("off CPU", |reason| reason.label()),
        Kind::BlockIo { operation, .. } => operation.label(),
        Kind::PageAllocation { .. } => "page allocation",
        Kind::TcpRetransmit => "TCP retransmit",
        Kind::OomKill => "OOM kill",
        Kind::Start => "start",
        Kind::Exit => "exit",
        Kind::Other(name) => name,
    }
}

/// The category of an event. Off-CPU time has its reason.
pub(super) fn category(kind: &Kind) -> &'static str {
    match kind {
        Kind::Call(call) => call.api.label(),
        Kind::OffCpu(OffCpu { reason, .. }) => reason.map_or("off_cpu", |reason| reason.label()),
        Kind::BlockIo { .. } => "block_io",
        Kind::PageAllocation { .. } => "memory",
        Kind::TcpRetransmit => "net",
        Kind::OomKill | Kind::Start | Kind::Exit => "lifecycle",
        Kind::Other(_) => "other",
    }
}

/// `NODE:SEQUENCE`.
pub(super) fn event_id(event: &Event, recording: &dyn Recording) -> String {
    format!("{}:{}", recording.node_name(event.id.node), event.id.sequence)
}

/// Attributes of an event, without its stack.
pub(super) fn of_event(kind: &Kind) -> Details<'_> {
    let mut details = Details::new();
    match kind {
        Kind::Call(call) => of_call(call, &mut details),
        Kind::OffCpu(OffCpu { by: Some(by), .. }) => {
            details.push(("culprit".into(), (&*by.comm).into()));
            if let Some(pid) = by.pid {
                details.push(("culprit_pid".into(), u64::from(pid).into()));
            }
        }
        Kind::BlockIo { bytes, device, .. } => {
            details.push(("bytes".into(), (*bytes).into()));
            if let Some(device) = device {
                details.push(("device".into(), (&**device).into()));
            }
        }
        Kind::PageAllocation { bytes } => details.push(("bytes".into(), (*bytes).into())),
        Kind::OffCpu(_)
        | Kind::TcpRetransmit
        | Kind::OomKill
        | Kind::Start
        | Kind::Exit
        | Kind::Other(_) => {}
    }
    details
}

fn of_call<'a>(call: &'a Call, details: &mut Details<'a>) {
    if let Some(cold) = call.cold {
        details.push(("cold".into(), Detail::Flag(cold)));
    }
    details.push(("outermost".into(), Detail::Flag(call.outermost)));
    details.push(("code".into(), Detail::Integer(call.code.into())));
    if let Some(off_cpu_ns) = call.off_cpu_ns {
        details.push(("off_cpu_ns".into(), off_cpu_ns.into()));
    }
    if let Some(bytes) = call.bytes {
        details.push(("bytes".into(), bytes.into()));
    }
    if let Some(copy) = call.copy {
        details.push(("copy".into(), copy.into()));
    }
    if let Some(kernel) = &call.kernel {
        details.push(("kernel".into(), (&**kernel).into()));
    }
}

/// Returns true if the call failed. "Not ready" is not a failure.
pub(super) fn failed(call: &Call) -> bool {
    if call.code == 0 {
        return false;
    }
    let same_api = |api: Api| OPS.iter().find(|op| op.api == api);
    same_api(call.api).is_none_or(|op| i32::from(op.info(Abi::HOST).pending_code) != call.code)
}

/// The frames of a stack, a line each, the innermost first.
pub(super) fn of_stack(stack: &Stack) -> String {
    stack.frames.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The name of a chain's slice.
pub(super) fn chain_name(chain: &Chain) -> String {
    format!("{} -> {}", chain.cause, chain.effect)
}

/// Attributes of a chain, without the prefix `gpucause.chain.`.
pub fn of_chain(chain: &Chain) -> Details<'_> {
    let mut details: Details<'_> = vec![
        ("id".into(), chain.id.as_str().into()),
        ("cause".into(), chain.cause.label().into()),
        ("effect".into(), chain.effect.label().into()),
        ("severity".into(), chain.severity.label().into()),
        ("explained".into(), Detail::Float(chain.explained)),
        ("lost_seconds".into(), Detail::Float(chain.lost_seconds)),
        ("sentence".into(), chain.sentence.as_str().into()),
        ("fix".into(), chain.fix.as_str().into()),
        ("victim".into(), chain.victim.comm.as_str().into()),
        ("victim_pid".into(), u64::from(chain.victim.pid).into()),
        ("victim_tid".into(), u64::from(chain.victim.tid).into()),
    ];
    if let Some(culprit) = &chain.culprit {
        details.push(("culprit".into(), culprit.name().into()));
        let pid = culprit.local_pid();
        details.extend(pid.map(|pid| ("culprit_pid".into(), u64::from(pid).into())));
    }
    for (name, value) in &chain.evidence.0 {
        details.push((format!("evidence.{name}").into(), Detail::Float(*value)));
    }
    details
}
