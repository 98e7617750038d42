//! Who gets which launches, with names from a table.

use super::*;
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::Comm;
use gpucause_abi::{Nanos, Tgid};
use proptest::prelude::*;

/// Handles below 1000 are functions of the host; from 2000 on nothing is known.
#[derive(Debug, Default)]
struct Table {
    handles: HashMap<u64, HandleName>,
    out_of_reach: bool,
    asked: usize,
}

impl NameSource for Table {
    fn handle_name(&mut self, _: ProcId, handle: u64) -> Option<HandleName> {
        self.handles.get(&handle).cloned()
    }

    fn function_names(
        &mut self,
        _: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        self.asked += addresses.len();
        if self.out_of_reach {
            return BTreeMap::new();
        }
        let name = |at: u64| (at < 1000).then(|| Arc::from(format!("k{at}").as_bytes()));
        addresses.iter().map(|&at| (at, name(at))).collect()
    }
}

impl Table {
    fn set(&mut self, handle: u64, name: &str) {
        self.handles.insert(handle, HandleName::Text(name.as_bytes().into()));
    }
}

fn process(kernels: &[(u64, u64)]) -> ProcessSnapshot {
    let comm = Comm([b'x'; COMM_LEN]);
    ProcessSnapshot { kernels: kernels.to_vec(), ..ProcessSnapshot::new(ProcId(1), Tgid(1), comm) }
}

fn sample(names: &mut KernelNames, table: &mut Table, process: &ProcessSnapshot) -> KernelLaunches {
    let processes = std::slice::from_ref(process);
    names.update(processes, table);
    names.launches(processes).remove(&ProcId(1)).unwrap()
}

fn shown(launches: &KernelLaunches) -> Vec<(&str, u64)> {
    launches.by_name.iter().map(|(name, count)| (&**name, *count)).collect()
}

#[test]
fn host_functions_and_handles_by_name_are_tracked_individually() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.set(1001, "_Z4axpyPf");
    table.handles.insert(1002, HandleName::SameAs(1001));
    table.handles.insert(1003, HandleName::SameAs(7));
    let all = [(5, 3), (7, 10), (1001, 20), (1002, 5), (1003, 1), (3000, 4)];
    let launches = sample(&mut names, &mut table, &process(&all));
    assert_eq!(shown(&launches), [("axpy", 25), ("k7", 11), ("k5", 3)]);
    assert_eq!((launches.unknown, launches.other, launches.total), (4, 0, 43));
    sample(&mut names, &mut table, &process(&all));
    assert_eq!(table.asked, 4, "functions are resolved once");
}

#[test]
fn handles_that_stand_for_one_another_have_no_name() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.handles.insert(3001, HandleName::SameAs(3002));
    table.handles.insert(3002, HandleName::SameAs(3001));
    assert_eq!(sample(&mut names, &mut table, &process(&[(3001, 9)])).unknown, 9);
}

#[test]
fn a_reused_handle_counts_for_its_new_kernel_from_then_on() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.set(1001, "old");
    sample(&mut names, &mut table, &process(&[(1001, 10)]));
    table.set(1001, "new");
    let launches = sample(&mut names, &mut table, &process(&[(1001, 13)]));
    assert_eq!(shown(&launches), [("old", 10), ("new", 3)]);
}

#[test]
fn what_a_process_out_of_reach_launched_has_no_name_until_it_is_within_reach() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.out_of_reach = true;
    assert_eq!(sample(&mut names, &mut table, &process(&[(5, 3)])).unknown, 3);
    table.out_of_reach = false;
    let launches = sample(&mut names, &mut table, &process(&[(5, 10)]));
    assert_eq!((shown(&launches), launches.unknown), (vec![("k5", 7)], 3));
}

#[test]
fn names_beyond_the_limit_are_aggregated_into_other_and_counted() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let many: Vec<_> = (1..=15).map(|n| (n, n)).collect();
    let mut process = process(&many);
    process.measures.other_launches = 100;
    let launches = sample(&mut names, &mut table, &process);
    assert_eq!(launches.by_name.len(), LIMIT);
    assert_eq!((launches.unknown, launches.other), (0, 100 + 1 + 2 + 3 + 4 + 5));
    assert_eq!(names.aggregated(), 5);
    names.update(&[], &mut table);
    assert_eq!(names.aggregated(), 5, "they stay counted when the process is gone");
}

