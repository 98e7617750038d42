//! Copies recordings into the merged file.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use gpucause_abi::snapshot::ProcessSnapshot;
use rusqlite::Connection;

use super::chains::Chains;
use super::{Input, MergeError};
use crate::recording::{
    Event, Filter, NodeIndex, ProcessIndex, RecordedSnapshot, Recording, Session, StackId, or_break,
};
use crate::trace::{
    CLOCK_ERROR, Finished, NewEvent, NodeRef, PRUNED, ProcessRef, SessionRef, Store, WriteError,
};

/// Events per write.
const BATCH: usize = 4096;

/// The merged file and the nodes in it.
#[derive(Debug)]
pub(super) struct Copying {
    store: Store,
    nodes: Vec<Known>,
    /// The largest sequence of each node.
    last: HashMap<NodeRef, u64>,
    events: u64,
    chains: Chains,
    /// Inputs copied so far.
    inputs: usize,
    /// True if the file gets the snapshots themselves, beside the totals of the last ones.
    keeps_snapshots: bool,
}

/// A node and its clock.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    /// Measured lead over the clock of the first node.
    pub(super) ahead_ns: Option<i64>,
    /// Largest clock error at the start of its recordings; `None` where one does not say.
    pub(super) clock_error_ns: Option<u64>,
}

/// Rows of the merged file by the indexes of one recording.
struct Rows<'a> {
    recording: &'a dyn Recording,
    /// By index; `None` for skipped nodes.
    nodes: Vec<Option<NodeRef>>,
    processes: Vec<Option<ProcessRef>>,
    sessions: Vec<Option<SessionRef>>,
    stacks: HashMap<StackId, StackId>,
    threads: HashSet<(ProcessIndex, u32)>,
    /// Added to sequences, by node.
    offsets: HashMap<NodeRef, u64>,
}

/// Largest clock error at the start of a session, in nanoseconds.
fn clock_error(session: &Session) -> Option<u64> {
    session.details.iter().find(|(name, _)| name == CLOCK_ERROR)?.1.parse().ok()
}

impl Rows<'_> {
    fn node(&self, node: NodeIndex) -> Option<NodeRef> {
        self.nodes.get(usize::from(node.0)).copied().flatten()
    }

    fn process(&self, process: ProcessIndex) -> Option<ProcessRef> {
        let index = usize::try_from(process.0).ok()?;
        self.processes.get(index).copied().flatten()
    }
}

impl Copying {
    pub(super) fn new(store: Store) -> Self {
        let (nodes, last, chains) = (Vec::new(), HashMap::new(), Chains::default());
        Self { store, nodes, last, events: 0, chains, inputs: 0, keeps_snapshots: true }
    }

    /// For what only statements read.
    pub(super) fn without_snapshots(store: Store) -> Self {
        Self { keeps_snapshots: false, ..Self::new(store) }
    }

    pub(super) fn nodes(&self) -> &[Known] {
        &self.nodes
    }

    pub(super) fn finish(mut self) -> Result<Finished, WriteError> {
        self.write_chains()?;
        let path = self.store.finish()?;
        Ok(Finished { path, events: self.events, pruned_events: 0, needs_wal: false })
    }

    /// The database itself.
    pub(super) fn into_connection(self) -> Result<Connection, WriteError> {
        self.store.into_connection()
    }

    /// Copies a recording without events. A failure leaves nothing of it behind.
    pub(super) fn copy_whole(&mut self, input: &Input) -> Result<(), MergeError> {
        let mark = self.store.mark();
        let copied = self.copy_rows(input, &HashSet::new(), &mut |_, _| {});
        let written = copied.and_then(|()| {
            self.write_chains()?;
            Ok(self.store.commit()?)
        });
        if written.is_err() {
            self.chains = Chains::default();
            self.store.roll_back(mark)?;
        }
        written
    }

    fn write_chains(&mut self) -> Result<(), WriteError> {
        for (node, chain) in std::mem::take(&mut self.chains).one_each() {
            self.store.chain(node, None, &chain)?;
        }
        Ok(())
    }

    /// Copies a recording except some nodes. `step` is called with the number of events copied and in all.
    pub(super) fn copy(
        &mut self,
        input: &Input,
        left_out: &HashSet<NodeIndex>,
        step: &mut dyn FnMut(u64, u64),
    ) -> Result<(), MergeError> {
        self.copy_rows(input, left_out, step)?;
        Ok(self.store.commit()?)
    }

