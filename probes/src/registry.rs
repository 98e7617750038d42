//! The library files that have probes: one link per file, however many processes map it. A file that changes is detached
//! first, because a breakpoint at a stale offset would break whoever maps it next.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::{Nanos, Tgid};
use nix::time::{ClockId, clock_gettime};

use crate::elf::{ElfError, LibraryImage, ProbeSite};
use crate::launch_groups::{FIRST_GROUP, GROUPS, LaunchUsers};
use crate::mapped::{
    Candidate, Located, MappedError, Mapping, candidate, locate_mapped, replaces_code,
};

mod abandoned;
mod file;
mod ignored;
mod launch_users;
mod replaced_code;
mod status;
mod write_watch;

#[cfg(test)]
mod tests;

pub use crate::link_ids::LinkId;
use crate::link_ids::LinkIds;
pub use abandoned::ABANDONED_GRACE;
pub use file::FileId;
use file::FileVersion;
use ignored::{IgnoredFiles, Report};
use launch_users::LimitedUsers;
pub(crate) use launch_users::Removed;
use replaced_code::Replaced;
pub(crate) use replaced_code::may_be_replaced;
pub use status::{LibraryStatus, LibraryVerdict, Limits, RegistryCounts};
use write_watch::{Write, WriteWatch};

/// How long an unmapped file keeps its probes (and its mount busy) while processes live that mapped it.
pub const UNMAPPED_GRACE: Duration = Duration::from_secs(90);

/// Attaches probes to files.
pub trait Attach {
    /// The probes of one file; drop detaches them.
    type Links;
    /// Why an attach failed.
    type Error: fmt::Display;

    /// Probes `sites` of `file` with the id `link`, those of a group for these processes only.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is attached then.
    fn attach(
        &mut self,
        file: &File,
        link: LinkId,
        sites: &[ProbeSite],
        users: &[LaunchUsers; GROUPS],
    ) -> Result<Self::Links, Self::Error>;

    /// Detaches the probes of `link`.
    fn detach(&mut self, link: LinkId, links: Self::Links);

    /// Detaches all probes.
    fn detach_all(&mut self, all: Vec<(LinkId, Self::Links)>) {
        for (link, links) in all {
            self.detach(link, links);
        }
    }

    /// Probes calls of a group for these processes only.
    ///
    /// # Errors
    /// When the kernel refuses; the probes of that group stay as they are.
    fn set_launch_users(
        &mut self,
        file: &File,
        links: &mut Self::Links,
        users: &[LaunchUsers; GROUPS],
    ) -> Result<(), Self::Error>;
}

/// A file with traced functions, kept open so that its inode cannot be reused.
struct AttachedFile<L> {
    path: PathBuf,
    kind: Candidate,
    file: File,
    version: FileVersion,
    image: LibraryImage,
    /// The probes, or why there are none.
    state: Result<(LinkId, L), String>,
    last_seen: Instant,
    /// The processes that map it, and when each was last seen.
    users: HashMap<Tgid, Instant>,
    /// Since when none of them lives, as far as it was asked.
    abandoned: Option<Instant>,
    gap: Option<Nanos>,
    max_gap: Option<Nanos>,
    /// These get no probes.
    replaced: Replaced,
}

/// The known files and their probes.
pub struct Registry<A: Attach> {
    attacher: A,
    limits: Limits,
    files: HashMap<FileId, AttachedFile<A::Links>>,
    ignored: IgnoredFiles,
    ids: LinkIds,
    writes: Option<WriteWatch>,
    counts: RegistryCounts,
    generation: u64,
    limited: LimitedUsers,
    /// Processes that replace code, and when each was last seen.
    replacers: HashMap<Tgid, Instant>,
    /// The mappings of all processes during a scan, as it has found them.
    scanned: Arc<Vec<(Tgid, Mapping)>>,
}

impl<A: Attach> Registry<A> {
    /// Creates an empty registry.
    pub fn new(limits: Limits, attacher: A) -> Self {
        let writes = WriteWatch::new().inspect_err(
            |error| tracing::warn!(%error, "cannot watch libraries for writes; overwritten ones are detected by scans only"),
        );
        Self {
            attacher,
            limits,
            files: HashMap::new(),
            ignored: IgnoredFiles::new(limits.remembered),
            ids: LinkIds::below(FIRST_GROUP),
            writes: writes.ok(),
            counts: RegistryCounts::default(),
            generation: 0,
            limited: LimitedUsers::default(),
            replacers: HashMap::new(),
            scanned: Arc::default(),
        }
    }