#[test]
fn a_name_gives_way_only_to_one_with_twice_its_launches() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let mut kernels: Vec<_> = (1..=10).map(|n| (n, 100)).collect();
    sample(&mut names, &mut table, &process(&kernels));
    kernels.push((11, 200));
    let launches = sample(&mut names, &mut table, &process(&kernels));
    assert_eq!((launches.other, launches.by_name.len()), (200, 10));
    kernels[10].1 = 201;
    let launches = sample(&mut names, &mut table, &process(&kernels));
    assert_eq!(launches.other, 200, "the new launch is exported by name");
    assert!(shown(&launches).contains(&("k11", 1)), "{launches:?}");
}

#[test]
fn the_most_launched_kernels_with_names_are_timed_while_the_process_lives() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let mut process = process(&[(1, HOT - 1), (2, HOT), (3, HOT + 1), (3000, 9 * HOT)]);
    sample(&mut names, &mut table, &process);
    let chosen = |names: &KernelNames, process: &ProcessSnapshot| -> Vec<u64> {
        let untimed = names.untimed(std::slice::from_ref(process));
        untimed.into_iter().map(|(_, handle, _)| handle).collect()
    };
    assert_eq!(chosen(&names, &process), [3, 2]);
    names.timed(ProcId(1), 3, "k3".into());
    assert_eq!(chosen(&names, &process), [2]);
    process.launch_times =
        vec![(3, Histogram { sum: Nanos(5), max: Nanos(5), slots: vec![(5, 1)].into() })];
    let launches = sample(&mut names, &mut table, &process);
    assert_eq!(launches.times.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["k3"]);
    process.ended = Some(Nanos(1));
    assert_eq!(chosen(&names, &process), [0; 0]);
}

#[test]
fn a_reused_handle_is_timed_again() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.set(1001, "old");
    let mut process = process(&[(1001, HOT)]);
    sample(&mut names, &mut table, &process);
    names.timed(ProcId(1), 1001, "old".into());
    table.set(1001, "new");
    process.kernels[0].1 += 1;
    process.launch_times = vec![(1001, Histogram::default())];
    let launches = sample(&mut names, &mut table, &process);
    assert_eq!(launches.times, [], "what was timed was the old kernel");
    assert_eq!(names.untimed(&[process]), [(ProcId(1), 1001, "new".into())]);
}

#[test]
fn times_of_a_name_do_not_decrease_when_one_of_its_handles_is_reused() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    table.set(1001, "old");
    table.set(1002, "old");
    let mut process = process(&[(1001, HOT), (1002, HOT)]);
    sample(&mut names, &mut table, &process);
    names.timed(ProcId(1), 1001, "old".into());
    names.timed(ProcId(1), 1002, "old".into());
    let times = |ns: u16| Histogram {
        sum: Nanos(ns.into()),
        max: Nanos(ns.into()),
        slots: vec![(ns, 1)].into(),
    };
    process.launch_times = vec![(1001, times(5)), (1002, times(7))];
    let before = sample(&mut names, &mut table, &process).times;
    assert_eq!(before[0].1.count(), 2);
    table.set(1001, "new");
    process.kernels[0].1 += 1;
    let after = sample(&mut names, &mut table, &process).times;
    assert_eq!(after, before, "nothing is the new kernel's before it is timed");
    names.timed(ProcId(1), 1001, "new".into());
    process.launch_times = vec![(1001, times(3)), (1002, times(7))];
    let later = sample(&mut names, &mut table, &process).times;
    assert_eq!(later, [("new".into(), times(3)), before[0].clone()]);
}

