//! A CPU limit of the program's own control group.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use super::Fault;
use crate::gpu::{Gpu, Pace};
use crate::loss::Kind;

const PREFIX: &str = "gpucause-limit-";
/// The period of the limit, in microseconds: the kernel's own.
const PERIOD_US: u32 = 100_000;

/// Reads until its standard input ends, then removes a directory that may still be in use for a moment.
const REMOVE: &str = "cat; for i in 1 2 3 4 5 6 7 8 9 10; do rmdir \"$0\" && exit; sleep 0.2; done";

/// Removes an empty directory when this is dropped or this process ends, by SIGKILL too: another process does.
struct Removed(Child);

impl Removed {
    fn at_the_end(directory: &Path) -> io::Result<Self> {
        let mut remover = Command::new("sh");
        remover.args(["-c", REMOVE]).arg(directory).stdin(Stdio::piped());
        // In a group of its own, signals to the group of this process do not end it.
        remover.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        remover.spawn().map(Self)
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        self.0.stdin = None;
        let _ = self.0.wait();
    }
}

/// A control group of this process, which leaves it when this is dropped.
struct Group {
    root: PathBuf,
    own: PathBuf,
    /// True if it is of the second version of control groups.
    unified: bool,
    _removed: Removed,
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// Where groups that have a CPU limit are made.
fn hierarchy() -> Result<(PathBuf, bool)> {
    let unified = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|controller| controller == "cpu") {
        write(&unified.join("cgroup.subtree_control"), "+cpu")?;
        return Ok((unified.to_owned(), true));
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let of_cpu = mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let limits = kind == "cgroup" && options.split(',').any(|option| option == "cpu");
        limits.then(|| PathBuf::from(path))
    });
    Ok((of_cpu.context("no control groups with a CPU limit are mounted")?, false))
}

impl Group {
    /// Makes one, and moves this process there.
    fn enter() -> Result<Self> {
        let (root, unified) = hierarchy()?;
        let own = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&own).with_context(|| own.display().to_string())?;
        let removed = Removed::at_the_end(&own).context("sh")?;
        let group = Self { root, own, unified, _removed: removed };
        // Only the limit may throttle it, not competition with the group.
        let (file, most) = if unified { ("cpu.weight", "10000") } else { ("cpu.shares", "262144") };
        write(&group.own.join(file), most)?;
        write(&group.own.join("cgroup.procs"), &std::process::id().to_string())?;
        Ok(group)
    }

    /// Lets its tasks have this share of one CPU.
    fn limit(&self, share: f64) -> Result<()> {
        let quota = f64::from(PERIOD_US) * share;
        if self.unified {
            return write(&self.own.join("cpu.max"), &format!("{quota:.0} {PERIOD_US}"));
        }
        write(&self.own.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        write(&self.own.join("cpu.cfs_quota_us"), &format!("{quota:.0}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let pid = std::process::id().to_string();
        let _ = fs::write(self.root.join("cgroup.procs"), pid);
    }
}

/// The fault: a thread that always wants to run gets a part of a CPU.
pub(super) struct Limited {
    share: f64,
    group: Option<Group>,
}

impl Limited {
    pub(super) fn new(strength: f64) -> Self {
        Self { share: 1.0 - strength, group: None }
    }
}

impl Fault for Limited {
    fn pace(&self) -> Pace {
        Pace::BUSY
    }

    fn kind(&self) -> Kind {
        Kind::RunDelay
    }

    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.group = Some(Group::enter()?);
        Ok(())
    }

    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.limit(self.share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_removed_when_its_program_is_done_with_it() {
        let name = format!("{PREFIX}test-{}", std::process::id());
        let group = std::env::temp_dir().join(name);
        fs::create_dir(&group).unwrap();
        let in_use = group.join("in-use");
        fs::write(&in_use, "").unwrap();
        let removed = Removed::at_the_end(&group).unwrap();
        assert!(group.exists());
        let freed = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            fs::remove_file(in_use).unwrap();
        });
        drop(removed);
        freed.join().unwrap();
        assert!(!group.exists());
    }
}
