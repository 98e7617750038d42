use gpucause_engine::activity::{Activities, Activity};
use gpucause_engine::chain::{Cause, Chain, Course, Effect, Evidence, Severity, Victim};
use gpucause_engine::observation::Period;

use super::view::{ROWS, Sort};
use super::*;
use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::snapshot::{Comm, TimeAccount};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, ProcId, Tgid};

const SECOND: u64 = 1_000_000_000;

fn activity(pid: u32, name: &[u8], lost: u64) -> Activity {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    let mut time = TimeAccount::default();
    time.0[Phase::Host as usize][State::Running.index()] = Nanos(8 * SECOND - lost);
    time.0[Phase::Launch as usize][State::Off(Reason::Preempted).index()] = Nanos(lost);
    let slot = |value| u16::try_from(slot_of(Nanos(value))).unwrap();
    let warm = Histogram {
        sum: Nanos(10_000_000),
        max: Nanos(4_000_000),
        slots: [(slot(10_000), 97), (slot(4_000_000), 3)].into_iter().collect(),
    };
    Activity {
        id: ProcId(pid),
        pid: Tgid(pid),
        comm: Comm(comm),
        has_ended: false,
        span: Nanos(8 * SECOND),
        launches: 1_000,
        unobserved: Nanos(0),
        timed: 1_000,
        warm,
        time,
    }
}

fn body(processes: Vec<Activity>, live: u64) -> Body {
    let activities = Activities { window: (Nanos(0), Nanos(8 * SECOND)), processes };
    let processes = Processes::of(Some(&activities), Some(live));
    Body { processes, now: 1_700_000_000.0, ..Body::default() }
}

fn rendered(body: Result<&Body, Hidden<'_>>, query: &str) -> String {
    rendered_of(None, body, query)
}

fn rendered_of(file: Option<&str>, body: Result<&Body, Hidden<'_>>, query: &str) -> String {
    let observation = Period::attached(1_699_999_000.0).into();
    let head = Head { node: "gpu-1", file, telemetry_path: "/metrics", observation: &observation };
    page(&head, body, &View::of(query))
}

fn chain(cause: Cause, lost_seconds: f64) -> Chain {
    Chain {
        id: format!("{cause}"),
        cause,
        effect: Effect::LaunchTail,
        severity: Severity::High,
        victim: Victim { pid: 7, tid: 7, comm: "train".into(), ..Victim::default() },
        culprit: None,
        explained: 1.0,
        lost_seconds,
        evidence: Evidence::default(),
        path: Vec::new(),
        sentence: String::new(),
        fix: String::new(),
        first_seen: 1_699_999_990.0,
        last_seen: 1_700_000_000.0,
        losses: Vec::new(),
        ongoing: Some(true),
        code: Vec::new(),
        course: Course::default(),
    }
}

#[test]
fn a_row_has_the_numbers_of_the_api_and_the_same_in_units_of_people() {
    let body = body(vec![activity(7, b"train", 2 * SECOND)], 1);
    let row = &body.processes.processes[0];
    let json = serde_json::to_value(&body.processes).unwrap();
    let api = &json["processes"][0];
    assert_eq!((api["lost_seconds"].as_f64(), api["lost_share"].as_f64()), (Some(2.0), Some(0.25)));
    assert_eq!(api["parts"]["no_cpu"].as_f64(), Some(2.0));
    let parts = api["parts"].as_object().unwrap().values().filter_map(serde_json::Value::as_f64);
    assert_eq!(Some(parts.sum::<f64>()), api["dispatcher_seconds"].as_f64());
    let page = rendered(Ok(&body), "");
    for expected in [
        format!("<data class=\"rate\" value=\"{}\">125</data>", row.launches_per_second),
        format!("<data class=\"p50\" value=\"{}\">10.2 us</data>", row.p50_seconds.unwrap()),
        format!("<data class=\"p99\" value=\"{}\">4.0 ms</data>", row.p99_seconds.unwrap()),
        format!("<data class=\"spread\" value=\"{}\">", row.spread.unwrap()),
        "<data class=\"lost\" value=\"2\">2.00 s (25 %)</data>".to_owned(),
        "aria-label=\"host code 75 %, no CPU 25 %\"".to_owned(),
    ] {
        assert!(page.contains(&expected), "{expected} is not in {page}");
    }
}

