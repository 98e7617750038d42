//! How many series a page has at each level, and in each format.

use gpucause::collector::{Collectors, Content, Scope, Selection};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::chain::Cause;
use gpucause_fixture::ops::TRAINING_OPS;
use gpucause_fixture::rank;
use gpucause_observe::observation::{Group, Observation};
use gpucause_page::exposition::classic_buckets::Policy;
use gpucause_page::exposition::{ClassicBuckets, Format};
use gpucause_page::metric::Level;
use std::collections::{BTreeMap, BTreeSet};

/// The formats whose every line is a series.
const TEXTS: [Format; 2] = [Format::Text, Format::OpenMetrics];

/// The text page at a level.
fn page(observation: &Observation, level: Level) -> String {
    page_in(Format::Text, observation, level)
}

fn page_in(format: Format, observation: &Observation, level: Level) -> String {
    let mut page = Vec::new();
    let buckets = ClassicBuckets::of(format, level, Policy::Auto);
    let mut writer = format.writer(level, buckets, &mut page);
    let scope = Scope { selection: Selection::All, level };
    let findings = &rank::findings(observation);
    let content = Content { findings, ..Content::from(observation) };
    Collectors::default().write(content, &scope, &mut writer).unwrap();
    writer.finish().unwrap();
    String::from_utf8(page).unwrap()
}

/// The series of a page.
fn series(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| !line.starts_with('#'))
}

/// The number of series at each level, in the text format that has more.
fn counts(observation: &Observation) -> [usize; 3] {
    Level::ALL.map(|level| {
        let count = |format| series(&page_in(format, observation, level)).count();
        TEXTS.map(count).into_iter().max().unwrap()
    })
}

/// The series of processes on a page.
fn of_processes(page: &str) -> impl Iterator<Item = &str> {
    series(page).filter(|line| line.contains("pid=\""))
}

/// Series by family, for whoever reads that there are too many.
fn by_family<'a>(series: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut families = BTreeMap::new();
    for line in series {
        *families.entry(line.split(['{', ' ']).next().unwrap_or_default()).or_default() += 1;
    }
    families
}

#[test]
fn a_training_rank_of_30_ops_has_at_most_60_200_and_1700_series() {
    assert_eq!(TRAINING_OPS.len(), 30);
    for (what, rank) in [
        ("some of them made by the runtime alone", rank::rank(1)),
        ("all of its own", rank::rank_of_own_calls(1)),
    ] {
        let observation = rank::observation(vec![rank]);
        for (level, limit) in Level::ALL.into_iter().zip([60, 200, 1_700]) {
            for format in TEXTS {
                let page = page_in(format, &observation, level);
                let count = of_processes(&page).count();
                println!("a rank of 30 ops, {what}, at {level} in {format:?}: {count}");
                let families = by_family(of_processes(&page));
                assert!(count <= limit, "{what}: {count} at {level}: {families:#?}");
            }
        }
    }
}

#[test]
fn a_client_of_native_histograms_gets_classic_buckets_only_on_demand() {
    let of = |format, level, policy| ClassicBuckets::of(format, level, policy);
    for level in Level::ALL {
        assert_eq!(of(Format::Protobuf, level, Policy::Auto), ClassicBuckets::None);
    }
    assert_eq!(of(Format::Protobuf, Level::Standard, Policy::Always), ClassicBuckets::Tails);
    assert_eq!(of(Format::OpenMetrics, Level::Standard, Policy::Auto), ClassicBuckets::Tails);
    assert_eq!(of(Format::Text, Level::Full, Policy::Auto), ClassicBuckets::All);
}

#[test]
fn at_standard_only_launches_and_off_cpu_time_of_dispatchers_have_classic_buckets() {
    let page = page(&rank::observation(vec![rank::rank(1)]), Level::Standard);
    let finite = series(&page).filter(|line| line.contains(",le=\"") && !line.contains("+Inf"));
    for line in finite {
        let is_tail = line.starts_with("gpucause_launch_duration_seconds_bucket{")
            || (line.starts_with("gpucause_offcpu_duration_seconds_bucket{")
                && line.contains("role=\"dispatcher\",reason=\"all\""));
        assert!(is_tail, "{line}");
    }
    let of_reasons = page.lines().filter(|line| {
        line.starts_with("gpucause_offcpu_duration_seconds_sum{") && !line.contains("\"all\"")
    });
    assert_eq!(of_reasons.count(), 4, "each reason of the dispatchers has its sum");
}

