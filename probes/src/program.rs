//! Opens, configures and loads the kernel programs, and attaches the host-wide ones.

use std::io::Read as _;

use gpucause_abi::Nanos;
use gpucause_abi::op::LaunchOps;
use gpucause_abi::record::Settings;
use gpucause_abi::snapshot::LaunchStep;
use gpucause_abi::{reason_of_syscalls, wakes_of_syscalls};
use libbpf_rs::{Iter, Link, Object, ObjectBuilder, OpenObject, PrintLevel};
use nix::unistd::{SysconfVar, sysconf};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use parking_lot::Mutex;
use zerocopy::IntoBytes as _;

use crate::feature::{AttachMode, Features, Tracepoints, kernel_types};
use crate::load_error::LoadError;
use crate::op_table;
use crate::recorder::{RecorderSupport, RingSize};
use crate::verdict::{ProgramStatus, ProgramVerdict};

mod host;
mod task_storage;

use host::{ADOPTS, FORGETS, HOST_PROGRAMS, REPORTS};
pub(crate) use host::{SAMPLES_BY_EVENTS, SAMPLES_BY_TIMERS, SAMPLES_TRACEPOINT};

/// The compiled programs.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpucause.bpf.o"));

/// Programs that user space runs directly.
const RUN_BY_US: [&str; 2] = ["time_kernel", "end_unseen"];

/// Bound of tracked threads where no record is in task storage.
const ALL_THREADS: u32 = 16_384;

/// Bytes that `ret` pops before a return probe runs: the return address on x86-64, nothing on arm64.
const RETURN_POP: u32 = if cfg!(target_arch = "x86_64") { 8 } else { 0 };

/// How to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Attach mode, instead of the best one that the kernel supports.
    pub mode: Option<AttachMode>,
    /// Bound of the histogram map, in chunks of 512 bytes; the default is that of the map.
    pub max_chunks: Option<u32>,
    /// Limit of observed processes, including ended ones that are not deleted yet.
    pub max_processes: Option<u32>,
    /// Bound of threads whose task has no storage; the default is that of the map, or enough for all where no task has any.
    pub max_hashed_threads: Option<u32>,
    /// Keep the records of all threads in that map, as where no task has storage.
    pub hashes_threads: bool,
    /// Load also on kernels that [`Features::require`] rejects.
    pub allow_untested_kernel: bool,
    /// Initial set of ops that count as launches: see [`Probes::set_launch_ops`](crate::Probes::set_launch_ops).
    pub launch_ops: LaunchOps,
    /// Start disabled, until [`Probes::set_enabled`](crate::Probes::set_enabled).
    pub disabled: bool,
    /// Share of a thread's time that call probes may take; `None` for no limit. Above it launches are observed less: see
    /// [`LaunchStep`].
    pub budget: Option<f64>,
    /// Leave out functions where the kernel would single-step each hit.
    pub without_single_steps: bool,
    /// Share that they may take while they only count calls: above it a process is observed part of the time.
    pub counting_limit: f64,
    /// Fixed step for every process, regardless of the budget: for measurements.
    pub step: Option<LaunchStep>,
    /// Also time launches nested in other calls, such as the driver's part of a runtime launch.
    pub nested_launches: bool,
    /// Size of the event ring: see [`Probes::recorder`](crate::Probes::recorder). `None` disables recording.
    pub recorder: Option<RingSize>,
    /// Sample stacks when timers expire, as where the kernel refuses perf events.
    pub samples_by_timers: bool,
    /// Measure the cost of a call probe hit at start. Takes about 150 ms.
    pub calibrate: bool,
    /// A timed hit and one that is left at entry are taken to cost this, in place of a measurement: for tests.
    pub hit_cost: Option<(Nanos, Nanos)>,
    /// Called after loading and before the attacher thread starts, to drop privileges. The thread needs those of
    /// [`AttachMode::privileges`].
    pub loaded: Option<fn(AttachMode)>,
}

