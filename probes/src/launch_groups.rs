//! The probes of one library file that a process over budget can do without: a group of links for all processes, or one per
//! process that uses the file, so that those of a process over budget can be removed individually.
//!
//! Groups are replaced without missing a call: new links are attached in a state that does not count, then one update
//! makes them count and retires the old ones, which report returns until [`DRAIN`] has passed. A call that begins during
//! the update may be missed: the kernel runs the program of the newer link first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpucause_abi::Tgid;
use gpucause_abi::record::{LINK_CLOSED, LINK_RETIRING, MAX_LINKS};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};
use procfs::FromRead as _;
use procfs::process::Stat;

use crate::close::close_all;
use crate::link_ids::{LinkId, LinkIds};

/// Time for launches in flight to return before their probes are detached.
const DRAIN: Duration = Duration::from_millis(10);
/// Groups of a file: launches by the runtime, launches by the driver, queries, and asynchronous calls; then those of functions whose code
/// a process may replace, first without those that are asynchronous.
pub(crate) const GROUPS: usize = 6;
pub(crate) const REPLACED_OTHERS: usize = 4;
pub(crate) const REPLACED_ASYNCS: usize = 5;
/// Groups use the upper part of the link ids, files the rest.
pub(crate) const FIRST_GROUP: usize = 1024;

/// A process, safe against PID reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct User {
    pub(crate) tgid: Tgid,
    started: u64,
}

impl User {
    /// `None` when it has ended.
    pub(crate) fn of(tgid: Tgid) -> Option<Self> {
        let stat = Stat::from_file(format!("/proc/{tgid}/stat")).ok()?;
        // A zombie has no memory to probe.
        let has_memory = !matches!(stat.state, 'Z' | 'X');
        has_memory.then_some(Self { tgid, started: stat.starttime })
    }
}

/// Links that are attached and detached together. `user` is `None` for all processes.
#[derive(Debug)]
pub(crate) struct Group {
    user: Option<User>,
    id: LinkId,
    links: Vec<Link>,
}

/// The processes whose calls are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchUsers {
    /// All processes that map the file.
    All,
    /// These processes.
    Some(BTreeSet<Tgid>),
}

/// The states of all links in the programs; the only writer.
#[derive(Debug)]
pub(crate) struct LinkStates {
    map: MapHandle,
    states: Vec<u8>,
}

impl LinkStates {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { map, states: vec![0; MAX_LINKS] }
    }

    /// Applies changes in one update.
    pub(crate) fn set(&mut self, changes: impl IntoIterator<Item = (LinkId, u8)>) {
        let mut changed = false;
        for (link, state) in changes {
            if let Some(entry) = self.states.get_mut(usize::from(link.0)) {
                changed |= *entry != state;
                *entry = state;
            }
        }
        if !changed {
            return;
        }
        if let Err(error) = self.map.update(&0u32.to_ne_bytes(), &self.states, MapFlags::ANY) {
            tracing::warn!(%error, "cannot update the link states; calls of a closed link may count twice");
        }
    }
}

/// The groups of all files.
#[derive(Debug)]
pub(crate) struct Groups {
    ids: LinkIds,
    retiring: Vec<(Instant, Group)>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { ids: LinkIds::starting_at(FIRST_GROUP), retiring: Vec::new() }
    }
}