    fn copy_rows(
        &mut self,
        input: &Input,
        left_out: &HashSet<NodeIndex>,
        step: &mut dyn FnMut(u64, u64),
    ) -> Result<(), MergeError> {
        self.inputs += 1;
        let recording = &*input.recording;
        let nodes = self.copy_nodes(input, left_out)?;
        let offsets =
            nodes.iter().flatten().map(|node| (*node, self.last.get(node).copied().unwrap_or(0)));
        let offsets = offsets.collect();
        let (processes, sessions) = (Vec::new(), Vec::new());
        let (stacks, threads) = (HashMap::new(), HashSet::new());
        let mut rows = Rows { recording, nodes, processes, sessions, stacks, threads, offsets };
        self.copy_sessions(&mut rows)?;
        self.copy_processes(&mut rows)?;
        self.copy_statistics(&rows)?;
        self.copy_snapshots(&rows)?;
        self.copy_events(&mut rows, step)
    }

    fn copy_nodes(
        &mut self,
        input: &Input,
        left_out: &HashSet<NodeIndex>,
    ) -> Result<Vec<Option<NodeRef>>, MergeError> {
        let recording = &*input.recording;
        let first = recording.nodes().first().map(|node| &node.name);
        // Clocks are relative to a recording's first node, which need not be the first of the merged file.
        let same_reference = self.nodes.first().is_none_or(|known| Some(&known.name) == first);
        let mut rows = Vec::new();
        for (index, node) in (0..).zip(recording.nodes()) {
            if left_out.contains(&NodeIndex(index)) {
                rows.push(None);
                continue;
            }
            let ahead = match &input.measured {
                Some(measured) => measured.ahead_ns,
                None => node.clock_ahead_ns.filter(|_| same_reference),
            };
            self.add_clock(input, NodeIndex(index), ahead);
            rows.push(Some(self.store.node(input.node_name(NodeIndex(index)), ahead)?));
        }
        Ok(rows)
    }

