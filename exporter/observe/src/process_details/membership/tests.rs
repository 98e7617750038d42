//! Paths as the runtimes make them.

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OUTER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
const UID: &str = "1b4c7d8e-09af-4c1d-8e2f-a1b2c3d4e5f6";
const ESCAPED: &str = "1b4c7d8e_09af_4c1d_8e2f_a1b2c3d4e5f6";
const STATIC: &str = "5d9f2b7c1e3a4f608192a3b4c5d6e7f8";

/// Path, container, pod and job.
type Row = (String, Option<&'static str>, Option<&'static str>, Option<&'static str>);

fn row(path: String, container: bool, pod: bool) -> Row {
    (path, container.then_some(ID), pod.then_some(UID), None)
}

fn kubernetes() -> Vec<Row> {
    let mut rows = Vec::new();
    for (cgroupfs, systemd) in [
        ("kubepods", "kubepods.slice/kubepods"),
        ("kubepods/burstable", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable"),
        ("kubepods/besteffort", "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort"),
    ] {
        rows.push(row(format!("/{cgroupfs}/pod{UID}/{ID}"), true, true));
        for scope in ["cri-containerd", "crio", "docker"] {
            rows.push(row(format!("/{systemd}-pod{ESCAPED}.slice/{scope}-{ID}.scope"), true, true));
        }
    }
    let slice = format!("kubepods-burstable-pod{ESCAPED}.slice");
    let kubelet = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice";
    rows.extend([
        // CRI-O moves the processes of a container below its scope, and its monitor is beside it.
        row(format!("/kubepods.slice/{slice}/crio-{ID}.scope/container"), true, true),
        row(format!("/kubepods.slice/{slice}/crio-conmon-{ID}.scope"), false, true),
        // containerd with the cgroupfs driver under a kubelet with that of systemd.
        row(format!("/system.slice/containerd.service/{slice}:cri-containerd:{ID}"), true, true),
        // kind, on Docker: version 2 with systemd and cgroupfs, and version 1.
        row(
            format!(
                "/system.slice/docker-{OUTER}.scope/{kubelet}/kubelet-kubepods-burstable-pod{ESCAPED}.slice/\
                 cri-containerd-{ID}.scope"
            ),
            true,
            true,
        ),
        row(format!("/docker/{OUTER}/kubelet/kubepods/burstable/pod{UID}/{ID}"), true, true),
        row(format!("/docker/{OUTER}/docker/{OUTER}/kubepods/pod{UID}/{ID}"), true, true),
        // Docker inside of a pod.
        row(format!("/kubepods/burstable/pod{UID}/{OUTER}/docker/{ID}"), true, true),
        // Seen from a daemon in a cgroup namespace of its own.
        row(format!("/../../pod{UID}/{ID}"), true, true),
        row(format!("/../kubepods-besteffort-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"), true, true),
        (format!("/kubepods/burstable/pod{STATIC}/{ID}"), Some(ID), Some(STATIC), None),
        (
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope"),
            Some(ID),
            Some(STATIC),
            None,
        ),
    ]);
    rows
}

fn engines() -> Vec<Row> {
    let user = "/user.slice/user-1000.slice/user@1000.service";
    [
        format!("/docker/{ID}"),
        format!("/system.slice/docker-{ID}.scope"),
        format!("/system.slice/docker-{ID}.scope/init"),
        format!("/docker/{OUTER}/docker/{ID}"),
        format!("{user}/app.slice/docker-{ID}.scope"),
        format!("/system.slice/nerdctl-{ID}.scope"),
        format!("/default/{ID}"),
        format!("/machine.slice/libpod-{ID}.scope"),
        format!("/machine.slice/libpod-{ID}.scope/container"),
        format!("{user}/user.slice/libpod-{ID}.scope/container"),
        format!("/machine.slice/machine-libpod_pod_{OUTER}.slice/libpod-{ID}.scope"),
        format!("/libpod_parent/libpod-{ID}"),
        format!("/ecs/0123456789abcdef0123456789abcdef/{ID}"),
        format!("/garden/../{ID}"),
    ]
    .into_iter()
    .map(|path| row(path, true, false))
    .collect()
}

fn slurm() -> Vec<Row> {
    let job = |path: &str| (path.to_owned(), None, None, Some("4711"));
    vec![
        job("/slurm/uid_1000/job_4711/step_0/task_0"),
        job("/slurm/uid_1000/job_4711/step_batch"),
        job("/slurm_gpu-7/uid_1000/job_4711/step_extern"),
        job("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"),
        job("/system.slice/slurmstepd.scope/job_4711/step_interactive/user/task_special"),
        job("/system.slice/gpu-7_slurmstepd.scope/job_4711/step_batch/slurm"),
        // Slurm 26.05.
        (
            "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0".into(),
            None,
            None,
            Some("s5K1KKYAYG5D00"),
        ),
        // A container engine in a job.
        (
            format!("/system.slice/slurmstepd.scope/job_4711/step_0/user/libpod-{ID}.scope"),
            Some(ID),
            None,
            Some("4711"),
        ),
        row("/system.slice/slurmd.service".into(), false, false),
        row("/system.slice/slurmstepd.scope/system".into(), false, false),
        row("/user.slice/job_4711".into(), false, false),
        row("/user.slice/s5K1KKYAYG5D00".into(), false, false),
        row("/system.slice/slurmstepd.scope/s5K1KKYAYG5D0".into(), false, false),
        row("/system.slice/slurmstepd.scope/s5K1KKYAYG5DU0".into(), false, false),
        row("/slurm/uid_1000/job_/step_0".into(), false, false),
        row("/slurm/uid_1000/job_47x/step_0".into(), false, false),
    ]
}

fn nothing() -> Vec<Row> {
    [
        String::new(),
        "/".into(),
        "/user.slice/user-1000.slice/session-1.scope".into(),
        "/system.slice/kubelet.service".into(),
        "/docker/0123456789abcdef".into(),
        format!("/docker/{}", ID.to_uppercase()),
        format!("/docker/{ID}0"),
        format!("/machine.slice/libpod-conmon-{ID}.scope"),
        format!("/machine.slice/machine-libpod_pod_{ID}.slice"),
        format!("/kubepods/tripod{UID}"),
        format!("/kubepods/pod{}", UID.to_uppercase()),
        format!("/kubepods/pod{UID}0"),
        "/kubepods/pod1234".into(),
        "/kubepods/pod".into(),
    ]
    .into_iter()
    .map(|path| row(path, false, false))
    .collect()
}

#[test]
fn paths_of_every_runtime_tell_container_pod_and_job() {
    for (path, container, pod, job) in [kubernetes(), engines(), slurm(), nothing()].concat() {
        let found = Membership::of_path(&path);
        let ids =
            (found.container_id.as_deref(), found.pod_uid.as_deref(), found.slurm_job.as_deref());
        assert_eq!(ids, (container, pod, job), "{path}");
        assert_eq!(found.cgroup, path);
    }
}

#[test]
fn the_path_is_that_of_the_hierarchy_in_use() {
    for (file, path) in [
        ("0::/a.slice\n", "/a.slice"),
        ("0::/\n", "/"),
        ("5:cpu,memory:/m:n\n1:name=systemd:/s\n0::/\n", "/m:n"),
        ("5:memory:/m\n0::/unified\n", "/unified"),
        ("5:memory:/m\n", "/m"),
        ("1:name=systemd:/s\n", ""),
        ("not a cgroup line\n", ""),
        ("", ""),
    ] {
        assert_eq!(Membership::of(file).cgroup, path, "{file}");
    }
}

#[test]
fn a_hierarchy_that_tells_more_wins_over_the_one_in_use() {
    let hybrid = format!(
        "12:devices:/docker/{ID}\n5:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n\
         0::/system.slice/containerd.service\n"
    );
    let found = Membership::of(&hybrid);
    assert_eq!((found.container_id.as_deref(), found.cgroup), (Some(ID), format!("/docker/{ID}")));
    // Slurm that follows processes by the freezer and limits nothing.
    let slurm = "9:freezer:/slurm/uid_1/job_7/step_0\n5:memory:/system.slice/slurmd.service\n";
    let found = Membership::of(slurm);
    assert_eq!(found.slurm_job.as_deref(), Some("7"));
    assert_eq!(found.cgroup, "/slurm/uid_1/job_7/step_0");
}
