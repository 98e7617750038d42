//! Function names and lines of stacks, found on a separate thread: reading the symbols of a large library takes seconds, in which
//! the ring must not fill.
//!
//! Any user of the host may have written the files: they are read from a copy of bounded size, names are demangled here within
//! bounds, and a symboliser that panics loses one file. Lines are read from root's files only: a small file may claim millions of
//! ranges for its functions, and the symboliser keeps them all.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};
use gpucause_observe::kernel_launches::readable::{function, one_line};
use gpucause_observe::stacks::frames::{Found, Module};
use gpucause_probes::elf::{ElfError, SymbolTables, symbol_tables};
use gpucause_probes::mapped::FileVersion;
use gpucause_trace::recording::{Stack, StackId};

/// Stacks that wait for their names.
const MAX_WAITING: usize = 4096;
/// Bytes of symbol tables that are held.
const MAX_BYTES: u64 = 512 << 20;
/// Addresses that are remembered.
const MAX_REMEMBERED: usize = 65_536;
/// Characters of a source file's path.
const MAX_PATH: usize = 256;

/// A stack with what was found of its frames.
type Answer = (StackId, Stack);

/// Finds names on its own thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Symbols {
    requests: Option<SyncSender<(StackId, Found)>>,
    answers: Receiver<Answer>,
    waiting: usize,
    /// Stacks whose request was dropped or not answered.
    unsymbolized: u64,
}

impl Symbols {
    /// Starts the thread; without one, stacks are without names.
    pub(super) fn start() -> Self {
        let (requests, received) = sync_channel::<(StackId, Found)>(MAX_WAITING);
        let (send, answers) = channel();
        let work = move || {
            let mut files = Files::default();
            for (id, Found { mut stack, modules }) in received {
                files.name(&mut stack, &modules);
                if send.send((id, stack)).is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("symbols".to_owned()).spawn(work);
        let requests = started
            .inspect_err(|error| tracing::warn!(%error, "stacks have no functions"))
            .is_ok()
            .then_some(requests);
        Self { requests, answers, waiting: 0, unsymbolized: 0 }
    }

    /// Requests the names of a stack.
    pub(super) fn request(&mut self, id: StackId, found: Found) {
        match &self.requests {
            Some(requests) if requests.try_send((id, found)).is_ok() => self.waiting += 1,
            _ => self.unsymbolized += 1,
        }
    }

    /// Answers since the last call.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        let answers: Vec<_> = self.answers.try_iter().collect();
        self.waiting -= answers.len().min(self.waiting);
        answers
    }

    /// Answers until all requests are answered or `timeout` is over. Ends the thread.
    pub(super) fn last_answers(&mut self, timeout: Duration) -> Vec<Answer> {
        self.requests = None;
        let until = Instant::now() + timeout;
        let mut answers = Vec::new();
        while let Ok(answer) =
            self.answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            answers.push(answer);
        }
        self.waiting -= answers.len().min(self.waiting);
        self.unsymbolized += std::mem::take(&mut self.waiting) as u64;
        answers
    }

    /// Stacks without names, as there were too many or finding them took too long.
    pub(super) fn unsymbolized(&self) -> u64 {
        self.unsymbolized
    }
}

/// The source location of an address.
#[derive(Debug, Clone, Default)]
struct Location {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// Returns true if only root can write a file.
fn is_roots(file: &Metadata) -> bool {
    file.uid() == 0 && file.mode() & 0o022 == 0
}

/// The symbols of one file.
struct Symbolised {
    symboliser: Symbolizer,
    tables: File,
    has_lines: bool,
    bytes: u64,
}

impl Symbolised {
    fn read(file: &File) -> Option<Self> {
        let metadata = file.metadata().map_err(ElfError::from);
        metadata
            .and_then(|metadata| symbol_tables(file, is_roots(&metadata)))
            .inspect_err(|error| tracing::debug!(%error, "cannot read the symbols of a file"))
            .ok()
            .map(Self::of)
    }

    fn of(tables: SymbolTables) -> Self {
        // Demangling is done elsewhere, and nothing leads to other files.
        let symboliser = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_demangling(false)
            .enable_inlined_fns(false)
            .set_debug_dirs(Some(None::<&str>))
            .build();
        let SymbolTables { file, bytes, has_lines } = tables;
        Self { symboliser, tables: file, has_lines, bytes }
    }

    /// The symbol's name is preferred: that in line tables may lack the namespace.
    fn find(&self, address: u64) -> Option<Location> {
        let symbol = self.look_up(address, false);
        let line = if self.has_lines { self.look_up(address, true) } else { None };
        let named = symbol.as_ref().or(line.as_ref())?;
        let code = line.as_ref().and_then(|line| line.code_info.as_ref());
        Some(Location {
            function: function(&named.name),
            file: code.map(|code| one_line(&code.to_path().to_string_lossy(), MAX_PATH)),
            line: code.and_then(|code| code.line),
        })
    }

