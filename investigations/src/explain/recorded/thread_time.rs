//! The time of a thread between its calls, from its events in the order of their starts, in constant memory: a recording has
//! millions of them.

/// Start and end, in nanoseconds.
type Span = (i64, i64);

/// The calls of a thread so far, and the time between them.
#[derive(Debug, Default)]
pub(super) struct ThreadTime {
    calls: usize,
    first_start: i64,
    /// End of the call that began last.
    last_end: i64,
    gaps_ns: u64,
    longest_gap_ns: u64,
    has_waits: bool,
    off_cpu_ns: u64,
    /// Off-CPU time since the last call that no later event can change.
    settled_ns: u64,
    /// Waits that end after the latest event's start. A thread waits for one thing at a time, so there is one.
    open: Vec<Span>,
}

fn length(from: i64, until: i64) -> u64 {
    u64::try_from(until.saturating_sub(from)).unwrap_or(0)
}

impl ThreadTime {
    /// The next outermost call.
    pub(super) fn call(&mut self, start: i64, end: i64) {
        self.settle(start);
        if self.calls == 0 {
            self.first_start = start;
        } else if start >= self.last_end {
            let gap = length(self.last_end, start);
            self.gaps_ns = self.gaps_ns.saturating_add(gap);
            self.longest_gap_ns = self.longest_gap_ns.max(gap);
            let within = |wait: &Span| length(wait.0.max(self.last_end), wait.1.min(start));
            let open = self.open.iter().map(within).fold(0, u64::saturating_add);
            self.off_cpu_ns = self.off_cpu_ns.saturating_add(self.settled_ns.saturating_add(open));
        }
        self.calls += 1;
        self.last_end = end;
        self.settled_ns = 0;
    }

    /// The next wait off the CPU.
    pub(super) fn wait(&mut self, start: i64, end: i64) {
        self.settle(start);
        self.has_waits = true;
        self.open.push((start, end));
    }

    /// No event begins before `now` any more.
    fn settle(&mut self, now: i64) {
        let (from, settled) = (self.last_end, &mut self.settled_ns);
        self.open.retain(|wait| {
            let is_open = wait.1 > now;
            if !is_open {
                *settled = settled.saturating_add(length(wait.0.max(from), wait.1));
            }
            is_open
        });
    }

    /// Number of calls.
    pub(super) const fn calls(&self) -> usize {
        self.calls
    }

    /// From the first call to the end of the last.
    pub(super) const fn span_ns(&self) -> u64 {
        self.last_end.abs_diff(self.first_start)
    }

    /// Time between calls.
    pub(super) const fn gaps_ns(&self) -> u64 {
        self.gaps_ns
    }

    /// The longest time between two calls.
    pub(super) const fn longest_gap_ns(&self) -> u64 {
        self.longest_gap_ns
    }

    /// Off-CPU time between calls; `None` where there are no waits.
    pub(super) fn off_cpu_in_gaps_ns(&self) -> Option<u64> {
        self.has_waits.then(|| self.off_cpu_ns.min(self.gaps_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_calls_is_split_by_the_waits_in_it() {
        let mut thread = ThreadTime::default();
        thread.wait(0, 50);
        thread.call(100, 200);
        thread.wait(120, 180);
        assert_eq!((thread.calls(), thread.gaps_ns(), thread.span_ns()), (1, 0, 100));
        // One of 30, one that goes on in the next call and one after it.
        thread.wait(210, 240);
        thread.wait(280, 330);
        thread.call(300, 400);
        thread.wait(410, 420);
        thread.call(450, 460);
        thread.wait(500, 900);
        assert_eq!((thread.calls(), thread.gaps_ns(), thread.longest_gap_ns()), (3, 150, 100));
        assert_eq!((thread.off_cpu_in_gaps_ns(), thread.span_ns()), (Some(30 + 20 + 10), 360));
    }

    #[test]
    fn a_wait_over_a_call_is_in_both_gaps_and_overlapping_calls_have_none() {
        let mut thread = ThreadTime::default();
        thread.call(0, 10);
        thread.wait(15, 60);
        thread.call(20, 30);
        thread.call(50, 100);
        thread.call(60, 80);
        thread.call(90, 95);
        assert_eq!((thread.gaps_ns(), thread.off_cpu_in_gaps_ns()), (10 + 20 + 10, Some(5 + 20)));
    }

    #[test]
    fn a_thread_without_waits_says_so_and_waits_without_calls_take_no_memory() {
        let mut thread = ThreadTime::default();
        thread.call(0, 1);
        thread.call(2, 3);
        assert_eq!(thread.off_cpu_in_gaps_ns(), None);
        (0..10_000).for_each(|at| thread.wait(3 + at * 2, 4 + at * 2));
        assert_eq!(thread.open.len(), 1);
        assert_eq!(thread.off_cpu_in_gaps_ns(), Some(0));
    }
}
