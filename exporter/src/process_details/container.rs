//! Which cgroup and which container a process is in.

/// The path out of a `/proc/PID/cgroup` file: of the unified hierarchy, or of the memory controller where the unified
/// one is not in use. Empty when there is neither.
pub(super) fn cgroup_path(file: &str) -> String {
    let rows = || {
        file.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            Some((controllers, path))
        })
    };
    let unified = rows().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| path);
    let memory = rows()
        .find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"))
        .map(|(_, path)| path);
    match (unified, memory) {
        (Some("/") | None, Some(path)) | (Some(path), _) => path.to_owned(),
        (None, None) => String::new(),
    }
}

/// The container id in a cgroup path: the innermost component that ends in 64 hexadecimal digits, as Docker
/// (`docker-ID.scope`, `/docker/ID`), containerd (`cri-containerd-ID.scope`, `...slice:cri-containerd:ID`, `/podUID/ID`),
/// CRI-O (`crio-ID.scope`) and Podman (`libpod-ID.scope`) name it.
pub(super) fn container_id(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').find_map(|component| {
        let stem = component.strip_suffix(".scope").unwrap_or(component);
        let id = stem.rsplit(['-', ':']).next()?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (id.len() == 64 && id.bytes().all(is_hex)).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn ids_are_found_in_the_paths_of_every_runtime() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/docker-{ID}.scope/init"),
            format!("/kubepods/besteffort/pod1b4c7d8e-0000-0000-0000-000000000000/{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope/container"),
            format!("/machine.slice/libpod-{ID}.scope"),
            format!("/ecs/task/{ID}"),
        ] {
            assert_eq!(container_id(&path), Some(ID), "{path}");
        }
    }

    #[test]
    fn other_paths_have_no_container() {
        for path in [
            "",
            "/",
            "/user.slice/user-1000.slice/session-1.scope",
            "/docker/0123456789abcdef",
            &format!("/docker/{}", ID.to_uppercase()),
            &format!("/docker/{ID}0"),
        ] {
            assert_eq!(container_id(path), None, "{path}");
        }
    }

    #[test]
    fn the_inner_container_wins() {
        let outer = "f".repeat(64);
        assert_eq!(container_id(&format!("/docker/{outer}/docker/{ID}")), Some(ID));
    }

    #[test]
    fn the_path_is_that_of_the_hierarchy_in_use() {
        assert_eq!(cgroup_path("0::/a.slice\n"), "/a.slice");
        assert_eq!(cgroup_path("0::/\n"), "/");
        assert_eq!(cgroup_path("5:cpu,memory:/m:n\n1:name=systemd:/s\n0::/\n"), "/m:n");
        assert_eq!(cgroup_path("5:memory:/m\n0::/unified\n"), "/unified");
        assert_eq!(cgroup_path("5:memory:/m\n"), "/m");
        assert_eq!(cgroup_path("1:name=systemd:/s\n"), "");
        assert_eq!(cgroup_path("rubbish\n"), "");
    }
}