    pub(crate) fn attacher(&mut self) -> &mut A {
        &mut self.attacher
    }

    /// Examines the file behind an executable mapping, and attaches when it is new and has traced functions. `seen_at` is
    /// when it was mapped, if known. Returns the file's id if it is a reachable candidate.
    pub fn observe(
        &mut self,
        tgid: Tgid,
        mapping: &Mapping,
        seen_at: Option<Nanos>,
    ) -> Option<FileId> {
        if replaces_code(&mapping.path) {
            self.add_replacer(tgid);
            return None;
        }
        let kind = candidate(&mapping.path)?;
        let located = self.within_reach(locate_mapped(tgid, mapping))?;
        let id = FileId::of(located.metadata());
        let version = FileVersion::of(located.metadata());
        let now = Instant::now();
        if let Some(attached) = self.files.get_mut(&id) {
            attached.last_seen = now;
            if attached.version != version {
                self.recheck_one(id, seen_at);
            }
            self.add_user(id, tgid, seen_at.is_some());
            return Some(id);
        }
        let below_limit = self.is_below_limit(version.owner);
        if !self.ignored.contains(id, version, now, below_limit) {
            let path = mapping.path.clone();
            self.examine((id, path, kind), (tgid, &located), seen_at)?;
            self.add_user(id, tgid, false);
        }
        Some(id)
    }