#[test]
fn a_sample_is_marked_beside_its_numbers() {
    let sampled = Activity { timed: 16, ..activity(7, b"train", SECOND) };
    let body = body(vec![sampled], 1);
    assert_eq!(body.processes.processes[0].timed_share, Some(0.016));
    let page = rendered(Ok(&body), "");
    for class in ["p50", "p99", "spread"] {
        let number = page.split(&format!("<data class=\"{class}\"")).nth(1).unwrap();
        let number = number.split("</data>").next().unwrap();
        assert!(number.ends_with(" <small>of the 1.6 % timed</small>"), "{class}: {number}");
    }
    let body = self::body(vec![activity(7, b"train", SECOND)], 1);
    assert!(!rendered(Ok(&body), "").contains(" timed</small>"));
}

#[test]
fn of_events_only_the_page_says_that_it_does_not_know_where_time_went() {
    let mut own = activity(7, b"train", 0);
    own.time = TimeAccount::default();
    let mut body = body(vec![own], 1);
    body.timeline = vec![TimelinePoint {
        at: 1_700_000_000.0,
        seconds: 8.0,
        launches: 0,
        dispatcher_seconds: 0.0,
        lost_seconds: 0.0,
        chains: 0,
        worst: None,
    }];
    body.processes.events_only = true;
    let page = rendered(Ok(&body), "");
    assert!(page.contains("no accounts: launches are only those that were recorded"), "{page}");
    assert!(page.contains("no accounts: its events have no curve"), "{page}");
    for unknown in ["<data class=\"lost\"", "at most 0.0 %", "at most 0 launches/s"] {
        assert!(!page.contains(unknown), "{unknown}: {page}");
    }
}

#[test]
fn names_of_processes_are_text() {
    let mut body = body(vec![activity(7, b"<script>x</scri", 0)], 1);
    body.problem = Some(Problem { at: 0.0, what: "<img src=x>".into() });
    let name = "<b>\"flight'.db".to_owned();
    body.flights = Some(vec![FlightFile { name, bytes: 1, written: 0.0 }]);
    let page = rendered(Ok(&body), "find=%3Cscript%3E%22");
    assert_eq!(page.matches("<script").count(), 1, "only the page's own: {page}");
    assert!(page.contains("value=\"&lt;script&gt;&quot;\"") && !page.contains("<img"), "{page}");
    assert!(page.contains("&lt;b&gt;&quot;flight&#39;.db") && !page.contains("<b>"), "{page}");
    assert!(rendered(Ok(&body), "").contains("&lt;script&gt;x&lt;/scri"));
}

#[test]
fn the_page_needs_no_inline_script_or_style() {
    let mut body = body(vec![activity(7, b"train", SECOND)], 1);
    let point = |at| TimelinePoint {
        at,
        seconds: 1.5,
        launches: 10,
        dispatcher_seconds: 1.0,
        lost_seconds: 0.5,
        chains: 1,
        worst: Some(Severity::High),
    };
    body.timeline = vec![point(1_699_999_900.0), point(1_699_999_990.0)];
    let page = rendered(Ok(&body), "");
    assert!(page.contains("at most 50 %"), "{page}");
    assert!(page.contains("In a gap no process made CUDA calls, or probes were"), "{page}");
    for forbidden in [" style=", "<style", " onclick=", "javascript:", "http://", "https://"] {
        assert!(!page.contains(forbidden), "{forbidden} is in {page}");
    }
}

