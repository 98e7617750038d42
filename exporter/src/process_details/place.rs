//! Where a process runs that a chain names: its unit, pod, container and CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use gpucause_engine::chain::Place;

use super::membership::Membership;
use super::pods;
use crate::throttling::hierarchy::Hierarchy;

/// Reads where processes run.
#[derive(Debug)]
pub(crate) struct Places {
    proc_root: PathBuf,
    pod_logs: PathBuf,
    online: PathBuf,
    hierarchy: Option<Hierarchy>,
}

impl Default for Places {
    fn default() -> Self {
        Self::at("/proc", pods::LOGS, "/sys/devices/system/cpu/online")
    }
}

impl Places {
    fn at(
        proc_root: impl Into<PathBuf>,
        pod_logs: impl Into<PathBuf>,
        online: impl Into<PathBuf>,
    ) -> Self {
        let (proc_root, pod_logs, online) = (proc_root.into(), pod_logs.into(), online.into());
        let mounts = fs::read_to_string(proc_root.join("self/mountinfo")).unwrap_or_default();
        Self { proc_root, pod_logs, online, hierarchy: Hierarchy::in_mounts(&mounts) }
    }

    /// The CPUs of the host, such as `0-3`.
    pub(crate) fn online_cpus(&self) -> String {
        let text = fs::read_to_string(&self.online).unwrap_or_default();
        text.trim().to_owned()
    }

    /// Where a process runs. `None` when it has ended, or when the PID is another process's by now: `comm`, where it is given,
    /// is another name then.
    pub(crate) fn of(&self, pid: u32, comm: Option<&str>) -> Option<Place> {
        let dir = self.proc_root.join(pid.to_string());
        let text = |file: &str| fs::read(dir.join(file)).ok();
        let text = |file: &str| Some(String::from_utf8_lossy(&text(file)?).into_owned());
        if comm
            .is_some_and(|comm| text("comm").is_none_or(|own| own.trim_end_matches('\n') != comm))
        {
            return None;
        }
        let status = text("status")?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let groups = text("cgroup")?;
        let Membership { cgroup, container_id, pod_uid, .. } = Membership::of(&groups);
        let pod = pod_uid.map(|uid| {
            let name = pods::name_of(&uid, &self.pod_logs);
            name.map_or(uid, |(namespace, name)| format!("{namespace}/{name}"))
        });
        Some(Place {
            unit: unit(&cgroup).unwrap_or_default().to_owned(),
            pod: pod.unwrap_or_default(),
            container: container_id.unwrap_or_default(),
            cpu_limit: self.cpu_limit(&groups).unwrap_or_default(),
            cpus: cpus.unwrap_or_default().trim().to_owned(),
            cgroup,
        })
    }

    fn cpu_limit(&self, groups: &str) -> Option<String> {
        let hierarchy = self.hierarchy.as_ref()?;
        let file = hierarchy.cpu_limit(&hierarchy.cgroup_of(groups)?)?;
        Some(file.to_string_lossy().into_owned())
    }
}

/// The innermost unit of the system's manager. Units of a user's manager are below that of the manager, and `systemctl` knows
/// them by no name of the system's.
fn unit(cgroup: &str) -> Option<&str> {
    let is_unit = |part: &&str| matches!(Path::new(part).extension(), Some(kind) if kind == "service" || kind == "scope");
    let mut units = cgroup.split('/').filter(is_unit);
    let is_manager = |part: &str| part.starts_with("user@");
    match units.clone().find(|part| is_manager(part)) {
        Some(manager) => Some(manager),
        None => units.next_back(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_innermost_of_the_systems_manager() {
        for (cgroup, expected) in [
            ("/system.slice/fluent-bit.service", Some("fluent-bit.service")),
            ("/system.slice/containerd.service/x.scope", Some("x.scope")),
            ("/user.slice/user-0.slice/session-3.scope", Some("session-3.scope")),
            ("/user.slice/user@1000.service/app.slice/train.service", Some("user@1000.service")),
            ("/kubepods.slice/pod1", None),
            ("", None),
        ] {
            assert_eq!(unit(cgroup), expected, "{cgroup}");
        }
    }

    #[test]
    fn a_process_is_placed_by_its_cgroup_and_affinity_while_it_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("28576");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("comm"), "fluent-bit\n").unwrap();
        fs::write(dir.join("status"), "Name:\tfluent-bit\nCpus_allowed_list:\t0-1,4\n").unwrap();
        fs::write(dir.join("cgroup"), "0::/system.slice/fluent-bit.service\n").unwrap();
        let places = Places::at(root.path(), root.path(), root.path().join("online"));
        let place = places.of(28576, Some("fluent-bit")).unwrap();
        assert_eq!((&*place.unit, &*place.cpus), ("fluent-bit.service", "0-1,4"));
        assert_eq!(place.describe(28576), "PID 28576, fluent-bit.service, CPUs 0-1,4");
        assert_eq!(places.of(28576, None), Some(place));
        assert_eq!(places.of(28576, Some("other")), None, "the PID is another's");
        assert_eq!(places.of(1, None), None);
        let uid = "1b4c7d8e-09af-4c1d-8e2f-a1b2c3d4e5f6";
        fs::write(dir.join("cgroup"), format!("0::/kubepods/pod{uid}/{}\n", "ab".repeat(32)))
            .unwrap();
        fs::create_dir(root.path().join(format!("ml_train-0_{uid}"))).unwrap();
        let place = places.of(28576, None).unwrap();
        assert_eq!((&*place.pod, place.container.len()), ("ml/train-0", 64));
    }
}
