//! Which library files have probes. One link a file, however many processes map it; a file that changes is detached
//! before anything else, because a breakpoint at a stale offset would break whoever maps it next.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpucause_abi::{Nanos, Tgid};
use nix::time::{ClockId, clock_gettime};

use crate::elf::{LibraryImage, ProbeSite};
use crate::launch_groups::{FIRST_GROUP, LaunchUsers};
use crate::mapped::{Candidate, Located, MappedError, Mapping, candidate, locate_mapped};

mod dismissed;
mod file;
mod launch_users;
mod link_ids;
mod status;
mod write_watch;

#[cfg(test)]
mod tests;

use dismissed::{Dismissed, Report};
pub use file::FileId;
use file::Stamp;
pub(crate) use launch_users::Layers;
use launch_users::LimitedUsers;
pub use link_ids::LinkId;
pub(crate) use link_ids::LinkIds;
pub use status::{LibraryStatus, Limits, RegistryCounts, Verdict};
use write_watch::{Write, WriteWatch};

/// How long a file that nobody maps keeps its probes, since programs that start often would pay for each attach. Until then
/// its mount is busy.
pub const UNMAPPED_GRACE: Duration = Duration::from_secs(90);

/// Files without probes that are told of at a time.
const MAX_REPORTS: usize = 64;

/// Puts probes on files.
pub trait Attach {
    /// What keeps the probes of one file in place; dropping it removes them.
    type Links;
    /// Why they could not be placed, in words.
    type Error: fmt::Display;

    /// Probes `sites` of `file` under the name of `link`.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is then attached.
    fn attach(
        &mut self,
        file: &File,
        link: LinkId,
        sites: &[ProbeSite],
    ) -> Result<Self::Links, Self::Error>;

    /// Removes the probes of `link`.
    fn detach(&mut self, link: LinkId, links: Self::Links);

    /// Removes all probes there are.
    fn detach_all(&mut self, all: Vec<(LinkId, Self::Links)>) {
        for (link, links) in all {
            self.detach(link, links);
        }
    }

    /// Has launches through a file probed for these processes: those of the runtime, and those of the driver. Those of
    /// [`Self::attach`] are for all.
    ///
    /// # Errors
    /// When the kernel refuses; the probes then stay as they were.
    fn set_launch_users(
        &mut self,
        file: &File,
        links: &mut Self::Links,
        users: &[LaunchUsers; 2],
    ) -> Result<(), Self::Error>;
}

/// A file with traced functions. It is kept open, so that its inode cannot be given to another file.
struct Held<L> {
    path: PathBuf,
    kind: Candidate,
    file: File,
    stamp: Stamp,
    image: LibraryImage,
    /// The probes, or why there are none.
    state: Result<(LinkId, L), String>,
    last_seen: Instant,
    /// Who maps it, and when that was last seen.
    users: HashMap<Tgid, Instant>,
    gap: Option<Nanos>,
    max_gap: Option<Nanos>,
}

/// The files that were looked at, and their probes.
pub struct Registry<L> {
    limits: Limits,
    files: HashMap<FileId, Held<L>>,
    dismissed: Dismissed,
    ids: LinkIds,
    writes: Option<WriteWatch>,
    counts: RegistryCounts,
    generation: u64,
    limited: LimitedUsers,
}