#[test]
fn a_family_without_classic_buckets_is_a_summary_that_repeats_no_count() {
    let observation = rank::observation(vec![rank::rank(1)]);
    for (format, level) in TEXTS.into_iter().flat_map(|own| Level::ALL.map(|level| (own, level))) {
        let page = page_in(format, &observation, level);
        let types: BTreeMap<&str, &str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let calls = if level == Level::Full { "histogram" } else { "summary" };
        let launches = if level == Level::Fleet { "summary" } else { "histogram" };
        let of = |name| types.get(name).copied();
        assert_eq!(of("gpucause_launch_duration_seconds"), Some(launches), "{format:?} {level}");
        let expected = Some(calls).filter(|_| level > Level::Fleet);
        assert_eq!(of("gpucause_cuda_call_duration_seconds"), expected, "{format:?} {level}");
        for line in series(&page).filter(|line| line.contains("_bucket{")) {
            let (family, _) = line.split_once("_bucket{").unwrap();
            assert_eq!(types[family], "histogram", "{line}");
        }
        let infinite = |line: &&str| line.contains("le=\"+Inf\"");
        for family in types.iter().filter(|(_, kind)| **kind == "histogram").map(|own| own.0) {
            let of = |suffix: &str| {
                let name = format!("{family}{suffix}{{");
                series(&page).filter(move |line| line.starts_with(&name))
            };
            assert_eq!(of("_bucket").filter(infinite).count(), of("_count").count(), "{family}");
        }
    }
}

#[test]
fn each_level_has_every_series_of_the_lower_ones() {
    let observation = rank::observation(vec![rank::rank(1)]);
    let [fleet, standard, full] = Level::ALL.map(|level| page(&observation, level));
    let names = |page: &str| -> BTreeSet<String> {
        let without_value = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
        series(page).map(without_value).collect()
    };
    let missing = |lower: &str, upper: &str| -> Vec<String> {
        names(lower).difference(&names(upper)).cloned().collect()
    };
    assert_eq!(missing(&fleet, &standard), Vec::<String>::new());
    assert_eq!(missing(&standard, &full), Vec::<String>::new());
}

/// Eight ranks with twelve workers each.
fn training_node() -> Observation {
    let ranks: Vec<ProcessSnapshot> = (1..=8).map(rank::rank).collect();
    let workers: Vec<_> = (0..96u32)
        .zip(ranks.iter().cycle())
        .map(|(number, rank)| rank::worker(100 + number, rank))
        .collect();
    rank::observation(ranks.into_iter().chain(workers).collect())
}

#[test]
fn a_node_of_8_ranks_with_96_workers_has_at_most_600_series_at_fleet_and_2000_at_standard() {
    let [fleet, standard, full] = counts(&training_node());
    println!("8 ranks x 30 ops with 96 workers: {fleet}, {standard}, {full}");
    assert!(fleet <= 600 && standard <= 2_000, "{fleet}, {standard}");
}

#[test]
fn workers_have_no_series_and_are_the_worker_role_of_their_rank() {
    let observation = training_node();
    for level in Level::ALL {
        let page = page(&observation, level);
        let pids: BTreeSet<&str> =
            of_processes(&page).filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(pids.len(), 8, "{pids:?}");
    }
    let page = page(&observation, Level::Standard);
    let of_workers = "gpucause_offcpu_duration_seconds_count{pid=\"10001\",comm=\"python\",role=\"worker\",reason=\"all\"} ";
    let count = page.lines().find_map(|line| line.strip_prefix(of_workers));
    let expected = 12 * 5 * 21;
    assert_eq!(count, Some(&*expected.to_string()), "twelve workers, five reasons, 21 intervals");
}

#[test]
fn sixty_four_inference_processes_have_at_most_13000_series_at_standard() {
    let observation = rank::observation((1..=64).map(rank::server).collect());
    let [fleet, standard, full] = counts(&observation);
    println!("64 inference processes: {fleet}, {standard}, {full}");
    assert!(standard <= 13_000, "{standard}");
}

#[test]
fn a_page_of_as_many_ranks_as_the_limits_admit_has_less_than_50000_series() {
    let limits = gpucause::config::Config::default().limits;
    let count = u32::try_from(limits.live_processes + limits.exited_processes).unwrap();
    let observation = rank::observation((1..=count).map(rank::rank).collect());
    let [_, standard, _] = counts(&observation);
    assert!(standard < 50_000, "{standard}");
}