    fn look_up(&self, address: u64, debug_syms: bool) -> Option<Sym<'_>> {
        let mut source = Elf::new(format!("/proc/self/fd/{}", self.tables.as_raw_fd()));
        source.debug_syms = debug_syms;
        let (source, input) = (Source::Elf(source), Input::VirtOffset(address));
        let found = self.symboliser.symbolize_single(&source, input);
        found
            .inspect_err(|error| tracing::debug!(%error, "cannot find the function of an address"))
            .ok()?
            .into_sym()
    }
}

/// The symbols of all files by version, and the locations found so far.
#[derive(Default)]
struct Files {
    files: HashMap<FileVersion, Option<Symbolised>>,
    known: HashMap<(FileVersion, u64), Location>,
    bytes: u64,
}

impl Files {
    fn name(&mut self, stack: &mut Stack, modules: &[Option<Arc<Module>>]) {
        for (frame, module) in stack.frames.iter_mut().zip(modules) {
            let (Some(module), Some(address)) = (module, frame.module_address) else { continue };
            // The call returns to this address, which may be another line or even the next function.
            let place = self.place(module, address.saturating_sub(1));
            (frame.function, frame.file, frame.line) = (place.function, place.file, place.line);
        }
    }

    fn place(&mut self, module: &Module, address: u64) -> Location {
        let key = (module.version, address);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        if self.known.len() >= MAX_REMEMBERED {
            self.known.clear();
        }
        if self.bytes > MAX_BYTES {
            (self.files, self.bytes) = Default::default();
        }
        let file = self.files.entry(module.version).or_insert_with(|| {
            let read = Symbolised::read(&module.file);
            self.bytes += read.as_ref().map_or(0, |read| read.bytes);
            read
        });
        // A file that made the symboliser panic is not read again.
        let place = catch_unwind(AssertUnwindSafe(|| file.as_ref()?.find(address)));
        let place = place.unwrap_or_else(|_| {
            *file = None;
            None
        });
        let place = place.unwrap_or_default();
        self.known.insert(key, place.clone());
        place
    }
}

#[cfg(test)]
mod tests {
    use gpucause_observe::stacks::frames::Frames;

    use super::*;
    use gpucause_abi::{ProcId, Tgid};
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(3)
    }

    /// A stack of this process with these addresses.
    fn own(frames: &mut Frames, addresses: &[u64]) -> Found {
        frames.stack(ProcId(1), Tgid(std::process::id()), addresses)
    }

    #[test]
    fn a_frame_has_the_function_and_line_of_the_call_before_the_address() {
        let begin = somewhere as *const () as u64;
        let mut frames = Frames::default();
        let mut symbols = Symbols::start();
        symbols.request(StackId(7), own(&mut frames, &[begin + 1, 0x10, begin, 0x20]));
        let answers = symbols.last_answers(Duration::from_secs(60));
        let [(StackId(7), Stack { frames })] = &answers[..] else { panic!("{answers:?}") };
        let [inside, nowhere, before] = &frames[..] else { panic!("{frames:?}") };
        assert!(inside.function.as_deref().unwrap().contains("somewhere"), "{inside:?}");
        // Lines are found where the tests' program belongs to root.
        let own_file = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(inside.line.is_some(), is_roots(&own_file), "{inside:?}");
        let whole = symbol_tables(&File::open("/proc/self/exe").unwrap(), true).unwrap();
        let place = Symbolised::of(whole).find(inside.module_address.unwrap()).unwrap();
        assert!(place.file.unwrap().ends_with("trace_recorder/symbols.rs") && place.line.is_some());
        let function = before.function.as_deref().unwrap_or_default();
        assert!(!function.contains("somewhere"), "what returns to its beginning is before it");
        assert_eq!((&nowhere.module, &nowhere.function), (&None, &None));
        assert_eq!(symbols.unsymbolized(), 0);
    }

    #[test]
    fn lines_are_read_of_files_that_only_root_writes() {
        let own = tempfile::NamedTempFile::new().unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            is_roots(&own.as_file().metadata().unwrap())
        };
        assert_eq!([0o666, 0o664, 0o646].map(with_mode), [false; 3]);
        assert_eq!(with_mode(0o755), nix::unistd::geteuid().is_root());
        assert!(is_roots(&std::fs::metadata("/proc/version").unwrap()));
    }

    #[test]
    fn stacks_without_an_answer_in_time_are_counted() {
        let mut symbols = Symbols::start();
        symbols.requests = None;
        symbols.request(StackId(1), own(&mut Frames::default(), &[1]));
        assert_eq!(symbols.last_answers(Duration::ZERO).len(), 0);
        assert_eq!(symbols.unsymbolized(), 1);
    }

    #[test]
    fn damaged_tables_name_nothing_and_stop_nobody() {
        let copy = symbol_tables(&File::open("/proc/self/exe").unwrap(), true).unwrap();
        let mut seed = 1u64;
        for round in 0..6u64 {
            let whole = symbol_tables(&File::open("/proc/self/exe").unwrap(), true).unwrap();
            for _ in 0..200 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
                let at = (seed >> 20) % copy.bytes;
                std::os::unix::fs::FileExt::write_all_at(&whole.file, &[seed as u8], at).unwrap();
            }
            let read = Symbolised::of(whole);
            for address in (0..1 << 22).step_by(1 << 14) {
                let _ = catch_unwind(AssertUnwindSafe(|| read.find(address)));
            }
        }
    }
}
