//! The cgroup hierarchy of the CPU controller.

use std::fs::read_to_string;
use std::path::PathBuf;

/// The hierarchy of the CPU controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// Where it is mounted.
    at: PathBuf,
    /// The group that is mounted there.
    from: String,
    /// True if it is the one that all controllers share.
    unified: bool,
}

impl Hierarchy {
    /// Out of the text of a `mountinfo` file.
    pub(crate) fn in_mounts(mounts: &str) -> Option<Self> {
        let mounted = mounts.lines().filter_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (from, at) = (mount.next()?.to_owned(), PathBuf::from(mount.next()?));
            let mut system = system.split(' ');
            let (kind, options) = (system.next()?, system.nth(1).unwrap_or_default());
            match kind {
                "cgroup" if options.split(',').any(|option| option == "cpu") => {
                    Some(Self { at, from, unified: false })
                }
                "cgroup2" => Some(Self { at, from, unified: true }),
                _ => None,
            }
        });
        // A controller that is in a hierarchy of its own is not in the unified one.
        mounted.min_by_key(|hierarchy| hierarchy.unified)
    }

    /// The path of a process's group out of its `cgroup` file.
    pub(crate) fn cgroup_of(&self, file: &str) -> Option<String> {
        file.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let is_ours = if self.unified {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == "cpu")
            };
            is_ours.then(|| path.to_owned())
        })
    }

    /// The folders of a group and of all above it.
    pub(crate) fn groups(&self, cgroup: &str) -> Vec<PathBuf> {
        let inside = cgroup.strip_prefix(self.from.trim_end_matches('/')).unwrap_or(cgroup);
        let mut groups = vec![self.at.clone()];
        for name in inside.split('/').filter(|name| !name.is_empty() && *name != "..") {
            let above = groups.last().cloned().unwrap_or_default();
            groups.push(above.join(name));
        }
        groups
    }

    /// Returns true if the scheduler weighs a group against others: it does not weigh the root, nor groups without the CPU controller.
    pub(crate) fn is_weighted(&self, cgroup: &str) -> bool {
        let file = if self.unified { "cpu.weight" } else { "cpu.shares" };
        let root = usize::from(self.from == "/");
        self.groups(cgroup).iter().skip(root).any(|group| group.join(file).exists())
    }

    /// The CPUs that a group may use, by itself or the nearest above it that says so; `None` where that is unknown.
    pub(crate) fn cpuset(&self, cgroup: &str) -> Option<String> {
        let files = self.groups(cgroup).into_iter().rev();
        let mut texts = files.map(|group| read_to_string(group.join("cpuset.cpus.effective")));
        Some(texts.find_map(Result::ok)?.trim().to_owned())
    }

    /// The file with the lowest CPU limit of a group and those above it, the innermost of equal ones.
    pub(crate) fn cpu_limit(&self, cgroup: &str) -> Option<PathBuf> {
        let groups = self.groups(cgroup).into_iter().rev();
        let limits = groups.filter_map(|group| {
            let (file, text) = if self.unified {
                let file = group.join("cpu.max");
                let text = read_to_string(&file).ok()?;
                (file, text)
            } else {
                let file = group.join("cpu.cfs_quota_us");
                let period = read_to_string(group.join("cpu.cfs_period_us")).ok()?;
                let text = format!("{} {period}", read_to_string(&file).ok()?.trim());
                (file, text)
            };
            let (quota, period) = text.trim().split_once(' ')?;
            let cpus = quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?;
            (cpus > 0.0).then_some((file, cpus))
        });
        limits.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(file, _)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 23 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V2: &str = "25 22 0:23 /kubepods /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_controller_in_a_hierarchy_of_its_own_is_read_there() {
        let hierarchy = Hierarchy::in_mounts(V1).unwrap();
        let cgroup = hierarchy.cgroup_of("4:cpu,cpuacct:/a/b\n0::/c\n").unwrap();
        let groups = hierarchy.groups(&cgroup);
        let expected = ["", "/a", "/a/b"].map(|end| format!("/sys/fs/cgroup/cpu,cpuacct{end}"));
        assert_eq!(groups, expected.map(PathBuf::from));
    }

    #[test]
    fn a_mount_that_begins_below_the_root_is_followed_from_there() {
        let hierarchy = Hierarchy::in_mounts(V2).unwrap();
        let cgroup = hierarchy.cgroup_of("0::/kubepods/pod1\n").unwrap();
        let groups = hierarchy.groups(&cgroup);
        assert_eq!(groups, ["/sys/fs/cgroup", "/sys/fs/cgroup/pod1"].map(PathBuf::from));
    }

    #[test]
    fn the_limit_is_the_lowest_of_a_group_and_those_above_it() {
        for (kind, file, none, half, two) in [
            ("cgroup2 cgroup2 rw", "cpu.max", "max 100000\n", "50000 100000\n", "200000 100000\n"),
            ("cgroup cgroup rw,cpu", "cpu.cfs_quota_us", "-1\n", "50000\n", "200000\n"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let mounts = format!("30 23 0:26 / {} rw - {kind}\n", root.path().display());
            let hierarchy = Hierarchy::in_mounts(&mounts).unwrap();
            let [job, pod] = ["job", "job/pod"].map(|name| root.path().join(name));
            std::fs::create_dir_all(&pod).unwrap();
            for (outer, inner, expected) in [
                (half, none, Some(&job)),
                (half, two, Some(&job)),
                (two, half, Some(&pod)),
                (half, half, Some(&pod)),
                (none, none, None),
            ] {
                for (group, limit) in [(&job, outer), (&pod, inner)] {
                    std::fs::write(group.join(file), limit).unwrap();
                    std::fs::write(group.join("cpu.cfs_period_us"), "100000\n").unwrap();
                }
                let expected = expected.map(|group| group.join(file));
                assert_eq!(hierarchy.cpu_limit("/job/pod"), expected, "{outer} {inner}");
            }
        }
    }

    #[test]
    fn groups_below_the_root_are_weighed_where_they_have_the_cpu_controller() {
        for (kind, file) in
            [("cgroup2 cgroup2 rw", "cpu.weight"), ("cgroup cgroup rw,cpu", "cpu.shares")]
        {
            let root = tempfile::tempdir().unwrap();
            let mounts = format!("30 23 0:26 / {} rw - {kind}\n", root.path().display());
            let hierarchy = Hierarchy::in_mounts(&mounts).unwrap();
            std::fs::create_dir_all(root.path().join("a/b")).unwrap();
            // The root of version 1 has the file.
            std::fs::write(root.path().join(file), "").unwrap();
            assert!(!hierarchy.is_weighted("/") && !hierarchy.is_weighted("/a/b"));
            std::fs::write(root.path().join("a").join(file), "").unwrap();
            assert!(hierarchy.is_weighted("/a/b") && !hierarchy.is_weighted("/c"));
        }
    }

    #[test]
    fn without_control_groups_there_is_no_hierarchy() {
        assert_eq!(Hierarchy::in_mounts("25 22 0:23 / /proc rw - proc proc rw\nunknown\n"), None);
    }
}
