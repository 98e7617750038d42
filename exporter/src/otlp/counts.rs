//! Counts of log records: sent, lost and waiting.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why records are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The oldest ones made room for new ones.
    SpoolFull,
    /// They could not be written to the spool, and too many waited in memory.
    SpoolFailed,
    /// The spool had what cannot be read.
    Unreadable,
    /// The endpoint refused them.
    Rejected,
}

impl Loss {
    /// Label values, in order.
    const LABELS: [&str; 4] = ["spool_full", "spool_failed", "unreadable", "rejected"];
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection.
    Unreachable,
    /// No connection with TLS.
    Tls,
    /// No answer in time.
    Slow,
    /// The connection broke.
    Broken,
    /// The endpoint asked to be sent less.
    Throttled,
    /// Another status.
    Status,
    /// An answer that is not one of OTLP.
    Malformed,
    /// A file of the settings cannot be used.
    Settings,
}

impl Failure {
    /// Label values, in order.
    const LABELS: [&str; 8] =
        ["unreachable", "tls", "slow", "broken", "throttled", "status", "malformed", "settings"];
}

/// The counts of records so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpCounts {
    /// Records that the endpoint accepted.
    pub sent: u64,
    /// Records that were lost, by reason.
    pub lost: [(&'static str, u64); 4],
    /// Failed requests, by reason.
    pub failures: [(&'static str, u64); 8],
    /// Records that wait.
    pub queued_records: u64,
    /// Their size.
    pub queued_bytes: u64,
}

impl Default for OtlpCounts {
    fn default() -> Self {
        Counters::default().counts()
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    sent: AtomicU64,
    lost: [AtomicU64; 4],
    failures: [AtomicU64; 8],
    queued_records: AtomicU64,
    queued_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn add_sent(&self, records: u64) {
        self.sent.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn add_lost(&self, reason: Loss, records: u64) {
        if let Some(counter) = self.lost.get(reason as usize) {
            counter.fetch_add(records, Ordering::Relaxed);
        }
    }

    pub(super) fn add_failure(&self, failure: Failure) {
        if let Some(counter) = self.failures.get(failure as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn set_queued(&self, records: u64, bytes: u64) {
        self.queued_records.store(records, Ordering::Relaxed);
        self.queued_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn queued_records(&self) -> u64 {
        self.queued_records.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> OtlpCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OtlpCounts {
            sent: count(&self.sent),
            lost: std::array::from_fn(|index| (Loss::LABELS[index], count(&self.lost[index]))),
            failures: std::array::from_fn(|index| {
                (Failure::LABELS[index], count(&self.failures[index]))
            }),
            queued_records: self.queued_records(),
            queued_bytes: count(&self.queued_bytes),
        }
    }
}
