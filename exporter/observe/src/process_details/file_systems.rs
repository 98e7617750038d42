//! File systems that a process serves from user space, where another process has them mounted.

use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::path::Path;

/// Descriptors of a process that are read at most.
const MAX_DESCRIPTORS: usize = 4096;
const DEVICE: &str = "/dev/fuse";

/// A sentence names so many mount points at most: one server may have hundreds.
const MAX_NAMED: usize = 3;

/// The first mount points that `client` has of file systems that `server` serves, with their types. Where the kernel does not report
/// which it serves, as before 6.16, the only one in user space that is mounted there.
pub(super) fn served(proc_root: &Path, server: u32, client: u32) -> Vec<String> {
    let path = proc_root.join(format!("{client}/mountinfo"));
    let mounts = read_to_string(path).unwrap_or_default();
    let all: Vec<_> = mounts.lines().filter_map(mount).collect();
    // Most processes have none, and this is asked of each chain in each evaluation.
    if all.is_empty() {
        return Vec::new();
    }
    let connections = connections(&proc_root.join(server.to_string()));
    let is_unknown = connections.contains(&None) && all.len() == 1;
    let is_served =
        |(device, _): &(u32, String)| is_unknown || connections.contains(&Some(*device));
    all.into_iter().filter(is_served).map(|(_, name)| name).take(MAX_NAMED).collect()
}

/// Number and name of a file system in user space, out of a line of `mountinfo`.
fn mount(line: &str) -> Option<(u32, String)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let (device, point) = (mount.next()?, mount.nth(1)?);
    let kind = system.split(' ').next()?;
    let is_served = kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.");
    let number = device.strip_prefix("0:")?.parse().ok()?;
    is_served.then(|| (number, format!("{point} ({kind})")))
}

/// The file systems that a process answers for, by the numbers of their mounts; `None` for those without.
fn connections(process: &Path) -> HashSet<Option<u32>> {
    let open = read_dir(process.join("fd")).into_iter().flatten().flatten().take(MAX_DESCRIPTORS);
    let connection = |entry: std::fs::DirEntry| {
        read_link(entry.path()).ok().filter(|target| target == Path::new(DEVICE))?;
        let info = read_to_string(process.join("fdinfo").join(entry.file_name())).ok()?;
        let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        Some(number.and_then(|number| number.trim().parse().ok()))
    };
    open.filter_map(connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    const ARCHIVE: &str = "50 30 0:61 / /data/archive rw - fuse.ratarmount ratarmount rw\n";
    const CACHE: &str = "51 30 0:62 / /cache rw - fuse cache rw\n";
    const OTHERS: &str = "25 30 0:23 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n\
                          30 1 8:1 / / rw - ext4 /dev/sda1 rw\n";

    /// The file systems of process 7, which has this device open, that process 9 has mounted.
    fn found(device: &str, mounts: &[&str], info: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for dir in ["7/fd", "7/fdinfo", "9"] {
            create_dir_all(root.path().join(dir)).unwrap();
        }
        symlink(device, root.path().join("7/fd/4")).unwrap();
        symlink("/dev/null", root.path().join("7/fd/5")).unwrap();
        for fd in [4, 5] {
            write(root.path().join(format!("7/fdinfo/{fd}")), info).unwrap();
        }
        write(root.path().join("9/mountinfo"), mounts.concat()).unwrap();
        served(root.path(), 7, 9)
    }

    #[test]
    fn a_server_is_known_by_the_number_of_its_connection() {
        let info = "pos:\t0\nfuse_connection:\t61\n";
        let expected = ["/data/archive (fuse.ratarmount)"];
        assert_eq!(found(DEVICE, &[OTHERS, ARCHIVE, CACHE], info), expected);
        assert_eq!(found(DEVICE, &[OTHERS, CACHE], info), [""; 0]);
    }

    #[test]
    fn of_a_server_with_many_mounts_the_first_are_named() {
        let info = "fuse_connection:\t61\n";
        assert_eq!(found(DEVICE, &[ARCHIVE; 200], info).len(), MAX_NAMED);
    }

    #[test]
    fn without_that_number_it_serves_the_only_one_that_is_mounted() {
        assert_eq!(found(DEVICE, &[OTHERS, CACHE], "pos:\t0\n"), ["/cache (fuse)"]);
        assert_eq!(found(DEVICE, &[OTHERS, ARCHIVE, CACHE], "pos:\t0\n"), [""; 0]);
        assert_eq!(found("/dev/null", &[OTHERS, CACHE], "pos:\t0\n"), [""; 0]);
    }
}