impl Groups {
    /// Replaces the groups of a file. `attach` attaches a link's probes to one process, or all. If one is rejected, nothing
    /// changes.
    pub(crate) fn replace<E>(
        &mut self,
        groups: &mut Vec<Group>,
        wanted: &LaunchUsers,
        states: &mut LinkStates,
        mut attach: impl FnMut(LinkId, Option<Tgid>) -> Result<Vec<Link>, E>,
    ) -> Result<(), E> {
        let wanted: Vec<Option<User>> = match wanted {
            LaunchUsers::All => vec![None],
            LaunchUsers::Some(users) => {
                users.iter().filter_map(|&tgid| User::of(tgid)).map(Some).collect()
            }
        };
        let mut added = Vec::new();
        for &user in &wanted {
            if groups.iter().any(|group| group.user == user) {
                continue;
            }
            let Some(id) = self.ids.take() else { continue };
            states.set([(id, LINK_RETIRING)]);
            match attach(id, user.map(|user| user.tgid)) {
                Ok(links) => added.push(Group { user, id, links }),
                Err(error) => {
                    self.ids.give_back(id);
                    // A process that has ended needs no probes.
                    if user.is_some_and(|user| User::of(user.tgid) != Some(user)) {
                        continue;
                    }
                    self.retire(added);
                    return Err(error);
                }
            }
        }
        let (kept, old): (Vec<_>, Vec<_>) =
            std::mem::take(groups).into_iter().partition(|group| wanted.contains(&group.user));
        let begin = added.iter().map(|group| (group.id, 0));
        let cease = old.iter().map(|group| (group.id, LINK_RETIRING));
        states.set(begin.chain(cease));
        *groups = kept;
        groups.append(&mut added);
        self.retire(old);
        Ok(())
    }

    fn retire(&mut self, groups: Vec<Group>) {
        let until = Instant::now() + DRAIN;
        self.retiring.extend(groups.into_iter().map(|group| (until, group)));
    }

    /// Detaches retired groups that are due. Returns when to call again.
    pub(crate) fn detach_retired(
        &mut self,
        now: Instant,
        states: &mut LinkStates,
    ) -> Option<Instant> {
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.retiring).into_iter().partition(|(until, _)| *until <= now);
        self.retiring = left;
        close(gone.into_iter().map(|(_, group)| group), &mut self.ids, states);
        self.retiring.iter().map(|&(until, _)| until).min()
    }

    /// Detaches groups at once.
    pub(crate) fn detach(&mut self, groups: Vec<Group>, states: &mut LinkStates) {
        states.set(groups.iter().map(|group| (group.id, LINK_RETIRING)));
        close(groups, &mut self.ids, states);
    }

    /// Retires these groups and returns the links of all retired ones, to close before [`Self::close_retired`].
    pub(crate) fn retire_all(&mut self, groups: Vec<Group>, states: &mut LinkStates) -> Vec<Link> {
        states.set(groups.iter().map(|group| (group.id, LINK_RETIRING)));
        self.retire(groups);
        self.retiring.iter_mut().flat_map(|(_, group)| std::mem::take(&mut group.links)).collect()
    }

    /// Releases groups whose links are closed.
    pub(crate) fn close_retired(&mut self, states: &mut LinkStates) {
        let ids: Vec<LinkId> = self.retiring.drain(..).map(|(_, group)| group.id).collect();
        states.set(ids.iter().map(|&id| (id, LINK_CLOSED)));
        ids.into_iter().for_each(|id| self.ids.give_back(id));
    }
}

/// Closes links in the programs before the kernel removes their probes, which takes tens of milliseconds: a launch that returns in
/// that time is not reported, and the next one would look like its duplicate.
fn close(groups: impl IntoIterator<Item = Group>, ids: &mut LinkIds, states: &mut LinkStates) {
    let mut groups: Vec<Group> = groups.into_iter().collect();
    states.set(groups.iter().map(|group| (group.id, LINK_CLOSED)));
    close_all(groups.iter_mut().flat_map(|group| std::mem::take(&mut group.links)).collect());
    groups.into_iter().for_each(|group| ids.give_back(group.id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::Stdio;

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while User::of(Tgid(child.id())).is_some() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_known_whatever_its_name_is() {
        let script = "printf 'a) \\377' >/proc/$$/comm; echo; read -r end";
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let tgid = Tgid(child.id());
        assert_eq!(std::fs::read(format!("/proc/{tgid}/comm")).unwrap(), b"a) \xff\n");
        assert!(User::of(tgid).is_some());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_known_by_its_start_and_an_ended_one_by_nothing() {
        let own = User::of(Tgid(std::process::id())).unwrap();
        assert!(own.started > 0);
        assert_eq!(User::of(own.tgid), Some(own));
        assert_eq!(User::of(Tgid(u32::MAX)), None);
    }
}
