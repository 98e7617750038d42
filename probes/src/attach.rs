//! Attaching the call programs to the functions of one library file.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpucause_abi::op::Class;
use gpucause_abi::record::MAX_LINKS;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramMut, UprobeMultiOpts, UprobeOpts};

use crate::elf::ProbeSite;
use crate::feature::AttachMode;
use crate::program::{LoadError, Programs};
use crate::registry::{Attach, LinkId};

/// A library could not be attached to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The kernel refused the probes.
    #[error("{sites} probes refused: {source:#}")]
    Refused {
        /// How many were to be attached.
        sites: usize,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The program was not loaded.
    #[error("program {0} is not loaded")]
    NoProgram(&'static str),
}

/// The probes on one file. Those on launches can be taken away and put back.
#[derive(Debug)]
pub(crate) struct FileLinks {
    _others: Vec<Link>,
    launches: Vec<Link>,
    /// Offset and cookie of each launch.
    launch_probes: Vec<(u64, u64)>,
}

/// Attaches the call programs, in the way that was chosen when they were loaded.
#[derive(Debug)]
pub(crate) struct CallProbes {
    programs: Arc<Programs>,
    closed_links: MapHandle,
    /// What `closed_links` holds; this is its only writer.
    closed: Vec<u8>,
    /// Whether files that are attached now get probes on launches.
    with_launches: bool,
}

/// The kernel resolves this path to the open file itself, whatever name or mount it has or had.
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
        Ok(Self { programs, closed_links, closed: vec![0; MAX_LINKS], with_launches: true })
    }

    fn set_closed(&mut self, link: LinkId, closed: bool) {
        let Some(entry) = self.closed.get_mut(usize::from(link.0)) else { return };
        if *entry == u8::from(closed) {
            return;
        }
        *entry = u8::from(closed);
        if let Err(error) =
            self.closed_links.update(&0u32.to_ne_bytes(), &self.closed, MapFlags::ANY)
        {
            tracing::warn!(%error, "the programs were not told of a closed link; some of its last calls may count twice");
        }
    }

    fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, AttachError> {
        self.programs
            .object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or(AttachError::NoProgram(name))
    }

    fn multi(
        &self,
        program: &'static str,
        path: &Path,
        probes: &[(u64, u64)],
        (retprobe, session): (bool, bool),
    ) -> Result<Link, AttachError> {
        let options = UprobeMultiOpts {
            offsets: probes
                .iter()
                .filter_map(|&(offset, _)| usize::try_from(offset).ok())
                .collect(),
            cookies: probes.iter().map(|&(_, cookie)| cookie).collect(),
            retprobe,
            session,
            ..UprobeMultiOpts::default()
        };
        self.program(program)?
            .attach_uprobe_multi_with_opts(-1, path, "", options)
            .map_err(|source| AttachError::Refused { sites: probes.len(), source })
    }

    fn perf(
        &self,
        path: &Path,
        probes: &[(u64, u64)],
        links: &mut Vec<Link>,
    ) -> Result<(), AttachError> {
        let (enter, leave) = (self.program("call_enter_perf")?, self.program("call_leave_perf")?);
        for &(offset, cookie) in probes {
            let attach = |program: &ProgramMut<'_>, retprobe| {
                let options = UprobeOpts { cookie, retprobe, ..UprobeOpts::default() };
                program
                    .attach_uprobe_with_opts(
                        -1,
                        path,
                        usize::try_from(offset).unwrap_or(usize::MAX),
                        options,
                    )
                    .map_err(|source| AttachError::Refused { sites: probes.len(), source })
            };
            let leave = attach(&leave, true)?;
            links.push(attach(&enter, false)?);
            links.push(leave);
        }
        Ok(())
    }

    /// Entry probes come before return probes in what is returned, and are attached after them and closed before them: a
    /// return without an entry is ignored, while an entry without a return would look like a hanging call.
    pub(crate) fn attach_group(
        &self,
        path: &Path,
        probes: &[(u64, u64)],
        links: &mut Vec<Link>,
    ) -> Result<(), AttachError> {
        if probes.is_empty() {
            return Ok(());
        }
        match self.programs.mode {
            AttachMode::Session => {
                links.push(self.multi("call_session", path, probes, (false, true))?);
            }
            AttachMode::Multi => {
                let leave = self.multi("call_leave_multi", path, probes, (true, false))?;
                links.push(self.multi("call_enter_multi", path, probes, (false, false))?);
                links.push(leave);
            }
            AttachMode::Perf => self.perf(path, probes, links)?,
        }
        Ok(())
    }
}

impl Attach for CallProbes {
    type Links = FileLinks;
    type Error = AttachError;

    /// Launches get a link of their own.
    fn attach(
        &mut self,
        file: &File,
        link: LinkId,
        sites: &[ProbeSite],
    ) -> Result<FileLinks, AttachError> {
        let path = path_of(file);
        let probe =
            |site: &ProbeSite| (site.offset, u64::from(site.op.0) | u64::from(link.0) << 16);
        let is_launch =
            |site: &&ProbeSite| site.op.op().is_some_and(|op| op.class == Class::Launch);
        let (launches, others): (Vec<_>, Vec<_>) = sites.iter().partition(is_launch);
        let launch_probes: Vec<_> = launches.into_iter().map(probe).collect();
        let others: Vec<_> = others.into_iter().map(probe).collect();
        self.set_closed(link, false);
        let (mut other_links, mut launch_links) = (Vec::new(), Vec::new());
        self.attach_group(&path, &others, &mut other_links)?;
        if self.with_launches {
            self.attach_group(&path, &launch_probes, &mut launch_links)?;
        }
        Ok(FileLinks { _others: other_links, launches: launch_links, launch_probes })
    }

    fn detach(&mut self, link: LinkId, links: FileLinks) {
        drop(links);
        self.set_closed(link, true);
    }

    fn set_launches(&mut self, wanted: bool) {
        self.with_launches = wanted;
    }

    fn shed_launches(&mut self, links: &mut FileLinks) {
        links.launches.clear();
    }

    fn restore_launches(&mut self, file: &File, links: &mut FileLinks) -> Result<(), AttachError> {
        if !links.launches.is_empty() {
            return Ok(());
        }
        self.attach_group(&path_of(file), &links.launch_probes, &mut links.launches)
    }
}