#[test]
fn a_bounded_number_of_kernels_is_remembered_of_a_program_that_makes_no_end_of_them() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let mut kernels = vec![(1001, 0), (1, 0)];
    for made in 0..3 * RANKED {
        table.set(1001, &format!("jit{made}"));
        kernels[0].1 += 1 + made as u64 % 7;
        kernels[1].1 += 1;
        let launches = sample(&mut names, &mut table, &process(&kernels));
        assert!(shown(&launches).contains(&("k1", kernels[1].1)), "{launches:?}");
    }
    let kernels = &names.processes[&ProcId(1)];
    assert!(kernels.named.len() <= RANKED, "{}", kernels.named.len());
    assert!(kernels.exported.len() <= 3 * LIMIT, "{}", kernels.exported.len());
}

#[test]
fn times_of_no_kernel_decrease_however_many_a_handle_becomes() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let mut process = process(&[(1001, HOT)]);
    let mut most: HashMap<Arc<str>, u64> = HashMap::new();
    for turn in 0..6 * LIMIT {
        table.set(1001, &format!("kernel{}", turn % (2 * LIMIT)));
        process.kernels[0].1 += 1;
        sample(&mut names, &mut table, &process);
        process.launch_times.clear();
        for (id, handle, name) in names.untimed(std::slice::from_ref(&process)) {
            names.timed(id, handle, name);
            let times = Histogram { sum: Nanos(5), max: Nanos(5), slots: vec![(5, 1)].into() };
            process.launch_times = vec![(handle, times)];
        }
        let times = sample(&mut names, &mut table, &process).times;
        assert!(times.len() <= 2 * LIMIT);
        let now: HashMap<_, _> =
            times.into_iter().map(|(name, times)| (name, times.count())).collect();
        for (name, before) in &most {
            assert!(now.get(name) >= Some(before), "{name} at {turn}: {now:?}");
        }
        most = now;
    }
    assert!(most.len() >= LIMIT, "{most:?}");
}

#[test]
fn no_more_kernels_are_timed_than_names_are_exported() {
    let (mut names, mut table) = (KernelNames::default(), Table::default());
    let many: Vec<_> = (1..=30).map(|n| (n, HOT + n)).collect();
    let process = process(&many);
    sample(&mut names, &mut table, &process);
    let chosen = names.untimed(std::slice::from_ref(&process));
    assert_eq!(chosen.len(), LIMIT);
    for (id, handle, name) in chosen {
        names.timed(id, handle, name);
    }
    assert_eq!(names.untimed(&[process]), []);
}

proptest! {
    #[test]
    fn every_launch_is_counted_once_and_no_counter_decreases(
        steps in prop::collection::vec((0u64..40, 1u64..1000, 0u64..3), 1..80)
    ) {
        let (mut names, mut table) = (KernelNames::default(), Table::default());
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut other_launches = 0;
        let mut last = KernelLaunches::default();
        let mut highest: HashMap<Arc<str>, u64> = HashMap::new();
        for (handle, launches, lost) in steps {
            // A third of them has no name.
            *counts.entry(handle + (handle % 3) * 1000).or_default() += launches;
            other_launches += lost;
            let kernels: Vec<_> = counts.iter().map(|(&h, &n)| (h, n)).collect();
            let mut process = process(&kernels);
            process.measures.other_launches = other_launches;
            let launches = sample(&mut names, &mut table, &process);
            prop_assert!(launches.by_name.len() <= LIMIT);
            prop_assert_eq!(launches.total, process.kernel_launches());
            let sum = |l: &KernelLaunches| {
                l.unknown + l.other + l.by_name.iter().map(|(_, n)| n).sum::<u64>()
            };
            prop_assert!(launches.unknown >= last.unknown && launches.other >= last.other);
            for (name, count) in &launches.by_name {
                let before = highest.insert(Arc::clone(name), *count).unwrap_or(0);
                prop_assert!(*count >= before, "{}", name);
            }
            let hidden: u64 = highest
                .iter()
                .filter(|(name, _)| launches.by_name.iter().all(|(shown, _)| shown != *name))
                .map(|(_, count)| count)
                .sum();
            prop_assert_eq!(sum(&launches) + hidden, launches.total);
            last = launches;
        }
    }
}
