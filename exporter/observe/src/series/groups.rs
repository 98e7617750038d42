//! Groups of equal processes, such as inference servers: one series for all of them, also after some ended, so that no counter
//! decreases.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::{Comm, LaunchStep, ProcessSnapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_page::error_name::{LAST_CODE, UNKNOWN_CODE};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::merge::merge_accounts;
use crate::kernel_launches::KernelLaunches;
use crate::observation::{Group, Observation};
use crate::process_details::ProcessDetails;
use crate::wait_names::WaitNames;
use crate::workers::{Owners, is_worker};

/// The `pid` of a group of the processes of one name.
const ALL: &str = "all";
/// Groups have the highest ids, which no process reaches.
const FIRST_ID: u32 = u32::MAX / 2;

/// A label by which processes are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupLabel {
    /// The name of the process.
    Comm,
    /// The GPUs that it uses.
    GpuUuid,
}

impl GroupLabel {
    const ALL: [Self; 2] = [Self::Comm, Self::GpuUuid];

    const fn label(self) -> &'static str {
        match self {
            Self::Comm => "comm",
            Self::GpuUuid => "gpu_uuid",
        }
    }
}

impl FromStr for GroupLabel {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|label| label.label() == text).ok_or(())
    }
}

impl fmt::Display for GroupLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Serialize for GroupLabel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl<'de> Deserialize<'de> for GroupLabel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| {
            serde::de::Error::custom(format!(
                "is {text:?}, and must be comm, or gpu_uuid behind comm"
            ))
        })
    }
}

/// The labels by which processes are grouped: none, `comm`, or `comm` and `gpu_uuid`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GroupLabels(pub Vec<GroupLabel>);

impl<'de> Deserialize<'de> for GroupLabels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A list whose items are all commented out is null.
        let labels = Option::<Vec<GroupLabel>>::deserialize(deserializer)?.unwrap_or_default();
        match &*labels {
            [] | [GroupLabel::Comm] | [GroupLabel::Comm, GroupLabel::GpuUuid] => Ok(Self(labels)),
            _ => {
                let names: Vec<_> = labels.iter().map(|label| label.label()).collect();
                Err(serde::de::Error::custom(format!(
                    "is [{}], and must be [], [comm] or [comm, gpu_uuid]",
                    names.join(", ")
                )))
            }
        }
    }
}

/// Suggests in the log to group processes, once for each executable.
#[derive(Debug, Default)]
pub(crate) struct Suggestions {
    made: HashSet<Arc<str>>,
}

/// Processes of one executable from which on grouping is suggested.
const MANY: usize = 32;

impl Suggestions {
    pub(crate) fn update(&mut self, observation: &Observation) {
        let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
        let processes = observation.snapshot.processes.iter();
        for process in processes.filter(|own| own.dispatches && own.ended.is_none()) {
            if let Some(details) = observation.details.get(&process.id) {
                *counts.entry(&details.exe).or_default() += 1;
            }
        }
        for (exe, processes) in counts {
            if processes > MANY && !exe.is_empty() && self.made.insert(Arc::clone(exe)) {
                tracing::info!(
                    %exe,
                    processes,
                    "many processes of one executable have series each; metrics.group_by: [comm] exports them as one"
                );
            }
        }
    }
}

/// Name, and GPUs where those count.
type Key = (String, Arc<str>);

/// The data of a member so far.
#[derive(Debug, Default)]
struct Member {
    key: Key,
    own: Option<ProcessSnapshot>,
    workers: Option<ProcessSnapshot>,
    kernels: Option<KernelLaunches>,
}

impl Member {
    fn has_ended(&self) -> bool {
        self.own.as_ref().is_some_and(|process| process.ended.is_some())
    }
}

/// The sums of members that are gone.
#[derive(Debug)]
struct Former {
    id: ProcId,
    account: ProcessSnapshot,
    kernels: KernelLaunches,
}

/// State that is kept from one snapshot to the next.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by: Vec<GroupLabel>,
    last: HashMap<ProcId, Member>,
    /// Live members.
    live: HashMap<Key, usize>,
    former: BTreeMap<Key, Former>,
    created: u32,
    waits: WaitNames,
}

impl Groups {
    /// Groups by other labels from now on.
    pub(crate) fn set_by(&mut self, by: &[GroupLabel]) {
        if self.by != by {
            *self = Self { by: by.to_vec(), created: self.created, ..Self::default() };
        }
    }

