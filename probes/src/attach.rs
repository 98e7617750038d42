//! Attaching the call programs to the functions of one library file.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpucause_abi::Tgid;
use gpucause_abi::op::{Api, Class, OpId};
use gpucause_abi::record::{LINK_CLOSED, LINK_RETIRING};
use libbpf_rs::{Link, MapCore as _, MapHandle, ProgramMut, UprobeMultiOpts, UprobeOpts};
use parking_lot::Mutex;

use crate::elf::ProbeSite;
use crate::feature::AttachMode;
use crate::launch_control::groups::{Group, Groups, LaunchUsers, LinkStates};
use crate::program::{LoadError, Programs};
use crate::registry::{Attach, LinkId};

/// Attaching to a library failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The kernel refused the probes.
    #[error("{sites} probes rejected: {source:#}")]
    Refused {
        /// Number of probes.
        sites: usize,
        /// What the kernel said.
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
    /// By layer: runtime and driver.
    launches: [Launches; 2],
}

/// The probes on launches of one layer.
#[derive(Debug, Default)]
struct Launches {
    groups: Vec<Group>,
    /// Offset and op.
    sites: Vec<(u64, OpId)>,
}

/// Attaches the call programs in the loaded mode.
#[derive(Debug)]
pub(crate) struct CallProbes {
    programs: Arc<Programs>,
    link_states: LinkStates,
    groups: Groups,
}

/// Threads that close links: the kernel waits for a grace period per link, which threads can share.
const CLOSERS: usize = 64;
const CLOSER_STACK: usize = 128 << 10;

/// Closes links in parallel; each takes about 35 ms.
fn close_all(links: Vec<Link>) {
    let closers = links.len().min(CLOSERS);
    let left = Mutex::new(links);
    // The lock must not be held while a link is closed.
    let next = || left.lock().pop();
    let close = || {
        while let Some(link) = next() {
            drop(link);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..closers {
            let closer = std::thread::Builder::new().name("gpucause-close".into());
            // This thread closes the rest.
            if let Err(error) = closer.stack_size(CLOSER_STACK).spawn_scoped(scope, close) {
                tracing::debug!(%error, "cannot start a thread that closes links");
                break;
            }
        }
        close();
    });
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

    /// Whether probes can be attached to single processes; perf events would be tied to single threads.
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

    /// Launches have their own links.
    fn attach(
        &mut self,
        file: &File,
        link: LinkId,
        sites: &[ProbeSite],
    ) -> Result<FileLinks, AttachError> {
        let (mut others, mut launches) = (Vec::new(), <[Launches; 2]>::default());
        for site in sites {
            match (site.op.op().filter(|op| op.class == Class::Launch), &mut launches) {
                (None, _) => others.push((site.offset, cookie(site.op, link))),
                (Some(op), [runtime, _]) if op.api == Api::Runtime => {
                    runtime.sites.push((site.offset, site.op));
                }
                (Some(_), [_, driver]) => driver.sites.push((site.offset, site.op)),
            }
        }
        self.link_states.set([(link, 0)]);
        let mut links = FileLinks { _others: Vec::new(), launches };
        attach_group(&self.programs, &path_of(file), None, &others, &mut links._others)?;
        let users = [LaunchUsers::All, LaunchUsers::All];
        if let Err(error) = self.set_launch_users(file, &mut links, &users) {
            self.detach(link, links);
            return Err(error);
        }
        Ok(links)
    }

    fn detach(&mut self, link: LinkId, links: FileLinks) {
        let FileLinks { _others: others, launches, .. } = links;
        let groups = launches.into_iter().flat_map(|launches| launches.groups).collect();
        self.groups.detach(groups, &mut self.link_states);
        drop(others);
        self.link_states.set([(link, LINK_CLOSED)]);
    }

    fn detach_all(&mut self, all: Vec<(LinkId, FileLinks)>) {
        let (mut ids, mut groups, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (link, FileLinks { _others: others, launches }) in all {
            ids.push(link);
            links.extend(others);
            groups.extend(launches.into_iter().flat_map(|launches| launches.groups));
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
        users: &[LaunchUsers; 2],
    ) -> Result<(), AttachError> {
        let (programs, path) = (&self.programs, path_of(file));
        for (launches, users) in links.launches.iter_mut().zip(users) {
            let Launches { groups, sites } = launches;
            if sites.is_empty() {
                continue;
            }
            self.groups.replace(groups, users, &mut self.link_states, |id, user| {
                let probes: Vec<_> =
                    sites.iter().map(|&(offset, op)| (offset, cookie(op, id))).collect();
                let mut attached = Vec::new();
                attach_group(programs, &path, user, &probes, &mut attached)?;
                Ok(attached)
            })?;
        }
        Ok(())
    }
}

fn cookie(op: OpId, link: LinkId) -> u64 {
    u64::from(op.0) | u64::from(link.0) << 16
}
