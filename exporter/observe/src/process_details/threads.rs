//! Threads of a process: where each may run, and for how long it ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procfs::FromRead as _;
use procfs::process::Stat;

use crate::process_identity::NS_PER_TICK;

/// Times of threads that take longer to read are not of one time.
const MAX_READ: Duration = Duration::from_millis(20);

/// The threads of the processes below a `/proc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threads<'a> {
    pub(super) proc_root: &'a Path,
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) comm: String,
    /// CPUs that it may run on, such as `0-3`.
    pub(crate) cpus: String,
    /// How long it ran, in nanoseconds.
    pub(crate) ran: u64,
}

/// The threads of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) threads: Vec<Thread>,
    /// How long all of them ran, and those that have ended, in nanoseconds; `None` where it is not of the same time.
    pub(crate) ran: Option<u64>,
}

impl Threads<'_> {
    fn task(&self, pid: u32, tid: u32) -> PathBuf {
        self.proc_root.join(format!("{pid}/task/{tid}"))
    }

    /// CPUs that a thread may run on.
    pub(crate) fn cpus(&self, pid: u32, tid: u32) -> Option<String> {
        let status = fs::read(self.task(pid, tid).join("status")).ok()?;
        allowed_cpus(&String::from_utf8_lossy(&status)).map(str::to_owned)
    }

    /// The threads of a process; `None` when it has ended or has more than `most`.
    pub(crate) fn of(&self, pid: u32, most: usize) -> Option<Usage> {
        let began = Instant::now();
        let tasks = fs::read_dir(self.proc_root.join(format!("{pid}/task"))).ok()?;
        let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        let tids: Vec<u32> = tids.take(most.saturating_add(1)).collect();
        if tids.is_empty() || tids.len() > most {
            return None;
        }
        let ran = self.ran(pid);
        // One that ended in the meantime is left out.
        let threads = tids.into_iter().filter_map(|tid| self.thread(pid, tid)).collect();
        Some(Usage { threads, ran: ran.filter(|_| began.elapsed() <= MAX_READ) })
    }

    /// How long all threads of a process ran, and those that have ended, in nanoseconds.
    pub(crate) fn ran(&self, pid: u32) -> Option<u64> {
        let stat = Stat::from_file(self.proc_root.join(format!("{pid}/stat"))).ok()?;
        stat.utime.checked_add(stat.stime)?.checked_mul(NS_PER_TICK)
    }

    fn thread(&self, pid: u32, tid: u32) -> Option<Thread> {
        let dir = self.task(pid, tid);
        let text = |file: &str| {
            Some(String::from_utf8_lossy(&fs::read(dir.join(file)).ok()?).into_owned())
        };
        let (comm, status) = (text("comm")?, text("status")?);
        let ran = text("schedstat").and_then(|text| text.split_whitespace().next()?.parse().ok());
        Some(Thread {
            tid,
            comm: comm.trim_end_matches('\n').to_owned(),
            cpus: allowed_cpus(&status)?.to_owned(),
            ran: ran.unwrap_or_default(),
        })
    }
}

/// The CPUs in a `/proc/PID/status`.
pub(super) fn allowed_cpus(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_this_processs_threads_are_those_of_the_kernel() {
        let threads = Threads { proc_root: Path::new("/proc") };
        let own = std::process::id();
        let spinner = move || {
            let usage = threads.of(own, 1_000).unwrap();
            usage.threads.into_iter().find(|thread| thread.comm == "spinner").unwrap()
        };
        // However busy the host is, it runs at some time.
        let spin = move || {
            while spinner().ran < 1_000_000 {}
            assert_eq!(threads.cpus(own, spinner().tid), Some(spinner().cpus));
        };
        std::thread::Builder::new().name("spinner".into()).spawn(spin).unwrap().join().unwrap();
        assert_eq!(threads.of(own, 0), None, "it has more");
    }

    #[test]
    fn the_time_of_a_process_is_that_of_all_of_its_threads() {
        let root = tempfile::tempdir().unwrap();
        let threads = Threads { proc_root: root.path() };
        let stat = root.path().join("7/stat");
        fs::create_dir(root.path().join("7")).unwrap();
        let before = b"7 (a \xff) c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50".as_slice();
        let after = b" 9 9 20 0 3 0 12345 1 1 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0\n";
        fs::write(&stat, [before, after].concat()).unwrap();
        assert_eq!(threads.ran(7), Some(2_000_000_000), "whatever its name is");
        fs::write(&stat, "7 (a) S 1").unwrap();
        assert_eq!((threads.ran(7), threads.ran(8)), (None, None));
    }
}