#[test]
fn those_who_may_not_read_chains_see_no_process() {
    let refused = rendered(Err(Hidden::NoCredentials(Some("/run/gpucause/9400.token"))), "");
    assert!(refused.contains("<a href=\"/login\">") && refused.contains("9400.token"), "{refused}");
    assert!(refused.contains("attached since") && !refused.contains("process-table"), "{refused}");
    let elsewhere = rendered(Err(Hidden::OtherSite), "");
    assert!(elsewhere.contains("data-mode=\"again\"") && !elsewhere.contains("process-table"));
}

#[test]
fn of_a_thousand_processes_a_page_has_fifty_and_all_can_be_reached() {
    let all: Vec<_> =
        (1..=1_000).map(|pid| activity(pid, b"rank", u64::from(pid) * 1_000_000)).collect();
    let body = body(all, 1_200);
    let pids = |query: &str| {
        let page = rendered(Ok(&body), query);
        let rows = page.split("<tr data-pid=\"").skip(1);
        rows.map(|row| row.split('"').next().unwrap().parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!((pids("").len(), pids("")[0]), (ROWS, 1_000), "the most lost first");
    let mut seen: Vec<_> =
        (1..=20).flat_map(|page| pids(&format!("sort=pid&page={page}"))).collect();
    assert_eq!(seen, (1..=1_000).collect::<Vec<_>>());
    seen = pids("page=99");
    assert_eq!(seen.last(), Some(&1), "a page past the end is the last");
    assert_eq!(pids("find=777"), [777]);
    let page = rendered(Ok(&body), "page=2");
    assert!(page.contains("Page 2 of 20") && page.contains("200 more are aggregated"), "{page}");
    assert!(page.len() < 100 << 10, "{} bytes", page.len());
}

#[test]
fn a_choice_survives_its_own_link_and_nonsense_is_left_out() {
    let view = View { sort: Sort::P99, page: 3, find: "a b&c=\u{fc}\"".into() };
    let href = view.href();
    assert_eq!(View::of(href.strip_prefix("/?").unwrap()), view);
    assert_eq!(View::of("sort=x&page=-1&find=%zz&what"), View::default());
    assert_eq!(View::of(&format!("find={}", "x".repeat(1_000))).find.len(), 64);
}

#[test]
fn all_causes_of_a_process_are_in_its_row_the_worst_first() {
    let mut body = body(vec![activity(7, b"train", SECOND)], 1);
    body.chains = vec![chain(Cause::ImplicitSync, 1.0), chain(Cause::CpuPreemption, 2.0)];
    let page = rendered(Ok(&body), "");
    let row = "<td><a id=\"cause-7\" href=\"#chain-cpu_preemption\">cpu_preemption</a>, \
               <a id=\"cause-7-1\" href=\"#chain-implicit_sync\">implicit_sync</a></td>";
    assert!(page.contains(row), "{page}");
    assert!(page.contains("<dt>Culprit</dt><dd>the program itself</dd>"), "{page}");
}

#[test]
fn an_ongoing_chain_is_as_severe_as_it_is_now_and_in_a_file_as_it_was_at_worst() {
    let mut spike = chain(Cause::BlockIo, 2.0);
    spike.course.severity_at = Some(1_699_999_995.0);
    spike.course.last_severity = Some(Severity::Medium);
    let body = Body { chains: vec![spike], ..body(vec![activity(7, b"train", SECOND)], 1) };
    let live = rendered(Ok(&body), "");
    for part in ["worst <span class=\"badge medium\">", "(high at 2023-11-14 22:13:15 UTC)"] {
        assert!(live.contains(part), "{part} is not in {live}");
    }
    let file = rendered_of(Some("a.db"), Ok(&body), "");
    for part in ["worst <span class=\"badge high\">", "(at 2023-11-14 22:13:15 UTC, last medium)"] {
        assert!(file.contains(part), "{part} is not in {file}");
    }
}
