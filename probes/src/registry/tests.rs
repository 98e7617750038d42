//! The registry on real files with a pretended kernel.

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::elf::fixture::stepped_library;
use crate::elf::fixture::{cuda_library, plain_library};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Notes what is asked of it, and refuses as often as configured.
#[derive(Default)]
struct Fake {
    log: Vec<String>,
    refuse: usize,
}

impl Attach for Fake {
    type Links = u16;
    type Error = &'static str;

    fn attach(
        &mut self,
        _: &File,
        link: LinkId,
        sites: &[ProbeSite],
        users: &[LaunchUsers; GROUPS],
    ) -> Result<u16, &'static str> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err("no memory");
        }
        let names: Vec<&str> = sites.iter().map(|site| site.symbol.as_str()).collect();
        self.log.push(format!("attach {} {}", link.0, names.join(" ")));
        if *users != [const { LaunchUsers::All }; GROUPS] {
            self.log.push(format!("{} of {}", link.0, described(users)));
        }
        Ok(link.0)
    }

    fn detach(&mut self, link: LinkId, links: u16) {
        assert_eq!(link.0, links);
        self.log.push(format!("detach {}", link.0));
    }

    fn set_launch_users(
        &mut self,
        _: &File,
        links: &mut u16,
        users: &[LaunchUsers; GROUPS],
    ) -> Result<(), &'static str> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err("no memory");
        }
        self.log.push(format!("{links} of {}", described(users)));
        Ok(())
    }
}

fn described(users: &[LaunchUsers; GROUPS]) -> String {
    let [runtime, driver, queries, asyncs, replaced @ ..] =
        users.each_ref().map(|users| match users {
            LaunchUsers::All => "all".to_owned(),
            LaunchUsers::Some(users) => {
                format!("{:?}", users.iter().map(|t| t.0).collect::<Vec<_>>())
            }
        });
    let replaced = if replaced == ["[]", "[]"] { "; none that may be replaced" } else { "" };
    format!("{runtime} and {driver}, {queries} and {asyncs}{replaced}")
}

struct Host {
    directory: tempfile::TempDir,
    registry: Registry<Fake>,
}

impl Host {
    fn new(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, registry: Registry::new(limits, Fake::default()) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn observe(&mut self, path: &Path) -> Option<FileId> {
        let mapping = mapping_of(path);
        self.registry.observe(Tgid(std::process::id()), &mapping, None)
    }

    /// Collects garbage as after a scan that saw none of the files, so long after they were seen.
    fn collect_after(&mut self, unseen: Duration) {
        self.registry.collect_garbage(Instant::now() + unseen);
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.registry.attacher().log)
    }

    fn verdicts(&self) -> Vec<(String, LibraryVerdict)> {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut verdicts: Vec<_> =
            self.registry.libraries().map(|status| (name(status.path), status.verdict)).collect();
        verdicts.sort_by(|a, b| a.0.cmp(&b.0));
        verdicts
    }
}

/// A mapping that no longer has an entry in `map_files`, so that the file is found by path and inode.
fn mapping_of(path: &Path) -> Mapping {
    Mapping {
        start: 0,
        end: 4096,
        offset: 0,
        device: crate::mapped::Device { major: 0, minor: 0 },
        inode: fs::metadata(path).map_or(0, |metadata| metadata.ino()),
        path: path.to_path_buf(),
        deleted: false,
    }
}

const SHORT: Duration = Duration::from_secs(1);
const ATTACH_0: &str = "attach 0 cudaMalloc cudaFree";

#[test]
fn a_library_is_attached_once_however_often_it_is_mapped() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[0xab]));
    let first = host.observe(&path);
    assert!(first.is_some());
    assert_eq!(host.observe(&path), first);
    assert_eq!(host.log(), [ATTACH_0]);
    let status = host.registry.libraries().next().unwrap();
    assert_eq!((status.sites, status.ops, status.link), (2, 2, Some(LinkId(0))));
    assert_eq!(
        (status.build_id.as_deref(), status.verdict),
        (Some("ab"), LibraryVerdict::Attached)
    );
    assert_eq!((status.path, status.gap), (path, None));
}

#[test]
fn the_time_from_mapping_to_attach_is_kept() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    let seen = Nanos(monotonic_now().unwrap().0 - 5_000_000);
    let own = Tgid(std::process::id());
    host.registry.observe(own, &mapping_of(&path), Some(seen));
    let status = host.registry.libraries().next().unwrap();
    assert!((5_000_000..60_000_000_000).contains(&status.gap.unwrap().0), "{status:?}");
    assert_eq!(status.gap, status.max_gap);
}