/// The programs in the kernel. Drop detaches and unloads them.
#[derive(Debug)]
pub(crate) struct Programs {
    // Links go before the object that owns their programs.
    links: Mutex<Vec<Link>>,
    pub(crate) object: Object,
    pub(crate) mode: AttachMode,
    /// Support for recording events.
    pub(crate) recorder_support: RecorderSupport,
    tracepoints: Tracepoints,
    /// Programs that are not loaded.
    refused: Vec<ProgramStatus>,
    statuses: Mutex<Vec<ProgramStatus>>,
}

/// Links of the programs that run when user space reads from them.
#[derive(Debug, Default)]
pub(crate) struct Iterators {
    /// Reports live threads.
    pub(crate) reports: Option<Link>,
    /// Tracks children that are older than the tracking of their parents.
    pub(crate) adopts: Option<Link>,
}

/// libbpf's warnings during a load; global because its print callback is a plain function.
static LOAD_LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Serialises loads, so that their logs do not mix.
static LOADING: Mutex<()> = Mutex::new(());

#[expect(clippy::needless_pass_by_value, reason = "libbpf-rs wants this signature")]
fn record_log(_: PrintLevel, line: String) {
    LOAD_LOG.lock().push(line.trim_end().to_owned());
}

impl Programs {
    /// Loads all programs; of the two that sample stacks, `sampler` only. A rejected host-wide program is left out and reported; the call
    /// programs are required.
    pub(crate) fn load(options: Options, sampler: &'static str) -> Result<Self, LoadError> {
        let types = kernel_types()?;
        let (features, tracepoints) = (Features::of(&types), Tracepoints::of(&types));
        if !options.allow_untested_kernel {
            features.require()?;
        }
        let hashes_threads = options.hashes_threads || task_storage::is_unusable(&types);
        let kernel = Kernel { tracepoints, hashes_threads, sampler };
        drop(types);
        let mode = options.mode.unwrap_or_else(|| features.best_mode());
        let known = match mode {
            AttachMode::Session => features.session,
            AttachMode::Multi => features.multi,
            AttachMode::Perf => true,
        };
        if !known {
            return Err(LoadError::NoSuchMode(mode));
        }
        let _only = LOADING.lock();
        let previous = libbpf_rs::set_print(Some((PrintLevel::Warn, record_log)));
        let loaded = load_with_recorder(options, mode, &kernel);
        libbpf_rs::set_print(previous);
        let ((object, mode, refused), recorder_support) = loaded?;
        let (links, statuses) = Default::default();
        let tracepoints = kernel.tracepoints;
        Ok(Self { links, object, mode, recorder_support, tracepoints, refused, statuses })
    }