impl<L> Registry<L> {
    /// Knows no file yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let writes = WriteWatch::new().inspect_err(
            |error| tracing::warn!(%error, "libraries that are overwritten are noticed late"),
        );
        Self {
            limits,
            files: HashMap::new(),
            dismissed: Dismissed::new(limits.remembered),
            ids: LinkIds::below(FIRST_GROUP),
            writes: writes.ok(),
            counts: RegistryCounts::default(),
            generation: 0,
            limited: LimitedUsers::default(),
        }
    }

    /// Looks at the file behind an executable mapping, and attaches when it is new and has traced functions.
    /// `seen_at` is when it was mapped, if known. Returns which file it is, if it is a candidate within reach.
    pub fn observe<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        tgid: Tgid,
        mapping: &Mapping,
        seen_at: Option<Nanos>,
    ) -> Option<FileId> {
        let kind = candidate(&mapping.path)?;
        let located = self.within_reach(locate_mapped(tgid, mapping))?;
        let id = FileId::of(located.metadata());
        let stamp = Stamp::of(located.metadata());
        let now = Instant::now();
        if let Some(held) = self.files.get_mut(&id) {
            held.last_seen = now;
            if held.stamp != stamp {
                self.recheck_one(attacher, id, seen_at);
            }
            self.add_user(attacher, id, tgid, seen_at.is_some());
            return Some(id);
        }
        let room = self.has_room(stamp.owner);
        if !self.dismissed.holds(id, stamp, now, room) {
            let path = mapping.path.clone();
            self.examine(attacher, (id, path, kind), &located, seen_at)?;
            self.add_user(attacher, id, tgid, false);
        }
        Some(id)
    }

    fn within_reach<T>(&mut self, result: Result<T, MappedError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            // Short-lived processes end before they can be looked at; that is in the nature of things.
            Err(MappedError::Gone { .. }) => self.counts.vanished += 1,
            Err(error) => {
                self.counts.unreachable += 1;
                tracing::debug!(%error, "library out of reach");
            }
        }
        None
    }

    /// Decides on a file that is not held.
    fn examine<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        (id, path, kind): (FileId, PathBuf, Candidate),
        located: &Located,
        seen_at: Option<Nanos>,
    ) -> Option<()> {
        let file = self.within_reach(located.open())?;
        // Taken before the file is read: should it change meanwhile, the next look will notice.
        let stamp = Stamp::of(&file.metadata().ok()?);
        let image = match kind.read(&file) {
            Ok(image) if image.sites.is_empty() => Err((Verdict::NoSymbols, image.build_id)),
            Ok(image) if !self.has_room(stamp.owner) => {
                self.counts.over_limit += 1;
                Err((Verdict::OverLimit, image.build_id))
            }
            Ok(image) => Ok(image),
            Err(error) => Err((Verdict::Broken(error.to_string()), None)),
        };
        if let Some(functions) = image.as_ref().ok().filter(|image| !image.misplaced.is_empty()) {
            let functions = &functions.misplaced;
            tracing::warn!(path = %path.display(), ?functions, "no probes: the symbols point into other functions");
        }
        match image {
            Err((verdict, build_id)) => {
                self.dismiss(id, stamp, kind, Report { path, build_id, verdict });
            }
            Ok(image) => {
                let state = Err(String::new());
                let (last_seen, gap, max_gap) = (Instant::now(), None, None);
                let users = HashMap::new();
                let held =
                    Held { path, kind, file, stamp, image, state, last_seen, users, gap, max_gap };
                self.attach(attacher, id, held, seen_at);
            }
        }
        Some(())
    }

    /// Whether a file of this owner may get probes: nobody can take them all from the others.
    fn has_room(&self, owner: u32) -> bool {
        let of_owner = self.files.values().filter(|held| held.stamp.owner == owner).count();
        self.files.len() < self.limits.attached && of_owner < self.limits.of_one_owner
    }

    /// Remembers that a file gets no probes. That an ordinary program has no traced functions is not worth telling.
    fn dismiss(&mut self, id: FileId, stamp: Stamp, kind: Candidate, report: Report) {
        let ordinary = matches!(report.verdict, Verdict::NoSymbols | Verdict::Broken(_));
        let report = (kind == Candidate::Library || !ordinary).then_some(report);
        if let Some(Report { path, verdict, .. }) = &report {
            tracing::warn!(path = %path.display(), %verdict, "library gets no probes");
            self.generation += 1;
        }
        self.dismissed.insert(id, stamp, report, Instant::now());
    }

    /// Attaches a held file that has no probes, and keeps it whatever comes of that.
    fn attach<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        id: FileId,
        mut held: Held<L>,
        seen_at: Option<Nanos>,
    ) {
        self.generation += 1;
        if let Some(Err(error)) = self.writes.as_mut().map(|writes| writes.add(id, &held.file)) {
            tracing::debug!(path = ?held.path, %error, "cannot be watched for writes");
        }
        held.state = match self.ids.take() {
            None => Err("all link ids are in use".to_owned()),
            Some(link) => match attacher.attach(&held.file, link, &held.image.sites) {
                Ok(links) => Ok((link, links)),
                Err(error) => {
                    self.ids.give_back(link);
                    Err(error.to_string())
                }
            },
        };
        match &held.state {
            Ok((link, _)) => {
                self.counts.attached += 1;
                held.gap =
                    seen_at.and_then(|seen| Some(Nanos(monotonic_now()?.0.saturating_sub(seen.0))));
                held.max_gap = held.max_gap.max(held.gap);
                tracing::info!(
                    path = %held.path.display(),
                    link = link.0,
                    sites = held.image.sites.len(),
                    slow = held.image.slow_sites().count(),
                    gap_seconds = held.gap.map(Nanos::as_secs_f64),
                    "attached"
                );
            }
            Err(reason) => {
                self.counts.refused += 1;
                tracing::warn!(path = %held.path.display(), %reason, "cannot attach, will try again");
            }
        }
        self.files.insert(id, held);
        if !self.limited.is_empty() {
            self.apply_users(attacher, id);
        }
    }

    /// Detaches from files that are being written, and attaches anew to those that were.
    pub fn follow_writes<A: Attach<Links = L>>(&mut self, attacher: &mut A) {
        let writes = self.writes.as_ref().map(WriteWatch::drain).unwrap_or_default();
        for write in writes {
            match write {
                Write::Some(id) => {
                    if let Some(mut held) = self.files.remove(&id) {
                        self.detach(attacher, &mut held);
                        self.files.insert(id, Held { stamp: Stamp::WRITTEN, ..held });
                    }
                }
                Write::Done(id) => {
                    if self.files.get(&id).is_some_and(|held| held.stamp == Stamp::WRITTEN) {
                        self.recheck_one(attacher, id, None);
                    }
                }
                Write::Missed => self.recheck(attacher),
            }
        }
    }

    /// Readable when there are writes to follow.
    #[must_use]
    pub fn writes(&self) -> Option<BorrowedFd<'_>> {
        self.writes.as_ref().map(AsFd::as_fd)
    }

    fn unwatch(&mut self, id: FileId) {
        if let Some(writes) = &mut self.writes {
            writes.remove(id);
        }
    }

    fn detach<A: Attach<Links = L>>(&mut self, attacher: &mut A, held: &mut Held<L>) {
        if let Ok((link, links)) = std::mem::replace(&mut held.state, Err("detached".to_owned())) {
            attacher.detach(link, links);
            self.ids.give_back(link);
            self.counts.detached += 1;
            self.generation += 1;
            tracing::info!(path = %held.path.display(), link = link.0, "detached");
        }
    }

    /// Looks for held files that were overwritten in place: detaches those, and attaches to what is there now.
    pub fn recheck<A: Attach<Links = L>>(&mut self, attacher: &mut A) {
        let changed: Vec<FileId> = self
            .files
            .iter()
            .filter(|(_, held)| held.file.metadata().is_ok_and(|m| Stamp::of(&m) != held.stamp))
            .map(|(id, _)| *id)
            .collect();
        for id in changed {
            self.recheck_one(attacher, id, None);
        }
    }

    fn recheck_one<A: Attach<Links = L>>(
        &mut self,
        attacher: &mut A,
        id: FileId,
        seen_at: Option<Nanos>,
    ) {
        let Some(mut held) = self.files.remove(&id) else { return };
        let stamp = match held.file.metadata() {
            Ok(metadata) => Stamp::of(&metadata),
            Err(_) => held.stamp,
        };
        let overwritten = stamp.contents_differ(&held.stamp);
        if overwritten {
            self.counts.overwritten += 1;
            self.detach(attacher, &mut held);
        }
        let read = held.kind.read(&held.file);
        // A new mode, owner or link is no reason to detach.
        if !overwritten && read.as_ref().is_ok_and(|image| *image == held.image) {
            held.stamp = stamp;
            self.files.insert(id, held);
            return;
        }
        self.detach(attacher, &mut held);
        let verdict = match read {
            Ok(image) if !image.sites.is_empty() => {
                let held = Held { stamp, image, ..held };
                return self.attach(attacher, id, held, seen_at);
            }
            Ok(_) => Verdict::NoSymbols,
            Err(error) => Verdict::Broken(error.to_string()),
        };
        self.generation += 1;
        self.unwatch(id);
        self.dismiss(id, stamp, held.kind, Report { path: held.path, build_id: None, verdict });
    }

    /// Puts the house in order after a scan of all processes that began at `scan_started`, whatever [`Self::observe`]
    /// did not see since then being mapped by nobody: rechecks all files, tries refused ones again, and drops those
    /// that are deleted or were unmapped for longer than [`UNMAPPED_GRACE`].
    pub fn sweep<A: Attach<Links = L>>(&mut self, attacher: &mut A, scan_started: Instant) {
        self.recheck(attacher);
        let unmapped = |held: &Held<L>| held.last_seen < scan_started;
        let outdated = |held: &Held<L>| {
            let deleted = held.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
            let unseen = scan_started.saturating_duration_since(held.last_seen);
            unmapped(held) && (deleted || unseen >= UNMAPPED_GRACE)
        };
        let done: Vec<FileId> =
            self.files.iter().filter(|(_, held)| outdated(held)).map(|(id, _)| *id).collect();
        for id in done {
            if let Some(mut held) = self.files.remove(&id) {
                self.detach(attacher, &mut held);
                self.unwatch(id);
                self.generation += 1;
            }
        }
        for held in self.files.values_mut() {
            held.users.retain(|_, seen| *seen >= scan_started);
        }
        let refused: Vec<FileId> =
            self.files.iter().filter(|(_, held)| held.state.is_err()).map(|(id, _)| *id).collect();
        for id in refused {
            if let Some(held) = self.files.remove(&id) {
                self.attach(attacher, id, held, None);
            }
        }
        let forgotten = self.dismissed.forget_reports(scan_started, UNMAPPED_GRACE);
        self.generation += u64::from(forgotten);
    }

    /// Removes all probes, as before the process ends. No process is observed in part any longer.
    pub fn detach_all<A: Attach<Links = L>>(&mut self, attacher: &mut A) {
        self.limited.clear();
        let mut all = Vec::new();
        for (id, held) in std::mem::take(&mut self.files) {
            self.unwatch(id);
            all.extend(held.state.ok());
        }
        let links: Vec<LinkId> = all.iter().map(|(link, _)| *link).collect();
        attacher.detach_all(all);
        tracing::info!(files = links.len(), "detached from all files");
        for link in links {
            self.ids.give_back(link);
            self.counts.detached += 1;
            self.generation += 1;
        }
    }

    /// Every file worth telling of: those with probes, those that should have some, and libraries with CUDA's names
    /// that have no traced functions.
    pub fn libraries(&self) -> impl Iterator<Item = LibraryStatus> + '_ {
        let held = self.files.iter().map(|(id, held)| LibraryStatus {
            path: held.path.clone(),
            file: *id,
            build_id: held.image.build_id.clone(),
            link: held.state.as_ref().ok().map(|(link, _)| *link),
            sites: held.image.sites.len(),
            ops: status::distinct_ops(&held.image),
            slow: held.image.slow_sites().map(|site| site.symbol.clone()).collect(),
            verdict: match &held.state {
                Ok(_) => Verdict::Attached,
                Err(reason) => Verdict::Refused(reason.clone()),
            },
            gap: held.gap,
            max_gap: held.max_gap,
        });
        let reports = self.dismissed.reports().take(MAX_REPORTS);
        held.chain(reports.map(|(id, report)| report.status(id)))
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> RegistryCounts {
        self.counts
    }

    /// Grows whenever [`Self::libraries`] may have changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

fn monotonic_now() -> Option<Nanos> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    u64::try_from(now.as_nanos()).ok().map(Nanos)
}