#[test]
fn a_program_with_the_runtime_linked_in_is_attached() {
    let mut host = Host::new(Limits::default());
    let path = host.write("train", &cuda_library(&[1]));
    host.observe(&path);
    assert_eq!(host.log(), [ATTACH_0]);
}

#[test]
fn a_library_replaced_by_rename_is_a_new_one_and_the_old_one_goes_with_its_last_user() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    let new = host.write("new", &cuda_library(&[2]));
    fs::rename(new, &path).unwrap();
    host.observe(&path);
    assert_eq!(host.log(), [ATTACH_0, "attach 1 cudaMalloc cudaFree"]);
    assert_eq!(host.registry.libraries().count(), 2);
    host.collect_after(SHORT);
    assert_eq!(host.log(), ["detach 0"]);
    assert_eq!(host.registry.libraries().next().unwrap().build_id.as_deref(), Some("02"));
}

#[test]
fn a_deleted_library_that_is_still_mapped_keeps_its_probes() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    let before_scan = Instant::now();
    host.observe(&path);
    fs::remove_file(&path).unwrap();
    host.registry.collect_garbage(before_scan);
    assert_eq!(host.log(), [ATTACH_0]);
    host.collect_after(SHORT);
    assert_eq!(host.log(), ["detach 0"]);
}

#[test]
fn a_library_overwritten_in_place_is_detached_before_it_is_reattached() {
    for by_scan in [false, true] {
        let mut host = Host::new(Limits::default());
        let path = host.write("libcudart.so.12", &cuda_library(&[1]));
        host.observe(&path);
        // The length changes too, since the clock of a file system may be coarse.
        fs::write(&path, [cuda_library(&[2]), vec![0; 8]].concat()).unwrap();
        if by_scan {
            host.registry.collect_garbage(Instant::now());
        } else {
            host.observe(&path);
        }
        assert_eq!(host.log(), [ATTACH_0, "detach 0", "attach 1 cudaMalloc cudaFree"]);
        assert_eq!(host.registry.counts().overwritten, 1);
        assert_eq!(host.registry.libraries().count(), 1);
    }
}

#[test]
fn a_library_has_no_probes_while_it_is_written() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
    // These are the same contents: what was written is not known before it is read.
    writer.write_all(&cuda_library(&[1])).unwrap();
    host.registry.follow_writes();
    host.registry.follow_writes();
    assert_eq!(host.log(), [ATTACH_0, "detach 0"]);
    drop(writer);
    host.registry.follow_writes();
    assert_eq!(host.log(), ["attach 1 cudaMalloc cudaFree"]);
    assert_eq!(host.registry.counts().overwritten, 1);
}

#[test]
fn a_library_overwritten_with_something_else_loses_its_probes() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    fs::write(&path, "gone").unwrap();
    host.registry.recheck();
    assert_eq!(host.log(), [ATTACH_0, "detach 0"]);
    let broken = LibraryVerdict::Broken("not an ELF file".to_owned());
    assert_eq!(host.verdicts(), [("libcudart.so.12".to_owned(), broken)]);
    fs::write(&path, cuda_library(&[3])).unwrap();
    host.observe(&path);
    assert_eq!(host.log(), ["attach 1 cudaMalloc cudaFree"]);
    assert_eq!(host.verdicts(), [("libcudart.so.12".to_owned(), LibraryVerdict::Attached)]);
}

#[test]
fn new_permissions_are_no_reason_to_detach() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    host.observe(&path);
    host.registry.recheck();
    assert_eq!(host.log(), [ATTACH_0]);
}

#[test]
fn an_unmapped_library_keeps_its_probes_for_the_grace_period() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    host.collect_after(UNMAPPED_GRACE - Duration::from_secs(60));
    assert_eq!(host.log(), [ATTACH_0]);
    host.collect_after(UNMAPPED_GRACE + SHORT);
    assert_eq!(host.log(), ["detach 0"]);
    assert_eq!(host.registry.libraries().count(), 0);
}

#[test]
fn a_library_without_living_processes_is_detached_by_the_next_scan_after_a_moment() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    let mut user =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    host.registry.observe(Tgid(user.id()), &mapping_of(&path), None).unwrap();
    let at = |seconds| Instant::now() + Duration::from_secs(seconds);
    assert!(!host.registry.has_abandoned(at(60)), "it lives");
    // It ends, and waits for its parent to ask how.
    drop(user.stdin.take());
    while crate::mapped::has_memory(Tgid(user.id())) {
        std::thread::yield_now();
    }
    let now = Instant::now();
    assert!(!host.registry.has_abandoned(now), "others may start");
    assert!(host.registry.has_abandoned(now + ABANDONED_GRACE));
    host.registry.collect_garbage(now + ABANDONED_GRACE);
    assert_eq!(host.log(), [ATTACH_0, "detach 0"]);
    user.wait().unwrap();
}

