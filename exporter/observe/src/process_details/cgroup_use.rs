//! The use by a cgroup's processes of what its limits leave: CPU time, and data of files that fills the page cache.

use std::collections::HashMap;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Processes of a group that are read at most.
const MAX_PROCESSES: usize = 128;
/// Groups below one that are read at most.
const MAX_GROUPS: usize = 64;
/// Part of its memory limit from which on a group is at it: the kernel frees memory in steps.
const FULL: f64 = 0.9;
/// Least part of its memory that is page cache where that fills it.
const MUCH: f64 = 0.25;

/// The use by processes so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CgroupUse {
    /// By PID.
    pub(crate) by: HashMap<u32, u64>,
    /// Use by all, with those that have ended, where the kernel counts that.
    pub(crate) all: Option<u64>,
}

/// The processes of a group and of those below it; `None` where they are too many.
fn processes(group: &Path) -> Option<Vec<u32>> {
    let (mut groups, mut pids) = (vec![group.to_owned()], Vec::new());
    let mut next = 0;
    while let Some(group) = groups.get(next).cloned() {
        let text = read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = read_dir(&group).into_iter().flatten().flatten();
        groups.extend(below.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()));
        next += 1;
        if pids.len() > MAX_PROCESSES || groups.len() > MAX_GROUPS {
            return None;
        }
    }
    Some(pids)
}

/// The CPU time of a group, in nanoseconds. `ran` is that of a process.
pub(crate) fn cpu_time(group: &Path, ran: impl Fn(u32) -> Option<u64>) -> Option<CgroupUse> {
    let by = processes(group)?.into_iter().filter_map(|pid| Some((pid, ran(pid)?))).collect();
    let unified = || number_in(&group.join("cpu.stat"), "usage_usec")?.checked_mul(1_000);
    let own = || read_to_string(group.join("cpuacct.usage")).ok()?.trim().parse().ok();
    Some(CgroupUse { by, all: unified().or_else(own) })
}

/// Bytes that the processes of a group have had read from disks and written to them: they go through the page cache.
pub(crate) fn file_data(group: &Path, proc_root: &Path) -> Option<CgroupUse> {
    let of = |pid: u32| {
        let file = proc_root.join(format!("{pid}/io"));
        let both = ["read_bytes:", "write_bytes:"].map(|name| number_in(&file, name));
        Some((pid, both[0]?.saturating_add(both[1]?)))
    };
    Some(CgroupUse { by: processes(group)?.into_iter().filter_map(of).collect(), all: None })
}

/// The first of these groups that is at its memory limit and whose memory is page cache for a good part.
pub(crate) fn full_of_cache(groups: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    groups.into_iter().find(|group| is_full_of_cache(group).unwrap_or_default())
}

fn is_full_of_cache(group: &Path) -> Option<bool> {
    let text = |file: &str| read_to_string(group.join(file)).ok();
    let limit = |file: &str| text(file)?.trim().parse::<f64>().ok();
    let limits = ["memory.max", "memory.high"].into_iter().filter_map(limit);
    let limit = limits.min_by(f64::total_cmp)?;
    let used: f64 = text("memory.current")?.trim().parse().ok()?;
    let stat = |word| number_in(&group.join("memory.stat"), word);
    // The kernel counts shared memory as files, which it cannot drop.
    let cache = stat("file")?.saturating_sub(stat("shmem").unwrap_or_default()) as f64;
    Some(used >= FULL * limit && cache >= MUCH * used)
}

/// The number behind a word in a file of lines.
fn number_in(file: &Path, word: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        line.split_once(' ').filter(|(own, _)| *own == word)?.1.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_use_of_a_group_is_that_of_its_processes_and_of_those_below() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("group");
        write(
            root.path(),
            &[
                ("group/cgroup.procs", "10\n"),
                ("group/below/cgroup.procs", "20\n30\n"),
                ("group/cpu.stat", "usage_usec 5000\nuser_usec 4000\n"),
                ("10/io", "rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n"),
                ("20/io", "rchar: 9\nread_bytes: 0\nwrite_bytes: 1\n"),
            ],
        );
        let used = cpu_time(&group, |pid| (pid != 30).then_some(u64::from(pid))).unwrap();
        assert_eq!((used.by, used.all), ([(10, 10), (20, 20)].into(), Some(5_000_000)));
        let used = file_data(&group, root.path()).unwrap();
        assert_eq!((used.by, used.all), ([(10, 12_288), (20, 1)].into(), None), "30 has ended");
    }

    #[test]
    fn a_group_is_full_of_cache_at_its_limit_where_files_are_much_of_its_memory() {
        for (limit, current, file, expected) in [
            ("1000\n", "950\n", "file 600\n", true),
            ("max\n", "950\n", "file 600\n", false),
            ("1000\n", "500\n", "file 400\n", false),
            ("1000\n", "1000\n", "file 100\n", false),
            ("1000\n", "1000\n", "file 600\nshmem 500\n", false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let files = [("memory.max", limit), ("memory.current", current), ("memory.stat", file)];
            write(root.path(), &files);
            let found = full_of_cache([root.path().to_owned()]);
            assert_eq!(found.is_some(), expected, "{limit} {current} {file}");
        }
    }
}
