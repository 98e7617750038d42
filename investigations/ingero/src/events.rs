//! Decodes rows into events.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use gpucause_abi::op::{Api, Class};
use gpucause_abi::state::BlockOperation;
use rusqlite::Row;

use super::Ingero;
use super::codes::{self, Function};
use super::lists::Key;
use super::rows::{self, Threads};
use super::schema::{Flaw, integer, text};
use gpucause_trace::recording::{
    Call, Event, EventId, Filter, Kind, NodeIndex, OffCpu, RecordingError, Stack, StackFrame,
    StackId, Task,
};
use gpucause_trace::symbol;

/// Timestamps of first launches by process, source, operation and kernel.
pub(super) type FirstLaunches = HashMap<(Key, i64, i64, i64), i64>;

const SECTOR: u64 = 512;

/// Decodes rows in the order of their starts.
struct EventDecoder<'a> {
    file: &'a Ingero,
    threads: Threads,
    first: FirstLaunches,
    /// End of each thread's outermost call.
    outer: HashMap<Key, i64>,
    task_names: HashMap<Key, Arc<str>>,
}

impl Ingero {
    /// The first launch of each kernel in the file.
    pub(super) fn first_launches(&self) -> Result<FirstLaunches, RecordingError> {
        let mut first = FirstLaunches::new();
        let sql = format!(
            "SELECT {}, min(timestamp) FROM events WHERE source NOT IN (3, 5, 6, 7) GROUP BY 1, 2, source, op, 8",
            rows::columns(&self.file)
        );
        self.file.each(&sql, |row| {
            let event = rows::event(row, &self.lists)?;
            let function = self.codes.function(event.source, event.op);
            if function.is_some_and(|function| function.class == Some(Class::Launch)) {
                let key = ((event.node, event.pid), event.source, event.op, event.arg0);
                first.insert(key, integer(row, 9)?);
            }
            Ok(())
        })?;
        Ok(first)
    }

    pub(super) fn read_events(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        let mut decoder = EventDecoder {
            file: self,
            threads: Threads::read(&self.file, &self.lists)?,
            first: self.first_launches()?,
            outer: HashMap::new(),
            task_names: HashMap::new(),
        };
        let sql = format!(
            "SELECT {}, id, {}, {} FROM events ORDER BY {}",
            rows::columns(&self.file),
            self.file.column("events", "ret_code", "0"),
            self.file.column("events", "stack_hash", "0"),
            rows::in_order()
        );
        let mut done = false;
        self.file.each(&sql, |row| {
            if done {
                return Err(Flaw::Enough);
            }
            if let Some(event) = decoder.decode(row)? {
                done = filter.has(&event) && each(&event).is_break();
            }
            Ok(())
        })
    }

    pub(super) fn read_stack(&self, id: StackId) -> Result<Option<Stack>, RecordingError> {
        if !self.file.has("stack_traces", "hash") {
            return Ok(None);
        }
        let sql = format!(
            "SELECT {}, {} FROM stack_traces WHERE hash = {}",
            self.file.column("stack_traces", "frames", "''"),
            self.file.column("stack_traces", "ips", "''"),
            id.0
        );
        let stack = |row: &Row<'_>| read_frames(&text(row, 0)?, &text(row, 1)?);
        Ok(self.file.rows(&sql, stack)?.pop())
    }
}

