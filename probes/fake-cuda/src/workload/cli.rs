//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpucause_fake_cuda::script::{Way, parse_time};

mod fault_options;

pub(crate) use fault_options::FaultOptions;

/// Drives CUDA libraries (stand-ins or NVIDIA's) and prints the truth about it as one line of JSON.
///
/// First comes a line `ready {"pid":..,"tids":[..]}` once the library is mapped and the threads exist, then the result. All times
/// are in nanoseconds (`_ns`). Threads are named launcher-0, launcher-1, ...
#[derive(Debug, Parser)]
#[command(name = "gpucause-workload", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

/// Options that every scenario takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Directory that holds libcudart.so.12 or .13, libcuda.so.1 and libnccl.so.2; the last two are opened when an op of
    /// theirs is called. Without it the loader's search path counts.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) libs: Option<PathBuf>,
    /// The runtime library itself, instead of the one in --libs.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) cudart: Option<PathBuf>,
    /// Do not open the runtime, as programs that use the driver only; ops are then those of libcuda and libnccl.
    #[arg(long, global = true)]
    pub(crate) driver_only: bool,
    /// Script of the stand-in libraries, such as `cudaLaunchKernel:spin=5us;nest=1`; overrides GPUCAUSE_FAKE.
    #[arg(long, global = true, value_name = "SCRIPT")]
    pub(crate) script: Option<String>,
    /// Wait for a line on standard input after `ready`.
    #[arg(long, global = true)]
    pub(crate) wait: bool,
    /// After the result, stay alive with all threads until standard input closes.
    #[arg(long, global = true)]
    pub(crate) hold: bool,
    /// End as soon as the process that started this one does.
    #[arg(long, global = true)]
    pub(crate) with_parent: bool,
    /// Name of the process (its main thread), at most 15 bytes.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) comm: Option<String>,
    /// Kernel functions that launches go through in turn. The first eight have symbols in this program, later ones are bare
    /// addresses.
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) kernels: u32,
    /// How handles for launches by the driver are got.
    #[arg(long, global = true, value_enum, default_value_t = Handles::Module)]
    pub(crate) handles: Handles,
    /// Bytes of each copy and collective.
    #[arg(long, global = true, default_value_t = 4096, value_name = "BYTES")]
    pub(crate) copy_bytes: usize,
    /// Direction of the copies whose op does not say it.
    #[arg(long, global = true, value_enum, default_value_t = CopyKind::H2d)]
    pub(crate) copy_kind: CopyKind,
    /// Bytes of each allocation.
    #[arg(long, global = true, default_value_t = 1 << 20, value_name = "BYTES")]
    pub(crate) alloc_bytes: usize,
    /// Rows of each allocation that has some: pitched memory and arrays.
    #[arg(long, global = true, default_value_t = 1, value_name = "ROWS")]
    pub(crate) alloc_rows: usize,
    /// Slices of each allocation that has three dimensions.
    #[arg(long, global = true, default_value_t = 1, value_name = "SLICES")]
    pub(crate) alloc_slices: usize,
    /// `ncclDataType_t` of collectives; 7 is a float.
    #[arg(long, global = true, default_value_t = 7)]
    pub(crate) nccl_type: usize,
    /// Number of ranks of communicators.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) ranks: usize,
    /// This process's rank in them.
    #[arg(long, global = true, default_value_t = 0)]
    pub(crate) rank: usize,
}

/// Functions that give a kernel's handle.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Handles {
    /// `cuModuleGetFunction`, by name.
    Module,
    /// `cuLibraryGetKernel`, by name.
    Library,
    /// `cuLibraryGetKernel` by name, and `cuKernelGetFunction` for the function of that kernel.
    Kernel,
    /// `cudaGetFuncBySymbol`, by the function of the host.
    Symbol,
}

