//! Where a process runs that a chain names: its unit, pod, container and CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use gpucause_engine::chain::Place;

use super::cgroup_use::{self, CgroupUse};
use super::file_systems;
use super::membership::Membership;
use super::pods;
use super::threads::{Threads, allowed_cpus};
use crate::process_details::hierarchy::Hierarchy;

/// Threads of a process that are searched for one of a name at most.
const MAX_THREADS: usize = 512;

/// Reads where processes run.
#[derive(Debug)]
pub struct Places {
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
    pub(crate) fn at(
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

    /// Returns the times of each CPU of the host, in the format of `/proc/stat`.
    pub(crate) fn cpu_times(&self) -> String {
        fs::read_to_string(self.proc_root.join("stat")).unwrap_or_default()
    }

    /// Where a process runs. `None` when it has ended, or when the PID is another process's by now: `comm`, where it is given,
    /// is another name then.
    pub fn of(&self, pid: u32, comm: Option<&str>) -> Option<Place> {
        let dir = self.proc_root.join(pid.to_string());
        let text = |file: &str| fs::read(dir.join(file)).ok();
        let text = |file: &str| Some(String::from_utf8_lossy(&text(file)?).into_owned());
        if comm
            .is_some_and(|comm| text("comm").is_none_or(|own| own.trim_end_matches('\n') != comm))
        {
            return None;
        }
        let status = text("status")?;
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
            cpus: allowed_cpus(&status).unwrap_or_default().to_owned(),
            cgroup,
            python: self.runs_python(pid),
            autogroup: self.autogroup(pid, &groups).unwrap_or_default(),
            cpuset: self.cpuset(&groups).unwrap_or_default(),
            busy_threads: 0,
            on_one_cpu: false,
            serves: Vec::new(),
        })
    }

    /// Returns how much the processes of a victim's cgroup have used of what its limit leaves: CPU time at a CPU limit, else file data
    /// where the group is at its memory limit.
    pub(crate) fn limit_use(&self, pid: u32, place: &Place, is_cpu: bool) -> Option<CgroupUse> {
        if is_cpu {
            let group = Path::new(&place.cpu_limit).parent()?;
            return cgroup_use::cpu_time(group, |pid| self.threads().ran(pid));
        }
        let hierarchy = self.hierarchy.as_ref()?;
        let groups = fs::read_to_string(self.proc_root.join(format!("{pid}/cgroup"))).ok()?;
        let groups = hierarchy.groups(&hierarchy.cgroup_of(&groups)?);
        let group = cgroup_use::full_of_cache(groups.into_iter().rev())?;
        cgroup_use::file_data(&group, &self.proc_root)
    }

    /// Returns the file systems that a process serves from user space, as another has them mounted.
    pub(crate) fn served(&self, server: u32, client: u32) -> Vec<String> {
        file_systems::served(&self.proc_root, server, client)
    }

    /// The name of a process.
    pub(crate) fn comm(&self, pid: u32) -> Option<String> {
        let comm = fs::read(self.proc_root.join(format!("{pid}/comm"))).ok()?;
        Some(String::from_utf8_lossy(&comm).trim_end_matches('\n').to_owned())
    }

    /// The threads of its processes.
    pub(crate) fn threads(&self) -> Threads<'_> {
        Threads { proc_root: &self.proc_root }
    }

    /// The thread of a process that has this name, if it is the only one beside `but`.
    pub(crate) fn thread(&self, pid: u32, name: &str, but: u32) -> Option<u32> {
        let tasks = fs::read_dir(self.proc_root.join(pid.to_string()).join("task")).ok()?;
        let tasks: Vec<_> = tasks.flatten().take(MAX_THREADS + 1).collect();
        let named = |task: &&fs::DirEntry| {
            let comm = fs::read(task.path().join("comm")).unwrap_or_default();
            String::from_utf8_lossy(&comm).trim_end_matches('\n') == name
        };
        let ids =
            tasks.iter().filter(named).filter_map(|task| task.file_name().to_str()?.parse().ok());
        let ids: Vec<u32> = ids.filter(|tid| *tid != but).collect();
        match ids[..] {
            [tid] if tasks.len() <= MAX_THREADS => Some(tid),
            _ => None,
        }
    }

    /// Returns true if the program of a process is CPython. Its mappings are not read: that waits for a process that hangs in the kernel
    /// while it changes them.
    fn runs_python(&self, pid: u32) -> bool {
        let dir = self.proc_root.join(pid.to_string());
        fs::read_link(dir.join("exe")).is_ok_and(|program| is_python(&program))
    }

    /// The autogroup that a process is scheduled in: the kernel takes it only where no cgroup is weighed.
    fn autogroup(&self, pid: u32, groups: &str) -> Option<String> {
        let text = |file: &str| fs::read_to_string(self.proc_root.join(file)).ok();
        if text("sys/kernel/sched_autogroup_enabled")?.trim() != "1" {
            return None;
        }
        if let Some(hierarchy) = &self.hierarchy
            && hierarchy.is_weighted(&hierarchy.cgroup_of(groups)?)
        {
            return None;
        }
        Some(text(&format!("{pid}/autogroup"))?.split_whitespace().next()?.to_owned())
    }

    fn cpuset(&self, groups: &str) -> Option<String> {
        let hierarchy = self.hierarchy.as_ref()?;
        hierarchy.cpuset(&hierarchy.cgroup_of(groups)?)
    }

    fn cpu_limit(&self, groups: &str) -> Option<String> {
        let hierarchy = self.hierarchy.as_ref()?;
        let file = hierarchy.cpu_limit(&hierarchy.cgroup_of(groups)?)?;
        Some(file.to_string_lossy().into_owned())
    }
}