    /// Returns true if processes are grouped.
    pub(crate) const fn is_active(&self) -> bool {
        !self.by.is_empty()
    }

    /// Returns true if a process was part of a group at the last snapshot.
    pub(crate) fn knows(&self, id: ProcId) -> bool {
        self.last.contains_key(&id)
    }

    /// Returns true if a process had ended at the last snapshot: nothing more will be counted of it.
    pub(crate) fn has_ended(&self, id: ProcId) -> bool {
        self.last.get(&id).is_some_and(Member::has_ended)
    }

    /// Returns true if the group of a process had another live member at the last snapshot, so that it has series also without this one.
    pub(crate) fn has_live_peer(&self, id: ProcId) -> bool {
        self.last.get(&id).is_some_and(|member| {
            let live = self.live.get(&member.key).copied().unwrap_or_default();
            live > usize::from(!member.has_ended())
        })
    }

    /// Forgets a process that no page had, and that is counted elsewhere.
    pub(crate) fn forget(&mut self, id: ProcId) {
        self.last.remove(&id);
    }

    /// Takes the final accounts of a process that is removed.
    pub(crate) fn remove(&mut self, process: ProcessSnapshot) {
        let Some(member) = self.last.get_mut(&process.id) else { return };
        if !member.has_ended()
            && process.ended.is_some()
            && let Some(live) = self.live.get_mut(&member.key)
        {
            *live = live.saturating_sub(1);
        }
        member.own = Some(process);
    }

    /// Adds the groups of its processes to an observation. Returns the processes that are not members any more, with the ids of their
    /// groups.
    pub(crate) fn update(
        &mut self,
        observation: &mut Observation,
        wait_names: usize,
    ) -> Vec<(ProcId, ProcId)> {
        let mut left = Vec::new();
        if !self.is_active() {
            return left;
        }
        let now = self.members(observation);
        let last = std::mem::replace(&mut self.last, now);
        for (id, member) in last {
            if self.last.get(&id).is_none_or(|now| now.key != member.key) {
                left.push((id, self.add_former(member)));
            }
        }
        let mut members: BTreeMap<Key, Vec<ProcId>> = BTreeMap::new();
        self.live.clear();
        for (&id, member) in &self.last {
            members.entry(member.key.clone()).or_default().push(id);
            *self.live.entry(member.key.clone()).or_default() += usize::from(!member.has_ended());
        }
        for (key, ids) in &members {
            let own = ids.iter().filter_map(|id| self.last.get(id)?.own.as_ref());
            let since = own.map(|process| process.first_seen).min().unwrap_or_default();
            self.former(key, since);
        }
        self.former.retain(|key, _| members.contains_key(key));
        let mut groups = Vec::new();
        for (key, mut ids) in members {
            ids.sort_unstable();
            if let Some(former) = self.former.get(&key) {
                groups.push(self.group(key, ids, former, observation));
            }
        }
        self.add_waits(observation, &groups, wait_names);
        observation.groups = groups;
        left
    }

    /// The GPUs by which a process is first known are those of its group for good: in another group its past would count again.
    fn key(&self, process: &ProcessSnapshot, observation: &Observation) -> Key {
        let first = self.last.get(&process.id).map(|member| &member.key.1);
        let first = first.filter(|gpus| !gpus.is_empty());
        let gpus = first.or_else(|| observation.gpu_uuids.get(&process.id)).cloned();
        let gpus = gpus.filter(|_| self.by.contains(&GroupLabel::GpuUuid)).unwrap_or_default();
        let is_by_name = self.by.contains(&GroupLabel::Comm);
        (if is_by_name { process.comm.to_text() } else { String::new() }, gpus)
    }

    fn members(&self, observation: &Observation) -> HashMap<ProcId, Member> {
        let processes = &observation.snapshot.processes;
        let owners = Owners::of(processes);
        let mut members: HashMap<ProcId, Member> = HashMap::new();
        for process in processes.iter().filter(|process| !is_worker(process)) {
            let member = Member {
                key: self.key(process, observation),
                own: Some(process.clone()),
                workers: observation.former_workers.get(&process.id).cloned(),
                kernels: observation.kernels.get(&process.id).cloned(),
            };
            members.insert(process.id, member);
        }
        for worker in processes {
            let member = owners.get(worker.id).and_then(|owner| members.get_mut(&owner));
            match member.map(|member| &mut member.workers) {
                Some(Some(sum)) => merge_accounts(sum, worker),
                Some(none) => *none = Some(worker.clone()),
                None => {}
            }
        }
        members
    }

