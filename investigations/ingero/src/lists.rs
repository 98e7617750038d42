//! Nodes, sessions, processes and their threads.
//!
//! Scheduler rows and their aggregates have the TID in the column `pid`. It is resolved by the threads that other rows show.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Row;

use super::schema::{File, Flaw, id32, integer, natural, text};
use gpucause_trace::recording::{Node, NodeIndex, Process, ProcessIndex, RecordingError, Session};

/// A node and a PID or TID.
pub(super) type Key = (NodeIndex, u32);

/// A file with more nodes is damaged.
const MOST_NODES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) nodes: Vec<Node>,
    pub(super) sessions: Vec<Session>,
    pub(super) processes: Vec<Process>,
    by_pid: HashMap<Key, ProcessIndex>,
    by_tid: HashMap<Key, ProcessIndex>,
    thread_names: HashMap<Key, String>,
    /// Names by PID or TID, on any node.
    names: HashMap<u32, String>,
    /// Parents of processes and threads.
    parents: HashMap<Key, u32>,
    /// The name of the node of rows without one.
    unnamed: String,
}

/// A process while rows are read.
#[derive(Debug, Default)]
struct Sketch {
    comm: String,
    rank: Option<u32>,
    cgroup: i64,
}

impl Lists {
    pub(super) fn read(file: &File) -> Result<Self, RecordingError> {
        let stem = file.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let mut lists = Self { unnamed: stem.unwrap_or_default(), ..Self::default() };
        lists.read_sessions(file)?;
        if let Some(first) = lists.nodes.first() {
            lists.unnamed.clone_from(&first.name);
        }
        lists.read_names(file)?;
        lists.read_processes(file)?;
        if lists.nodes.is_empty() {
            let name = lists.unnamed.clone();
            lists.nodes.push(Node { name, clock_ahead_ns: None });
        }
        lists.sessions.sort_by_key(|session| session.started_ns);
        Ok(lists)
    }

    /// The node of this name, which is added if missing.
    fn node(&mut self, name: String) -> Result<NodeIndex, Flaw> {
        let name = if name.is_empty() { self.unnamed.clone() } else { name };
        let known = self.nodes.iter().position(|node| node.name == name);
        let at = known.unwrap_or(self.nodes.len());
        if known.is_none() {
            if at >= MOST_NODES {
                return Err(Flaw::Content(format!("more than {MOST_NODES} nodes")));
            }
            self.nodes.push(Node { name, clock_ahead_ns: None });
        }
        u16::try_from(at).map(NodeIndex).map_err(|_| Flaw::Content("too many nodes".into()))
    }

    /// The node of a row.
    pub(super) fn node_of(&self, name: &str) -> Result<NodeIndex, Flaw> {
        let name = if name.is_empty() { &self.unnamed } else { name };
        let at = self.nodes.iter().position(|node| node.name == name);
        let at = at.and_then(|at| u16::try_from(at).ok());
        at.map(NodeIndex).ok_or_else(|| Flaw::Content(format!("no node {name:?}")))
    }

    fn read_sessions(&mut self, file: &File) -> Result<(), RecordingError> {
        if !file.has("sessions", "started_at") {
            return Ok(());
        }
        const DETAILS: [&str; 12] = [
            "gpu_model",
            "gpu_driver",
            "cpu_model",
            "cpu_cores",
            "mem_total",
            "kernel",
            "os_release",
            "cuda_ver",
            "python_ver",
            "pid_filter",
            "flags",
            "world_size",
        ];
        let columns = DETAILS.map(|name| file.column("sessions", name, "''"));
        let sql = format!(
            "SELECT {}, started_at, {}, {}, {} FROM sessions ORDER BY started_at LIMIT 100000",
            file.column("sessions", "node", "''"),
            file.column("sessions", "stopped_at", "0"),
            file.column("sessions", "ingero_ver", "''"),
            columns.join(", ")
        );
        file.each(&sql, |row| {
            let node = self.node(text(row, 0)?)?;
            let ended = integer(row, 2)?;
            self.sessions.push(Session {
                node,
                started_ns: integer(row, 1)?,
                ended_ns: (ended != 0).then_some(ended),
                recorder: format!("Ingero {}", text(row, 3)?).trim_end().to_owned(),
                details: details(row, 4, DETAILS)?,
                lost_events: None,
            });
            Ok(())
        })
    }