    /// Returns true if the kernel has this tracepoint.
    pub(crate) fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.has(name)
    }

    /// Status of the host-wide programs.
    pub(crate) fn statuses(&self) -> Vec<ProgramStatus> {
        self.statuses.lock().clone()
    }

    /// Detaches the host-wide programs.
    pub(crate) fn detach_host_programs(&self) {
        self.links.lock().clear();
        for status in self.statuses.lock().iter_mut() {
            if status.verdict == ProgramVerdict::Attached {
                status.verdict = ProgramVerdict::Disabled;
            }
        }
    }

    /// Ends the accounts of all processes. Call when nothing is attached.
    pub(crate) fn forget_tasks(&self) -> std::io::Result<()> {
        let failed = |error: libbpf_rs::Error| std::io::Error::other(format!("{error:#}"));
        let mut programs = self.object.progs_mut();
        let Some(program) = programs.find(|program| program.name() == FORGETS) else {
            return Err(std::io::Error::other(format!("{FORGETS} is not loaded")));
        };
        let link = program.attach().map_err(failed)?;
        Iter::new(&link).map_err(failed)?.read_to_end(&mut Vec::new()).map(drop)
    }

    /// Attaches the host-wide programs.
    pub(crate) fn attach_host_programs(&self) -> Iterators {
        let (mut iterators, mut links) = (Iterators::default(), Vec::new());
        let mut statuses = self.refused.clone();
        for program in self.object.progs_mut() {
            let known = HOST_PROGRAMS.into_iter().find(|&(name, _)| program.name() == name);
            let Some((name, _)) =
                known.filter(|&(name, _)| !host::is_replaced(name, &self.tracepoints))
            else {
                continue;
            };
            if statuses.iter().any(|status| status.program == name) {
                continue;
            }
            let verdict = match program.attach() {
                Ok(link) if name == REPORTS => {
                    iterators.reports = Some(link);
                    ProgramVerdict::Attached
                }
                Ok(link) if name == ADOPTS => {
                    iterators.adopts = Some(link);
                    ProgramVerdict::Attached
                }
                Ok(link) => {
                    links.push(link);
                    ProgramVerdict::Attached
                }
                Err(error) => ProgramVerdict::Broken(format!("{error:#}")),
            };
            if let Some(reason) = verdict.reason() {
                tracing::error!(
                    program = name,
                    reason,
                    "program not attached; its metrics are missing"
                );
            }
            statuses.push(ProgramStatus { program: name, verdict });
        }
        *self.links.lock() = links;
        *self.statuses.lock() = statuses;
        iterators
    }
}

/// Facts about the running kernel.
struct Kernel {
    tracepoints: Tracepoints,
    /// True if no record can be in task storage.
    hashes_threads: bool,
    /// The program that samples stacks.
    sampler: &'static str,
}

impl Kernel {
    /// Returns true if this program is to be loaded: of those that sample stacks only one, if this kernel has what it is attached to.
    fn loads(&self, program: &str) -> bool {
        match program {
            SAMPLES_BY_EVENTS => self.sampler == program,
            SAMPLES_BY_TIMERS => {
                self.sampler == program && self.tracepoints.has(SAMPLES_TRACEPOINT)
            }
            _ => true,
        }
    }
}

/// The programs, the attach mode, and the status of rejected programs.
type Loaded = (Object, AttachMode, Vec<ProgramStatus>);

/// Loads the object with the event ring if requested, and falls back to one without it.
fn load_with_recorder(
    options: Options,
    mode: AttachMode,
    kernel: &Kernel,
) -> Result<(Loaded, RecorderSupport), LoadError> {
    let Some(size) = options.recorder else {
        return Ok((load_best(options, mode, kernel)?, RecorderSupport::None));
    };
    let is_broken = |status: &ProgramStatus| matches!(status.verdict, ProgramVerdict::Broken(_));
    let reason = match load_best(options, mode, kernel) {
        Ok(loaded) if loaded.1 == mode && !loaded.2.iter().any(is_broken) => {
            return Ok((loaded, RecorderSupport::Slots(size.slots())));
        }
        Ok((_, _, refused)) => {
            let broken = refused.iter().find(|status| is_broken(status));
            let reason = broken.and_then(|status| status.verdict.reason());
            reason.unwrap_or("the kernel refuses the call programs").to_owned()
        }
        Err(LoadError::NotPermitted) => return Err(LoadError::NotPermitted),
        Err(error) => error.to_string(),
    };
    tracing::error!(reason, "event recording is not available");
    let refused_by_verifier = program_was_refused();
    let loaded = load_best(Options { recorder: None, ..options }, mode, kernel)?;
    let support = if refused_by_verifier {
        RecorderSupport::Unsupported(reason)
    } else {
        RecorderSupport::Broken(reason)
    };
    Ok((loaded, support))
}

/// Returns true if libbpf's log blames a program, not a map.
fn program_was_refused() -> bool {
    is_in_log("prog '")
}

