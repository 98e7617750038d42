//! Giving up what is not needed once the programs are loaded.

use std::str::FromStr as _;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use gpucause_probes::feature::AttachMode;
use nix::errno::Errno;

/// Advice for users who cannot get privileges.
pub(crate) const NOT_ROOT: &str = "without root, ask an admin for a login (--web.config.file) or a recording: see \"Not root\" in /usr/share/doc/gpucause/investigations/slow-training.md";

/// Privileges could not be given up.
#[derive(Debug, thiserror::Error)]
enum ConfineError {
    /// A set of capabilities is as it was.
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(#[from] CapsError),
    /// Programs that are executed may have more.
    #[error("no_new_privs cannot be set: {0}")]
    NoNewPrivileges(#[from] Errno),
}

/// The process lacks capabilities that every command with probes needs.
#[derive(Debug, thiserror::Error)]
pub enum NotPermitted {
    /// Root lacks them, such as in a container.
    #[error(
        "root lacks the capabilities to load eBPF programs here - grant CAP_BPF and CAP_PERFMON to the container or unit"
    )]
    Root,
    /// Another user lacks them.
    #[error(
        "not permitted to load eBPF programs - run it with sudo, or grant CAP_BPF and CAP_PERFMON (the systemd unit does); {NOT_ROOT}"
    )]
    User,
}

/// How to get a capability that is missing.
pub(crate) fn how_to_get(is_root: bool) -> String {
    if is_root {
        "grant it to the container or unit that this runs in".into()
    } else {
        format!("run as root or by the systemd unit; {NOT_ROOT}")
    }
}

/// Returns true if this is root, which need not have every capability.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Reports missing privileges before files and ports, which a user without them may not use either.
///
/// # Errors
/// When the kernel would refuse to load programs.
pub fn require() -> Result<(), NotPermitted> {
    let has = |one| caps::has_cap(None, CapSet::Effective, one);
    // Unknown is not missing: the kernel has the last word.
    let has = |one| has(one).unwrap_or(true);
    let split = has(Capability::CAP_BPF) && has(Capability::CAP_PERFMON);
    if split || has(Capability::CAP_SYS_ADMIN) {
        return Ok(());
    }
    Err(if is_root() { NotPermitted::Root } else { NotPermitted::User })
}

/// Drops every capability that later attaches do not take, from all sets of the calling thread and of those that it
/// starts, and lets nothing that is executed regain them. To be called while there is one thread.
///
/// A daemon that could not is no worse than one that did not try: the log tells.
pub fn confine(mode: AttachMode) {
    match keep_only(&needed(mode)) {
        Ok(kept) => tracing::debug!(kept, "capabilities that are not needed any more were dropped"),
        Err(error) => tracing::warn!(%error, "the daemon keeps more privileges than it needs"),
    }
}

fn needed(mode: AttachMode) -> CapsHashSet {
    let known = mode.privileges().iter().map(|name| Capability::from_str(name));
    known.filter_map(Result::ok).collect()
}

/// Returns how many are left, which are no more than there were.
fn keep_only(needed: &CapsHashSet) -> Result<usize, ConfineError> {
    nix::sys::prctl::set_no_new_privs()?;
    // Only root has the capability to do this, and only root would regain by it.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for other in caps::runtime::thread_all_supported().difference(needed) {
            caps::drop(None, CapSet::Bounding, *other)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept = permitted.intersection(needed).copied().collect::<CapsHashSet>();
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    Ok(kept.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_SETS: [CapSet; 5] = [
        CapSet::Ambient,
        CapSet::Bounding,
        CapSet::Effective,
        CapSet::Inheritable,
        CapSet::Permitted,
    ];

    #[test]
    fn root_is_never_advised_to_become_root() {
        let to_root = [NotPermitted::Root.to_string(), how_to_get(true)];
        for text in to_root {
            assert!(!text.contains("sudo") && !text.contains("as root"), "{text}");
        }
        assert!(NotPermitted::User.to_string().contains("sudo"));
        assert!(how_to_get(false).contains("run as root"));
    }

    #[test]
    fn every_needed_capability_is_known_by_its_name() {
        for mode in AttachMode::ALL {
            assert_eq!(needed(mode).len(), mode.privileges().len(), "{mode:?}");
        }
    }

    #[test]
    fn no_set_has_more_than_is_needed() {
        // Another thread, since there is no way back.
        let confined = std::thread::spawn(|| {
            let was_root = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap();
            confine(AttachMode::Session);
            (was_root, ALL_SETS.map(|set| caps::read(None, set).unwrap()))
        });
        let (was_root, [ambient, bounding, effective, inheritable, permitted]) =
            confined.join().unwrap();
        let needed = needed(AttachMode::Session);
        assert!(permitted.is_subset(&needed) && effective == permitted, "{permitted:?}");
        assert!(ambient.is_empty() && inheritable.is_empty());
        assert!(!was_root || bounding == needed, "{bounding:?}");
    }
}
