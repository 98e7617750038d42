//! Which cgroup a process is in, and which container, pod and batch job that is.

/// Facts that the path of a cgroup reveals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// Path in the most informative hierarchy.
    pub(super) cgroup: String,
    /// Full id of the innermost container.
    pub(super) container_id: Option<String>,
    /// UID of the innermost Kubernetes pod, in the form that the API server shows.
    pub(super) pod_uid: Option<String>,
    /// Number of the Slurm job, or its SLUID where only that is known.
    pub(super) slurm_job: Option<String>,
}

impl Membership {
    /// Parses a `/proc/PID/cgroup` file. Prefers the hierarchy in use; if it names nothing, as the unified one of a hybrid host,
    /// takes the first other one that does.
    pub fn of(file: &str) -> Self {
        let preferred = Self::of_path(hierarchy_in_use(file));
        if preferred.names_any() {
            return preferred;
        }
        rows(file).map(|(_, path)| Self::of_path(path)).find(Self::names_any).unwrap_or(preferred)
    }

    fn of_path(path: &str) -> Self {
        let owned = |text: &str| text.to_owned();
        Self {
            cgroup: path.to_owned(),
            container_id: container_id(path).map(owned),
            pod_uid: pod_uid(path),
            slurm_job: slurm_job(path).map(owned),
        }
    }

    const fn names_any(&self) -> bool {
        self.container_id.is_some() || self.pod_uid.is_some() || self.slurm_job.is_some()
    }
}

/// Controllers and path of each line.
fn rows(file: &str) -> impl Iterator<Item = (&str, &str)> {
    file.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some((controllers, path))
    })
}

/// The path in the unified hierarchy, or in that of the memory controller where the unified one is not in use. Empty when
/// there is neither.
fn hierarchy_in_use(file: &str) -> &str {
    let unified = rows(file).find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| path);
    let memory = rows(file)
        .find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"))
        .map(|(_, path)| path);
    match (unified, memory) {
        (Some("/") | None, Some(path)) | (Some(path), _) => path,
        (None, None) => "",
    }
}

/// The innermost component that ends in 64 hexadecimal digits, as Docker (`docker-ID.scope`, `/docker/ID`), containerd
/// (`cri-containerd-ID.scope`, `...slice:cri-containerd:ID`, `/podUID/ID`), CRI-O (`crio-ID.scope`) and Podman
/// (`libpod-ID.scope`) name it. The monitor that CRI-O and Podman give each container is outside of it.
fn container_id(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').find_map(|component| {
        let stem = component.strip_suffix(".scope").unwrap_or(component);
        let (kind, id) = stem.rsplit_once(['-', ':']).unwrap_or(("", stem));
        let is_id = id.len() == 64 && id.bytes().all(is_hex);
        (is_id && !kind.ends_with("conmon")).then_some(id)
    })
}

/// The innermost component `podUID`, as the kubelet's cgroupfs driver names it, or `...-podUID.slice` with dashes escaped,
/// as its systemd driver does. The UID of a static pod is a hash without dashes.
fn pod_uid(cgroup: &str) -> Option<String> {
    cgroup.rsplit('/').find_map(|component| {
        // A containerd whose driver is not that of the kubelet takes the path for a name: `...slice:cri-containerd:ID`.
        let (slice, _) = component.split_once(':').unwrap_or((component, ""));
        let (before, uid) = slice.strip_suffix(".slice").unwrap_or(slice).rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        ((before.is_empty() || before.ends_with('-')) && is_uid(&uid)).then_some(uid)
    })
}

fn is_uid(text: &str) -> bool {
    let groups = text.split('-').map(|group| group.bytes().all(is_hex).then_some(group.len()));
    matches!(groups.collect::<Option<Vec<_>>>().as_deref(), Some([32] | [8, 4, 4, 4, 12]))
}

const fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The number in `job_NUMBER`, or the SLUID by which Slurm 26.05 names the job, below the folder of a Slurm daemon: `slurm`,
/// `slurm_NODE`, `slurmstepd.scope` or `NODE_slurmstepd.scope`.
fn slurm_job(cgroup: &str) -> Option<&str> {
    let mut components = cgroup.split('/');
    components.find(|component| {
        *component == "slurm"
            || component.starts_with("slurm_")
            || component.ends_with("slurmstepd.scope")
    })?;
    components.find_map(|component| match component.strip_prefix("job_") {
        Some(job) => is_slurm_number(job).then_some(job),
        None => is_sluid(component).then_some(component),
    })
}

/// Returns true if the job is known by its number.
pub(super) fn is_slurm_number(job: &str) -> bool {
    !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit())
}

/// 64 bits in the alphabet of Crockford's Base32, after an `s`.
fn is_sluid(text: &str) -> bool {
    let is_digit =
        |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(&byte));
    let digits = text.strip_prefix('s').map(str::as_bytes);
    digits.is_some_and(|digits| digits.len() == 13 && digits.iter().all(|&byte| is_digit(byte)))
}

#[cfg(test)]
mod tests;