/// `cudaMemcpyKind`, in its order.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CopyKind {
    H2h,
    H2d,
    D2h,
    D2d,
    Default,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// Make exact numbers of calls as fast as possible.
    Calls(Calls),
    /// Call one op with scripted delays and time each call.
    Latency(Latency),
    /// Launch from a thread that shares its CPU with busy processes.
    Contend(Contend),
    /// Block in one named way, inside calls or between them.
    Block(Block),
    /// Make calls at a steady rate.
    Rate(Rate),
    /// Spend time in given shares: host code, calls, locks, disk, ...
    Split(Split),
    /// Start short-lived processes that make a few calls each.
    Spawn(Spawn),
    /// Fork processes that make a few calls each and stay.
    Crowd(Crowd),
    /// Start short-lived threads that make a few calls each.
    Churn(Churn),
    /// Leave calls in odd ways.
    Unwind(Unwind),
    /// Feed a GPU at a healthy pace, then with a fault of known strength, and report the loss.
    #[command(name = "scenario")]
    Fault(FaultOptions),
    /// Be one rank of a job whose ranks meet in each step through a file; --rank and --ranks say which one.
    Lockstep(Lockstep),
    /// Use host resources: disk, memory, network, CPU.
    Host(Host),
    /// Fork child processes before the first call.
    Workers(Workers),
    /// Map the runtime library, make no call, stay until standard input closes.
    Idle,
    /// Copy the stand-in libraries from beside this program to a directory, under the names that programs open.
    LayOut {
        /// The directory; it gets this program as well.
        to: std::path::PathBuf,
    },
    /// A busy loop; `contend`, `split` and `scenario` start it.
    #[command(hide = true)]
    Burn(Burn),
}

