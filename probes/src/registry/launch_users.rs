//! Which processes' calls are probed in which file. All, unless a process that uses the file has fewer probes: then each
//! user has its own, without those that the budget removed.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use gpucause_abi::Tgid;

use super::{Attach, AttachedFile, FileId, Registry};
use crate::launch_groups::{GROUPS, LaunchUsers, REPLACED_ASYNCS, REPLACED_OTHERS};

/// A file with more users keeps its probes for all: attaching to each takes milliseconds.
const MOST_USERS: usize = 64;

/// The groups of probes that are removed for a process: those on launches by layer, and on calls of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Removed {
    pub(crate) runtime: bool,
    pub(crate) driver: bool,
    pub(crate) queries: bool,
    pub(crate) asyncs: bool,
}

impl Removed {
    const fn groups(self) -> [bool; GROUPS] {
        [self.runtime, self.driver, self.queries, self.asyncs, false, self.asyncs]
    }
}

/// The processes with fewer probes.
pub(super) type LimitedUsers = HashMap<Tgid, Removed>;

/// The processes whose calls are probed, by group, as the budget has it.
fn users_in_budget<L>(attached: &AttachedFile<L>, limited: &LimitedUsers) -> [LaunchUsers; GROUPS] {
    let is_limited = attached.users.keys().any(|user| limited.contains_key(user));
    if !is_limited || attached.users.len() > MOST_USERS {
        return [const { LaunchUsers::All }; GROUPS];
    }
    std::array::from_fn(|group| {
        let is_probed =
            |user: &&Tgid| !limited.get(user).is_some_and(|removed| removed.groups()[group]);
        let users: BTreeSet<_> = attached.users.keys().filter(is_probed).copied().collect();
        // One link serves all where nobody is without.
        if users.len() == attached.users.len() {
            LaunchUsers::All
        } else {
            LaunchUsers::Some(users)
        }
    })
}

impl<A: Attach> Registry<A> {
    /// Sets the processes with fewer probes.
    pub(crate) fn limit_users(&mut self, limited: LimitedUsers) {
        if limited == self.limited {
            return;
        }
        let touched = |users: &HashMap<Tgid, Instant>| {
            let mut either = limited.keys().chain(self.limited.keys());
            either
                .any(|tgid| limited.get(tgid) != self.limited.get(tgid) && users.contains_key(tgid))
        };
        let files = self.files_with(|attached| touched(&attached.users));
        self.limited = limited;
        for id in files {
            self.apply_users(id);
        }
    }

    /// Adds a user of a file. `maps_again`: it has just mapped it, so the PID may have been reused.
    pub(super) fn add_user(&mut self, id: FileId, tgid: Tgid, maps_again: bool) {
        let Some(attached) = self.files.get_mut(&id) else { return };
        let known = attached.users.insert(tgid, Instant::now()).is_some();
        if (!known || maps_again) && !self.limited.is_empty() {
            self.apply_users(id);
        }
    }

    /// Adds a child as a user of its parent's files.
    pub(crate) fn add_child(&mut self, parent: Tgid, child: Tgid) {
        let inherits = |attached: &AttachedFile<A::Links>| {
            attached.users.contains_key(&parent) && !attached.users.contains_key(&child)
        };
        for id in self.files_with(inherits) {
            self.add_user(id, child, false);
        }
        self.add_child_of_replacer(parent, child);
    }

    /// The processes whose calls are probed, by group.
    pub(super) fn users_of(&self, attached: &AttachedFile<A::Links>) -> [LaunchUsers; GROUPS] {
        let mut users = users_in_budget(attached, &self.limited);
        if !self.replacers.is_empty() {
            for group in [REPLACED_OTHERS, REPLACED_ASYNCS] {
                users[group] = LaunchUsers::Some(BTreeSet::new());
            }
        }
        users
    }

    pub(super) fn apply_users(&mut self, id: FileId) {
        let Some(attached) = self.files.get(&id) else { return };
        let users = self.users_of(attached);
        let Some(attached) = self.files.get_mut(&id) else { return };
        let Ok((_, links)) = &mut attached.state else { return };
        if let Err(error) = self.attacher.set_launch_users(&attached.file, links, &users) {
            tracing::warn!(path = %attached.path.display(), %error, "cannot change the probes of a process");
        }
    }
}
