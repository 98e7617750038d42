//! Chains of groups of processes: those of members that are gone count on in their group.

use std::collections::{HashMap, HashSet};

use gpucause_abi::ProcId;
use gpucause_engine::{ChainCount, Findings, Stall};

use crate::observation::Group;

/// Chains of one process, or of the former members of one group.
#[derive(Debug, Default)]
struct Own {
    counts: Vec<ChainCount>,
    stalls: Vec<Stall>,
}

/// Chains by process or group, kept from one observation to the next.
#[derive(Debug, Default)]
pub(crate) struct FindingsByGroup {
    last: HashMap<ProcId, Own>,
    former: HashMap<ProcId, Own>,
}

impl FindingsByGroup {
    /// Adds the chains of former members to the findings, under the ids of their groups. `left` are the members that are gone since the
    /// last call, each with its group.
    pub(crate) fn update(
        &mut self,
        groups: &[Group],
        left: &[(ProcId, ProcId)],
        findings: &mut Findings,
    ) {
        let mut last = std::mem::replace(&mut self.last, of_members(groups, findings));
        // An evaluation may have counted more since.
        let mut newest = of_processes(left.iter().map(|(process, _)| *process), findings);
        for (process, group) in left {
            if let Some(own) = newest.remove(process).or_else(|| last.remove(process)) {
                self.former.entry(*group).or_default().add(*group, own);
            }
        }
        let groups: HashSet<ProcId> = groups.iter().map(|group| group.id).collect();
        self.former.retain(|group, _| groups.contains(group));
        for own in self.former.values() {
            findings.counts.extend(own.counts.iter().cloned());
            findings.stalls.extend(own.stalls.iter().cloned());
        }
    }
}

impl Own {
    /// Adds the chains of a process to those of its group.
    fn add(&mut self, group: ProcId, process: Self) {
        for count in process.counts {
            let of = |own: &&mut ChainCount| {
                (own.cause, own.effect, own.severity) == (count.cause, count.effect, count.severity)
            };
            match self.counts.iter_mut().find(of) {
                Some(own) => own.count += count.count,
                None => self.counts.push(ChainCount { process: group, ..count }),
            }
        }
        for stall in process.stalls {
            match self.stalls.iter_mut().find(|own| own.cause == stall.cause) {
                Some(own) => {
                    own.attributed.0 += stall.attributed.0;
                    own.lost.0 += stall.lost.0;
                }
                None => self.stalls.push(Stall { process: group, ..stall }),
            }
        }
    }
}

fn of_members(groups: &[Group], findings: &Findings) -> HashMap<ProcId, Own> {
    of_processes(groups.iter().flat_map(|group| group.members.iter().copied()), findings)
}

/// Chains of these processes; a process without any is not among them.
fn of_processes(
    processes: impl Iterator<Item = ProcId>,
    findings: &Findings,
) -> HashMap<ProcId, Own> {
    let wanted: HashSet<ProcId> = processes.collect();
    let mut found: HashMap<ProcId, Own> = HashMap::new();
    for count in findings.counts.iter().filter(|own| wanted.contains(&own.process)) {
        found.entry(count.process).or_default().counts.push(count.clone());
    }
    for stall in findings.stalls.iter().filter(|own| wanted.contains(&own.process)) {
        found.entry(stall.process).or_default().stalls.push(stall.clone());
    }
    found
}

#[cfg(test)]
mod tests {
    use gpucause_abi::snapshot::{Comm, ProcessSnapshot};
    use gpucause_abi::{Nanos, Tgid};
    use gpucause_engine::chain::{Cause, Effect, Severity};

    use super::*;

    const GROUP: ProcId = ProcId(99);

    fn group(members: &[u32]) -> Group {
        Group {
            id: GROUP,
            pid: "all".into(),
            comm: "server".into(),
            members: members.iter().copied().map(ProcId).collect(),
            former: ProcessSnapshot::new(GROUP, Tgid(1), Comm([0; 16])),
            since: Nanos(0),
        }
    }

    fn findings(of: &[(u32, u64)]) -> Findings {
        let count = |&(process, count): &(u32, u64)| ChainCount {
            process: ProcId(process),
            cause: Cause::LockWait,
            effect: Effect::LaunchGap,
            severity: Severity::Low,
            count,
            last_id: String::new(),
        };
        let stall = |&(process, seconds): &(u32, u64)| Stall {
            process: ProcId(process),
            cause: Cause::LockWait,
            attributed: Nanos(seconds),
            lost: Nanos(seconds),
            last_id: String::new(),
            last_attributed: Nanos(0),
            last_lost: Nanos(0),
        };
        Findings {
            chains: Vec::new(),
            counts: of.iter().map(count).collect(),
            stalls: of.iter().map(stall).collect(),
        }
    }

    /// Counts and times of the group's former members.
    fn former(findings: &Findings) -> (Vec<u64>, Vec<u64>) {
        let counts = findings.counts.iter().filter(|own| own.process == GROUP);
        let stalls = findings.stalls.iter().filter(|own| own.process == GROUP);
        (counts.map(|own| own.count).collect(), stalls.map(|own| own.lost.0).collect())
    }

    #[test]
    fn chains_of_a_member_that_is_gone_count_on_in_its_group_as_they_were_last_known() {
        let mut by_group = FindingsByGroup::default();
        let mut update = |members: &[u32], left: &[u32], found: &[(u32, u64)]| {
            let mut findings = findings(found);
            let left: Vec<_> = left.iter().map(|&process| (ProcId(process), GROUP)).collect();
            by_group.update(&[group(members)], &left, &mut findings);
            former(&findings)
        };
        assert_eq!(update(&[1, 2, 3], &[], &[(1, 5), (2, 7)]), (vec![], vec![]));
        // The engine does not know the first any more, and counted one more of the second.
        assert_eq!(update(&[3], &[1, 2], &[(2, 8)]), (vec![13], vec![13]));
        assert_eq!(update(&[3], &[], &[(3, 1)]), (vec![13], vec![13]));
        assert_eq!(update(&[], &[3], &[]), (vec![14], vec![14]));
    }

    #[test]
    fn a_group_that_is_gone_has_no_chains() {
        let mut by_group = FindingsByGroup::default();
        by_group.update(&[group(&[1])], &[], &mut findings(&[(1, 5)]));
        let mut gone = findings(&[]);
        by_group.update(&[], &[(ProcId(1), GROUP)], &mut gone);
        assert_eq!(former(&gone), (vec![], vec![]));
        let mut again = findings(&[]);
        by_group.update(&[group(&[2])], &[], &mut again);
        assert_eq!(former(&again), (vec![], vec![]));
    }
}
