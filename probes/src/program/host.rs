//! The host-wide programs, and which of them this kernel supports.

use crate::feature::Tracepoints;
use crate::verdict::{ProgramStatus, ProgramVerdict};

/// Iterator that reports live threads when accounts are read.
pub(super) const REPORTS: &str = "report_threads";
/// Iterator that tracks children that are older than the tracking of their parents.
pub(super) const ADOPTS: &str = "adopt_workers";
/// Iterator that ends all accounts after the probes are detached.
pub(super) const FORGETS: &str = "forget_tasks";
/// At submission of block I/O, and its replacement on kernels < 6.5.
const SUBMITS: &str = "block_start";
const ISSUES: &str = "block_issue";

/// Samples stacks by perf events.
pub(crate) const SAMPLES_BY_EVENTS: &str = "sample_code";
/// Its replacement, and the tracepoint of that.
pub(crate) const SAMPLES_BY_TIMERS: &str = "sample_tick";
pub(crate) const SAMPLES_TRACEPOINT: &str = "hrtimer_expire_entry";

/// Name of each program and of its kernel tracepoint; none for iterators.
pub(super) const HOST_PROGRAMS: [(&str, Option<&str>); 22] = [
    ("sched_switch", Some("sched_switch")),
    ("sched_waking", Some("sched_waking")),
    ("sched_migrate", Some("sched_migrate_task")),
    ("process_fork", Some("sched_process_fork")),
    ("process_exec", Some("sched_process_exec")),
    ("process_exit", Some("sched_process_exit")),
    (SUBMITS, Some("block_io_start")),
    (ISSUES, Some("block_rq_issue")),
    ("block_complete", Some("block_rq_complete")),
    ("page_alloc", Some("mm_page_alloc")),
    ("reclaim_begin", Some("mm_vmscan_direct_reclaim_begin")),
    ("reclaim_end", Some("mm_vmscan_direct_reclaim_end")),
    ("memcg_begin", Some("mm_vmscan_memcg_reclaim_begin")),
    ("memcg_end", Some("mm_vmscan_memcg_reclaim_end")),
    ("oom_victim", Some("mark_victim")),
    ("tcp_state", Some("inet_sock_set_state")),
    ("tcp_receive", Some("tcp_rcv_space_adjust")),
    ("tcp_retransmit", Some("tcp_retransmit_skb")),
    ("lock_end", Some("contention_end")),
    ("lock_begin", Some("contention_begin")),
    (REPORTS, None),
    (ADOPTS, None),
];

/// Programs whose tracepoint this kernel lacks.
pub(super) fn unsupported(tracepoints: &Tracepoints) -> Vec<ProgramStatus> {
    let lacks = |&(program, tracepoint): &(&'static str, Option<&str>)| {
        let missing = tracepoint.filter(|name| !tracepoints.has(name))?;
        let reason = format!("this kernel has no tracepoint {missing}");
        Some(ProgramStatus { program, verdict: ProgramVerdict::Unsupported(reason) })
    };
    HOST_PROGRAMS.iter().filter_map(lacks).collect()
}

/// Returns true if a better program replaces this one.
pub(super) fn is_replaced(program: &str, tracepoints: &Tracepoints) -> bool {
    program == ISSUES && tracepoints.has("block_io_start")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_tracepoint_has_its_programs_unsupported() {
        let kernel = Tracepoints::named([("sched_switch", 3), ("block_rq_issue", 1)]);
        let statuses = unsupported(&kernel);
        let verdict = |name| statuses.iter().find(|status| status.program == name);
        assert!(verdict("sched_switch").is_none() && verdict(ISSUES).is_none());
        assert!(verdict(REPORTS).is_none());
        let missing = verdict(SUBMITS).map(|status| status.verdict.clone());
        let reason = "this kernel has no tracepoint block_io_start";
        assert_eq!(missing, Some(ProgramVerdict::Unsupported(reason.to_owned())));
    }

    #[test]
    fn requests_are_followed_from_issue_only_where_submission_cannot_be_seen() {
        let newer = Tracepoints::named([("block_rq_issue", 1), ("block_io_start", 1)]);
        let older = Tracepoints::named([("block_rq_issue", 1)]);
        assert!(is_replaced(ISSUES, &newer) && !is_replaced(ISSUES, &older));
        assert!(!is_replaced(SUBMITS, &newer));
    }
}
