//! Where the control groups of the CPU controller are.

use std::path::PathBuf;

/// The hierarchy that has the CPU controller, as far as this daemon sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    at: PathBuf,
    /// The group that is mounted there.
    from: String,
    /// Whether it is the one that all controllers share.
    unified: bool,
}

impl Hierarchy {
    /// Out of the text of a `mountinfo` file.
    pub(super) fn in_mounts(mounts: &str) -> Option<Self> {
        let mounted = mounts.lines().filter_map(|line| {
            let (place, system) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (from, at) = (place.next()?.to_owned(), PathBuf::from(place.next()?));
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
    pub(super) fn cgroup_of(&self, file: &str) -> Option<String> {
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
    pub(super) fn groups(&self, cgroup: &str) -> Vec<PathBuf> {
        let inside = cgroup.strip_prefix(self.from.trim_end_matches('/')).unwrap_or(cgroup);
        let mut groups = vec![self.at.clone()];
        for name in inside.split('/').filter(|name| !name.is_empty() && *name != "..") {
            let above = groups.last().cloned().unwrap_or_default();
            groups.push(above.join(name));
        }
        groups
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
    fn without_control_groups_there_is_no_hierarchy() {
        assert_eq!(Hierarchy::in_mounts("25 22 0:23 / /proc rw - proc proc rw\nrubbish\n"), None);
    }
}