    /// The sums of a group's former members, from zero where there are none. A group that is new began at `since`; it did so also
    /// when an older process joins it, such as a worker that makes calls.
    fn former(&mut self, key: &Key, since: Nanos) -> &mut Former {
        let created = &mut self.created;
        self.former.entry(key.clone()).or_insert_with(|| {
            *created += 1;
            let id = ProcId(FIRST_ID + *created % FIRST_ID);
            let account = ProcessSnapshot {
                first_seen: since,
                ..ProcessSnapshot::new(id, Tgid(id.0), Comm([0; COMM_LEN]))
            };
            let kernels = KernelLaunches::default();
            Former { id, account, kernels }
        })
    }

    /// Returns the id of the group.
    fn add_former(&mut self, member: Member) -> ProcId {
        let since = member.own.as_ref().map(|own| own.first_seen).unwrap_or_default();
        let former = self.former(&member.key, since);
        for mut account in [member.own, member.workers].into_iter().flatten() {
            collapse(&mut account);
            merge_accounts(&mut former.account, &account);
        }
        if let Some(kernels) = &member.kernels {
            former.kernels.merge(kernels);
        }
        former.id
    }

    fn group(
        &self,
        (comm, gpus): Key,
        members: Vec<ProcId>,
        former: &Former,
        observation: &mut Observation,
    ) -> Group {
        let id = former.id;
        observation.kernels.insert(id, former.kernels.clone());
        let details = members.iter().filter_map(|id| observation.details.get(id));
        if let Some(common) = common(details) {
            observation.details.insert(id, Arc::new(common));
        }
        let mut all_gpus: Vec<&str> = members
            .iter()
            .filter_map(|id| observation.gpu_uuids.get(id))
            .flat_map(|gpus| gpus.split(','))
            .collect();
        all_gpus.sort_unstable();
        all_gpus.dedup();
        if !all_gpus.is_empty() {
            let all = all_gpus.join(",").into();
            observation.gpu_uuids.insert(id, all);
        }
        let pid = if gpus.is_empty() { ALL.into() } else { gpus };
        let comm = if comm.is_empty() { ALL.into() } else { comm.into() };
        let since = former.account.first_seen;
        Group { id, pid, comm, members, former: former.account.clone(), since }
    }

    /// The waits of each group, under its id.
    fn add_waits(&mut self, observation: &mut Observation, groups: &[Group], limit: usize) {
        let last = &self.last;
        let accounts = groups.iter().flat_map(|group| {
            let members = group.members.iter().filter_map(|id| last.get(id));
            let own = members.flat_map(|member| [&member.own, &member.workers]);
            let own = own.flatten().chain([&group.former]);
            own.map(|account| (&group.former, account))
        });
        let waits = self.waits.update(accounts, limit);
        observation.waits.extend(waits);
    }
}

/// Sums of processes that are gone have a bounded size: handles of kernels and threads are theirs alone.
pub(super) fn collapse(account: &mut ProcessSnapshot) {
    // How launches are observed is about those that are still made.
    let launches = &mut account.launches;
    (launches.step, launches.rate) = (LaunchStep::Full, None);
    (launches.without_queries, launches.async_one_in) = (false, 0);
    account.measures.other_launches = account.kernel_launches();
    account.kernels = Vec::new();
    account.launch_times = Vec::new();
    account.dispatchers = Vec::new();
    for wait in &mut account.waits {
        wait.tid = None;
    }
    for (_, code, _) in &mut account.errors {
        *code = if *code > LAST_CODE { UNKNOWN_CODE } else { *code };
    }
}

/// The details that all members share.
fn common<'a>(
    mut details: impl Iterator<Item = &'a Arc<ProcessDetails>>,
) -> Option<ProcessDetails> {
    let mut named = details.next()?.named();
    for other in details {
        let other = other.named();
        named.retain(|detail| other.contains(detail));
    }
    Some(ProcessDetails::of_named(&named))
}

#[cfg(test)]
mod tests;
