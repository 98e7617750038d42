//! Reports of live threads, time accounts of dispatcher threads, and what threads waited for.

use std::collections::BTreeMap;
use std::io::Read as _;

use gpucause_abi::op::OpId;
use gpucause_abi::record::{
    AccountRecord, BlameKey, BlameRecord, FAULTS, FrameRecord, LINK_CLOSED, ProcRecord,
    ThreadRecord, ThreadReport,
};
use gpucause_abi::snapshot::{Comm, DispatcherSnapshot, ProcessSnapshot, TimeAccount, Wait};
use gpucause_abi::state::{LockKind, Phase, Reason, Relation, Role};
use gpucause_abi::{Nanos, Syscall, Tgid, Tid};
use libbpf_rs::Iter;

use super::{ReadError, Reader, decode, failed};
use crate::host_clock::monotonic_now;
use crate::thread_report::{settle, time_account};

/// Most retries: accounts are read again when a thread ended meanwhile, since it could be missing or counted twice.
const TRIES: usize = 5;

/// Flushes begun and done, by process.
pub(super) type Flushes = BTreeMap<u32, (u32, u32)>;

impl Reader {
    /// Fills in wait counterparts; returns the entries of the map.
    pub(super) fn read_blame(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let entries = self.blame.each(|key: BlameKey, record: BlameRecord| {
            if let (Some(process), Some(wait)) =
                (processes.get_mut(&key.proc_id), wait_of(&key, &record))
            {
                process.waits.push(wait);
            }
        })?;
        for process in processes.values_mut() {
            process.waits.sort_unstable_by_key(|wait| {
                (
                    std::cmp::Reverse(wait.total),
                    wait.reason,
                    wait.phase,
                    wait.on,
                    wait.tid,
                    wait.holder,
                    wait.lock,
                    wait.syscall,
                )
            });
        }
        Ok(entries)
    }

    /// Fills in time accounts; returns the number of entries of ended threads.
    pub(super) fn read_accounts(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
        mut before: Flushes,
    ) -> Result<u64, ReadError> {
        for attempt in 1..=TRIES {
            let ended = self.ended_accounts()?;
            let began = monotonic_now();
            let live = self.live_reports()?;
            let settled = |(begun, done)| begun == done;
            let after = self.flushes()?;
            if attempt < TRIES && (!before.values().copied().all(settled) || before != after) {
                before = after;
                continue;
            }
            if let Some(live) = &live {
                let reported = live.iter().map(|report| report.proc_id).collect();
                self.end_unseen(processes, &reported, began);
            }
            let entries = ended.len() as u64;
            for (id, account) in ended {
                if let Some(process) = processes.get_mut(&id) {
                    process.dispatcher_time.merge(&account);
                }
            }
            for report in live.unwrap_or_default() {
                let Some(process) = processes.get_mut(&report.proc_id) else { continue };
                if process.ended.is_none() {
                    add_faults(process, report.faults);
                }
                match report.thread {
                    Some((Role::Dispatcher, thread)) => {
                        process.dispatcher_time.merge(&thread.time);
                        if process.dispatchers.is_empty() {
                            // Most have one; the vector would allocate four.
                            process.dispatchers.reserve_exact(1);
                        }
                        process.dispatchers.push(thread);
                    }
                    Some((_, thread)) => process.worker = Some(Box::new(thread)),
                    None => {}
                }
            }
            return Ok(entries);
        }
        Ok(0)
    }

    fn flushes(&self) -> Result<Flushes, ReadError> {
        let mut flushes = Flushes::new();
        self.procs.each(|id: u32, record: ProcRecord| {
            flushes.insert(id, (record.flushes_begun, record.flushes_done));
        })?;
        Ok(flushes)
    }

    fn ended_accounts(&self) -> Result<Vec<(u32, TimeAccount)>, ReadError> {
        let mut accounts = Vec::new();
        self.accounts.each(|id: u32, account: AccountRecord| {
            accounts.push((id, time_account(&account)));
        })?;
        Ok(accounts)
    }

    /// State of each link, by id.
    fn link_states(&self) -> Result<Vec<u8>, ReadError> {
        Ok(self.links.lookup(&0u32.to_ne_bytes())?.unwrap_or_default())
    }

