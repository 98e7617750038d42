//! Who runs a process.

/// The real uid out of a `/proc/PID/status` file.
pub(super) fn real_uid(status: &str) -> Option<u32> {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

/// The name of a user in a `passwd` file.
pub(super) fn name_of(uid: u32, passwd: &[u8]) -> Option<String> {
    String::from_utf8_lossy(passwd).lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_uid_is_the_first_of_four() {
        assert_eq!(real_uid("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n"), Some(1000));
        assert_eq!(real_uid("Name:\tx\n"), None);
        assert_eq!(real_uid("Uid:\t\n"), None);
    }

    #[test]
    fn names_come_from_whole_lines_only() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n# comment\n:x:7:7::/:\nbroken\ngpu:x:7:7::/:\n\xff:x:8:8";
        assert_eq!(name_of(0, passwd).as_deref(), Some("root"));
        assert_eq!(name_of(7, passwd).as_deref(), Some("gpu"));
        assert_eq!(name_of(8, passwd).as_deref(), Some("\u{fffd}"));
        assert_eq!(name_of(9, passwd), None);
    }
}
