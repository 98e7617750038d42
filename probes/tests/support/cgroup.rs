//! A control group of the test's own, in whichever hierarchy the host has the controller.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

pub(crate) struct Cgroup {
    dir: PathBuf,
}

/// Mount point of the hierarchy that has a controller, and whether it is the unified one.
fn hierarchy(controller: &str) -> Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    for row in rows.filter(|row| row.len() > 3) {
        let dir = PathBuf::from(row[1]);
        if row[2] == "cgroup" && row[3].split(',').any(|option| option == controller) {
            return Ok((dir, false));
        }
        let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        if row[2] == "cgroup2" && controllers.split_whitespace().any(|name| name == controller) {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            return Ok((dir, true));
        }
    }
    anyhow::bail!("the host has no cgroup hierarchy with the {controller} controller")
}

impl Cgroup {
    /// With these files of a hierarchy of the controller's own, or those of the unified one, set to these values.
    pub(crate) fn limited(
        controller: &str,
        own: &[(&str, &str)],
        unified: &[(&str, &str)],
    ) -> Result<Self> {
        let (root, is_unified) = hierarchy(controller)?;
        let cgroup = Self::below(&root)?;
        for (file, value) in if is_unified { unified } else { own } {
            cgroup.set(file, value)?;
        }
        Ok(cgroup)
    }

    /// In a hierarchy that is mounted here.
    pub(crate) fn below(root: &Path) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("gpucause-test-{}-{serial}", std::process::id()));
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { dir })
    }

    pub(crate) fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).with_context(|| format!("{value} to {}", path.display()))
    }

    pub(crate) fn add(&self, pid: u32) -> Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Refused until the last process has been waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