#[test]
fn a_library_that_another_process_maps_meanwhile_keeps_its_probes() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    host.registry.collect_garbage(Instant::now());
    let now = Instant::now();
    host.registry.has_abandoned(now);
    assert!(host.registry.has_abandoned(now + ABANDONED_GRACE), "the scan saw nobody");
    let scan = Instant::now();
    host.observe(&path);
    host.registry.collect_garbage(scan);
    assert!(!host.registry.has_abandoned(now + 2 * ABANDONED_GRACE));
    assert_eq!(host.log(), [ATTACH_0]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn functions_that_would_be_single_stepped_get_no_probe_where_that_is_a_risk() {
    let mut host = Host::new(Limits { single_steps: false, ..Limits::default() });
    let library = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&library);
    assert_eq!(host.verdicts(), [("libcudart.so.12".to_owned(), LibraryVerdict::Attached)]);
    let stepped = host.write("libcuda.so.1", &stepped_library());
    host.observe(&stepped);
    assert_eq!(host.verdicts()[0], ("libcuda.so.1".to_owned(), LibraryVerdict::SingleStepped));
    let of_it = |own: &LibraryStatus| own.path.ends_with("libcuda.so.1");
    let status = host.registry.libraries().find(of_it).unwrap();
    assert_eq!(
        (status.sites, status.left_out),
        (0, vec!["cudaMalloc".to_owned(), "cudaFree".to_owned()])
    );
    assert_eq!(host.log(), ["attach 0 cudaMalloc cudaFree"]);
}

#[test]
fn a_library_over_the_limit_is_reported_and_attached_once_below_the_limit() {
    let mut host = Host::new(Limits { attached: 1, ..Limits::default() });
    let first = host.write("libcudart.so.12", &cuda_library(&[1]));
    let second = host.write("libcuda.so.1", &cuda_library(&[2]));
    host.observe(&first);
    host.observe(&second);
    host.observe(&second);
    assert_eq!(host.log(), [ATTACH_0]);
    assert_eq!(host.verdicts()[0], ("libcuda.so.1".to_owned(), LibraryVerdict::OverLimit));
    assert_eq!(host.registry.counts().over_limit, 1);
    fs::remove_file(&first).unwrap();
    host.collect_after(SHORT);
    host.observe(&second);
    assert_eq!(host.log(), ["detach 0", "attach 1 cudaMalloc cudaFree"]);
    assert_eq!(host.verdicts(), [("libcuda.so.1".to_owned(), LibraryVerdict::Attached)]);
}

#[test]
fn libraries_without_traced_functions_are_reported_and_programs_are_not() {
    let mut host = Host::new(Limits::default());
    for (name, bytes) in [
        ("libcudart.so.12", b"not ELF".to_vec()),
        ("libcuda.so.1", plain_library()),
        ("program", plain_library()),
        ("script", b"#!/bin/sh".to_vec()),
    ] {
        let path = host.write(name, &bytes);
        assert!(host.observe(&path).is_some());
    }
    let broken = LibraryVerdict::Broken("not an ELF file".to_owned());
    let expected = [("libcuda.so.1", LibraryVerdict::NoSymbols), ("libcudart.so.12", broken)];
    assert_eq!(host.verdicts(), expected.map(|(name, verdict)| (name.to_owned(), verdict)));
    assert_eq!(host.log(), [""; 0]);
    host.collect_after(UNMAPPED_GRACE + SHORT);
    assert_eq!(host.verdicts(), []);
}

#[test]
fn a_truncated_library_is_broken() {
    let mut host = Host::new(Limits::default());
    let whole = cuda_library(&[1]);
    let path = host.write("libcudart.so.12", &whole[..whole.len() - 100]);
    host.observe(&path);
    let verdicts = host.verdicts();
    assert!(
        matches!(&verdicts[..], [(_, LibraryVerdict::Broken(why))] if why.contains("truncated"))
    );
}

#[test]
fn an_ignored_file_is_read_again_only_after_a_change() {
    let mut host = Host::new(Limits::default());
    let path = host.write("program", &plain_library());
    host.observe(&path);
    let generation = host.registry.generation();
    host.observe(&path);
    assert_eq!((host.log(), host.registry.generation()), (vec![], generation));
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    host.observe(&path);
    assert_eq!(host.log(), [""; 0]);
    fs::write(&path, cuda_library(&[9])).unwrap();
    host.observe(&path);
    assert_eq!(host.log(), [ATTACH_0]);
}

