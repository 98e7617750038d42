//! Events and chains as rows.

use std::io;

use gpucause_engine::chain::{Chain, Culprit};

use super::super::detail::event_id;
use super::super::selection::nanos;
use super::{Cell, Column};
use gpucause_trace::recording::{Event, Recording};
use gpucause_trace::trace::Columns;

/// The columns of events: those of a trace file's view that refer to no other table, and the start as a timestamp.
pub(super) const EVENTS: &[Column] = &[
    Column::text("id").seldom_repeated(),
    Column::text("node"),
    Column::integer("pid"),
    Column::integer("tid"),
    Column::text("comm"),
    Column::text("thread_name"),
    Column::text("kind"),
    Column::text("api"),
    Column::text("op"),
    Column::integer("start_ns").seldom_repeated(),
    Column::integer("duration_ns").seldom_repeated(),
    Column::integer("end_ns").seldom_repeated(),
    Column::integer("outermost"),
    Column::integer("cold"),
    Column::integer("code"),
    Column::integer("off_cpu_ns"),
    Column::integer("bytes"),
    Column::text("direction"),
    Column::text("object"),
    Column::text("reason"),
    Column::text("by_comm"),
    Column::integer("by_pid"),
    Column::timestamp("start_time").seldom_repeated(),
];

/// The columns of chains: those of a trace file but the session, with the name of the node, and the start as a timestamp.
pub(super) const CHAINS: &[Column] = &[
    Column::text("node"),
    Column::text("id"),
    Column::text("cause"),
    Column::text("effect"),
    Column::text("severity"),
    Column::integer("victim_pid"),
    Column::integer("victim_tid"),
    Column::text("victim_comm"),
    Column::integer("culprit_pid"),
    Column::text("culprit_comm"),
    Column::real("explained"),
    Column::real("lost_seconds"),
    Column::real("first_seen"),
    Column::real("last_seen"),
    Column::text("sentence"),
    Column::text("fix"),
    Column::text("json"),
    Column::real("taken_seconds"),
    Column::timestamp("start_time"),
];

/// Passes the cells of an event to `push`.
pub(super) fn of_event(
    event: &Event,
    recording: &dyn Recording,
    push: impl FnOnce(&[Cell<'_>]) -> io::Result<()>,
) -> io::Result<()> {
    let id = event_id(event, recording);
    let process = recording.process_at(event.process);
    let kind = event.kind.borrowed();
    let columns = Columns::of(&kind);
    let (api, op) = columns.op.map(|(api, op)| (api.label(), op)).unzip();
    push(&[
        Cell::Text(&id),
        Cell::Text(recording.node_name(event.id.node)),
        process.map(|process| process.pid).into(),
        event.tid.into(),
        process.map(|process| &*process.comm).into(),
        recording.thread_name(event.process, event.tid).into(),
        Cell::Text(columns.kind),
        api.into(),
        op.into(),
        Cell::Integer(event.start_ns),
        event.duration_ns.into(),
        Cell::Integer(event.end_ns()),
        columns.outermost.into(),
        columns.cold.into(),
        columns.code.into(),
        columns.off_cpu_ns.into(),
        columns.bytes.into(),
        columns.direction.into(),
        columns.object.into(),
        columns.reason.into(),
        columns.task.map(|task| task.comm).into(),
        columns.task.and_then(|task| task.pid).into(),
        Cell::Integer(microseconds(event.start_ns)),
    ])
}

/// The cells of a chain.
pub(super) fn of_chain<'a>(node: &'a str, chain: &'a Chain, json: &'a str) -> [Cell<'a>; 19] {
    let culprit = chain.culprit.as_ref();
    [
        Cell::Text(node),
        Cell::Text(&chain.id),
        Cell::Text(chain.cause.label()),
        Cell::Text(chain.effect.label()),
        Cell::Text(chain.severity.label()),
        chain.victim.pid.into(),
        chain.victim.tid.into(),
        Cell::Text(&chain.victim.comm),
        culprit.and_then(Culprit::local_pid).into(),
        culprit.map(|culprit| &*culprit.comm).into(),
        Cell::Real(chain.explained),
        Cell::Real(chain.lost_seconds),
        Cell::Real(chain.first_seen),
        Cell::Real(chain.last_seen),
        Cell::Text(&chain.sentence),
        Cell::Text(&chain.fix),
        Cell::Text(json),
        Cell::Real(chain.attributed_seconds()),
        Cell::Integer(microseconds(nanos(chain.first_seen))),
    ]
}

/// Spark reads no timestamps in nanoseconds.
const fn microseconds(nanoseconds: i64) -> i64 {
    nanoseconds.div_euclid(1000)
}
