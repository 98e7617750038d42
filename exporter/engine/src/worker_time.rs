//! Time of a data loader's workers over all of a chain: the advice about them must not change with each window.

use gpucause_abi::Nanos;

use crate::chain::{Loss, losses};
use crate::template::number;

/// Part of the workers' busy time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Computing,
    Reading,
    WithoutCpu,
}

/// Who had the CPU that workers waited for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Competitor {
    /// The job itself: its process, its workers and their threads.
    Job,
    /// Another process.
    Program {
        /// Its PID.
        pid: u32,
        /// Its name.
        comm: String,
        /// The process that feeds a GPU and that it is, or works for.
        feeds: Option<String>,
    },
}

/// The time of the workers that were waited for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkerTime {
    pub(crate) running: Nanos,
    pub(crate) io: Nanos,
    pub(crate) without_cpu: Nanos,
    /// Observed time of all of them together.
    wall: Nanos,
    /// So many there are at least.
    workers: u64,
    /// Seconds for which the job itself had the CPU that workers waited for.
    job: f64,
    /// Seconds for which other processes had it.
    others: Vec<Loss>,
    /// Names of those that feed GPUs, by name of the process that is one, or works for one.
    feeders: Vec<(String, String)>,
    competitor: Option<String>,
}

/// Advice where nobody is known to have had the CPU.
const LARGER_SET: &str = "Give the job a larger CPU set.";
/// Alternative to fewer workers.
const OR_LARGER_SET: &str = ", or give the job a larger CPU set";

/// The advice for workers that may run on all CPUs of the host: there is no larger set.
pub(crate) fn on_all_cpus(advice: &str) -> String {
    let more = "Give the job more CPUs, on another host.";
    advice.replacen(OR_LARGER_SET, "", 1).replacen(LARGER_SET, more, 1)
}

/// Parts count as equal if the larger is at most a third longer.
const EQUAL: f64 = 4.0 / 3.0;

