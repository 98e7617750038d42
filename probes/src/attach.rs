//! Attaching the call programs to the functions of one library file.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpucause_abi::Tgid;
use gpucause_abi::op::{LoadClass, OpId};
use gpucause_abi::record::{LINK_CLOSED, LINK_RETIRING};
use libbpf_rs::{Link, MapCore as _, MapHandle, ProgramMut, UprobeMultiOpts, UprobeOpts};

use crate::close::close_all;
use crate::elf::{ProbeSite, Prologue};
use crate::feature::AttachMode;
use crate::launch_groups::{GROUPS, Group, Groups, LaunchUsers, LinkStates};
use crate::load_error::LoadError;
use crate::program::Programs;
use crate::registry::{Attach, LinkId};

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
    /// Offset, and cookie without link.
    sites: Vec<(u64, u64)>,
}

/// The group of a call's probes.
const fn group_of(class: LoadClass) -> Option<usize> {
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
        probes: &[(u64, u64)],
        links: &mut Vec<Link>,
    ) -> Result<(), AttachError> {
        attach_group(&self.programs, path, None, probes, links)
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
    probes: &[(u64, u64)],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let (enter, leave) =
        (program(programs, "call_enter_perf")?, program(programs, "call_leave_perf")?);
    for &(offset, cookie) in probes {
        let attach = |program: &ProgramMut<'_>, retprobe| {
            let options = UprobeOpts { cookie, retprobe, ..UprobeOpts::default() };
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            program
                .attach_uprobe_with_opts(-1, path, offset, options)
                .map_err(|source| AttachError::Refused { sites: probes.len(), source })
        };
        let leave = attach(&leave, true)?;
        links.push(attach(&enter, false)?);
        links.push(leave);
    }
    Ok(())
}

/// Entry links come first in the result: attached after the return links and closed before them. A return without entry is
/// ignored, but an entry without return would look like a hanging call.
fn attach_group(
    programs: &Programs,
    path: &Path,
    user: Option<Tgid>,
    probes: &[(u64, u64)],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    if probes.is_empty() {
        return Ok(());
    }
    let at = (path, user);
    match programs.mode {
        AttachMode::Session => {
            links.push(multi(programs, "call_session", at, probes, (false, true))?);
        }
        AttachMode::Multi => {
            let leave = multi(programs, "call_leave_multi", at, probes, (true, false))?;
            links.push(multi(programs, "call_enter_multi", at, probes, (false, false))?);
            links.push(leave);
        }
        AttachMode::Perf => perf(programs, path, probes, links)?,
    }
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
    ) -> Result<FileLinks, AttachError> {
        let (mut others, mut removable) = (Vec::new(), <[Removable; GROUPS]>::default());
        for site in sites {
            let cookie = cookie(site.op, site.prologue);
            let group = site.op.op().and_then(|op| group_of(op.load_class()));
            match group.and_then(|group| removable.get_mut(group)) {
                None => others.push((site.offset, with_link(cookie, link))),
                Some(group) => group.sites.push((site.offset, cookie)),
            }
        }
        self.link_states.set([(link, 0)]);
        let mut links = FileLinks { _others: Vec::new(), removable };
        attach_group(&self.programs, &path_of(file), None, &others, &mut links._others)?;
        let users = [const { LaunchUsers::All }; GROUPS];
        if let Err(error) = self.set_launch_users(file, &mut links, &users) {
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
        for (own, users) in links.removable.iter_mut().zip(users) {
            let Removable { groups, sites } = own;
            if sites.is_empty() {
                continue;
            }
            self.groups.replace(groups, users, &mut self.link_states, |id, user| {
                let probes: Vec<_> =
                    sites.iter().map(|&(offset, cookie)| (offset, with_link(cookie, id))).collect();
                let mut attached = Vec::new();
                attach_group(programs, &path, user, &probes, &mut attached)?;
                Ok(attached)
            })?;
        }
        Ok(())
    }
}

/// That of the programs.
const SINGLE_STEPPED: u64 = 1 << 33;

fn cookie(op: OpId, prologue: Prologue) -> u64 {
    let stepped = if prologue == Prologue::SingleStepped { SINGLE_STEPPED } else { 0 };
    u64::from(op.0) | stepped
}

fn with_link(cookie: u64, link: LinkId) -> u64 {
    cookie | u64::from(link.0) << 16
}