    /// Adds a node, or the clock errors of its further sessions.
    fn add_clock(&mut self, input: &Input, index: NodeIndex, ahead_ns: Option<i64>) {
        let name = input.node_name(index);
        let own = input.recording.sessions().iter().filter(|session| session.node == index);
        let errors: Option<Vec<_>> = own.map(clock_error).collect();
        let worst = errors.and_then(|errors| errors.into_iter().max());
        match self.nodes.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                let both = known.clock_error_ns.zip(worst);
                known.clock_error_ns = both.map(|(one, other)| one.max(other));
            }
            None => {
                let name = name.to_owned();
                self.nodes.push(Known { name, ahead_ns, clock_error_ns: worst });
            }
        }
    }

    fn copy_sessions(&mut self, rows: &mut Rows<'_>) -> Result<(), MergeError> {
        for session in rows.recording.sessions() {
            let Session { node, started_ns, ended_ns, recorder, details, lost_events } = session;
            let Some(node) = rows.node(*node) else {
                rows.sessions.push(None);
                continue;
            };
            let row = self.store.session(node, *started_ns, recorder)?;
            self.store.session_numbers(row, *ended_ns, *lost_events)?;
            let (pruned, details): (Vec<_>, Vec<_>) =
                details.iter().cloned().partition(|detail| detail.0 == PRUNED);
            self.store.session_details(row, &details)?;
            if let Some(pruned) = pruned.first().and_then(|pruned| pruned.1.parse().ok()) {
                self.store.pruned(row, pruned)?;
            }
            rows.sessions.push(Some(row));
        }
        Ok(())
    }

    fn copy_processes(&mut self, rows: &mut Rows<'_>) -> Result<(), MergeError> {
        for process in rows.recording.processes() {
            let Some(node) = rows.node(process.node) else {
                rows.processes.push(None);
                continue;
            };
            let row = self.store.process(node, None, (process.pid, &process.comm))?;
            if process.rank.is_some() {
                self.store.rename_process(row, &process.comm, process.rank)?;
            }
            self.store.describe_process(row, &process.details)?;
            rows.processes.push(Some(row));
        }
        for name in rows.recording.kernel_names()? {
            if let Some(row) = rows.process(name.process) {
                self.store.name_kernel(row, name.handle, &name.name)?;
            }
        }
        Ok(())
    }

    fn copy_statistics(&mut self, rows: &Rows<'_>) -> Result<(), MergeError> {
        for calls in rows.recording.calls()? {
            if let Some(row) = rows.process(calls.process) {
                self.store.call_statistics(row, &calls)?;
            }
        }
        for waits in rows.recording.waits()? {
            if let Some(row) = rows.process(waits.process) {
                self.store.wait_statistics(row, &waits)?;
            }
        }
        for found in rows.recording.chains()? {
            let Some(node) = rows.node(found.node) else { continue };
            self.chains.add(node, self.inputs, found.chain);
        }
        Ok(())
    }

    fn copy_snapshots(&mut self, rows: &Rows<'_>) -> Result<(), MergeError> {
        let mut failure = None;
        let mut introduced = HashSet::new();
        let mut last: HashMap<ProcessRef, ProcessSnapshot> = HashMap::new();
        rows.recording.snapshots(&mut |recorded| {
            let Some(&Some(session)) = rows.sessions.get(recorded.session) else {
                return ControlFlow::Continue(());
            };
            for process in &recorded.input.snapshot.processes {
                let known = recorded.processes.get(&process.id);
                if let Some(row) = known.and_then(|&known| rows.process(known)) {
                    last.insert(row, process.clone());
                }
            }
            let new = introduced.insert(recorded.session);
            or_break(self.copy_snapshot(rows, session, &recorded, new), &mut failure)
        })?;
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        for (row, process) in &last {
            self.store.totals(*row, process)?;
        }
        Ok(())
    }

    fn copy_snapshot(
        &mut self,
        rows: &Rows<'_>,
        session: SessionRef,
        recorded: &RecordedSnapshot,
        first_of_session: bool,
    ) -> Result<(), WriteError> {
        if first_of_session {
            for (id, process) in recorded.processes.iter() {
                if let Some(row) = rows.process(*process) {
                    self.store.process_known_as(row, session, *id)?;
                }
            }
        }
        if self.keeps_snapshots {
            self.store.snapshot(session, &recorded.input)?;
        }
        Ok(())
    }

    fn copy_events(
        &mut self,
        rows: &mut Rows<'_>,
        step: &mut dyn FnMut(u64, u64),
    ) -> Result<(), MergeError> {
        let of = rows.recording.event_count()?;
        let mut batch: Vec<Event> = Vec::with_capacity(BATCH);
        let (mut done, mut failure) = (0, None);
        let recording = rows.recording;
        recording.events(&Filter::default(), &mut |event| {
            done += 1;
            batch.push(event.clone());
            if batch.len() < BATCH {
                return ControlFlow::Continue(());
            }
            step(done, of);
            or_break(self.copy_batch(rows, &mut batch), &mut failure)
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !batch.is_empty() {
            self.copy_batch(rows, &mut batch)?;
        }
        step(done, of);
        Ok(())
    }

    fn copy_batch(
        &mut self,
        rows: &mut Rows<'_>,
        batch: &mut Vec<Event>,
    ) -> Result<(), MergeError> {
        let mut by_node: HashMap<NodeRef, Vec<(u64, NewEvent<'_>)>> = HashMap::new();
        for event in batch.iter() {
            let known = (rows.node(event.id.node), rows.process(event.process));
            let (Some(node), Some(process)) = known else { continue };
            self.name_thread(rows, process, event)?;
            let stack = event.stack.map(|stack| self.stack(rows, stack)).transpose()?.flatten();
            let offset = rows.offsets.get(&node).copied().unwrap_or(0);
            let sequence = event.id.sequence.saturating_add(offset);
            let last = self.last.entry(node).or_default();
            *last = sequence.max(*last);
            by_node.entry(node).or_default().push((sequence, NewEvent::of(event, process, stack)));
        }
        for (node, events) in by_node {
            self.events += events.len() as u64;
            self.store.add_events(node, events)?;
        }
        self.store.commit()?;
        batch.clear();
        Ok(())
    }

    fn name_thread(
        &mut self,
        rows: &mut Rows<'_>,
        process: ProcessRef,
        event: &Event,
    ) -> Result<(), WriteError> {
        if rows.threads.insert((event.process, event.tid))
            && let Some(name) = rows.recording.thread_name(event.process, event.tid)
        {
            self.store.name_thread(process, event.tid, name)?;
        }
        Ok(())
    }

    fn stack(&mut self, rows: &mut Rows<'_>, id: StackId) -> Result<Option<StackId>, MergeError> {
        if let Some(&known) = rows.stacks.get(&id) {
            return Ok(Some(known));
        }
        let Some(stack) = rows.recording.stack(id)? else { return Ok(None) };
        let row = self.store.stack(&stack)?;
        rows.stacks.insert(id, row);
        Ok(Some(row))
    }
}