impl EventDecoder<'_> {
    /// The event of a row; `None` for one of an unknown process.
    fn decode(&mut self, row: &Row<'_>) -> Result<Option<Event>, Flaw> {
        let event = rows::event(row, &self.file.lists)?;
        let lists = &self.file.lists;
        let is_switch = (event.source, event.op) == (codes::HOST, codes::SCHED_SWITCH);
        let process = if is_switch {
            lists.process_of_thread(event.node, event.tid)
        } else {
            lists.process(event.node, event.pid)
        };
        let Some(process) = process else { return Ok(None) };
        let code = i32::try_from(integer(row, 10)?).unwrap_or(i32::MAX);
        let stack = integer(row, 11)?;
        Ok(Some(Event {
            id: EventId { node: event.node, sequence: sequence(row)? },
            start_ns: event.start(),
            duration_ns: event.duration,
            process,
            tid: event.tid,
            kind: self.kind(&event, code),
            stack: (stack != 0).then_some(StackId(stack)),
        }))
    }

    fn kind(&mut self, event: &rows::Event, code: i32) -> Kind {
        if let Some(function) = self.file.codes.function(event.source, event.op) {
            return Kind::Call(self.call(event, &function.clone(), code));
        }
        let size = u64::try_from(event.arg0).unwrap_or(0);
        match (event.source, event.op) {
            (codes::HOST, codes::SCHED_SWITCH) => Kind::OffCpu(self.off_cpu(event)),
            (codes::HOST, codes::PAGE_ALLOC) => Kind::PageAllocation { bytes: size },
            (codes::HOST, codes::OOM_KILL) => Kind::OomKill,
            (codes::HOST, codes::EXEC) => Kind::Start,
            (codes::HOST, codes::EXIT) => Kind::Exit,
            (codes::BLOCK_IO, op) => Kind::BlockIo {
                operation: match op {
                    codes::BLOCK_READ => BlockOperation::Read,
                    codes::BLOCK_WRITE => BlockOperation::Write,
                    _ => BlockOperation::Other,
                },
                bytes: size.saturating_mul(SECTOR),
                device: None,
            },
            (codes::TCP, 1) => Kind::TcpRetransmit,
            (source, op) => Kind::Other(self.file.codes.name(source, op)),
        }
    }

    fn call(&mut self, event: &rows::Event, function: &Function, code: i32) -> Call {
        let key = (event.node, event.tid);
        let (start, end) = (event.start(), event.end());
        let outermost = self.outer.get(&key).is_none_or(|&over| end > over);
        if outermost {
            self.outer.insert(key, end);
        }
        let thread =
            self.threads.get(event.node, event.tid).filter(|thread| !thread.off.is_empty());
        let is = |class| function.class == Some(class);
        let first =
            || self.first.get(&((event.node, event.pid), event.source, event.op, event.arg0));
        Call {
            api: function.api,
            op: Arc::clone(&function.name),
            cold: is(Class::Launch).then(|| first() == Some(&event.timestamp)),
            outermost,
            code,
            off_cpu_ns: thread.map(|thread| thread.off_in(start, end)),
            bytes: (is(Class::Memcpy) || is(Class::Alloc))
                .then(|| u64::try_from(event.arg0).unwrap_or(0)),
            copy: if is(Class::Memcpy) { direction(function, event.arg1) } else { None },
            kernel: is(Class::Launch).then(|| Arc::from(format!("{:#x}", event.arg0))),
        }
    }

    fn off_cpu(&mut self, event: &rows::Event) -> OffCpu {
        let (start, end) = (event.start(), event.end());
        let thread = self.threads.get(event.node, event.tid);
        let wait = thread.and_then(|thread| {
            let from = thread.off.partition_point(|wait| wait.start < start);
            thread.off[from..].iter().take_while(|wait| wait.start == start).find(|w| w.end == end)
        });
        let (reason, by) = wait.map_or((None, None), |wait| (wait.reason, wait.by));
        OffCpu { reason, by: by.and_then(|task| self.task(event.node, task)) }
    }

    fn task(&mut self, node: NodeIndex, task: u32) -> Option<Task> {
        let lists = &self.file.lists;
        let name = lists.task_name(node, task)?;
        let comm = self.task_names.entry((node, task)).or_insert_with(|| Arc::from(name));
        let process = lists.process_of_thread(node, task).and_then(|process| lists.get(process));
        Some(Task {
            pid: Some(process.map_or(task, |process| process.pid)),
            comm: Arc::clone(comm),
        })
    }
}

/// The label of a `cudaMemcpyKind`.
fn direction(function: &Function, kind: i64) -> Option<&'static str> {
    const KINDS: [&str; 5] = ["h2h", "h2d", "d2h", "d2d", "default"];
    let kind = usize::try_from(kind).ok().filter(|_| function.api == Api::Runtime)?;
    KINDS.get(kind).copied()
}

/// A number, or `node:number` since schema 0.9.
fn sequence(row: &Row<'_>) -> Result<u64, Flaw> {
    let id = text(row, 9)?;
    let digits = id.rsplit(':').next().unwrap_or_default();
    digits.parse().map_err(|_| Flaw::Content(format!("an event's id is {id:?}")))
}

/// The readable name of a symbol, which may have an offset: `_ZN2at5emptyEv+0x57`.
fn function(symbol: &str) -> Option<String> {
    match symbol.rsplit_once("+0x") {
        Some((symbol, offset)) => Some(format!("{}+0x{offset}", symbol::function(symbol)?)),
        None => symbol::function(symbol),
    }
}

/// Parses frames, `{"i": address, "s": symbol, "f": file, "l": line}`, else the addresses alone.
fn read_frames(frames: &str, addresses: &str) -> Result<Stack, Flaw> {
    use serde_json::Value;
    let source = if frames.is_empty() { addresses } else { frames };
    if source.is_empty() {
        return Ok(Stack::default());
    }
    let values: Vec<Value> = serde_json::from_str(source)
        .map_err(|error| Flaw::Content(format!("a stack's frames: {error}")))?;
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0);
    let frame = |value: &Value| {
        let field = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let at = value.as_str().or_else(|| value.get("i").and_then(Value::as_str));
        StackFrame {
            address: at.map_or(0, address),
            function: field("s").and_then(|symbol| function(&symbol)),
            file: field("f"),
            line: value.get("l").and_then(Value::as_u64).and_then(|line| line.try_into().ok()),
            ..StackFrame::default()
        }
    };
    Ok(Stack { frames: values.iter().map(frame).collect() })
}
