//! Which processes' launches are probed in which file: all, unless a process that uses the file is observed in part; then each of
//! its users by itself, but for those whose launches of that layer are not to be.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use gpucause_abi::Tgid;

use super::{Attach, FileId, Held, Registry};
use crate::launch_groups::LaunchUsers;

/// A file that more processes use keeps its probes for all: to attach to each takes milliseconds.
const MOST_USERS: usize = 64;

/// Whose probes on launches are removed for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Layers {
    pub(crate) runtime: bool,
    pub(crate) driver: bool,
}

/// The processes that are observed in part, and what of them is not.
pub(super) type LimitedUsers = HashMap<Tgid, Layers>;

/// Whose launches of the runtime, and whose of the driver.
fn users_of<L>(held: &Held<L>, limited: &LimitedUsers) -> [LaunchUsers; 2] {
    let is_limited = held.users.keys().any(|user| limited.contains_key(user));
    if !is_limited || held.users.len() > MOST_USERS {
        return [LaunchUsers::All, LaunchUsers::All];
    }
    let users = |is_removed: fn(&Layers) -> bool| {
        let is_probed = |user: &&Tgid| !limited.get(user).is_some_and(is_removed);
        LaunchUsers::Some(held.users.keys().filter(is_probed).copied().collect::<BTreeSet<_>>())
    };
    [users(|removed| removed.runtime), users(|removed| removed.driver)]
}

impl<L> Registry<L> {
    /// Processes that are observed in part from now on; all others are in full.
    pub(crate) fn limit_users<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        limited: LimitedUsers,
    ) {
        if limited == self.limited {
            return;
        }
        let touched = |users: &HashMap<Tgid, Instant>| {
            let mut either = limited.keys().chain(self.limited.keys());
            either
                .any(|tgid| limited.get(tgid) != self.limited.get(tgid) && users.contains_key(tgid))
        };
        let files: Vec<FileId> =
            self.files.iter().filter(|(_, held)| touched(&held.users)).map(|(id, _)| *id).collect();
        self.limited = limited;
        for id in files {
            self.apply_users(attacher, id);
        }
    }

    /// A process uses a file. `maps_anew` when it has just mapped it, so that it may be another of the same number.
    pub(super) fn add_user<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        id: FileId,
        tgid: Tgid,
        maps_anew: bool,
    ) {
        let Some(held) = self.files.get_mut(&id) else { return };
        let known = held.users.insert(tgid, Instant::now()).is_some();
        if (!known || maps_anew) && !self.limited.is_empty() {
            self.apply_users(attacher, id);
        }
    }

    /// The child of a process uses what that uses.
    pub(crate) fn add_child<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        parent: Tgid,
        child: Tgid,
    ) {
        let inherits = |held: &&mut Held<L>| {
            held.users.contains_key(&parent) && !held.users.contains_key(&child)
        };
        let files: Vec<FileId> =
            self.files.iter_mut().filter(|(_, held)| inherits(held)).map(|(id, _)| *id).collect();
        for id in files {
            self.add_user(attacher, id, child, false);
        }
    }

    pub(super) fn apply_users<A: Attach<Links = L>>(&mut self, attacher: &mut A, id: FileId) {
        let Some(held) = self.files.get_mut(&id) else { return };
        let users = users_of(held, &self.limited);
        let Ok((_, links)) = &mut held.state else { return };
        if let Err(error) = attacher.set_launch_users(&held.file, links, &users) {
            tracing::warn!(path = %held.path.display(), %error, "launches stay probed as they were");
        }
    }
}
