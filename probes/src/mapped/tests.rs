//! Lines of maps as hostile processes could make them, and this process's own mappings.

use super::*;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use proptest::prelude::*;
use std::io::Write;
use std::num::NonZero;

fn path(line: &str) -> Option<PathBuf> {
    parse_maps_line(line.as_bytes()).map(|mapping| mapping.path)
}

#[test]
fn an_executable_line_becomes_a_mapping() {
    let line = b"7f0000001000-7f00000a2000 r-xp 00022000 fe:01 247030                     /usr/lib/libcuda.so.1";
    assert_eq!(
        parse_maps_line(line),
        Some(Mapping {
            start: 0x7f00_0000_1000,
            end: 0x7f00_000a_2000,
            offset: 0x22000,
            device: Device { major: 0xfe, minor: 1 },
            inode: 247_030,
            path: PathBuf::from("/usr/lib/libcuda.so.1"),
            deleted: false,
        })
    );
}

#[test]
fn data_and_memory_without_a_file_are_left_out() {
    for line in [
        "7f00-7f01 r--p 00000000 fe:01 247030   /usr/lib/libcuda.so.1",
        "7f00-7f01 rw-p 00000000 00:00 0 ",
        "7f00-7f01 rwxp 00000000 00:00 0 ",
        "7ffd-7ffe r-xp 00000000 00:00 0    [vdso]",
        "7f00-7f01 r-xp 00000000 fe:01 0    /a",
        "",
        "r-xp",
    ] {
        assert_eq!(path(line), None, "{line}");
    }
}

#[test]
fn names_may_contain_spaces_newlines_and_the_mark_of_a_deleted_file() {
    let of = |name: &str| format!("7f00-7f01 r-xp 00000000 fe:01 12   {name}");
    assert_eq!(path(&of("/a b/ c ")), Some("/a b/ c ".into()));
    assert_eq!(path(&of("/a\\012b\\n")), Some("/a\nb\\n".into()));
    assert_eq!(path(&of("/a (deleted)/b")), Some("/a (deleted)/b".into()));
    let deleted = parse_maps_line(of("/lib cuda.so (deleted)").as_bytes()).unwrap();
    assert_eq!((deleted.path, deleted.deleted), ("/lib cuda.so".into(), true));
}

proptest! {
    #[test]
    fn any_line_is_read_without_panic(line in prop::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(parse_maps_line(&line).is_none_or(|mapping| mapping.inode != 0));
    }

    #[test]
    fn any_path_survives(path in "/[ -~]{0,60}") {
        prop_assume!(!path.contains("\\012") && !path.ends_with(" (deleted)"));
        let line = format!("7f00-7f01 r-xp 00000000 fe:01 12   {path}");
        prop_assert_eq!(parse_maps_line(line.as_bytes()).unwrap().path, PathBuf::from(path));
    }
}

#[test]
fn this_process_is_listed_and_maps_its_own_program() {
    let own = Tgid(std::process::id());
    assert!(all_processes().unwrap().contains(&own));
    let exe = std::fs::read_link("/proc/self/exe").unwrap();
    let mappings = executable_mappings(own).unwrap();
    let program = mappings.iter().find(|mapping| mapping.path == exe).unwrap();
    let opened = open_mapped(own, program).unwrap().metadata().unwrap();
    assert_eq!(opened.ino(), std::fs::metadata(&exe).unwrap().ino());
}

#[test]
fn a_process_that_ended_has_no_mappings() {
    // Above the highest PID that Linux gives.
    let nobody = Tgid(1 << 23);
    assert_eq!(executable_mappings(nobody).unwrap(), []);
    let mapping = executable_mappings(Tgid(std::process::id())).unwrap().remove(0);
    assert!(matches!(open_mapped(nobody, &mapping), Err(MappedError::Gone(..))));
}

/// `/proc/PID/map_files` takes root.
mod as_root {
    use super::*;

    #[test]
    fn a_mapping_is_opened_after_deletion_and_after_its_range_changed() {
        let own = Tgid(std::process::id());
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0x90; 8192]).unwrap();
        let name = file.path().to_path_buf();
        let length = NonZero::new(8192).unwrap();
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { mmap(None, length, flags, MapFlags::MAP_PRIVATE, file.as_file(), 0) }.unwrap();
        let find = || {
            executable_mappings(own)
                .unwrap()
                .into_iter()
                .find(|mapping| mapping.path == name)
                .unwrap()
        };
        let whole = find();
        let inode = file.as_file().metadata().unwrap().ino();
        assert_eq!((whole.inode, whole.deleted), (inode, false));
        file.close().unwrap();
        assert!(find().deleted);
        // SAFETY: one page behind the base is still inside the mapping.
        let second = unsafe { base.byte_add(4096) };
        // SAFETY: the second page belongs to the mapping above, which nothing refers to.
        unsafe { munmap(second, 4096) }.unwrap();
        let opened = open_mapped(own, &whole).unwrap();
        assert_eq!(opened.metadata().unwrap().ino(), inode);
        // SAFETY: the first page is what is left of the mapping, which nothing refers to.
        unsafe { munmap(base, 4096) }.unwrap();
        assert!(matches!(open_mapped(own, &whole), Err(MappedError::Gone(..))));
    }
}