    /// `None` without the iterator.
    #[expect(clippy::significant_drop_tightening, reason = "the link must stay while it is read")]
    fn live_reports(&self) -> Result<Option<Vec<Report>>, ReadError> {
        let link = self.reports.lock();
        let Some(link) = &*link else { return Ok(None) };
        let mut bytes = Vec::new();
        Iter::new(link)
            .map_err(failed(REPORTS))?
            .read_to_end(&mut bytes)
            .map_err(ReadError::Reports)?;
        reports_in(&bytes, &self.link_states()?).map(Some)
    }
}

/// Suffix of the name of the map of link states.
pub(super) const LINKS: &str = ".data.links";
const REPORTS: &str = "report_threads";

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], ReadError> {
    bytes.split_off(..length).ok_or(ReadError::Layout(REPORTS))
}

/// The report of a live thread.
struct Report {
    proc_id: u32,
    faults: [u64; FAULTS],
    thread: Option<(Role, DispatcherSnapshot)>,
}

fn reports_in(mut bytes: &[u8], links: &[u8]) -> Result<Vec<Report>, ReadError> {
    let mut reports = Vec::new();
    while !bytes.is_empty() {
        let head: ThreadReport = decode(REPORTS, take(&mut bytes, size_of::<ThreadReport>())?)?;
        let mut thread = None;
        if head.has_record != 0 {
            let mut record: ThreadRecord =
                decode(REPORTS, take(&mut bytes, size_of::<ThreadRecord>())?)?;
            if head.frees_memory == 0 {
                // The end of that was not seen, as when probes were detached.
                record.reclaim_since_ns = 0;
            }
            thread = Some(thread_of(&head, &record, links));
        }
        reports.push(Report { proc_id: head.proc_id, faults: head.faults, thread });
    }
    Ok(reports)
}

/// Returns true if the return probes of a call were detached since it began.
fn is_truncated(frame: &FrameRecord, links: &[u8]) -> bool {
    links.get(usize::from(frame.link)) == Some(&LINK_CLOSED)
}

fn thread_of(
    report: &ThreadReport,
    thread: &ThreadRecord,
    links: &[u8],
) -> (Role, DispatcherSnapshot) {
    let (time, wall) = settle(report.now_ns, thread);
    let outermost =
        thread.frames.first().filter(|frame| thread.depth > 0 && !is_truncated(frame, links));
    let inflight = outermost
        .map(|frame| (OpId(frame.op), Nanos(report.now_ns.saturating_sub(frame.start_ns))));
    let role = u8::try_from(thread.role).ok().and_then(Role::from_raw).unwrap_or(Role::Helper);
    (role, DispatcherSnapshot { tid: Tid(report.tid), wall, time, inflight })
}

fn add_faults(process: &mut ProcessSnapshot, faults: [u64; FAULTS]) {
    let sum = process.host.page_faults.get_or_insert_default();
    for (sum, faults) in sum.iter_mut().zip(faults) {
        *sum += faults;
    }
}

/// `None` for an entry from a newer source tree.
fn wait_of(key: &BlameKey, record: &BlameRecord) -> Option<Wait> {
    let reason = Reason::from_raw(u8::try_from(key.reason).ok()?)?;
    let syscall = (reason == Reason::Other).then(|| key.by_tid.checked_sub(1)).flatten();
    Some(Wait {
        tid: (key.tid != 0).then_some(Tid(key.tid)),
        reason,
        phase: Phase::from_raw(key.phase)?,
        on: Comm(key.comm),
        total: Nanos(record.total_ns),
        held: Nanos(record.held_ns),
        behind: Nanos(record.behind_ns),
        holder: (key.by_tid != 0 && reason != Reason::Other).then_some(Tid(key.by_tid)),
        lock: key.lock.checked_sub(1).and_then(LockKind::from_raw),
        syscall: syscall.and_then(|number| Syscall::from_number(number as usize)),
        tgid: (record.tgid != 0).then_some(Tgid(record.tgid)),
        relation: Relation::from_raw(u8::try_from(record.relation).ok()?)?,
    })
}
