//! This process and its CPU, and the child processes that share it.

use std::io::{self, BufRead as _, BufReader};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::clock;

use crate::cli::Burn;

/// Names the calling thread; for the main thread that is the process's name.
pub(crate) fn set_comm(name: &str) -> Result<()> {
    if name.len() > 15 {
        bail!("`{name}`: a process name has at most 15 bytes");
    }
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the name is terminated.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    Ok(())
}

/// Bits in a word of a set of CPUs, and words of the largest.
const WORD: usize = u64::BITS as usize;
const WORDS: usize = 128;

/// The CPUs that the calling thread may use, in order.
pub(crate) fn cpus() -> Vec<usize> {
    let mut set = [0u64; WORDS];
    // SAFETY: the set is this many bytes long.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), set.as_mut_ptr().cast()) };
    (0..WORDS * WORD).filter(|cpu| set[cpu / WORD] >> (cpu % WORD) & 1 == 1).collect()
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = [0u64; WORDS];
    let word = set.get_mut(cpu / WORD).with_context(|| format!("there is no CPU {cpu}"))?;
    *word = 1 << (cpu % WORD);
    // SAFETY: the set is this many bytes long.
    let code = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    if code != 0 {
        bail!("cannot run on CPU {cpu}: {}", io::Error::last_os_error());
    }
    Ok(())
}

/// Has the calling thread run before all ordinary ones; threads and processes that it starts are ordinary.
pub(crate) fn run_first() -> Result<()> {
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is valid for reads.
    let code = unsafe { libc::sched_setscheduler(0, policy, &raw const priority) };
    if code != 0 {
        bail!("cannot run before others: {}", io::Error::last_os_error());
    }
    Ok(())
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

/// This program, with the given arguments.
pub(crate) fn again<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    Ok(command)
}

/// Has the kernel kill this process when the thread that started it ends.
pub(crate) fn end_with_parent() {
    // SAFETY: takes integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Runs `child` in a forked process and returns its PID.
pub(crate) fn fork(child: impl FnOnce() -> Result<()>) -> Result<u32> {
    // SAFETY: the child takes no lock that another thread could hold at the fork, and ends with `_exit`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            let failed = child().inspect_err(|error| eprintln!("gpucause-workload: {error:#}"));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(failed.is_err())) }
        }
        pid => Ok(pid.unsigned_abs()),
    }
}

/// Begins a session, which a leader of a process group cannot.
pub(crate) fn lead_session() -> Result<()> {
    // SAFETY: takes nothing.
    if unsafe { libc::setsid() } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

/// Returns true if there is a process with this PID.
pub(crate) fn is_there(pid: u32) -> bool {
    // SAFETY: takes integers; signal 0 is none.
    unsafe { libc::kill(pid.cast_signed(), 0) == 0 }
}

/// Waits for the end of a forked process; its status.
pub(crate) fn wait_for(pid: u32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    if unsafe { libc::waitpid(pid.cast_signed(), &raw mut status, 0) } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(status)
}

/// Has `command` start a program that is no child of this process, as one that has nothing to do with it. The child that is spawned
/// ends at once. Session and process group stay: the scheduler may share CPUs out by session, and whoever ends the group ends both.
pub(crate) fn apart(command: &mut Command) -> &mut Command {
    let leave = || {
        // SAFETY: takes nothing; both processes then call nothing but what is safe between fork and exec.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            // SAFETY: ends the process.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: `leave` neither allocates nor takes a lock.
    unsafe { command.pre_exec(leave) }
}

/// A busy loop until killed, or until the parent is gone; if asked to `wait`, from a line on standard input until that closes.
pub(crate) fn burn(options: &Burn, wait: bool) -> Result<()> {
    if !wait {
        end_with_parent();
    }
    set_comm(&options.name)?;
    pin(options.cpu)?;
    // SAFETY: takes an integer.
    unsafe { libc::nice(options.nice) };
    println!("burning {}", std::process::id());
    if wait && io::stdin().read_line(&mut String::new())? == 0 {
        return Ok(());
    }
    // No thread waits for the end: a process of one thread is named alone.
    while !(wait && has_closed(libc::STDIN_FILENO)) {
        clock::spin(CHECK_NS);
    }
    Ok(())
}

/// How long a busy loop runs between two checks of its input.
const CHECK_NS: u64 = 1_000_000;

/// Returns true if the other end of a pipe is closed.
fn has_closed(pipe: RawFd) -> bool {
    let mut asked = libc::pollfd { fd: pipe, events: 0, revents: 0 };
    // SAFETY: one descriptor is passed.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents != 0
}

/// Starts a busy loop by a command of this program, and waits until it runs on its CPU. Returns the child and the PID of the loop.
pub(crate) fn start_burning(command: &mut Command, cpu: usize, name: &str) -> Result<(Child, u32)> {
    command.args(["--cpu", &cpu.to_string(), "--name", name]).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    let pid = line.trim().strip_prefix("burning ").and_then(|pid| pid.parse().ok());
    let Some(pid) = pid else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("{name} on CPU {cpu} did not start");
    };
    Ok((child, pid))
}

/// Busy processes on one CPU; they end when this is dropped.
#[derive(Default)]
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    pub(crate) fn start(count: usize, cpu: usize, name: &str, nice: i32) -> Result<Self> {
        let mut burners = Self::default();
        for _ in 0..count {
            let mut command = again(["burn", "--nice", &nice.to_string()])?;
            burners.0.push(start_burning(command.stdin(Stdio::null()), cpu, name)?.0);
        }
        Ok(burners)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }
}

/// Nanoseconds that these processes, of one thread each, have had a CPU.
pub(crate) fn run_ns(pids: &[u32]) -> Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let run = text.split_whitespace().next().with_context(|| format!("{path} is empty"))?;
        sum += run.parse::<u64>().with_context(|| path.clone())?;
    }
    Ok(sum)
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