/// The one with most time. The one decided on before stays until another has a quarter more.
fn most<T: Clone + PartialEq>(times: &[(T, f64)], before: Option<&T>) -> Option<T> {
    let most = times.iter().filter(|(_, time)| *time > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let kept = times.iter().find(|(what, time)| Some(what) == before && *time * 1.25 >= most.1);
    Some(kept.unwrap_or(most).0.clone())
}

impl WorkerTime {
    /// Time of one worker.
    pub(crate) fn new([running, io, without_cpu]: [Nanos; 3], wall: Nanos) -> Self {
        Self { running, io, without_cpu, wall, workers: 1, ..Self::default() }
    }

    /// There are so many at least.
    pub(crate) const fn set_workers(&mut self, workers: u64) {
        self.workers = workers;
    }

    /// Time without a CPU that a task had.
    pub(crate) fn add_competitor(&mut self, competitor: Competitor, time: Nanos) {
        let seconds = time.as_secs_f64();
        match competitor {
            Competitor::Job => self.job += seconds,
            Competitor::Program { pid, comm, feeds } => {
                self.feeders.extend(feeds.map(|feeder| (comm.clone(), feeder)));
                losses::add(&mut self.others, &[Loss { pid: Some(pid), comm, seconds }]);
            }
        }
    }

    /// Adds a later window.
    pub(crate) fn add(&mut self, later: &Self) {
        self.running.0 = self.running.0.saturating_add(later.running.0);
        self.io.0 = self.io.0.saturating_add(later.io.0);
        self.without_cpu.0 = self.without_cpu.0.saturating_add(later.without_cpu.0);
        self.wall.0 = self.wall.0.saturating_add(later.wall.0);
        self.workers = self.workers.max(later.workers);
        self.job += later.job;
        losses::add(&mut self.others, &later.others);
        let new = later.feeders.iter().filter(|own| !self.feeders.contains(own)).cloned();
        let new: Vec<_> = new.collect();
        self.feeders.extend(new);
        self.feeders.retain(|(comm, _)| self.others.iter().any(|own| own.comm == *comm));
    }

    /// The job itself and the other process that had most of the CPU time that workers waited for, and for how long; the first had
    /// most.
    pub(crate) fn top_competitors(&self) -> Vec<(String, f64)> {
        let name = |own: &Loss| match own.pid {
            Some(pid) => format!("{} ({pid})", own.comm),
            None => own.comm.clone(),
        };
        let other = self.others.first().map(|own| (name(own), own.seconds));
        let mut all: Vec<_> = other.into_iter().collect();
        if self.job > 0.0 {
            let first = all.first().is_some_and(|(_, seconds)| *seconds < self.job);
            all.insert(if first { 0 } else { all.len() }, ("the job's own tasks".into(), self.job));
        }
        all
    }

    /// Returns the advice about the largest part, and about the second if it is about as large, with the times that decide it.
    pub(crate) fn advice(&mut self) -> String {
        let seconds = |time: Nanos| time.as_secs_f64();
        let parts = [
            (Part::Computing, seconds(self.running)),
            (Part::Reading, seconds(self.io)),
            (Part::WithoutCpu, seconds(self.without_cpu)),
        ];
        let mut largest = parts;
        largest.sort_by(|a, b| b.1.total_cmp(&a.1));
        let [(first, most), (second, next), _] = largest;
        let equal = next > 0.0 && next * EQUAL >= most;
        let lacks_cpus = equal && [first, second].contains(&Part::WithoutCpu);
        let mut advice = self.about(first, lacks_cpus);
        if equal {
            advice += &format!(" Do this as well: {}", self.about(second, lacks_cpus));
        }
        let [running, io, without_cpu] = parts.map(|(_, time)| text(time));
        format!(
            "{advice} In all of this chain the workers computed for {running}, read from disk for {io} and waited for a CPU for \
             {without_cpu}."
        )
    }

    /// Returns the advice about a part. More workers would not get the CPUs that these lack.
    fn about(&mut self, part: Part, lacks_cpus: bool) -> String {
        match part {
            Part::WithoutCpu => self.about_cpus(),
            Part::Reading => {
                "Move the dataset to a faster disk or into memory, or read larger blocks.".into()
            }
            Part::Computing if lacks_cpus => {
                "Make the preprocessing of a sample cheaper; cache what does not change.".into()
            }
            Part::Computing => {
                "Use more workers, or make the preprocessing of a sample cheaper; cache what does not change."
                    .into()
            }
        }
    }

    /// Returns true if one worker less could surely do all of the work if no worker ever waited for a CPU.
    fn fewer_suffice(&self) -> bool {
        let work = self.running.as_secs_f64() + self.io.as_secs_f64();
        let workers = self.workers as f64;
        work * workers <= self.wall.as_secs_f64() * (workers - 1.0)
    }

    fn about_cpus(&mut self) -> String {
        // An empty name is the job itself.
        let others = self.others.iter().map(|own| (own.comm.clone(), own.seconds));
        let times: Vec<_> = [(String::new(), self.job)].into_iter().chain(others).collect();
        self.competitor = most(&times, self.competitor.as_ref());
        let of = |part: f64| format!("{} of the time that workers waited for a CPU", text(part));
        match &self.competitor {
            None => LARGER_SET.into(),
            Some(name) if name.is_empty() && self.fewer_suffice() => format!(
                "Run fewer workers, or fewer threads in those that have several{OR_LARGER_SET}: its own tasks had the CPU for {}.",
                of(self.job)
            ),
            Some(name) if name.is_empty() => {
                let next = match self.others.first() {
                    Some(Loss { pid: Some(pid), comm, seconds }) => {
                        format!(", and {comm} (PID {pid}) for {}", text(*seconds))
                    }
                    _ => String::new(),
                };
                format!(
                    "{LARGER_SET} Or run fewer threads in workers that have several: its own tasks had the CPU for {}{next}.",
                    of(self.job)
                )
            }
            Some(name) => {
                let taken = self.others.iter().find(|own| own.comm == *name);
                let pid = taken.and_then(|own| own.pid).map(|pid| format!(" (PID {pid})"));
                let who = format!("{name}{}", pid.unwrap_or_default());
                let had = of(taken.map_or(0.0, |own| own.seconds));
                match self.feeders.iter().find(|(comm, _)| comm == name) {
                    Some((_, feeder)) if feeder == name => format!(
                        "{who} feeds a GPU itself and had the CPU for {had}: give both jobs CPUs of their own, or move one to another host."
                    ),
                    Some((_, feeder)) => format!(
                        "{who} works for {feeder}, which feeds a GPU itself, and had the CPU for {had}: give both jobs CPUs of their own, or move one to another host."
                    ),
                    None => {
                        format!("Keep {who} off the CPUs of the workers: it had the CPU for {had}.")
                    }
                }
            }
        }
    }
}

fn text(seconds: f64) -> String {
    number(seconds, "seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn window(running: u64, io: u64, without_cpu: u64) -> WorkerTime {
        let parts = [running, io, without_cpu].map(|tenths| Nanos(tenths * SECOND / 10));
        WorkerTime::new(parts, Nanos((running + io + without_cpu) * SECOND / 10))
    }

    fn program(comm: &str, feeds: Option<&str>) -> Competitor {
        Competitor::Program { pid: 900, comm: comm.into(), feeds: feeds.map(Into::into) }
    }

    #[test]
    fn what_to_do_follows_the_largest_part_of_all_windows_and_does_not_alternate() {
        let mut all = window(10, 2, 1);
        assert!(all.advice().starts_with("Use more workers"), "{all:?}");
        for reads in [3, 8, 3, 9] {
            all.add(&window(5, reads, 0));
            assert!(all.advice().starts_with("Use more workers"), "{all:?}");
        }
        all.add(&window(0, 60, 0));
        let advice = all.advice();
        assert!(advice.starts_with("Move the dataset to a faster disk"), "{advice}");
        let times = "computed for 3.0 s, read from disk for 8.5 s and waited for a CPU for 100 ms.";
        assert!(advice.ends_with(times), "{advice}");
    }

    #[test]
    fn both_of_two_parts_of_about_the_same_size_are_named_the_largest_first() {
        let (disk, cpus) = ("Move the dataset to a faster disk", "Give the job a larger CPU set");
        let positions = |parts: [u64; 3], names: [&str; 2]| {
            let advice = window(parts[0], parts[1], parts[2]).advice();
            names.map(|name| advice.find(name))
        };
        let [first, second] = positions([35, 51, 49], [disk, cpus]);
        assert!(first == Some(0) && second > first, "{first:?} {second:?}");
        let [first, second] = positions([35, 49, 51], [cpus, disk]);
        assert!(first == Some(0) && second > first, "{first:?} {second:?}");
        assert_eq!(positions([35, 69, 51], [disk, cpus]), [Some(0), None]);
        assert_eq!(positions([0, 69, 0], [disk, cpus]), [Some(0), None]);
        let advice = window(50, 10, 49).advice();
        assert!(advice.starts_with("Make the preprocessing of a sample cheaper"), "{advice}");
        assert!(!advice.contains("more workers"), "they have no CPUs: {advice}");
    }

    #[test]
    fn what_to_do_is_by_the_times_that_are_printed_whatever_came_before() {
        let mut later = window(10, 60, 30);
        let _ = later.advice();
        later.add(&window(25, 0, 29));
        assert_eq!(later.advice(), window(35, 60, 59).advice());
    }

    #[test]
    fn fewer_workers_are_proposed_only_where_one_less_could_do_all_of_the_work() {
        let advice = |workers, work, without_cpu| {
            let mut all = window(work, 0, without_cpu);
            all.set_workers(workers);
            all.add_competitor(Competitor::Job, Nanos(4 * SECOND));
            all.add_competitor(program("cron", None), Nanos(2 * SECOND));
            all.advice()
        };
        for (workers, work, suffice) in
            [(1, 1, false), (2, 50, true), (2, 51, false), (3, 57, true)]
        {
            // Time without a CPU is one of the two largest parts in any case.
            let text = advice(workers, work, 100 - work).replace("Do this as well: ", "");
            let fewer = text.contains("Run fewer workers, or fewer threads in those");
            assert_eq!(
                (fewer, text.contains("Or run fewer threads")),
                (suffice, !suffice),
                "{text}"
            );
            let both = "its own tasks had the CPU for 4.0 s of the time that workers waited for a CPU, and cron (PID 900) for 2.0 s.";
            assert_eq!(text.contains(both), !suffice, "{text}");
        }
    }

    #[test]
    fn workers_without_a_cpu_compete_with_each_other_or_with_a_program_that_is_named() {
        let advice = |competitors: &[(Competitor, u64)]| {
            let mut all = window(1, 1, 70);
            all.set_workers(2);
            for (competitor, seconds) in competitors {
                all.add_competitor(competitor.clone(), Nanos(seconds * SECOND));
            }
            all.advice()
        };
        let job = |seconds| (Competitor::Job, seconds);
        let own = advice(&[job(4), (program("cron", None), 2)]);
        assert!(own.starts_with("Run fewer workers") && own.contains("for 4.0 s of"), "{own}");
        let other = advice(&[job(2), (program("cron", None), 4)]);
        assert!(other.starts_with("Keep cron (PID 900) off the CPUs of the workers"), "{other}");
        let feeds = advice(&[job(2), (program("serve", Some("serve")), 4)]);
        assert!(feeds.starts_with("serve (PID 900) feeds a GPU itself and had"), "{feeds}");
        let works = advice(&[job(2), (program("pt_data_worker", Some("serve")), 4)]);
        assert!(works.starts_with("pt_data_worker (PID 900) works for serve, which"), "{works}");
        assert!(advice(&[]).starts_with("Give the job a larger CPU set."));
        for text in [own, other, feeds, works] {
            assert!(!text.contains("more workers"), "{text}");
        }
    }
}