#[test]
fn the_page_says_how_many_series_each_collector_has() {
    let of = "gpucause_scrape_series{collector=\"waits\"} ";
    for (format, level) in TEXTS.into_iter().flat_map(|own| Level::ALL.map(|level| (own, level))) {
        if level == Level::Fleet {
            continue;
        }
        let page = page_in(format, &rank::observation(vec![rank::rank(1)]), level);
        let said = page.lines().find_map(|line| line.strip_prefix(of)).unwrap();
        let waits = ["gpucause_preempted_by_seconds_", "gpucause_blocked_on_seconds_"];
        let own = series(&page).filter(|line| waits.iter().any(|name| line.starts_with(name)));
        assert_eq!(said, own.count().to_string(), "at {level} in {format:?}");
    }
    let page = page(&rank::observation(vec![rank::rank(1)]), Level::Standard);
    let of = "gpucause_scrape_series{collector=\"calls\"} ";
    let said = page.lines().find_map(|line| line.strip_prefix(of)).unwrap();
    let calls =
        series(&page).filter(|line| line.starts_with("gpucause_cuda_call_duration_seconds_"));
    assert_eq!(said, calls.count().to_string());
}

#[test]
fn each_gpu_of_a_process_is_a_series_at_every_level() {
    let mut observation = rank::observation(vec![rank::rank(1)]);
    let uuids: Vec<String> = (0..9).map(|gpu| format!("GPU-{gpu}")).collect();
    observation.gpu_uuids.insert(ProcId(1), uuids.join(",").into());
    for level in Level::ALL {
        let page = page(&observation, level);
        let gpus = page.lines().filter_map(|line| line.strip_prefix("gpucause_process_gpu_info{"));
        let expected =
            uuids.iter().map(|uuid| format!("pid=\"10001\",comm=\"python\",UUID=\"{uuid}\"}} 1"));
        assert_eq!(gpus.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "at {level}");
    }
}

#[test]
fn beginnings_are_series_only_at_the_full_level() {
    let observation = rank::observation(vec![rank::rank(1)]);
    for level in Level::ALL {
        let page = page_in(Format::OpenMetrics, &observation, level);
        let created = series(&page).filter(|line| line.contains("_created{")).count();
        assert_eq!(created > 0, level == Level::Full, "{created} at {level}");
    }
}

#[test]
fn sixty_four_inference_processes_as_one_group_have_at_most_300_series_at_standard() {
    let members: Vec<ProcId> = (1..=64).map(ProcId).collect();
    let servers: Vec<ProcessSnapshot> = (1..=64).map(rank::server).collect();
    let comm = servers[0].comm;
    let mut observation = rank::observation(servers);
    let id = ProcId(u32::MAX);
    let waits = observation.waits[&ProcId(1)].clone();
    observation.waits.insert(id, waits);
    let gpus: BTreeSet<&str> = members.iter().map(|own| &*observation.gpu_uuids[own]).collect();
    let gpus: Vec<&str> = gpus.into_iter().collect();
    assert_eq!(gpus.len(), 8);
    let gpus = gpus.join(",").into();
    observation.gpu_uuids.insert(id, gpus);
    observation.groups = vec![Group {
        id,
        pid: "all".into(),
        comm: comm.to_text().into(),
        members,
        former: ProcessSnapshot::new(id, Tgid(1), comm),
        since: Nanos(0),
    }];
    let [fleet, standard, full] = counts(&observation);
    println!("64 inference processes, grouped: {fleet}, {standard}, {full}");
    assert!(
        standard <= 300,
        "{standard}: {:#?}",
        by_family(series(&page(&observation, Level::Standard)))
    );
    let page = page(&observation, Level::Standard);
    assert_eq!(of_processes(&page).filter(|line| !line.contains("pid=\"all\"")).count(), 0);
    let launches = "gpucause_launches_total{pid=\"all\",comm=\"tritonserver\"} ";
    let count = page.lines().find_map(|line| line.strip_prefix(launches));
    let alone = rank::server(1).launches();
    assert_eq!(count, Some(&*(64 * alone).to_string()), "64 times {alone}");
}

#[test]
fn from_standard_on_the_time_of_each_cause_that_can_have_any_is_there_at_zero() {
    let observation = rank::observation(vec![rank::rank(1)]);
    let causes = |level| -> Vec<String> {
        let page = page(&observation, level);
        let of =
            series(&page).filter(|line| line.starts_with("gpucause_causal_chain_seconds_total{"));
        of.map(|line| line.split('"').nth(5).unwrap().to_owned()).collect()
    };
    let takes_time = Cause::ALL.iter().filter(|cause| cause.takes_time());
    let expected: Vec<&str> = takes_time.map(|cause| cause.label()).collect();
    assert_eq!(causes(Level::Standard), expected);
    assert_eq!(causes(Level::Full), expected);
    assert!(causes(Level::Fleet).len() < expected.len());
}
