//! The call stacks of slow calls, by total time.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, micros, object, seconds};
use crate::mcp::observed::Coverage;
use crate::mcp::statistics::NOT_IN_FILE;
use crate::mcp::{Shared, ToolError, arguments};
use crate::stack_costs::{Cost, StackCosts};
use gpucause_trace::recording::{
    Event, Filter, Kind, Process, ProcessIndex, Recording, RecordingError, StackId,
};

/// Frames listed, without and with details.
const FRAMES: [usize; 2] = [6, 64];
/// Time for reading events; the answer covers those read by then.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Which stacks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StackRows {
    /// Only of the process with this PID.
    pid: Option<u32>,
    /// Only of calls of this function, such as cudaLaunchKernel.
    op: Option<String>,
    /// Only of calls that took at least so many microseconds.
    #[serde(default)]
    at_least_us: u64,
    /// All frames, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Stacks at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Stacks to skip.
    #[serde(default)]
    offset: usize,
}

impl StackRows {
    fn page(&self) -> Page {
        arguments::page(self.detail, self.limit, self.offset)
    }
}

/// The tool.
pub(super) struct GetStacks;

impl Tool for GetStacks {
    const NAME: &str = "get_stacks";
    const DESCRIPTION: &str = "The stacks under which slow calls cost most time, innermost frame first. Needs a trace file.";
    type Arguments = StackRows;

    fn is_listed(server: &Shared) -> bool {
        server.source.need_file().is_ok()
    }

    async fn answer(server: &Shared, asked: StackRows) -> Result<Value, ToolError> {
        let file = server.source.need_file()?;
        let page = asked.page();
        let pid = asked.pid;
        let is_asked = move |process: &Process| pid.is_none_or(|pid| process.pid == pid);
        let known = move |recording: &dyn Recording| {
            let observation = Coverage::of_recording(recording)?.observation;
            Ok((recording.processes().iter().any(is_asked), observation))
        };
        let (is_known, observation) = file.read(known).await?;
        let (rows, without, whole) = file.read(move |recording| find(recording, &asked)).await?;
        let mut head = object(json!({"calls_without_stack": without, "observation": observation}));
        if pid.is_some() && !is_known {
            head.insert("note".into(), NOT_IN_FILE.into());
        } else if !whole {
            let note = "reading timed out: only the first events are covered; ask for one pid, or with at_least_us";
            head.insert("note".into(), note.into());
        } else if rows.is_empty() {
            head.insert("note".into(), "no stored call has a stack".into());
        }
        list(head, "stacks", &rows, page)
    }
}

/// Rows, calls that have no stack, and whether all events were read.
fn find(
    recording: &dyn Recording,
    asked: &StackRows,
) -> Result<(Vec<Value>, u64, bool), RecordingError> {
    let at_least_ns = asked.at_least_us.saturating_mul(1000);
    let filter = Filter { at_least_ns, ..Filter::default() };
    let (mut costs, mut without, mut whole) = (StackCosts::default(), 0_u64, true);
    let (begin, mut seen) = (Instant::now(), 0_u32);
    let pid = |process| recording.process_at(process).map(|own| own.pid);
    recording.events(&filter, &mut |event: &Event| {
        seen = seen.wrapping_add(1);
        if seen.is_multiple_of(1024) && begin.elapsed() > READ_TIMEOUT {
            whole = false;
            return ControlFlow::Break(());
        }
        let Kind::Call(call) = &event.kind else { return ControlFlow::Continue(()) };
        if asked.op.as_deref().is_some_and(|op| op != &*call.op)
            || asked.pid.is_some_and(|asked| pid(event.process) != Some(asked))
        {
            return ControlFlow::Continue(());
        }
        without += u64::from(event.stack.is_none());
        costs.add(event);
        ControlFlow::Continue(())
    })?;
    let costs = costs.ranked();
    let page = asked.page();
    let shown = page.offset..page.offset.saturating_add(page.limit);
    let rows = costs.iter().enumerate().map(|(at, ((stack, process, op), cost))| {
        // Only the stacks of shown rows are read.
        let frames = if shown.contains(&at) {
            frames(recording, *stack, FRAMES[usize::from(page.detail)])?
        } else {
            Value::Null
        };
        Ok(row(recording, *process, op, cost, &frames))
    });
    Ok((rows.collect::<Result<_, RecordingError>>()?, without, whole))
}

fn row(
    recording: &dyn Recording,
    process: ProcessIndex,
    op: &str,
    cost: &Cost,
    frames: &Value,
) -> Value {
    let process = recording.process_at(process);
    let mut row = object(json!({
        "op": answer::name(op),
        "pid": process.map(|own| own.pid),
        "comm": process.map(|own| answer::name(&own.comm)),
        "calls": cost.count,
        "total_s": seconds(cost.sum_ns),
        "max_us": micros(cost.max_ns),
        "frames": frames,
    }));
    if recording.nodes().len() > 1 {
        let node = process.map(|own| answer::name(recording.node_name(own.node)));
        row.insert("node".into(), node.into());
    }
    row.into()
}

fn frames(recording: &dyn Recording, id: StackId, most: usize) -> Result<Value, RecordingError> {
    let Some(stack) = recording.stack(id)? else { return Ok(Value::Null) };
    let lines = stack.lines(most);
    Ok(lines.iter().map(|line| Value::from(answer::text(line, 160))).collect())
}
