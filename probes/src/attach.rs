//! Attaching the call programs to the functions of one library file.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpucause_abi::Tgid;
use gpucause_abi::op::{LoadClass, Op};
use gpucause_abi::record::{LINK_CLOSED, LINK_RETIRING};
use libbpf_rs::{Link, MapCore as _, MapHandle, ProgramMut, UprobeMultiOpts, UprobeOpts};

use crate::close::close_all;
use crate::elf::{ProbeSite, Prologue};
use crate::feature::AttachMode;
use crate::launch_groups::{
    GROUPS, Group, Groups, LaunchUsers, LinkStates, REPLACED_ASYNCS, REPLACED_OTHERS,
};
use crate::load_error::LoadError;
use crate::program::Programs;
use crate::registry::{Attach, LinkId, may_be_replaced};

/// Attaching to a library failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The kernel refused the probes.
    #[error("{sites} probes rejected: {source:#}")]
    Refused {
        /// Number of probes.
        sites: usize,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// The program was not loaded.
    #[error("program {0} is not loaded")]
    NoProgram(&'static str),
}

/// The probes on one file.
#[derive(Debug)]
pub(crate) struct FileLinks {
    _others: Vec<Link>,
    /// A process may have to do without these probes.
    removable: [Removable; GROUPS],
}

/// The probes of one group.
#[derive(Debug, Default)]
struct Removable {
    groups: Vec<Group>,
    /// Their cookies have no link.
    sites: Vec<CallSite>,
}

/// The places at which one function is probed.
#[derive(Debug, Clone)]
pub(crate) struct CallSite {
    /// File offset of the probe at entry, in bytes.
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
    /// File offsets of the instructions that calls end with; empty for a return probe.
    pub(crate) returns: Vec<u64>,
}

impl CallSite {
    fn of(site: &ProbeSite) -> Self {
        let stepped = if site.prologue == Prologue::SingleStepped { SINGLE_STEPPED } else { 0 };
        let cookie = u64::from(site.op.0) | stepped | u64::from(site.reserved) << RESERVED_SHIFT;
        Self { offset: site.offset, cookie, returns: site.returns.clone() }
    }

    fn with_link(&self, link: LinkId) -> Self {
        Self { cookie: self.cookie | u64::from(link.0) << 16, ..self.clone() }
    }
}

/// The group of a call's probes.
fn group_of(op: &Op) -> Option<usize> {
    let class = op.load_class();
    if may_be_replaced(op) {
        return Some(if class == LoadClass::Async { REPLACED_ASYNCS } else { REPLACED_OTHERS });
    }
    match class {
        LoadClass::Runtime => Some(0),
        LoadClass::Driver => Some(1),
        LoadClass::Query => Some(2),
        LoadClass::Async => Some(3),
        LoadClass::Nested | LoadClass::Wait => None,
    }
}

/// Attaches the call programs in the loaded mode.
#[derive(Debug)]
pub(crate) struct CallProbes {
    programs: Arc<Programs>,
    link_states: LinkStates,
    groups: Groups,
}

/// Resolves to the open file, whatever its name or mount.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

impl CallProbes {
    pub(crate) fn new(programs: Arc<Programs>) -> Result<Self, LoadError> {
        let closed_links = programs
            .object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".data.links"))
            .and_then(|map| MapHandle::try_from(&map).ok())
            .ok_or(LoadError::Incomplete("closed_links"))?;
        let link_states = LinkStates::new(closed_links);
        Ok(Self { programs, link_states, groups: Groups::default() })
    }

    /// Detaches retired launch probes. Returns when to call again.
    pub(crate) fn detach_retired(&mut self, now: Instant) -> Option<Instant> {
        self.groups.detach_retired(now, &mut self.link_states)
    }

    /// Returns true if probes can be attached to single processes; perf events would be tied to single threads.
    pub(crate) fn is_per_process(&self) -> bool {
        self.programs.mode != AttachMode::Perf
    }

    /// Attaches probes to one process or all, and appends their links.
    pub(crate) fn attach_group(
        &self,
        path: &Path,
        sites: &[CallSite],
        links: &mut Vec<Link>,
    ) -> Result<(), AttachError> {
        attach_group(&self.programs, path, None, sites, links)
    }
}

fn program<'a>(programs: &'a Programs, name: &'static str) -> Result<ProgramMut<'a>, AttachError> {
    let mut all = programs.object.progs_mut();
    all.find(|program| program.name() == name).ok_or(AttachError::NoProgram(name))
}

fn multi(
    programs: &Programs,
    name: &'static str,
    (path, user): (&Path, Option<Tgid>),
    probes: &[(u64, u64)],
    (retprobe, session): (bool, bool),
) -> Result<Link, AttachError> {
    let options = UprobeMultiOpts {
        offsets: probes.iter().filter_map(|&(offset, _)| usize::try_from(offset).ok()).collect(),
        cookies: probes.iter().map(|&(_, cookie)| cookie).collect(),
        retprobe,
        session,
        ..UprobeMultiOpts::default()
    };
    program(programs, name)?
        .attach_uprobe_multi_with_opts(pid_of(user), path, "", options)
        .map_err(|source| AttachError::Refused { sites: probes.len(), source })
}

/// libbpf's PID argument: -1 for all processes.
fn pid_of(user: Option<Tgid>) -> i32 {
    user.and_then(|tgid| i32::try_from(tgid.0).ok()).unwrap_or(-1)
}