/// Loads the object with the call programs of this mode; when the kernel rejects them and the mode was not requested, of the
/// next best one.
fn load_best(options: Options, mode: AttachMode, kernel: &Kernel) -> Result<Loaded, LoadError> {
    let mut modes = AttachMode::ALL.into_iter().skip_while(|&known| known != mode);
    loop {
        let mode = modes.next().unwrap_or(AttachMode::Perf);
        match load_without_refused(options, mode, kernel) {
            Ok((object, statuses)) => return Ok((object, mode, statuses)),
            Err(error)
                if options.mode.is_none() && mode != AttachMode::Perf && call_was_refused() =>
            {
                tracing::warn!(mode = mode.label(), %error, "falling back to the next attach mode");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if libbpf's log blames one of the call programs.
fn call_was_refused() -> bool {
    is_in_log("prog 'call_")
}

/// Returns true if libbpf's log says that a program with this name failed to load.
fn is_in_log(program: &str) -> bool {
    let is_it = |line: &String| line.contains(program) && line.contains("failed to load");
    LOAD_LOG.lock().iter().any(is_it)
}

/// Loads the object without unsupported host programs; each rejected one is disabled and the load retried. Returns their
/// status.
fn load_without_refused(
    options: Options,
    mode: AttachMode,
    kernel: &Kernel,
) -> Result<(Object, Vec<ProgramStatus>), LoadError> {
    let mut refused = host::unsupported(&kernel.tracepoints);
    loop {
        LOAD_LOG.lock().clear();
        let mut open = ObjectBuilder::default()
            .name("gpucause")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|source| refusal("opened", source))?;
        let is_wanted = |program: &str| {
            refused.iter().all(|status| status.program != program)
                && !host::is_replaced(program, &kernel.tracepoints)
                && kernel.loads(program)
        };
        configure(&mut open, options, mode, kernel, is_wanted)?;
        write_rodata(&mut open, options, kernel)?;
        let source = match open.load() {
            Ok(object) => return Ok((object, refused)),
            Err(source) => source,
        };
        if source.kind() == libbpf_rs::ErrorKind::PermissionDenied {
            let log = LOAD_LOG.lock().join(" ");
            if !log.contains("BEGIN PROG LOAD LOG") {
                return Err(LoadError::NotPermitted);
            }
        }
        match refused_program().filter(|name| refused.iter().all(|status| status.program != *name))
        {
            Some(program) => {
                let reason = refusal("loaded", source).to_string();
                tracing::error!(
                    program,
                    reason,
                    "the kernel rejected a program; its metrics are missing"
                );
                refused.push(ProgramStatus { program, verdict: ProgramVerdict::Broken(reason) });
            }
            None => return Err(refusal("loaded", source)),
        }
    }
}

/// The host program that libbpf's log blames, as in `prog 'sched_switch': failed to load: -EINVAL`.
fn refused_program() -> Option<&'static str> {
    let log = LOAD_LOG.lock();
    let others = RUN_BY_US.into_iter().chain([FORGETS, SAMPLES_BY_EVENTS, SAMPLES_BY_TIMERS]);
    let mut all = HOST_PROGRAMS.into_iter().map(|(name, _)| name).chain(others);
    all.find(|name| log.iter().any(|line| line.contains(&format!("prog '{name}': failed to load"))))
}

fn refusal(step: &'static str, source: libbpf_rs::Error) -> LoadError {
    let log = LOAD_LOG.lock().clone();
    let lines: Vec<_> = log.iter().flat_map(|text| text.lines()).collect();
    let detail = lines[lines.len().saturating_sub(8)..].join(" | ");
    LoadError::Refused { step, source, detail }
}

fn configure(
    open: &mut OpenObject,
    options: Options,
    mode: AttachMode,
    kernel: &Kernel,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), LoadError> {
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let wanted = match name.as_str() {
            "call_session" => mode == AttachMode::Session,
            // On arm64 most calls are seen by two probes that are no session.
            "call_enter_multi" | "call_leave_multi" => {
                mode == AttachMode::Multi
                    || mode == AttachMode::Session && cfg!(target_arch = "aarch64")
            }
            "call_enter_perf" | "call_leave_perf" => mode == AttachMode::Perf,
            program => is_wanted(program),
        };
        program.set_autoload(wanted);
    }
    for mut map in open.maps_mut() {
        let bound = match map.name().to_str() {
            Some("hists") => options.max_chunks,
            Some("procs" | "tracked") => options.max_processes,
            Some("hashed_threads") => {
                options.max_hashed_threads.or(kernel.hashes_threads.then_some(ALL_THREADS))
            }
            Some("ring") => options.recorder.map(RingSize::slots),
            Some("stacks" | "python_stacks") => options.recorder.map(|size| size.stacks.max(1)),
            _ => None,
        };
        if let Some(entries) = bound {
            map.set_max_entries(entries).map_err(|source| refusal("configured", source))?;
        }
    }
    op_table::write(open, &options.launch_ops)
}

/// Name, offset and size of each read-only global.
fn rodata_layout() -> Result<Vec<(String, usize, usize)>, LoadError> {
    let missing = |_| LoadError::Incomplete("a readable ELF header");
    let file = object::File::parse(OBJECT).map_err(missing)?;
    let rodata = file.section_by_name(".rodata").ok_or(LoadError::Incomplete(".rodata"))?.index();
    let variables = file
        .symbols()
        .filter(|symbol| symbol.section_index() == Some(rodata))
        .filter_map(|symbol| {
            let offset = usize::try_from(symbol.address()).ok()?;
            Some((symbol.name().ok()?.to_owned(), offset, usize::try_from(symbol.size()).ok()?))
        });
    Ok(variables.collect())
}

/// Facts about this process and kernel.
fn settings(options: Options, kernel: &Kernel) -> Settings {
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let ring_slots = options.recorder.map_or(0, RingSize::slots);
    Settings {
        own_tgid: std::process::id(),
        return_pop: RETURN_POP,
        page_bytes: page_bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(4096),
        nested_launches: options.nested_launches.into(),
        // Older kernels have one argument less on each.
        retransmit_has_error: (kernel.tracepoints.arguments("tcp_retransmit_skb") > 2).into(),
        victim_is_task: (kernel.tracepoints.arguments("mark_victim") > 1).into(),
        ring_slots,
        hashes_threads: kernel.hashes_threads.into(),
        cpus: libbpf_rs::num_possible_cpus()
            .ok()
            .and_then(|cpus| u32::try_from(cpus).ok())
            .unwrap_or(u32::MAX),
        ring_shift: ring_slots.checked_ilog2().unwrap_or(0),
        tick_ns: crate::host_clock::tick_ns(),
    }
}

/// Fills the read-only globals.
fn write_rodata(open: &mut OpenObject, options: Options, kernel: &Kernel) -> Result<(), LoadError> {
    let variables = rodata_layout()?;
    let mut map = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or(LoadError::Incomplete(".rodata"))?;
    let data = map.initial_value_mut().ok_or(LoadError::Incomplete("the value of .rodata"))?;
    let mut put = |name: &'static str, bytes: &[u8]| -> Result<(), LoadError> {
        let &(_, offset, size) = variables
            .iter()
            .find(|variable| variable.0 == name)
            .ok_or(LoadError::Incomplete(name))?;
        let target = data.get_mut(offset..offset + size).ok_or(LoadError::Incomplete(name))?;
        if bytes.len() != size {
            return Err(LoadError::Incomplete(name));
        }
        target.copy_from_slice(bytes);
        Ok(())
    };
    put("settings", settings(options, kernel).as_bytes())?;
    put("syscall_reason", &reason_of_syscalls())?;
    put("syscall_wakes", &wakes_of_syscalls())
}
