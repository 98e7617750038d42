//! This process and its CPU, and the child processes that share it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

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

/// Binds the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    const WORD: usize = u64::BITS as usize;
    let mut set = [0u64; 128];
    let word = set.get_mut(cpu / WORD).with_context(|| format!("there is no CPU {cpu}"))?;
    *word = 1 << (cpu % WORD);
    // SAFETY: the set is this many bytes long.
    let code = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    if code != 0 {
        bail!("cannot run on CPU {cpu}: {}", std::io::Error::last_os_error());
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

/// A busy loop until killed, or until the parent is gone.
pub(crate) fn burn(options: &Burn) -> Result<()> {
    end_with_parent();
    set_comm(&options.name)?;
    pin(options.cpu)?;
    // SAFETY: takes an integer.
    unsafe { libc::nice(options.nice) };
    println!("burning");
    loop {
        std::hint::spin_loop();
    }
}

/// Busy processes on one CPU; they end when this is dropped.
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    pub(crate) fn start(count: usize, cpu: usize, name: &str, nice: i32) -> Result<Self> {
        let mut burners = Self(Vec::new());
        let (cpu, nice) = (cpu.to_string(), nice.to_string());
        for _ in 0..count {
            let mut child = again(["burn", "--cpu", &cpu, "--name", name, "--nice", &nice])?
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()?;
            let output = child.stdout.take();
            burners.0.push(child);
            let mut line = String::new();
            if let Some(output) = output {
                BufReader::new(output).read_line(&mut line)?;
            }
            if line.trim() != "burning" {
                bail!("the busy process on CPU {cpu} did not start");
            }
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