#[test]
fn a_refused_attach_is_reported_and_retried_after_the_next_scan() {
    let mut host = Host::new(Limits::default());
    host.registry.attacher().refuse = 2;
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    host.observe(&path);
    host.observe(&path);
    let refused = LibraryVerdict::Refused("no memory".to_owned());
    assert_eq!(host.verdicts(), [("libcudart.so.12".to_owned(), refused)]);
    assert_eq!(host.registry.counts().refused, 1);
    host.collect_after(SHORT);
    host.collect_after(SHORT);
    assert_eq!(host.log(), ["attach 2 cudaMalloc cudaFree"]);
    assert_eq!(host.verdicts(), [("libcudart.so.12".to_owned(), LibraryVerdict::Attached)]);
}

#[test]
fn a_process_that_ended_before_the_check_is_counted() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    // Above the highest PID that Linux gives.
    let nobody = Tgid(1 << 23);
    assert_eq!(host.registry.observe(nobody, &mapping_of(&path), None), None);
    assert_eq!(host.registry.counts(), RegistryCounts { vanished: 1, ..Default::default() });
}

#[test]
fn a_path_that_leads_to_another_file_is_not_opened() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(&[1]));
    let mapping = Mapping { inode: 1, ..mapping_of(&path) };
    let own = Tgid(std::process::id());
    assert_eq!(host.registry.observe(own, &mapping, None), None);
    assert_eq!(host.log(), [""; 0]);
}

#[test]
fn a_pipe_in_the_place_of_a_library_is_not_opened() {
    let mut host = Host::new(Limits::default());
    let path = host.path("libcudart.so.12");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(host.observe(&path), None);
    assert_eq!(host.registry.counts().unreachable, 1);
}

#[test]
fn all_probes_can_be_removed() {
    let mut host = Host::new(Limits::default());
    for name in ["libcudart.so.12", "libcuda.so.1"] {
        let path = host.write(name, &cuda_library(&[1]));
        host.observe(&path);
    }
    host.log();
    host.registry.detach_all();
    let mut log = host.log();
    log.sort();
    assert_eq!(log, ["detach 0", "detach 1"]);
}

#[test]
fn a_process_that_is_observed_in_part_has_its_launches_removed_and_the_others_keep_theirs() {
    let mut host = Host::new(Limits::default());
    let path = host.write("libcudart.so.12", &cuda_library(b"one"));
    host.observe(&path);
    host.log();
    let own = Tgid(std::process::id());
    let other = Tgid(1);
    host.registry.add_child(own, other);
    let limit = |host: &mut Host, removed: Option<Removed>| {
        let limited = removed.map(|removed| (own, removed)).into_iter().collect();
        host.registry.limit_users(limited);
        host.log()
    };
    let runtime = Removed { runtime: true, ..Removed::default() };
    assert_eq!(limit(&mut host, Some(runtime)), ["0 of [1] and all, all and all"]);
    assert_eq!(limit(&mut host, Some(runtime)), [""; 0]);
    host.registry.add_child(own, Tgid(2));
    let of_both = "0 of [1, 2] and all, all and all";
    assert_eq!(host.log(), [of_both]);
    let others = Removed { queries: true, driver: true, ..Removed::default() };
    assert_eq!(limit(&mut host, Some(others)), ["0 of all and [1, 2], [1, 2] and all"]);
    host.registry.attacher().refuse = 1;
    assert_eq!(limit(&mut host, None), [""; 0]);
    assert_eq!(limit(&mut host, Some(runtime)), [of_both]);
    assert_eq!(limit(&mut host, None), ["0 of all and all, all and all"]);
}

#[test]
fn no_file_has_probes_on_what_may_be_replaced_while_a_process_replaces_code() {
    const ALL: &str = "all and all, all and all";
    let mut host = Host::new(Limits::default());
    let path = host.write("libcuda.so.1", &cuda_library(b"one"));
    host.observe(&path);
    host.log();
    let hooks = Mapping { path: "/v/libucx/lib/libucm.so.0".into(), ..mapping_of(&path) };
    host.registry.observe(Tgid(1), &hooks, None);
    assert_eq!(host.log(), [format!("0 of {ALL}; none that may be replaced")]);
    host.observe(&host.write("libcuda.so.2", &cuda_library(b"two")));
    assert_eq!(host.log()[1..], [format!("1 of {ALL}; none that may be replaced")]);
    host.collect_after(SHORT);
    let mut log = host.log();
    log.sort();
    assert_eq!(log, [format!("0 of {ALL}"), format!("1 of {ALL}")]);
}
