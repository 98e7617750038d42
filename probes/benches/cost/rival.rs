//! The programs that gpucause is compared with, and the kernel's own statistics.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use gpucause_probes::elf::read_library;
use gpucause_probes::feature::AttachMode;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{
    Link, MapCore as _, MapHandle, Object, ObjectBuilder, ProgramMut, RingBufferBuilder,
    UprobeMultiOpts, UprobeOpts,
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// A loaded and attached program.
pub(crate) struct Rival {
    object: Object,
    _links: Vec<Link>,
}

impl Rival {
    fn load(programs: &[&str]) -> Result<Object> {
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT)?;
        for mut program in open.progs_mut() {
            let wanted = programs.iter().any(|&name| program.name() == name);
            program.set_autoload(wanted);
        }
        Ok(open.load()?)
    }

    /// On this program's own `cudaLaunchKernel`.
    pub(crate) fn calls(program: &str) -> Result<Self> {
        let object = Self::load(&[program])?;
        let options = UprobeMultiOpts { session: true, ..UprobeMultiOpts::default() };
        let links = vec![attach_multi(&object, program, options)?];
        Ok(Self { object, _links: links })
    }

    /// An empty program, attached there in this mode.
    pub(crate) fn empty(mode: AttachMode) -> Result<Self> {
        let mut links = Vec::new();
        let program = match mode {
            AttachMode::Session => return Self::calls("empty_session"),
            AttachMode::Multi => "empty_multi",
            AttachMode::Perf => "empty_perf",
        };
        let object = Self::load(&[program])?;
        for retprobe in [false, true] {
            if mode == AttachMode::Multi {
                let options = UprobeMultiOpts { retprobe, ..UprobeMultiOpts::default() };
                links.push(attach_multi(&object, program, options)?);
            } else {
                let options = UprobeOpts { retprobe, ..UprobeOpts::default() };
                let (path, offsets) = sites()?;
                let program = find(&object, program)?;
                for offset in offsets {
                    links.push(program.attach_uprobe_with_opts(
                        -1,
                        &path,
                        offset,
                        options.clone(),
                    )?);
                }
            }
        }
        Ok(Self { object, _links: links })
    }

    /// On the scheduler.
    pub(crate) fn host(programs: &[&str]) -> Result<Self> {
        let object = Self::load(programs)?;
        let links = object
            .progs_mut()
            .filter(|program| programs.iter().any(|&name| program.name() == name))
            .map(|program| program.attach())
            .collect::<Result<_, _>>()?;
        Ok(Self { object, _links: links })
    }

    /// Reads the ring buffer until stopped.
    pub(crate) fn read(&self) -> Result<Reader> {
        let map =
            self.object.maps().find(|map| map.name() == "events").context("no ring buffer")?;
        let map = MapHandle::try_from(&map)?;
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopping, counting) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || -> Result<()> {
            let sum = Rc::new(Cell::new(0u64));
            let summing = Rc::clone(&sum);
            let mut builder = RingBufferBuilder::new();
            builder.add(&map, move |event| {
                summing.set(
                    summing.get().wrapping_add(u64::from(event.first().copied().unwrap_or(0))),
                );
                counting.fetch_add(1, Ordering::Relaxed);
                0
            })?;
            let ring = builder.build()?;
            while !stopping.load(Ordering::Relaxed) {
                ring.poll(Duration::from_millis(20))?;
            }
            ring.consume()?;
            Ok(())
        });
        Ok(Reader { stop, seen, thread })
    }
}

/// This program, and where its functions are that are probed.
fn sites() -> Result<(PathBuf, Vec<usize>)> {
    let path = std::env::current_exe()?;
    let image = read_library(&File::open(&path)?)?;
    Ok((path, image.sites.iter().map(|site| site.offset as usize).collect()))
}

fn find<'a>(object: &'a Object, program: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|candidate| candidate.name() == program).context("no such program")
}

fn attach_multi(object: &Object, program: &str, options: UprobeMultiOpts) -> Result<Link> {
    let (path, offsets) = sites()?;
    let options = UprobeMultiOpts { offsets, ..options };
    Ok(find(object, program)?.attach_uprobe_multi_with_opts(-1, path, "", options)?)
}

/// A live reader of the ring buffer.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Reader {
    /// How many events it got of at most `sent`.
    pub(crate) fn stop(self, sent: u64) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the reader panicked"))??;
        Ok(self.seen.load(Ordering::Relaxed).min(sent))
    }
}

/// The kernel's run-time statistics of programs, on while this lives.
pub(crate) struct Statistics(());

impl Statistics {
    pub(crate) fn enable() -> Result<Self> {
        std::fs::write(STATISTICS, "1").with_context(|| format!("cannot write {STATISTICS}"))?;
        Ok(Self(()))
    }

    /// Nanoseconds a run by program.
    pub(crate) fn cost_of(&self, programs: &[&str]) -> Result<BTreeMap<String, f64>> {
        let costs = ProgInfoIter::default().filter_map(|program| {
            let name = program.name.to_string_lossy().into_owned();
            let wanted = programs.contains(&name.as_str()) && program.run_cnt > 0;
            wanted.then(|| (name, program.run_time_ns as f64 / program.run_cnt as f64))
        });
        Ok(costs.collect())
    }

    /// Nanoseconds that a program of this name has run.
    pub(crate) fn time_of(&self, name: &str) -> u64 {
        let of_name = ProgInfoIter::default().filter(|program| *program.name == *name);
        of_name.map(|program| program.run_time_ns).sum()
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // The statistics are not read afterwards.
        let _ = std::fs::write(STATISTICS, "0");
    }
}