/// Which ops are called.
#[derive(Debug, Args)]
pub(crate) struct Mix {
    /// The op: a documented name or an exact symbol, of any of the three libraries.
    #[arg(long, default_value = "cudaLaunchKernel", value_name = "OP")]
    pub(crate) op: String,
    /// Several ops with integer weights, interleaved: `cudaLaunchKernel=8,cudaMemcpyAsync=1`. Replaces --op.
    #[arg(long, value_name = "OP=WEIGHT,...")]
    pub(crate) mix: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Calls {
    /// Threads that call.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Calls of each thread.
    #[arg(long)]
    pub(crate) calls: u64,
    #[command(flatten)]
    pub(crate) mix: Mix,
    /// At the end free what is still allocated, with the free op of the mix. These calls are counted too.
    #[arg(long)]
    pub(crate) free_all: bool,
}

fn way(name: &str) -> Result<Way, String> {
    Way::named(name).ok_or_else(|| {
        format!("`{name}`: write one of {}", Way::ALL.map(|(way, _)| way).join(", "))
    })
}

fn time(text: &str) -> Result<u64, String> {
    parse_time(text)
        .ok_or_else(|| format!("`{text}`: write an integer with ns, us, ms or s, such as 200us"))
}

#[derive(Debug, Args)]
pub(crate) struct Latency {
    /// The op to call.
    #[arg(long, default_value = "cudaLaunchKernel")]
    pub(crate) op: String,
    /// The delays, one after the other.
    #[arg(long, value_parser = time, value_delimiter = ',', default_value = "20us,200us,2ms,20ms,200ms,2s")]
    pub(crate) delays: Vec<u64>,
    /// Calls with each delay; one number for all, or one a delay.
    #[arg(long, value_delimiter = ',', default_value = "100")]
    pub(crate) repeat: Vec<u64>,
    /// How the calls spend their time.
    #[arg(long, value_parser = way, default_value = "spin")]
    pub(crate) way: Way,
    /// Print each call's duration as well, in call order.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Contend {
    /// The CPU that everybody shares.
    #[arg(long, default_value_t = 0)]
    pub(crate) cpu: usize,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Busy processes on that CPU.
    #[arg(long, default_value_t = 1)]
    pub(crate) burners: usize,
    /// Their name, at most 15 bytes.
    #[arg(long, default_value = "burner")]
    pub(crate) burner_name: String,
    /// The op to call.
    #[arg(long, default_value = "cudaLaunchKernel")]
    pub(crate) op: String,
    /// Time that each call spends on the CPU.
    #[arg(long, value_parser = time, default_value = "5us")]
    pub(crate) spin: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Block {
    /// How to block: sleep, woken (sleep, after timers that expire before it has left its CPU), futex (timeout), lock (a thread named lock-holder releases it), polled (the same
    /// in pieces of 1 ms, while that thread works), switched (the same, but the holder wakes nobody), spun (the
    /// same, but it does not wait either), unseen (the same, but it waits for the lock in one of six turns, and a
    /// pause follows each), work (of a thread named producer, in such pieces), poll, pipe, net, io (O_DIRECT), page_fault (evicted file mapping), ioctl (seccomp notification), yield, spin,
    /// kernel_mappings, kernel_faults, kernel_files (a lock of the kernel that a thread named kernel-holder has).
    #[arg(long, value_parser = way)]
    pub(crate) kind: Way,
    /// Time of each block.
    #[arg(long, value_parser = time, default_value = "2ms")]
    pub(crate) each: u64,
    /// Number of blocks, and of calls.
    #[arg(long, default_value_t = 100)]
    pub(crate) count: u64,
    /// Block inside the call (the default; needs the stand-in libraries).
    #[arg(long, conflicts_with = "between_calls")]
    pub(crate) inside_call: bool,
    /// Block before each call.
    #[arg(long)]
    pub(crate) between_calls: bool,
    /// The op to call.
    #[arg(long, default_value = "cudaLaunchKernel")]
    pub(crate) op: String,
    /// Where the files of io and page_fault are made; needs a disk under it.
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Rate {
    /// Calls a second, all threads together.
    #[arg(long)]
    pub(crate) per_second: u64,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// End sooner when a line is read after the start.
    #[arg(long)]
    pub(crate) stoppable: bool,
    /// Threads that call.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) mix: Mix,
}

#[derive(Debug, Args)]
pub(crate) struct Split {
    /// Shares of wall time in percent. `host` spins between calls, `launch` spins inside them; the ways of `block` happen
    /// between calls, inside launches with a `call-` prefix, or inside synchronisation with a `sync-` prefix. What is left to
    /// 100 is host.
    #[arg(
        long,
        default_value = "host=45,launch=25,lock=15,io=10,sleep=5",
        value_name = "WHAT=PERCENT,..."
    )]
    pub(crate) shares: String,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Length of one round of all shares.
    #[arg(long, value_parser = time, default_value = "20ms")]
    pub(crate) round: u64,
    /// Threads that do this.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Pin the threads to this CPU.
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// Busy processes on that CPU.
    #[arg(long, default_value_t = 0, requires = "cpu")]
    pub(crate) burners: usize,
    /// Their name, at most 15 bytes.
    #[arg(long, default_value = "burner")]
    pub(crate) burner_name: String,
    /// Their nice value: from 1 on they get less of the CPU than the threads.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..20))]
    pub(crate) burner_nice: i32,
    /// Where the files of io and page_fault are made.
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Spawn {
    /// Processes in all.
    #[arg(long)]
    pub(crate) processes: u64,
    /// Calls of each process.
    #[arg(long, default_value_t = 100)]
    pub(crate) calls: u64,
    /// Processes at a time.
    #[arg(long, default_value_t = 8)]
    pub(crate) parallel: usize,
    #[command(flatten)]
    pub(crate) mix: Mix,
}

#[derive(Debug, Args)]
pub(crate) struct Crowd {
    /// Processes in all.
    #[arg(long)]
    pub(crate) processes: usize,
    /// Calls of each process.
    #[arg(long, default_value_t = 100)]
    pub(crate) calls: u64,
    /// Processes that make their calls at a time.
    #[arg(long, default_value_t = 8)]
    pub(crate) parallel: usize,
    /// Processes end once they have made their calls.
    #[arg(long)]
    pub(crate) end: bool,
    #[command(flatten)]
    pub(crate) mix: Mix,
}

#[derive(Debug, Args)]
pub(crate) struct Churn {
    /// Threads in all.
    #[arg(long)]
    pub(crate) threads: u64,
    /// Calls of each thread.
    #[arg(long, default_value_t = 5)]
    pub(crate) calls: u64,
    /// Threads at a time.
    #[arg(long, default_value_t = 8)]
    pub(crate) parallel: usize,
    #[command(flatten)]
    pub(crate) mix: Mix,
}

/// How a call is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Leave {
    /// A non-local jump out of the call, as longjmp does (x86-64 only).
    Longjmp,
    /// A Rust panic, which unwinds as a C++ exception does. Aborts the process where the kernel's return probes break unwinding.
    Panic,
    /// `pthread_exit` inside the call.
    ThreadExit,
    /// `exec` from one thread while another is in a call; the new program makes `--calls` calls.
    Exec,
    /// SIGKILL for a child process while it is in a call.
    Kill,
    /// `fork` from one thread while another is in a call; the child makes `--calls` calls.
    Fork,
    /// `fork` inside the call; parent and child both return from it.
    ForkInside,
    /// A signal inside the call, whose handler makes a call.
    Signal,
    /// A signal inside the call, whose handler makes a call on a signal stack above that of the call.
    SignalStack,
    /// A switch inside the call, to a stack above that of the call, where a call is made.
    HigherStack,
    /// A switch inside the call, to a stack below, and a switch back inside a call there.
    LowerStack,
}

#[derive(Debug, Args)]
pub(crate) struct Unwind {
    /// How the calls are left.
    #[arg(long, value_enum)]
    pub(crate) kind: Leave,
    /// How many are left that way.
    #[arg(long, default_value_t = 10)]
    pub(crate) count: u64,
    /// Ordinary calls afterwards.
    #[arg(long, default_value_t = 100)]
    pub(crate) calls: u64,
    /// The op to call.
    #[arg(long, default_value = "cudaLaunchKernel")]
    pub(crate) op: String,
    /// The op that is called inside, on another stack.
    #[arg(long, default_value = "cudaStreamQuery")]
    pub(crate) inner: String,
}

#[derive(Debug, Args)]
pub(crate) struct Lockstep {
    /// The file, which the ranks of a job have in common; the first one creates it.
    #[arg(long, value_name = "FILE")]
    pub(crate) meet: PathBuf,
    /// Host code of each step.
    #[arg(long, value_parser = time, default_value = "20ms")]
    pub(crate) host: u64,
    /// How long the GPU works on after the last launch of a step.
    #[arg(long, value_parser = time, default_value = "200ms")]
    pub(crate) gpu: u64,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct Host {
    /// Make no call first.
    #[arg(long)]
    pub(crate) no_call: bool,
    /// Read this much past the page cache, a multiple of 128 KiB.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) read: u64,
    /// Write this much through the page cache.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) write: usize,
    /// Touch this much new memory.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) touch: usize,
    /// Use this much time on the CPU.
    #[arg(long, value_parser = time, default_value = "0ns")]
    pub(crate) spin: u64,
    /// Connect to an address where nobody answers.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) connect: Option<SocketAddr>,
    /// Accept a connection here, read from it, and write into it.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) accept: Option<SocketAddr>,
    /// Segments to be sent again before the connection is given up.
    #[arg(long, default_value_t = 1)]
    pub(crate) retransmits: u32,
    /// Where files are made; needs a disk under it.
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Workers {
    /// Child processes.
    #[arg(long, default_value_t = 2)]
    pub(crate) count: usize,
    /// Start them after the first call.
    #[arg(long)]
    pub(crate) late: bool,
    /// They are the children of a server, which is a child of the process that makes calls.
    #[arg(long)]
    pub(crate) server: bool,
    /// The server makes a call, too, when it has started them.
    #[arg(long, requires = "server")]
    pub(crate) calls: bool,
    /// The server ends when it has started them.
    #[arg(long, requires = "server")]
    pub(crate) orphans: bool,
    /// The process that makes calls reads from a pipe into which orphans may write.
    #[arg(long, requires = "orphans")]
    pub(crate) pipe: bool,
    /// All are in a session of their own, which the process that makes calls leads.
    #[arg(long)]
    pub(crate) session: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Burn {
    #[arg(long)]
    pub(crate) cpu: usize,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long, default_value_t = 0)]
    pub(crate) nice: i32,
}
