//! Who uses most of what a limit of the victim's cgroup leaves.

use super::{Cause, Culprit};
use crate::template::number;

/// A process of the cgroup, or a pool of threads of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LimitUser {
    /// It; a pool by the name of its threads.
    pub culprit: Culprit,
    /// Name of its process.
    pub process: String,
    /// Threads of the pool; 0 for all of a process.
    pub threads: usize,
    /// Its part of what the cgroup used lately, 0 to 1.
    pub share: f64,
    /// It prepares data for the victim.
    pub is_worker: bool,
}

impl LimitUser {
    fn name(&self) -> String {
        let Self { culprit: Culprit { pid, comm, .. }, process, threads, .. } = self;
        match threads {
            0 => format!("{process} (PID {pid})"),
            _ if comm == process => format!("{threads} threads of {process} (PID {pid})"),
            _ => format!("{threads} threads {comm} of {process} (PID {pid})"),
        }
    }

    /// The culprit, unless it is no more than the victim that needs what it uses.
    pub(crate) fn culprit_of(&self, victim: u32) -> Option<&Culprit> {
        Some(&self.culprit).filter(|own| self.threads > 0 || own.pid != victim)
    }

    /// The clause that names it; empty for other causes.
    pub(crate) fn clause(&self, cause: Cause) -> String {
        let (name, share) = (self.name(), number(self.share, "percent"));
        match cause {
            Cause::NoisyCgroup => format!(" {name} had {share} of the CPU time of the cgroup."),
            Cause::PageFault => format!(
                " The cgroup is at its memory limit, and {name} fills its page cache, with {share} of what it reads from files and writes to them."
            ),
            _ => String::new(),
        }
    }

    /// The advice that ends it; `None` where nothing but a higher limit does.
    pub(crate) fn advice(&self, cause: Cause, victim: u32) -> Option<String> {
        let Self { culprit, process, threads, .. } = self;
        let raise = "raise cpu.max of the cgroup (the CPU limit of the container).";
        match cause {
            Cause::NoisyCgroup if *threads > 0 => Some(format!(
                "Have {process} use fewer threads (OMP_NUM_THREADS, torch.set_num_threads), or {raise}"
            )),
            Cause::NoisyCgroup if self.is_worker => Some(format!(
                "Have its workers do less: fewer of them, or cheaper transforms; or {raise}"
            )),
            Cause::NoisyCgroup if culprit.pid != victim => {
                Some(format!("Move {process} out of the cgroup, or {raise}"))
            }
            Cause::PageFault => {
                let apart =
                    if culprit.pid == victim { "" } else { " run it in a cgroup of its own," };
                Some(format!(
                    "Have {process} drop what it has read and written (posix_fadvise, O_DIRECT),{apart} or raise memory.max of the \
                     cgroup (the memory limit of the container)."
                ))
            }
            _ => None,
        }
    }
}
