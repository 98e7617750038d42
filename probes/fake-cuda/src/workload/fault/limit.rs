//! A CPU limit of the program's own control group.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Fault;
use crate::gpu::{Gpu, Pace};
use crate::loss::Kind;

const PREFIX: &str = "gpucause-limit-";
/// The period of the limit, in microseconds: the kernel's own.
const PERIOD_US: u32 = 100_000;

/// A control group of this process, which leaves it and removes it when this is dropped.
struct Group {
    root: PathBuf,
    own: PathBuf,
    /// Whether it is of the second version of control groups.
    unified: bool,
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
        // Those of programs that were killed; one in use is not removed.
        for entry in fs::read_dir(&root)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir(entry.path());
            }
        }
        let own = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&own).with_context(|| own.display().to_string())?;
        let group = Self { root, own, unified };
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
        let _ = fs::remove_dir(&self.own);
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
