//! Which dispatcher a process works for whose parent has ended: the only one of its cgroup that is older, no descendant of it, and
//! reads a pipe into which it may write. Memory that they share would say as much, but who reads the mappings of a process that hangs
//! in the kernel hangs as well.

use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::path::Path;

use gpucause_abi::{ProcId, Tgid};
use procfs::FromRead as _;
use procfs::process::Stat;

/// Descriptors of a process that are read at most.
const MAX_DESCRIPTORS: usize = 4096;
/// Ancestors of a dispatcher that are searched.
const MAX_GENERATIONS: usize = 16;

/// How a pipe is open, by the flags of `open`.
const READS: u32 = 0o0;
const WRITES: u32 = 0o1;
const ACCESS: u32 = 0o3;

/// A process that makes calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dispatcher {
    pub(super) id: ProcId,
    pub(super) tgid: Tgid,
}

/// The dispatchers that orphans work for, where that is certain.
pub(super) fn owners(
    proc_root: &Path,
    orphans: &[Tgid],
    dispatchers: &[Dispatcher],
) -> Vec<(Tgid, ProcId)> {
    let known: Vec<_> = dispatchers
        .iter()
        .filter_map(|&own| Some((own, Process::of(proc_root, own.tgid)?)))
        .collect();
    let owner = |&orphan: &Tgid| {
        let process = Process::of(proc_root, orphan)?;
        let may_own = |(dispatcher, own): &&(Dispatcher, Process)| {
            // Within a clock tick, by the order of PIDs.
            (own.started, dispatcher.tgid.0) < (process.started, orphan.0)
                && own.cgroup == process.cgroup
                && !is_ancestor(proc_root, orphan, dispatcher.tgid)
        };
        let mut candidates = known.iter().filter(may_own).peekable();
        candidates.peek()?;
        let written = pipes(proc_root, orphan, WRITES);
        let reads = |(dispatcher, _): &&(Dispatcher, Process)| {
            !written.is_disjoint(&pipes(proc_root, dispatcher.tgid, READS))
        };
        let mut readers = candidates.filter(reads);
        let (dispatcher, _) = readers.next()?;
        readers.next().is_none().then_some((orphan, dispatcher.id))
    };
    orphans.iter().filter_map(owner).collect()
}

#[derive(Debug)]
struct Process {
    cgroup: String,
    /// In clock ticks since the host was booted.
    started: u64,
}

impl Process {
    fn of(proc_root: &Path, tgid: Tgid) -> Option<Self> {
        let cgroup = read_to_string(proc_root.join(format!("{tgid}/cgroup"))).ok()?;
        Some(Self { cgroup, started: stat(proc_root, tgid)?.starttime })
    }
}

fn stat(proc_root: &Path, tgid: Tgid) -> Option<Stat> {
    Stat::from_file(proc_root.join(format!("{tgid}/stat"))).ok()
}

fn is_ancestor(proc_root: &Path, ancestor: Tgid, of: Tgid) -> bool {
    let parent = |own: &Tgid| u32::try_from(stat(proc_root, *own)?.ppid).ok().map(Tgid);
    let mut ancestors = std::iter::successors(Some(of), parent).skip(1).take(MAX_GENERATIONS);
    ancestors.any(|own| own == ancestor)
}

/// The pipes that a process has open so, as the kernel names them.
fn pipes(proc_root: &Path, tgid: Tgid, access: u32) -> HashSet<String> {
    let dir = proc_root.join(tgid.to_string());
    let open = read_dir(dir.join("fd")).into_iter().flatten().flatten().take(MAX_DESCRIPTORS);
    let pipe = |entry: std::fs::DirEntry| {
        let target = read_link(entry.path()).ok()?.into_os_string().into_string().ok()?;
        let info =
            target.starts_with("pipe:[").then(|| dir.join("fdinfo").join(entry.file_name()))?;
        let info = read_to_string(info).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        (u32::from_str_radix(flags, 8).ok()? & ACCESS == access).then_some(target)
    };
    open.filter_map(pipe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    const TRAIN: Dispatcher = Dispatcher { id: ProcId(1), tgid: Tgid(10) };
    const SERVE: Dispatcher = Dispatcher { id: ProcId(2), tgid: Tgid(20) };

    /// PID, that of the parent, when it started, its cgroup, and a pipe with the flags of its end.
    type Row<'a> = (u32, u32, u64, &'a str, (u32, &'a str));

    fn proc_with(processes: &[Row<'_>]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, parent, started, cgroup, (pipe, flags)) in processes {
            let dir = root.path().join(pid.to_string());
            for own in ["fd", "fdinfo"] {
                create_dir_all(dir.join(own)).unwrap();
            }
            let [before, after] = [17, 15].map(|fields| "0 ".repeat(fields));
            let stat = format!("{pid} (a) b) S {parent} {before}{started} {after}");
            write(dir.join("stat"), stat).unwrap();
            write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
            symlink(format!("pipe:[{pipe}]"), dir.join("fd/5")).unwrap();
            write(dir.join("fdinfo/5"), format!("pos:\t0\nflags:\t{flags}\n")).unwrap();
        }
        root
    }

    const READ: &str = "02000000";
    const WRITE: &str = "02000001";

    fn found(processes: &[Row<'_>]) -> Vec<(Tgid, ProcId)> {
        let root = proc_with(processes);
        owners(root.path(), &[Tgid(30)], &[TRAIN, SERVE])
    }

    #[test]
    fn an_orphan_works_for_who_reads_what_it_writes() {
        let train = (10, 1, 100, "/job", (7, READ));
        let serve = (20, 1, 100, "/job", (8, READ));
        let orphan = (30, 1, 200, "/job", (7, WRITE));
        assert_eq!(found(&[train, serve, orphan]), [(Tgid(30), TRAIN.id)]);
        for (what, other) in [
            ("a reader of what the dispatcher writes", (30, 1, 200, "/job", (7, READ))),
            ("a writer of another pipe", (30, 1, 200, "/job", (9, WRITE))),
            ("another cgroup", (30, 1, 200, "/log", (7, WRITE))),
            ("older, such as what a shell starts first", (30, 1, 50, "/job", (7, WRITE))),
        ] {
            assert_eq!(found(&[train, serve, other]), [], "{what}");
        }
        let child_of_orphan = (10, 30, 300, "/job", (7, READ));
        assert_eq!(found(&[child_of_orphan, serve, orphan]), [], "it started the dispatcher");
        let both = (20, 1, 100, "/job", (7, READ));
        assert_eq!(found(&[train, both, orphan]), [], "it may be of either");
    }
}