/// Returns true if a program is named like CPython: `python`, `python3.11`.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let version = name.strip_prefix("python");
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
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

    fn process(root: &Path, pid: u32) -> PathBuf {
        let dir = root.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("status"), "").unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
        dir
    }

    #[test]
    fn a_process_whose_program_is_python_runs_python() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::at(root.path(), root.path(), root.path().join("online"));
        for (pid, program, expected) in [
            (1, "/usr/bin/python3.11", true),
            (2, "/opt/venv/bin/python", true),
            (3, "/srv/bin/python-data", false),
            (4, "/srv/bin/train", false),
        ] {
            let dir = process(root.path(), pid);
            std::os::unix::fs::symlink(program, dir.join("exe")).unwrap();
            assert_eq!(places.of(pid, None).unwrap().python, expected, "{program}");
        }
    }

    #[test]
    fn an_autogroup_counts_where_it_is_enabled() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::at(root.path(), root.path(), root.path().join("online"));
        fs::write(process(root.path(), 7).join("autogroup"), "/autogroup-12 nice 0\n").unwrap();
        let setting = root.path().join("sys/kernel");
        fs::create_dir_all(&setting).unwrap();
        for (enabled, expected) in [("0\n", ""), ("1\n", "/autogroup-12")] {
            fs::write(setting.join("sched_autogroup_enabled"), enabled).unwrap();
            assert_eq!(places.of(7, None).unwrap().autogroup, expected);
        }
    }

    #[test]
    fn a_thread_is_found_by_a_name_that_no_other_has() {
        let root = tempfile::tempdir().unwrap();
        let tasks = process(root.path(), 7).join("task");
        for (tid, name) in [(7, "train"), (8, "flusher"), (9, "train"), (10, "pool"), (11, "pool")]
        {
            let task = tasks.join(tid.to_string());
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("{name}\n")).unwrap();
        }
        let places = Places::at(root.path(), root.path(), root.path().join("online"));
        assert_eq!(places.thread(7, "flusher", 7), Some(8));
        assert_eq!(places.thread(7, "train", 7), Some(9), "the victim does not hold the lock");
        assert_eq!(places.thread(7, "pool", 7), None);
        assert_eq!(places.thread(7, "gone", 7), None);
        assert_eq!(places.thread(8, "flusher", 8), None, "the process has ended");
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
        assert_eq!(place.describe(28576), "PID 28576, fluent-bit.service, allowed on CPUs 0-1,4");
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
