//! Obstacles that hide the host from this process: the namespaces of a container, options of `/proc` and missing capabilities. Kernel maps
//! count all processes whatever is hidden, but libraries are found, and processes named, through `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};

/// The inodes of the kernel's initial namespaces. `NSpid` of `/proc/self/status` is no help: a container's own `/proc` begins with the
/// PID in the container.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";
const HOST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Something that hides processes, or a part of what is said of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obstacle {
    /// The cause.
    pub subject: &'static str,
    /// The effect, and behind a dash the remedy.
    pub reason: &'static str,
    /// True if nothing that is found says anything of the host.
    pub hides_all: bool,
}

/// This process is in a PID namespace of its own.
pub const PID_NAMESPACE: Obstacle = Obstacle {
    subject: "PID namespace",
    reason: "not the host's, so processes are not found - in a container use the host's: hostPID: true, or docker run --pid=host",
    hides_all: true,
};
const USER_NAMESPACE: Obstacle = Obstacle {
    subject: "user namespace",
    reason: "not the host's, so its capabilities show no process of the host - in a container use the host's: hostUsers: true, or docker run --userns=host",
    hides_all: true,
};
const HIDEPID: Obstacle = Obstacle {
    subject: "/proc",
    reason: "mounted with hidepid, so processes of other users are not found - grant CAP_SYS_PTRACE, or mount it with hidepid=0",
    hides_all: true,
};
const NO_PTRACE: Obstacle = Obstacle {
    subject: "CAP_SYS_PTRACE",
    reason: "missing, so libraries of other users' processes are not opened - grant it, as the systemd unit does",
    hides_all: false,
};
const CGROUP_NAMESPACE: Obstacle = Obstacle {
    subject: "cgroup namespace",
    reason: "not the host's, so CPU limits of processes are not observed - in a container use the host's: privileged: true, or docker run --cgroupns=host",
    hides_all: false,
};
const ALL: [Obstacle; 5] = [PID_NAMESPACE, USER_NAMESPACE, HIDEPID, NO_PTRACE, CGROUP_NAMESPACE];

impl Obstacle {
    /// Returns the obstacle as one sentence.
    pub fn sentence(&self) -> String {
        format!("{}: {}", self.subject, self.reason)
    }

    /// Returns true if a daemon gave this sentence as the reason why it observes nothing.
    pub(crate) fn is_reason(sentence: &str) -> bool {
        ALL.iter().any(|own| own.hides_all && own.sentence() == sentence)
    }
}

/// Returns the obstacles of this process now.
pub fn obstacles() -> Vec<Obstacle> {
    let may_trace = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_PTRACE);
    // Unknown is not missing.
    obstacles_in(Path::new("/proc"), may_trace.unwrap_or(true))
}

fn obstacles_in(proc_root: &Path, may_trace: bool) -> Vec<Obstacle> {
    let namespace = |name: &str| fs::read_link(proc_root.join("self/ns").join(name)).ok();
    let is_other = |own: PathBuf, of_host: &str| own.as_os_str() != of_host;
    let text = |file: &str| fs::read_to_string(proc_root.join(file)).unwrap_or_default();
    let hides_processes = !may_trace && hides_processes(&text("self/mountinfo"));
    let found = [
        // A `/proc` of another namespace does not have this process.
        (PID_NAMESPACE, namespace("pid").is_none_or(|own| is_other(own, HOST_PID_NAMESPACE))),
        // A kernel may have no user namespaces.
        (USER_NAMESPACE, namespace("user").is_some_and(|own| is_other(own, HOST_USER_NAMESPACE))),
        (HIDEPID, hides_processes),
        (NO_PTRACE, !may_trace && !hides_processes),
        // The namespace of the root cgroup shows all.
        (CGROUP_NAMESPACE, text("1/cgroup").lines().any(is_outside)),
    ];
    found.into_iter().filter(|(_, is_one)| *is_one).map(|(obstacle, _)| obstacle).collect()
}

/// Returns true if `/proc` shows processes of other users only to those who may trace them.
fn hides_processes(mounts: &str) -> bool {
    // The last one covers those before.
    let mount = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    let options = mount.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let hidepid = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    hidepid.is_some_and(|value| !["0", "off"].contains(&value))
}

/// Returns true if a line of a `cgroup` file has a path outside of the namespace.
fn is_outside(line: &str) -> bool {
    line.splitn(3, ':').nth(2).is_some_and(|path| path.starts_with("/.."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns the obstacles for a `/proc` with this content.
    fn found(pid: &str, user: &str, cgroup: &str, mount: &str, may_trace: bool) -> Vec<Obstacle> {
        let proc_root = tempfile::tempdir().unwrap();
        let at = |file: &str| proc_root.path().join(file);
        fs::create_dir_all(at("self/ns")).unwrap();
        fs::create_dir(at("1")).unwrap();
        symlink(pid, at("self/ns/pid")).unwrap();
        symlink(user, at("self/ns/user")).unwrap();
        fs::write(at("1/cgroup"), format!("0::{cgroup}\n")).unwrap();
        let mounts = format!(
            "24 29 0:22 / /sys rw - sysfs sysfs rw\n25 29 0:23 / /proc rw - proc proc {mount}\n"
        );
        fs::write(at("self/mountinfo"), mounts).unwrap();
        obstacles_in(proc_root.path(), may_trace)
    }

    #[test]
    fn a_daemon_on_the_host_sees_everything() {
        for mount in ["rw", "rw,hidepid=invisible", "rw,gid=1,hidepid=2"] {
            let found = found(HOST_PID_NAMESPACE, HOST_USER_NAMESPACE, "/init.scope", mount, true);
            assert_eq!(found, [], "{mount}");
        }
    }

    #[test]
    fn each_namespace_of_its_own_hides_something() {
        let (pid, user, cgroup) = (HOST_PID_NAMESPACE, HOST_USER_NAMESPACE, "/init.scope");
        assert_eq!(found("pid:[4026532222]", user, cgroup, "rw", true), [PID_NAMESPACE]);
        assert_eq!(found(pid, "user:[4026532223]", cgroup, "rw", true), [USER_NAMESPACE]);
        assert_eq!(found(pid, user, "/../../init.scope", "rw", true), [CGROUP_NAMESPACE]);
        assert_eq!(found(pid, user, "/..", "rw", true), [CGROUP_NAMESPACE]);
    }

    #[test]
    fn without_the_capability_to_trace_other_users_are_hidden_and_by_hidepid_their_processes() {
        let found = |mount| found(HOST_PID_NAMESPACE, HOST_USER_NAMESPACE, "/", mount, false);
        for mount in ["rw,hidepid=1", "rw,hidepid=invisible", "rw,hidepid=ptraceable"] {
            assert_eq!(found(mount), [HIDEPID], "{mount}");
        }
        for mount in ["rw", "rw,hidepid=0", "rw,hidepid=off"] {
            assert_eq!(found(mount), [NO_PTRACE], "{mount}");
        }
    }

    #[test]
    fn a_proc_without_the_process_itself_is_of_another_namespace() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(obstacles_in(empty.path(), true), [PID_NAMESPACE]);
    }

    #[test]
    fn only_what_hides_all_is_a_reason_to_observe_nothing() {
        assert!(Obstacle::is_reason(&HIDEPID.sentence()));
        assert!(!Obstacle::is_reason(&CGROUP_NAMESPACE.sentence()));
    }
}