    fn within_reach<T>(&mut self, result: Result<T, MappedError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            // Short-lived processes end before they can be examined.
            Err(MappedError::Gone(..)) => self.counts.vanished += 1,
            Err(error) => {
                self.counts.unreachable += 1;
                tracing::debug!(%error, "cannot reach a library");
            }
        }
        None
    }

    /// Decides on an unknown file.
    fn examine(
        &mut self,
        (id, path, kind): (FileId, PathBuf, Candidate),
        (tgid, located): (Tgid, &Located),
        seen_at: Option<Nanos>,
    ) -> Option<()> {
        let file = self.within_reach(located.open())?;
        // Taken before the file is read: a change meanwhile is detected at the next check.
        let version = FileVersion::of(&file.metadata().ok()?);
        let image = match self.read(kind, &file) {
            Ok(image) if image.sites.is_empty() => Err((without_sites(&image), image)),
            Ok(image) if !self.is_below_limit(version.owner) => {
                self.counts.over_limit += 1;
                Err((LibraryVerdict::OverLimit, image))
            }
            Ok(image) => Ok(image),
            Err(error) => Err((LibraryVerdict::Broken(error.to_string()), LibraryImage::default())),
        };
        if let Some(functions) = image.as_ref().ok().filter(|image| !image.misplaced.is_empty()) {
            let functions = &functions.misplaced;
            tracing::warn!(path = %path.display(), ?functions, "functions not probed: their symbols point into other functions");
        }
        match image {
            Err((verdict, LibraryImage { build_id, left_out, .. })) => {
                self.ignore(id, version, kind, Report { path, build_id, left_out, verdict });
            }
            Ok(image) => {
                let state = Err(String::new());
                let last_seen = Instant::now();
                let (users, replaced) = (HashMap::from([(tgid, last_seen)]), Replaced::new());
                let (abandoned, gap, max_gap) = (None, None, None);
                let attached = AttachedFile {
                    path,
                    kind,
                    file,
                    version,
                    image,
                    state,
                    last_seen,
                    users,
                    abandoned,
                    gap,
                    max_gap,
                    replaced,
                };
                self.attach(id, attached, seen_at);
            }
        }
        Some(())
    }

    /// The functions of a file that may get probes.
    fn read(&self, kind: Candidate, file: &File) -> Result<LibraryImage, ElfError> {
        let image = kind.read(file)?;
        Ok(if self.limits.single_steps { image } else { image.without_single_steps() })
    }

    /// Returns true if a file of this owner may get probes: no user can use up the limit.
    fn is_below_limit(&self, owner: u32) -> bool {
        let of_owner =
            self.files.values().filter(|attached| attached.version.owner == owner).count();
        self.files.len() < self.limits.attached && of_owner < self.limits.of_one_owner
    }

    /// Remembers that a file gets no probes. Ordinary programs without traced functions are not reported.
    fn ignore(&mut self, id: FileId, version: FileVersion, kind: Candidate, report: Report) {
        let ordinary =
            matches!(report.verdict, LibraryVerdict::NoSymbols | LibraryVerdict::Broken(_));
        let report = (kind == Candidate::Library || !ordinary).then_some(report);
        if let Some(Report { path, verdict, .. }) = &report {
            tracing::warn!(path = %path.display(), %verdict, "library ignored");
            self.generation += 1;
        }
        self.ignored.insert(id, version, report, Instant::now());
    }

    /// Attaches a file that has no probes; it stays known whatever the outcome.
    fn attach(&mut self, id: FileId, mut attached: AttachedFile<A::Links>, seen_at: Option<Nanos>) {
        self.generation += 1;
        if let Some(Err(error)) = self.writes.as_mut().map(|writes| writes.add(id, &attached.file))
        {
            tracing::debug!(path = ?attached.path, %error, "cannot watch a file for writes");
        }
        attached.replaced = self.replaced(id, &attached);
        let (sites, users) = (attached.sites_to_probe(), self.users_of(&attached));
        attached.state = match self.ids.take() {
            None => Err("all link ids are in use".to_owned()),
            Some(link) => match self.attacher.attach(&attached.file, link, &sites, &users) {
                Ok(links) => Ok((link, links)),
                Err(error) => {
                    self.ids.give_back(link);
                    Err(error.to_string())
                }
            },
        };
        match &attached.state {
            Ok((link, _)) => {
                self.counts.attached += 1;
                attached.gap =
                    seen_at.and_then(|seen| Some(Nanos(monotonic_now()?.0.saturating_sub(seen.0))));
                attached.max_gap = attached.max_gap.max(attached.gap);
                tracing::info!(
                    path = %attached.path.display(),
                    link = link.0,
                    sites = sites.len(),
                    slow = attached.image.slow_sites().count(),
                    gap_seconds = attached.gap.map(Nanos::as_secs_f64),
                    "attached"
                );
            }
            Err(reason) => {
                self.counts.refused += 1;
                tracing::warn!(path = %attached.path.display(), %reason, "cannot attach; will retry");
            }
        }
        if let Some(by) = attached.replaced.values().next() {
            let functions = attached.replaced_functions(false);
            tracing::warn!(
                path = %attached.path.display(),
                ?functions,
                by = by.0,
                "functions not probed: a process has replaced their code in its memory"
            );
        }
        self.files.insert(id, attached);
    }

    /// Detaches from files that are being written, and re-attaches when the writer is done.
    pub fn follow_writes(&mut self) {
        let writes = self.writes.as_ref().map(WriteWatch::drain).unwrap_or_default();
        for write in writes {
            match write {
                Write::Some(id) => {
                    if let Some(mut attached) = self.files.remove(&id) {
                        self.detach(&mut attached);
                        self.files
                            .insert(id, AttachedFile { version: FileVersion::WRITTEN, ..attached });
                    }
                }
                Write::Done(id) => {
                    let file = self.files.get(&id);
                    if file.is_some_and(|attached| attached.version == FileVersion::WRITTEN) {
                        self.recheck_one(id, None);
                    }
                }
                Write::Missed => self.recheck(),
            }
        }
    }

    /// Readable when there are writes to follow.
    pub fn writes(&self) -> Option<BorrowedFd<'_>> {
        self.writes.as_ref().map(AsFd::as_fd)
    }

    fn unwatch(&mut self, id: FileId) {
        if let Some(writes) = &mut self.writes {
            writes.remove(id);
        }
    }

    fn detach(&mut self, attached: &mut AttachedFile<A::Links>) {
        if let Ok((link, links)) =
            std::mem::replace(&mut attached.state, Err("detached".to_owned()))
        {
            self.attacher.detach(link, links);
            self.ids.give_back(link);
            self.counts.detached += 1;
            self.generation += 1;
            tracing::info!(path = %attached.path.display(), link = link.0, "detached");
        }
    }

    fn files_with(&self, wanted: impl Fn(&AttachedFile<A::Links>) -> bool) -> Vec<FileId> {
        self.files.iter().filter(|(_, attached)| wanted(attached)).map(|(id, _)| *id).collect()
    }

    /// Finds files that were overwritten in place, and re-attaches them.
    pub fn recheck(&mut self) {
        let changed = self.files_with(|attached| {
            attached.file.metadata().is_ok_and(|m| FileVersion::of(&m) != attached.version)
        });
        for id in changed {
            self.recheck_one(id, None);
        }
    }

    fn recheck_one(&mut self, id: FileId, seen_at: Option<Nanos>) {
        let Some(mut attached) = self.files.remove(&id) else { return };
        let version = match attached.file.metadata() {
            Ok(metadata) => FileVersion::of(&metadata),
            Err(_) => attached.version,
        };
        let overwritten = version.contents_differ(&attached.version);
        if overwritten {
            self.counts.overwritten += 1;
            self.detach(&mut attached);
        }
        let read = self.read(attached.kind, &attached.file);
        // A change of mode, owner or link count is no reason to detach.
        if !overwritten && read.as_ref().is_ok_and(|image| *image == attached.image) {
            attached.version = version;
            self.files.insert(id, attached);
            return;
        }
        self.detach(&mut attached);
        let (verdict, left_out) = match read {
            Ok(image) if !image.sites.is_empty() => {
                let attached = AttachedFile { version, image, ..attached };
                return self.attach(id, attached, seen_at);
            }
            Ok(image) => (without_sites(&image), image.left_out),
            Err(error) => (LibraryVerdict::Broken(error.to_string()), Vec::new()),
        };
        self.generation += 1;
        self.unwatch(id);
        self.ignore(
            id,
            version,
            attached.kind,
            Report { path: attached.path, build_id: None, left_out, verdict },
        );
    }

    /// Cleans up after a scan that began at `scan_started`: rechecks all files, retries rejected ones, and drops those that
    /// are deleted, or that [`Self::observe`] has not seen for longer than [`UNMAPPED_GRACE`], or [`ABANDONED_GRACE`].
    pub fn collect_garbage(&mut self, scan_started: Instant) {
        self.recheck();
        let unmapped = |attached: &AttachedFile<A::Links>| attached.last_seen < scan_started;
        let outdated = |attached: &AttachedFile<A::Links>| {
            let deleted = attached.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
            let unseen = scan_started.saturating_duration_since(attached.last_seen);
            unmapped(attached)
                && (deleted || unseen >= UNMAPPED_GRACE || attached.is_abandoned(scan_started))
        };
        for id in self.files_with(outdated) {
            if let Some(mut attached) = self.files.remove(&id) {
                self.detach(&mut attached);
                self.unwatch(id);
                self.generation += 1;
            }
        }
        for attached in self.files.values_mut() {
            attached.users.retain(|_, seen| *seen >= scan_started);
        }
        self.end_scan(scan_started);
        for id in self.files_with(|attached| attached.state.is_err()) {
            if let Some(attached) = self.files.remove(&id) {
                self.attach(id, attached, None);
            }
        }
        let forgotten = self.ignored.forget_reports(scan_started, UNMAPPED_GRACE);
        self.generation += u64::from(forgotten);
    }

    /// Removes all probes, as before the process ends. Per-process limits are cleared.
    pub fn detach_all(&mut self) {
        self.limited.clear();
        let mut all = Vec::new();
        for (id, attached) in std::mem::take(&mut self.files) {
            self.unwatch(id);
            all.extend(attached.state.ok());
        }
        let links: Vec<LinkId> = all.iter().map(|(link, _)| *link).collect();
        self.attacher.detach_all(all);
        tracing::info!(files = links.len(), "detached from all files");
        for link in links {
            self.ids.give_back(link);
            self.counts.detached += 1;
            self.generation += 1;
        }
    }

    /// Totals since the start.
    pub fn counts(&self) -> RegistryCounts {
        self.counts
    }

    /// Grows when [`Self::libraries`] may have changed.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Why a file without a function to probe has none.
fn without_sites(image: &LibraryImage) -> LibraryVerdict {
    if image.left_out.is_empty() {
        LibraryVerdict::NoSymbols
    } else {
        LibraryVerdict::SingleStepped
    }
}

fn monotonic_now() -> Option<Nanos> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    u64::try_from(now.as_nanos()).ok().map(Nanos)
}