fn perf(
    programs: &Programs,
    path: &Path,
    site: &CallSite,
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let attach = |name, (offset, cookie): (u64, u64), retprobe| {
        let options = UprobeOpts { cookie, retprobe, ..UprobeOpts::default() };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        program(programs, name)?
            .attach_uprobe_with_opts(-1, path, offset, options)
            .map_err(|source| AttachError::Refused { sites: 1, source })
    };
    let at = (site.offset, site.cookie);
    let mut leave = Vec::new();
    if site.returns.is_empty() {
        leave.push(attach("call_leave_perf", at, true)?);
    }
    for end in ends(site) {
        leave.push(attach("call_leave_perf", end, false)?);
    }
    links.push(attach("call_enter_perf", at, false)?);
    links.append(&mut leave);
    Ok(())
}

/// Offsets and cookies of the probes where the calls of a site end.
fn ends(site: &CallSite) -> impl Iterator<Item = (u64, u64)> {
    let cookie = site.cookie & OP_AND_LINK;
    site.returns.iter().map(move |&offset| (offset, cookie))
}

/// Entry links come first in the result: attached after the return links and closed before them. A return without entry is
/// ignored, but an entry without return would look like a hanging call.
fn attach_group(
    programs: &Programs,
    path: &Path,
    user: Option<Tgid>,
    sites: &[CallSite],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    if programs.mode == AttachMode::Perf {
        return sites.iter().try_for_each(|site| perf(programs, path, site, links));
    }
    let at = (path, user);
    let (with_ends, others): (Vec<_>, Vec<_>) =
        sites.iter().partition(|site| !site.returns.is_empty());
    let entry = |site: &&CallSite| (site.offset, site.cookie);
    let others: Vec<_> = others.iter().map(entry).collect();
    match programs.mode {
        _ if others.is_empty() => {}
        AttachMode::Session => {
            links.push(multi(programs, "call_session", at, &others, (false, true))?);
        }
        AttachMode::Multi | AttachMode::Perf => {
            let leave = multi(programs, "call_leave_multi", at, &others, (true, false))?;
            links.push(multi(programs, "call_enter_multi", at, &others, (false, false))?);
            links.push(leave);
        }
    }
    if with_ends.is_empty() {
        return Ok(());
    }
    let ends: Vec<_> = with_ends.iter().flat_map(|site| ends(site)).collect();
    let entries: Vec<_> = with_ends.iter().map(entry).collect();
    let leave = multi(programs, "call_leave_multi", at, &ends, (false, false))?;
    links.push(multi(programs, "call_enter_multi", at, &entries, (false, false))?);
    links.push(leave);
    Ok(())
}

impl Attach for CallProbes {
    type Links = FileLinks;
    type Error = AttachError;

    /// Each group has its own links.
    fn attach(
        &mut self,
        file: &File,
        link: LinkId,
        sites: &[ProbeSite],
        users: &[LaunchUsers; GROUPS],
    ) -> Result<FileLinks, AttachError> {
        let (mut others, mut removable) = (Vec::new(), <[Removable; GROUPS]>::default());
        for site in sites {
            let group = site.op.op().and_then(group_of);
            match group.and_then(|group| removable.get_mut(group)) {
                None => others.push(CallSite::of(site).with_link(link)),
                Some(group) => group.sites.push(CallSite::of(site)),
            }
        }
        self.link_states.set([(link, 0)]);
        let mut links = FileLinks { _others: Vec::new(), removable };
        attach_group(&self.programs, &path_of(file), None, &others, &mut links._others)?;
        if let Err(error) = self.set_launch_users(file, &mut links, users) {
            self.detach(link, links);
            return Err(error);
        }
        Ok(links)
    }

    fn detach(&mut self, link: LinkId, links: FileLinks) {
        let FileLinks { _others: others, removable } = links;
        let groups = removable.into_iter().flat_map(|own| own.groups).collect();
        self.groups.detach(groups, &mut self.link_states);
        drop(others);
        self.link_states.set([(link, LINK_CLOSED)]);
    }

    fn detach_all(&mut self, all: Vec<(LinkId, FileLinks)>) {
        let (mut ids, mut groups, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (link, FileLinks { _others: others, removable }) in all {
            ids.push(link);
            links.extend(others);
            groups.extend(removable.into_iter().flat_map(|own| own.groups));
        }
        self.link_states.set(ids.iter().map(|&link| (link, LINK_RETIRING)));
        links.extend(self.groups.retire_all(groups, &mut self.link_states));
        close_all(links);
        self.groups.close_retired(&mut self.link_states);
        self.link_states.set(ids.into_iter().map(|link| (link, LINK_CLOSED)));
    }

    fn set_launch_users(
        &mut self,
        file: &File,
        links: &mut FileLinks,
        users: &[LaunchUsers; GROUPS],
    ) -> Result<(), AttachError> {
        let (programs, path) = (&self.programs, path_of(file));
        // First those of code that a process is about to replace: without users nothing of them can be refused.
        for (own, users) in links.removable.iter_mut().zip(users).rev() {
            let Removable { groups, sites } = own;
            if sites.is_empty() {
                continue;
            }
            self.groups.replace(groups, users, &mut self.link_states, |id, user| {
                let sites: Vec<_> = sites.iter().map(|site| site.with_link(id)).collect();
                let mut attached = Vec::new();
                attach_group(programs, &path, user, &sites, &mut attached)?;
                Ok(attached)
            })?;
        }
        Ok(())
    }
}

/// Parts of a cookie, as the programs read them.
const OP_AND_LINK: u64 = 0xffff_ffff;
const SINGLE_STEPPED: u64 = 1 << 33;
const RESERVED_SHIFT: u32 = 40;