    fn read_names(&mut self, file: &File) -> Result<(), RecordingError> {
        if !file.has("process_names", "pid") || !file.has("process_names", "name") {
            return Ok(());
        }
        let sql = "SELECT pid, name FROM process_names LIMIT 1000000";
        self.names.extend(file.rows(sql, |row| Ok((id32(row, 0)?, text(row, 1)?)))?);
        Ok(())
    }

    fn read_processes(&mut self, file: &File) -> Result<(), RecordingError> {
        let mut sketches: BTreeMap<Key, Sketch> = BTreeMap::new();
        let mut of_scheduler: Vec<(Key, String)> = Vec::new();
        let mut threads: HashMap<Key, u32> = HashMap::new();
        let sql = format!(
            "SELECT {}, pid, tid, source = 3 AND op = 1, max({}), max({}), max({}) FROM events GROUP BY 1, 2, 3, 4",
            file.column("events", "node", "''"),
            file.column("events", "comm", "''"),
            file.column("events", "rank", "NULL"),
            file.column("events", "cgroup_id", "0"),
        );
        file.each(&sql, |row| {
            let node = self.node(text(row, 0)?)?;
            let (pid, tid, comm) = (id32(row, 1)?, id32(row, 2)?, text(row, 4)?);
            if !comm.is_empty() {
                self.thread_names.insert((node, tid), comm.clone());
            }
            if integer(row, 3)? != 0 {
                of_scheduler.push(((node, tid), comm));
                return Ok(());
            }
            threads.insert((node, tid), pid);
            let sketch = sketches.entry((node, pid)).or_default();
            if pid == tid || sketch.comm.is_empty() {
                sketch.comm = comm;
            }
            sketch.rank = sketch.rank.or(text(row, 5)?.parse().ok());
            sketch.cgroup = sketch.cgroup.max(integer(row, 6)?);
            Ok(())
        })?;
        self.read_parents(file)?;
        let of_aggregates = self.pids_of_aggregates(file)?;
        for (key, comm) in of_scheduler.into_iter().chain(of_aggregates) {
            if !threads.contains_key(&key) && !sketches.contains_key(&key) {
                sketches.insert(key, Sketch { comm, ..Sketch::default() });
            }
        }
        let containers = containers(file)?;
        for (&(node, pid), sketch) in &sketches {
            let index = u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
            self.by_pid.insert((node, pid), ProcessIndex(index));
            let mut details = containers.get(&sketch.cgroup).cloned().unwrap_or_default();
            if let Some(parent) = self.parents.get(&(node, pid)) {
                details.push(("started_by".into(), parent.to_string()));
            }
            let comm = Some(sketch.comm.clone()).filter(|comm| !comm.is_empty());
            let comm = comm.or_else(|| self.names.get(&pid).cloned());
            let comm = comm.unwrap_or_else(|| "unknown".into());
            self.processes.push(Process { node, pid, comm, rank: sketch.rank, details });
        }
        for (&(node, tid), &pid) in &threads {
            if let Some(&process) = self.by_pid.get(&(node, pid)) {
                self.by_tid.insert((node, tid), process);
            }
        }
        Ok(())
    }

    fn read_parents(&mut self, file: &File) -> Result<(), RecordingError> {
        let (node, child) =
            (file.column("events", "node", "''"), file.column("events", "arg1", "0"));
        let sql = format!(
            "SELECT {node}, pid, {child} FROM events WHERE source = 3 AND op = 7 AND {child} > 0"
        );
        file.each(&sql, |row| {
            let node = self.node_of(&text(row, 0)?)?;
            self.parents.insert((node, id32(row, 2)?), id32(row, 1)?);
            Ok(())
        })
    }

    /// PIDs of aggregates, where there is only one node: the table does not store the node.
    fn pids_of_aggregates(&mut self, file: &File) -> Result<Vec<(Key, String)>, RecordingError> {
        let mut found = Vec::new();
        if !file.has("event_aggregates", "pid") || self.nodes.len() > 1 {
            return Ok(found);
        }
        file.each("SELECT DISTINCT pid FROM event_aggregates WHERE pid <> 0", |row| {
            found.push(((self.node(String::new())?, id32(row, 0)?), String::new()));
            Ok(())
        })?;
        Ok(found)
    }

    /// The process with this PID.
    pub(super) fn process(&self, node: NodeIndex, pid: u32) -> Option<ProcessIndex> {
        self.by_pid.get(&(node, pid)).copied()
    }

    /// The process of a thread, else the one with this PID.
    pub(super) fn process_of_thread(&self, node: NodeIndex, tid: u32) -> Option<ProcessIndex> {
        self.by_tid.get(&(node, tid)).copied().or_else(|| self.process(node, tid))
    }

    pub(super) fn get(&self, process: ProcessIndex) -> Option<&Process> {
        self.processes.get(usize::try_from(process.0).ok()?)
    }

    /// The name of a process or thread.
    pub(super) fn task_name(&self, node: NodeIndex, tid: u32) -> Option<&str> {
        let own = self.thread_names.get(&(node, tid)).or_else(|| self.names.get(&tid));
        own.map(String::as_str)
            .or_else(|| Some(self.get(self.process_of_thread(node, tid)?)?.comm.as_str()))
    }

    /// Returns true if a task is a descendant of a process.
    pub(super) fn descends(&self, node: NodeIndex, mut task: u32, from: u32) -> bool {
        // The bound ends cycles in hostile data.
        for _ in 0..8 {
            match self.parents.get(&(node, task)) {
                Some(&parent) if parent == from => return true,
                Some(&parent) => task = parent,
                None => return false,
            }
        }
        false
    }

    /// The descendants of a process.
    pub(super) fn started_by(&self, node: NodeIndex, pid: u32) -> impl Iterator<Item = u32> + '_ {
        let own = move |key: &&Key| key.0 == node && self.descends(node, key.1, pid);
        self.parents.keys().filter(own).map(|key| key.1)
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes with a process or thread of this number.
    pub(super) fn nodes_with(&self, pid: u32) -> Vec<NodeIndex> {
        let nodes = (0u16..).map(NodeIndex).take(self.nodes.len());
        nodes.filter(|&node| self.process_of_thread(node, pid).is_some()).collect()
    }
}

/// Details by cgroup.
fn containers(file: &File) -> Result<HashMap<i64, Vec<(String, String)>>, RecordingError> {
    if !file.has("cgroup_metadata", "cgroup_id") {
        return Ok(HashMap::new());
    }
    const NAMES: [(&str, &str); 4] = [
        ("container_id", "container_id"),
        ("cgroup_path", "cgroup"),
        ("pod_name", "pod"),
        ("namespace", "namespace"),
    ];
    let columns = NAMES.map(|(column, _)| file.column("cgroup_metadata", column, "''"));
    let sql = format!("SELECT cgroup_id, {} FROM cgroup_metadata LIMIT 100000", columns.join(", "));
    let container =
        |row: &Row<'_>| Ok((integer(row, 0)?, details(row, 1, NAMES.map(|(_, name)| name))?));
    Ok(file.rows(&sql, container)?.into_iter().collect())
}

/// Columns that are not empty, by these names, from a position on.
fn details<const N: usize>(
    row: &Row<'_>,
    first: usize,
    names: [&str; N],
) -> Result<Vec<(String, String)>, Flaw> {
    let mut details = Vec::new();
    for (at, name) in (first..).zip(names) {
        let value = text(row, at)?;
        if !value.is_empty() {
            details.push((name.to_owned(), value));
        }
    }
    Ok(details)
}

/// Totals of one minute. Only a part of its events was stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aggregate {
    pub(super) source: i64,
    pub(super) op: i64,
    /// A TID for the scheduler's.
    pub(super) pid: u32,
    /// The start of the minute, in nanoseconds since the Unix epoch.
    pub(super) bucket: i64,
    pub(super) count: u64,
    pub(super) stored: u64,
    pub(super) sum_ns: u64,
    pub(super) max_ns: u64,
}

/// All aggregates; none in versions without the table.
pub(super) fn aggregates(file: &File) -> Result<Vec<Aggregate>, RecordingError> {
    if !file.has("event_aggregates", "count") || !file.has("event_aggregates", "stored") {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT source, op, {}, bucket, count, stored, sum_dur, max_dur FROM event_aggregates",
        file.column("event_aggregates", "pid", "0")
    );
    file.rows(&sql, |row| {
        Ok(Aggregate {
            source: integer(row, 0)?,
            op: integer(row, 1)?,
            pid: id32(row, 2)?,
            bucket: integer(row, 3)?,
            count: natural(row, 4)?,
            stored: natural(row, 5)?,
            sum_ns: natural(row, 6)?,
            max_ns: natural(row, 7)?,
        })
    })
}
